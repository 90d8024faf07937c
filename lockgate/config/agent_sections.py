# SPDX-License-Identifier: Apache-2.0
"""Reads the sections of models, sources, upstreams, agents and what agents share. An unknown key is a fault."""

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
from lockgate.config.kinds import Section, suggest
from lockgate.config.schema import Path, options_of

Known = Mapping[str, Collection[str]]

AGENT_SECTIONS = ("agents", "sessions", "embeddings", "classifier", "evaluation")
AGENT_MODEL = "brunix"  # what requests call the agent `default`
_OWN_STORES = ("sqlite", "postgres")  # their addresses have settings of their own, which keep secrets out of files
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_KINDS = {
    ModelSettings: ("openai", "ollama", "embedded"),
    SourceSettings: ("syftai_space", "embedded", "postgres", "elasticsearch"),
}


class _Hidden(NamedTuple):
    """Of an endpoint: the field that names a variable, the one for what that holds, and what this is."""

    name: str
    value: str
    what: str


_SECRETS = {
    OpenAIModelSettings: _Hidden("api_token", "api_token_value", "token"),
    SpaceSettings: _Hidden("token_env", "token", "token"),
    PostgresSettings: _Hidden("dsn_env", "dsn", "address"),
    PostgresSourceSettings: _Hidden("dsn_env", "dsn", "address"),
    ElasticsearchSettings: _Hidden("api_key_env", "api_key", "key"),
}


def read_models(draft: Draft) -> Mapping[str, ModelSettings | None]:
    """The models by id, in the order of the file; one that is None is faulty, which has been noted."""
    models = _read_section(draft, "models", ModelSettings)
    for name in models:
        if "@" in name or "/" in name or name == AGENT_MODEL:
            reason = "requests write `<model>@<policy>`, `agent/<name>`, and `brunix` for the agent `default`"
            draft.blame(("models", name), f"cannot be the id of a model: {reason}")
    return models


def read_sources(draft: Draft) -> Mapping[str, SourceSettings | None]:
    """The data sources by id, in the order of the file; one that is None is faulty, which has been noted."""
    return _read_section(draft, "sources", SourceSettings)


def check_upstreams(draft: Draft, upstreams: UpstreamSettings) -> None:
    """Every entry of `allow` is a name or an address; a typo there would open or close the wrong door."""
    take_known(draft, draft.tree.get("upstreams"), ("upstreams",), UpstreamSettings)
    for number, entry in enumerate(upstreams.allow):
        if fault := check_entry(entry):
            draft.blame(("upstreams", "allow", str(number)), fault)


def kind_of(part: ModelSettings | SourceSettings) -> str:
    """The one kind that an entry is of."""
    return next(kind for kind in _KINDS[type(part)] if getattr(part, kind) is not None)


def _read_section(draft: Draft, section: str, cls: type) -> Mapping[str, Any]:
    entries = draft.take_map(draft.tree.get(section), (section,))
    return MappingProxyType({name: _read_entry(draft, raw, (section, name), cls) for name, raw in entries.items()})


def _read_entry(draft: Draft, value: object, path: Path, cls: type) -> Any:
    if not path[-1]:
        draft.blame(path, "needs an id")
    raw = take_known(draft, value, path, cls)
    if raw is None:
        return None
    found = read_with_endpoints(draft, cls, raw, path)
    kind = find_kind(draft, raw, path, _KINDS[cls])
    if kind != "embedded" and kind and raw.get("options"):
        draft.warn(f"{'.'.join(path)}.options is ignored: only what runs here has options")
    return cls(id=path[-1], **found) if found.get(kind) is not None else None


def take_known(draft: Draft, value: object, path: Path, cls: type) -> dict[str, Any] | None:
    """The known keys of a map, the others noted as faults; None when it is no map."""
    raw = draft.take_map(value, path)
    known = list(options_of(cls))
    for key in raw:
        if key not in known:
            draft.blame((*path, key), f"no such key{suggest(key, known)}")
    return {key: raw[key] for key in known if key in raw} if value is None or isinstance(value, dict) else None


def find_kind(draft: Draft, raw: Mapping[str, Any], path: Path, kinds: tuple[str, ...]) -> str:
    """The one kind that an entry is of; empty when it is of none or of several."""
    chosen = [kind for kind in kinds if raw.get(kind) is not None]
    if len(chosen) != 1:
        has = f"has {' and '.join(f'`{kind}`' for kind in chosen)}: " if chosen else ""
        draft.blame(path, f"{has}needs exactly one of {', '.join(kinds)}")
        return ""
    return chosen[0]


def read_with_endpoints(draft: Draft, cls: type, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of `cls`; sections that are endpoints have their secrets filled in, and are None if faulty."""
    sections = {key: entry.kind for key, entry in options_of(cls).items() if isinstance(entry.kind, Section)}
    found = read_fields(draft, cls, raw, path, special=sections)
    for key, section in sections.items():
        if raw.get(key) is not None:
            found[key] = _read_endpoint(draft, raw[key], (*path, key), section.fields_of)
    return found


def _read_endpoint(draft: Draft, value: object, path: Path, cls: type) -> Any:
    """An endpoint, its secret taken from the variable that is named; None when it is faulty."""
    raw = take_known(draft, value, path, cls)
    if raw is None:
        return None
    found = read_fields(draft, cls, raw, path)
    hidden = _SECRETS.get(cls)
    if hidden is not None and (name := found.get(hidden.name)) is not None:
        found[hidden.value] = read_secret(draft, name, (*path, hidden.name), hidden.what)
    return build(cls, found)


def add_index(draft: Draft) -> None:
    """An agent that names no sources has the embedded index, without a word about it in `sources`."""
    agents = draft.tree.get("agents")
    entries = agents.values() if isinstance(agents, dict) else ()
    if any(entry is None or (isinstance(entry, dict) and entry.get("sources") is None) for entry in entries):
        sources = draft.take_map(draft.tree.get("sources"), ("sources",))
        draft.tree["sources"] = {INDEX: {"embedded": INDEX}} | sources


def read_agent_sections(draft: Draft, known: Known) -> dict[str, Any]:
    """The sections as fields of Settings; a faulty agent is None. `known`: the ids that agents may name."""
    agents = draft.take_map(draft.tree.get("agents"), ("agents",))
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
        draft.blame(
            path, "the name of an agent is made of letters, digits, - _ and . only: requests say `agent/<name>`"
        )
    raw = take_known(draft, value, path, AgentSettings)
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
    raw = take_known(draft, draft.tree.get("sessions"), path, SessionSettings) or {}
    given = {key: value for key, value in raw.items() if value is not None}
    if "postgres" not in given and "embedded" not in given:
        given.setdefault("sqlite", SESSIONS_FILE)
    kind = find_kind(draft, given, path, ("sqlite", "postgres", "embedded"))
    if kind != "embedded" and kind and given.get("options"):
        draft.warn("sessions.options is ignored: only the store of a plugin has options")
    found = read_with_endpoints(draft, SessionSettings, given, path)
    if (name := found.get("embedded")) in _OWN_STORES:
        draft.blame((*path, "embedded"), f"write `sessions.{name}` instead")
    return SessionSettings(**{"sqlite": None, **found})


def _read_plain(draft: Draft, section: str, cls: type) -> Any:
    raw = take_known(draft, draft.tree.get(section), (section,), cls) or {}
    return cls(**read_with_endpoints(draft, cls, raw, (section,)))
