# SPDX-License-Identifier: Apache-2.0
"""The report of `lockgate check`: what would run, where, and with which settings. It shows no secret."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any

import yaml

from lockgate.agent.routes import choose_routes
from lockgate.config.access import list_requirements
from lockgate.config.agent_sections import kind_of
from lockgate.config.agent_settings import ModelSettings, SourceSettings
from lockgate.config.endpoint_rules import DEFAULT_RULES, EndpointRules
from lockgate.config.policies import SECTION_TYPES, PolicySettings
from lockgate.config.refs import CHAT_STREAM_PATH
from lockgate.config.schema import options_of
from lockgate.config.settings import (
    PART_GROUPS,
    ChunkerSettings,
    DetectorSettings,
    Secret,
    ServiceSettings,
    Settings,
)
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, WHOLE_TEXT_CHUNKER

V1_STREAMS = "v1 stream and stream-content"
OPENAI_STREAMS = "OpenAI-style streams"
OTHER_STREAMS = f"{OPENAI_STREAMS} and {CHAT_STREAM_PATH}"
MASK = "***"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET_KEY = re.compile(r"(secret|password|passwd|token|api_?key|credentials?|dsn)$", re.IGNORECASE)


Locate = Callable[[str, str], str]
Row = tuple[str, ...]


def render_check(
    settings: Settings,
    locate: Locate | None = None,
    missing: Sequence[str] = (),
    endpoints: Sequence[Row] = (),
    rules: EndpointRules = DEFAULT_RULES,
) -> str:
    """Return the whole report. `locate` returns the package or file of an embedded part."""
    warnings = (*settings.warnings, *list_idle_settings(settings), *missing)
    parts = [
        _render_table("", _list_basics(settings, rules)),
        _render_table("Detectors", _list_detectors(settings, rules)),
        _render_table("Chunkers", _list_chunkers(settings)),
        _render_table("Embedded parts", _list_embedded(settings, locate) if locate else []),
        _render_table("Policies", _list_policies(settings)),
        _render_table("Endpoints", endpoints),
        _render_table("Models", _list_upstreams(settings.models.values())),
        _render_table("Sources", _list_upstreams(settings.sources.values())),
        _render_table("Agents", _list_agents(settings)),
        _render_table("Shared by all agents", _list_agent_parts(settings)),
        _render_table("Services", _list_services(settings)),
        _render_table("Listeners", _list_listeners(settings)),
        _render_table("Callers", _list_callers(settings)),
        _render_table("Who may use what", _list_grants(settings)),
        _render_table("Always in force", _list_required(settings)),
        _render_table("Limits", [(key, f"{value:.15g}") for key, value in _fields(settings.limits)]),
        "All settings\n\n" + render_yaml(settings),
        _render_table("Warnings", [(warning,) for warning in warnings]),
    ]
    return "\n".join(part for part in parts if part)


def render_yaml(settings: Settings) -> str:
    """Return the settings as a config file; secret values are `***`."""
    text = yaml.safe_dump(_to_plain(settings), sort_keys=False, allow_unicode=True, width=120)
    return re.sub(r"(?m)^( +api_token: [^*\n]+)$", rf"\1  # {MASK}", text)


def hash_settings(settings: Settings) -> str:
    """Return a hash that changes with any setting; secrets do not count."""
    return sha256(render_yaml(settings).encode()).hexdigest()


def list_idle_settings(settings: Settings) -> list[str]:
    """Return a warning for each setting that has no effect or that keeps a detector from reporting."""
    server = settings.server
    page, idle = "`server.playground`", []
    if server.allowed_hosts and not (server.playground or server.trace):
        idle.append(("server.allowed_hosts", f"{page} or `server.trace`"))
    if server.samples is not None and not server.playground:
        idle.append(("server.samples", page))
    silent = [name for name, part in settings.detectors.items() if part.default_threshold > 1]
    return [
        *[f"`{name}` has no effect without {others}" for name, others in idle],
        *[f"`detectors.{name}.default_threshold` is above 1, so it reports nothing" for name in silent],
    ]


def describe_streams(settings: Settings, detector: DetectorSettings, rules: EndpointRules = DEFAULT_RULES) -> str:
    """Return in words whether the detector holds text of streams, or reports at their end (D-3)."""
    if detector.type == TEXT_CONTEXT_DOC:
        pace = ", per sentence" if settings.grounding == "hold" else ""
        return f"{settings.grounding}s on {CHAT_STREAM_PATH}{pace}"
    if detector.type != TEXT_CONTENTS:
        return f"trails on {OPENAI_STREAMS}"
    if detector.chunker_id != WHOLE_TEXT_CHUNKER:
        return "holds on every stream"
    later = {"hold": "holds", "trail": "trails", None: "trails"}[settings.whole_document]
    if not rules.allows_whole_text:
        return f"refused on {V1_STREAMS}, {later} on {OTHER_STREAMS}"
    if settings.whole_document is not None:
        return f"{later} on every stream"
    return f"holds on {V1_STREAMS}, {later} on {OTHER_STREAMS}"


def _list_basics(settings: Settings, rules: EndpointRules) -> list[Row]:
    strategy = rules.strategy.value if rules.strategy is not None else settings.release_strategy
    by_endpoint = f"max_processed_index on {V1_STREAMS}, frontier elsewhere"
    return [
        ("settings from", settings.source),
        ("compat", settings.compat),
        ("release strategy", f"{strategy} everywhere" if strategy is not None else by_endpoint),
        ("log", f"{settings.log.format or 'json, or console on a terminal'}, {settings.log.level}"),
        ("data directory", str(settings.data_dir)),
    ]


def _list_detectors(settings: Settings, rules: EndpointRules) -> list[Row]:
    head = ("id", "type", "runs", "chunker", "threshold", "on streams")
    rows = [
        (name, part.type, _describe_part(part), part.chunker_id, f"{part.default_threshold:g}", streams)
        for name, part in settings.detectors.items()
        for streams in [describe_streams(settings, part, rules)]
    ]
    return [head, *rows]


def _list_chunkers(settings: Settings) -> list[Row]:
    users = {
        name: [user for user, detector in settings.detectors.items() if detector.chunker_id == name]
        for name in settings.chunkers
    }
    head = ("id", "runs", "detectors")
    rows = [(name, _describe_part(part), ", ".join(users[name]) or "-") for name, part in settings.chunkers.items()]
    return [head, *rows]


def _list_embedded(settings: Settings, locate: Locate) -> list[Row]:
    used = {part.chunker_id for part in settings.detectors.values()}
    rows = [
        (group, part.embedded)
        for section, group in PART_GROUPS.items()
        for name, part in getattr(settings, section).items()
        if part.embedded and (section != "chunkers" or name in used)
    ]
    if settings.agents and settings.sessions.embedded is not None:
        rows.append(("lockgate.sessions", settings.sessions.embedded))
    return [(name, locate(group, name)) for group, name in dict.fromkeys(rows)]


def _list_policies(settings: Settings) -> list[Row]:
    rows: list[Row] = [("name", "mode", *SECTION_TYPES, "mask with", "lanes", "default of")]
    for name, policy in settings.policies.items():
        words = describe_policy(policy)
        cells = [words.get(section, "-") for section in SECTION_TYPES]
        users = ", ".join(list_users(settings, name)) or "-"
        rows.append((name, words["mode"], *cells, words["mask_with"], words["lanes"], users))
    return rows if settings.policies else []


def describe_policy(policy: PolicySettings) -> dict[str, str]:
    """Return a policy in a few words, for the report and the log: its detectors and their actions."""
    words = {"mode": ("shadow" if policy.is_shadow else "enforce") + (", speculative" if policy.is_speculative else "")}
    for section in SECTION_TYPES:
        readers = []
        for name in getattr(policy, section):
            failing = ", may fail" if policy.passes(section, name) else ""
            readers.append(f"{name} ({policy.action(section, name)}{failing})")
        if readers:
            words[section] = ", ".join(readers)
    return words | {"mask_with": policy.mask_with.value, "lanes": ", ".join(policy.lanes) or "none"}


def list_users(settings: Settings, policy: str) -> list[str]:
    """Return the agents, models and endpoints that have the policy as their default."""
    users = [f"agent {name}" for name, one in settings.agents.items() if one.policy == policy]
    users += [f"model {name}" for name, one in settings.models.items() if one.policy == policy]
    named = settings.openai.policies if settings.openai is not None else {}
    users += [f"openai {name}" for name, one in named.items() if one == policy]
    return users + (["moderations"] if settings.moderation.policy == policy else [])


def _list_upstreams(entries: Iterable[ModelSettings | SourceSettings]) -> list[Row]:
    exposed = {True: "yes", False: "no", None: "as `model` only"}
    rows = [(one.id, kind_of(one), _describe_upstream(one), exposed[one.expose]) for one in entries]
    return [("id", "kind", "where", "exposed"), *rows] if rows else []


def _list_services(settings: Settings) -> list[Row]:
    rows: list[Row] = []
    if (server := settings.generation) is not None:
        rows.append(("generation", server.provider, _describe_service(server.service, "grpc")))
    if settings.openai is not None:
        rows.append(("openai", "", _describe_service(settings.openai.service, "http")))
    return rows


def _list_listeners(settings: Settings) -> list[Row]:
    origins = {True: "configured", False: "default"}
    listeners = [item for item in settings.listeners if item is not None]
    return [(item.name, f"{item.host}:{item.port}", origins[item.is_explicit]) for item in listeners]


def _list_callers(settings: Settings) -> list[Row]:
    head = ("name", "key from", "open at once", "per minute")
    rows = [
        (one.name, one.key_env, str(one.max_streams or "any"), str(one.requests_per_minute or "any"))
        for one in settings.callers.values()
    ]
    return [head, *rows] if rows else []


def _list_grants(settings: Settings) -> list[Row]:
    """Return a row for each caller: what it may name, and what is always in force for it."""
    rows: list[Row] = [
        (one.name, _list_names(one.policies), _list_names(one.models), one.required_policy or "-")
        for one in settings.callers.values()
    ]
    if not rows and settings.policies:
        rows = [("anyone", "any", "any", "-")]
    return [("caller", "may name policies", "may name models", "always in force"), *rows] if rows else []


def _list_names(names: Sequence[str] | None) -> str:
    return "any" if names is None else ", ".join(names) or "none"


def _list_required(settings: Settings) -> list[Row]:
    rows = [(one.place, str(one.policy), "shadow" if settings.policies[one.policy].is_shadow else "enforce")
            for one in list_requirements(settings)]  # fmt: skip
    return [("for", "policy", "mode"), *rows] if rows else []


def _describe_part(part: DetectorSettings | ChunkerSettings) -> str:
    if part.service is None:
        return f"embedded {part.embedded}"
    return _describe_service(part.service, "http" if isinstance(part, DetectorSettings) else "grpc")


def _describe_service(service: ServiceSettings, scheme: str) -> str:
    prefix = f"/{service.path_prefix}" if service.path_prefix else ""
    return f"{scheme}{'s' if service.tls else ''}://{service.hostname}:{service.port}{prefix}"


def _render_table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([title, *lines] if title else [line.strip() for line in lines]) + "\n"


def _fields(part: object) -> Iterable[tuple[str, Any]]:
    return [(key, getattr(part, key)) for key in options_of(type(part))]


def _to_plain(value: object, key: str = "", depth: int = 0) -> Any:
    """Return plain values for YAML, without unset ones below the top; a policy's detectors are all kept."""
    if isinstance(value, PolicySettings):
        return {name: _to_plain(item, name, -1) for name, item in value.as_keys().items()}
    if dataclasses.is_dataclass(value):
        value = dict(_fields(value))
    if isinstance(value, Mapping):
        plain = {name: _to_plain(item, name, depth + 1) for name, item in value.items()}
        return {name: item for name, item in plain.items() if item not in (None, {}) or depth <= 0}
    if isinstance(value, list | tuple):
        return [_to_plain(item, key, depth + 1) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Secret) or (isinstance(value, str) and key != "api_token" and _SECRET_KEY.search(key)):
        return MASK
    return _CREDENTIALS.sub(f"{MASK}@", value) if isinstance(value, str) else value


def _list_agents(settings: Settings) -> list[Row]:
    """Return a row for each agent, with the labels of its routes."""
    rows: list[Row] = [("name", "main", "conversational", "sources", "policy", "routes")]
    for name, agent in settings.agents.items():
        labels = [route.label for route in choose_routes(has_platform=agent.platform_route)]
        sources = ", ".join(agent.sources) or "-"
        rows.append((name, agent.main, agent.conversational, sources, agent.policy or "-", ", ".join(labels)))
    return rows if settings.agents else []


def _list_agent_parts(settings: Settings) -> list[Row]:
    """Return a row for each of the parts that all agents share."""
    if not settings.agents:
        return []
    ollama, classifier, evaluation = settings.embeddings.ollama, settings.classifier, settings.evaluation
    path = classifier.model_path or "the one in the data directory, else the one in the package"
    export = f"labels go to {classifier.export_dir}" if classifier.export_dir is not None else "labels are not written"
    judging = f"judge {evaluation.judge}; questions {evaluation.questions or 'none configured'}"
    return [
        ("sessions", _describe_sessions(settings)),
        ("embeddings", f"ollama {ollama.url} {ollama.model}" if ollama is not None else "embedded"),
        ("classifier", f"{path}; lowest confidence {classifier.confidence_threshold:g}; {export}"),
        ("evaluation", judging if evaluation.judge is not None else "no judge"),
    ]


def _describe_sessions(settings: Settings) -> str:
    """Return where sessions are kept, how long, and which session a request without an id has."""
    sessions = settings.sessions
    days = f"{sessions.retention_days} days" if sessions.retention_days is not None else "without limit"
    default = "one shared session" if sessions.shared_default else "a new session, not kept"
    store = sessions.embedded or f"sqlite {settings.data_dir / (sessions.sqlite or '')}"
    if sessions.postgres is not None:
        store = f"postgres, address from {sessions.postgres.dsn_env}"
    kept = f"{store}, kept {days}, {sessions.max_messages} messages each"
    return f"{kept}; without an id: {default}"


def _describe_upstream(part: ModelSettings | SourceSettings) -> str:
    """Return the address of a model or a source; of a database only the variable that holds it."""
    if part.embedded is not None:
        return part.embedded
    if isinstance(part, ModelSettings):
        server = part.openai or part.ollama
        return f"{server.url} {server.model}" if server is not None else "-"
    if (space := part.syftai_space) is not None:
        return f"{space.url} {space.owner}/{space.slug}" if space.owner else f"{space.url} {space.slug}"
    if (index := part.elasticsearch) is not None:
        return f"{index.url} {index.index}"
    return f"table {part.postgres.table}, address from {part.postgres.dsn_env}" if part.postgres is not None else "-"
