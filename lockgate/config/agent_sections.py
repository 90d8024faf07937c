# SPDX-License-Identifier: Apache-2.0
"""Reads the sections of models, sources, upstreams and agents, and those that agents share. Unknown keys are faults."""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.addresses import check_entry
from lockgate.config.agent_settings import (
    INDEX,
    SESSIONS_FILE,
    AgentSettings,
    ClassifierSettings,
    ElasticsearchSettings,
    EmbeddingSettings,
    EvaluationSettings,
    ModelSettings,
    OpenAIModelSettings,
    PostgresSettings,
    PostgresSourceSettings,
    SessionSettings,
    SourceSettings,
    SpaceSettings,
    UpstreamSettings,
)
from lockgate.config.draft import Draft, build, check_named, read_fields, read_secret
from lockgate.config.kinds import Section, describe_unknown_key
from lockgate.config.schema import Path, options_of

Known = Mapping[str, Collection[str]]

AGENT_SECTIONS = ("agents", "sessions", "embeddings", "classifier", "evaluation")
AGENT_MODEL = "brunix"  # the name of the agent `default` in requests
_BUILT_IN_STORES = ("sqlite", "postgres")  # set by `sessions.<name>`, which keeps secrets out of the file
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_KINDS = {
    ModelSettings: ("openai", "ollama", "embedded"),
    SourceSettings: ("syftai_space", "embedded", "postgres", "elasticsearch"),
}


class _SecretFields(NamedTuple):
    """An endpoint's field that names a variable, the field for that variable's value, and a word for the value."""

    name: str
    value: str
    noun: str


_SECRETS = {
    OpenAIModelSettings: _SecretFields("api_token", "api_token_value", "token"),
    SpaceSettings: _SecretFields("token_env", "token", "token"),
    PostgresSettings: _SecretFields("dsn_env", "dsn", "address"),
    PostgresSourceSettings: _SecretFields("dsn_env", "dsn", "address"),
    ElasticsearchSettings: _SecretFields("api_key_env", "api_key", "key"),
}


def read_models(draft: Draft) -> Mapping[str, ModelSettings | None]:
    """Return the models by id, in the order of the file; a faulty one is None, and its fault is in the draft."""
    models = _read_section(draft, "models", ModelSettings)
    for name in models:
        if "@" in name or "/" in name or name == AGENT_MODEL:
            reason = "requests write `<model>@<policy>`, `agent/<name>`, and `brunix` for the agent `default`"
            draft.add_fault(("models", name), f"cannot be the id of a model: {reason}; choose another id")
    return models


def read_sources(draft: Draft) -> Mapping[str, SourceSettings | None]:
    """Return the data sources by id, in the order of the file; a faulty one is None, and its fault is in the draft."""
    return _read_section(draft, "sources", SourceSettings)


def check_upstreams(draft: Draft, upstreams: UpstreamSettings) -> None:
    """Add a fault for each entry of `upstreams.allow` that is not a host name, address or network."""
    read_known_keys(draft, draft.tree.get("upstreams"), ("upstreams",), UpstreamSettings)
    for number, entry in enumerate(upstreams.allow):
        if fault := check_entry(entry):
            draft.add_fault(("upstreams", "allow", str(number)), fault)


def kind_of(part: ModelSettings | SourceSettings) -> str:
    """Return the kind of an entry: the one of its kinds that is set."""
    return next(kind for kind in _KINDS[type(part)] if getattr(part, kind) is not None)


def _read_section(draft: Draft, section: str, cls: type) -> Mapping[str, Any]:
    entries = draft.read_map(draft.tree.get(section), (section,))
    return MappingProxyType({name: _read_entry(draft, raw, (section, name), cls) for name, raw in entries.items()})


def _read_entry(draft: Draft, value: object, path: Path, cls: type) -> Any:
    if not path[-1]:
        draft.add_fault(path, "needs an id: the key must not be empty")
    raw = read_known_keys(draft, value, path, cls)
    if raw is None:
        return None
    found = read_with_endpoints(draft, cls, raw, path)
    kind = read_kind(draft, raw, path, _KINDS[cls])
    if kind != "embedded" and kind and raw.get("options"):
        draft.warn(f"{'.'.join(path)}.options is ignored: only an `embedded` entry has options")
    return cls(id=path[-1], **found) if found.get(kind) is not None else None


def read_known_keys(draft: Draft, value: object, path: Path, cls: type) -> dict[str, Any] | None:
    """Return the known keys of a map and add a fault for each other key; None when the value is not a map."""
    raw = draft.read_map(value, path)
    known = list(options_of(cls))
    for key in raw:
        if key not in known:
            draft.add_fault((*path, key), describe_unknown_key(key, known))
    return {key: raw[key] for key in known if key in raw} if value is None or isinstance(value, dict) else None


def read_kind(draft: Draft, raw: Mapping[str, Any], path: Path, kinds: tuple[str, ...]) -> str:
    """Return the kind of an entry; empty, with a fault, when it has none or several."""
    chosen = [kind for kind in kinds if raw.get(kind) is not None]
    if len(chosen) != 1:
        has = f"has {' and '.join(f'`{kind}`' for kind in chosen)}: " if chosen else ""
        draft.add_fault(path, f"{has}needs exactly one of {', '.join(kinds)}")
        return ""
    return chosen[0]


def read_with_endpoints(draft: Draft, cls: type, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of `cls`; sections that are endpoints get their secrets, and are None if faulty."""
    sections = {key: entry.kind for key, entry in options_of(cls).items() if isinstance(entry.kind, Section)}
    found = read_fields(draft, cls, raw, path, special=sections)
    for key, section in sections.items():
        if raw.get(key) is not None:
            found[key] = _read_endpoint(draft, raw[key], (*path, key), section.fields_of)
    return found


def _read_endpoint(draft: Draft, value: object, path: Path, cls: type) -> Any:
    """Return an endpoint with the secret from the variable that it names; None when it is faulty."""
    raw = read_known_keys(draft, value, path, cls)
    if raw is None:
        return None
    found = read_fields(draft, cls, raw, path)
    secret = _SECRETS.get(cls)
    if secret is not None and (name := found.get(secret.name)) is not None:
        found[secret.value] = read_secret(draft, name, (*path, secret.name), secret.noun)
    return build(cls, found)


def add_index(draft: Draft) -> None:
    """Add the embedded index to `sources` when an agent names no sources."""
    agents = draft.tree.get("agents")
    entries = agents.values() if isinstance(agents, dict) else ()
    if any(entry is None or (isinstance(entry, dict) and entry.get("sources") is None) for entry in entries):
        sources = draft.read_map(draft.tree.get("sources"), ("sources",))
        draft.tree["sources"] = {INDEX: {"embedded": INDEX}} | sources


def read_agent_sections(draft: Draft, known: Known) -> dict[str, Any]:
    """Return the sections as fields of Settings; a faulty agent is None. `known` has the ids that agents may name."""
    agents = draft.read_map(draft.tree.get("agents"), ("agents",))
    evaluation: EvaluationSettings = _read_plain(draft, "evaluation", EvaluationSettings)
    if evaluation.judge is not None:
        check_named(draft, ("evaluation", "judge"), "models", evaluation.judge, known["models"])
    return {
        "agents": MappingProxyType({name: _read_agent(draft, name, raw, known) for name, raw in agents.items()}),
        "sessions": _read_sessions(draft),
        "embeddings": _read_plain(draft, "embeddings", EmbeddingSettings),
        "classifier": _read_plain(draft, "classifier", ClassifierSettings),
        "evaluation": evaluation,
    }


def _read_agent(draft: Draft, name: str, value: object, known: Known) -> AgentSettings | None:
    path = ("agents", name)
    if not _NAME.fullmatch(name):
        draft.add_fault(
            path, "an agent's name may have only letters, digits, `-`, `_` and `.`: requests write `agent/<name>`"
        )
    raw = read_known_keys(draft, value, path, AgentSettings)
    if raw is None:
        return None
    found = read_fields(draft, AgentSettings, raw, path)
    found["sources"] = tuple(dict.fromkeys(found.get("sources", ()))) if raw.get("sources") is not None else (INDEX,)
    named: list[tuple[str, str, str]] = [
        (key, "models", found[key]) for key in ("main", "conversational") if key in found
    ]
    named += [("sources", "sources", source) for source in found["sources"]]
    named += [("policy", "policies", found["policy"])] if "policy" in found else []
    for key, section, one in named:
        check_named(draft, (*path, key), section, one, known[section])
    agent: AgentSettings | None = build(AgentSettings, {**found, "id": name})
    return agent


def _read_sessions(draft: Draft) -> SessionSettings:
    path = ("sessions",)
    raw = read_known_keys(draft, draft.tree.get("sessions"), path, SessionSettings) or {}
    given = {key: value for key, value in raw.items() if value is not None}
    if "postgres" not in given and "embedded" not in given:
        given.setdefault("sqlite", SESSIONS_FILE)
    kind = read_kind(draft, given, path, ("sqlite", "postgres", "embedded"))
    if kind != "embedded" and kind and given.get("options"):
        draft.warn("sessions.options is ignored: only a plugin's store (`sessions.embedded`) has options")
    found = read_with_endpoints(draft, SessionSettings, given, path)
    if (name := found.get("embedded")) in _BUILT_IN_STORES:
        draft.add_fault((*path, "embedded"), f"write `sessions.{name}` instead")
    return SessionSettings(**{"sqlite": None, **found})


def _read_plain(draft: Draft, section: str, cls: type) -> Any:
    raw = read_known_keys(draft, draft.tree.get(section), (section,), cls) or {}
    return cls(**read_with_endpoints(draft, cls, raw, (section,)))
