# SPDX-License-Identifier: Apache-2.0
"""The sections of agents: `agents`, `sessions`, `embeddings`, `classifier` and `evaluation`.

Decides whether an agent can do what it says: its models, its sources and its policy are there. An unknown key is a
fault, for it may be what keeps something out. Refuses to know who answers there, and what an agent does.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.agent_settings import INDEX, SESSIONS_FILE
from lockgate.config.draft import Draft, build, read_fields
from lockgate.config.kinds import suggest
from lockgate.config.schema import Path
from lockgate.config.settings import (
    AgentSettings,
    ClassifierSettings,
    EmbeddingSettings,
    EvaluationSettings,
    SessionSettings,
)
from lockgate.config.upstreams import find_kind, read_with_endpoints, take_known

AGENT_SECTIONS = ("agents", "sessions", "embeddings", "classifier", "evaluation")
_OWN_STORES = ("sqlite", "postgres")  # their addresses have settings of their own, which keep secrets out of files
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class Known(NamedTuple):
    """The ids that agents may name."""

    models: Collection[str]
    sources: Collection[str]
    policies: Collection[str]


def add_index(draft: Draft) -> None:
    """An agent that names no sources has the embedded index, without a word about it in `sources`."""
    agents = draft.tree.get("agents")
    entries = agents.values() if isinstance(agents, dict) else ()
    if any(entry is None or (isinstance(entry, dict) and entry.get("sources") is None) for entry in entries):
        sources = draft.take_map(draft.tree.get("sources"), ("sources",))
        draft.tree["sources"] = {INDEX: {"embedded": INDEX}} | sources


def read_agent_sections(draft: Draft, known: Known) -> dict[str, Any]:
    """The sections as fields of Settings; an agent that is None is faulty, which has been noted."""
    return {
        "agents": _read_agents(draft, known),
        "sessions": _read_sessions(draft),
        "embeddings": _read_plain(draft, "embeddings", EmbeddingSettings),
        "classifier": _read_plain(draft, "classifier", ClassifierSettings),
        "evaluation": _read_evaluation(draft, known),
    }


def _read_agents(draft: Draft, known: Known) -> Mapping[str, AgentSettings | None]:
    entries = draft.take_map(draft.tree.get("agents"), ("agents",))
    return MappingProxyType({name: _read_agent(draft, name, raw, known) for name, raw in entries.items()})


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
    for key in ("main", "conversational"):
        _check_named(draft, (*path, key), "model", _given(found, key), known.models)
    _check_named(draft, (*path, "sources"), "source", found["sources"], known.sources)
    _check_named(draft, (*path, "policy"), "policy", _given(found, "policy"), known.policies)
    agent: AgentSettings | None = build(AgentSettings, {**found, "id": name})
    return agent


def _given(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return (found[key],) if key in found else ()


def _check_named(draft: Draft, path: Path, what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            section = {"policy": "policies"}.get(what, f"{what}s")
            draft.blame(path, f"{what} `{name}` not found in section `{section}`{suggest(name, list(known))}")


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


def _read_evaluation(draft: Draft, known: Known) -> EvaluationSettings:
    evaluation: EvaluationSettings = _read_plain(draft, "evaluation", EvaluationSettings)
    if evaluation.judge is not None:
        _check_named(draft, ("evaluation", "judge"), "model", (evaluation.judge,), known.models)
    return evaluation
