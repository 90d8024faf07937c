# SPDX-License-Identifier: Apache-2.0
"""The variables of an existing agent's environment file: they stand for two models, the embeddings and one source.

Decides when they make an agent: with OLLAMA_URL, where the settings name none or leave open what `default` answers
with. Our own variables and flags win over them, they over the file. Refuses to know what the values mean.
"""

from collections.abc import Mapping
from typing import NamedTuple

from lockgate.config.draft import Check, Draft, Override
from lockgate.config.schema import Path
from lockgate.sessions.turns import DEFAULT_AGENT

AGENT_VARIABLES = {
    "OLLAMA_URL": "address of the Ollama server; set, there is an agent",
    "OLLAMA_MODEL_NAME": "model that answers; required with `OLLAMA_URL`",
    "OLLAMA_MODEL_NAME_CONVERSATIONAL": "model for everything else (the same)",
    "OLLAMA_EMB_MODEL_NAME": "embedding model (embeddings are made here)",
    "ELASTICSEARCH_URL": "address of Elasticsearch or OpenSearch (the embedded index is used)",
    "ELASTICSEARCH_INDEX": "index there; required with `ELASTICSEARCH_URL`",
}


class _Alias(NamedTuple):
    """An endpoint of the settings, its keys, and the variables that stand for them; `asks` is the one that adds it."""

    path: Path
    variables: Mapping[str, str]
    asks: str

    @property
    def entry(self) -> Path:
        return self.path[:-1]


MAIN = _Alias(("models", "main", "ollama"), {"url": "OLLAMA_URL", "model": "OLLAMA_MODEL_NAME"}, "OLLAMA_URL")
CONVERSATIONAL = _Alias(
    ("models", "conversational", "ollama"),
    {"url": "OLLAMA_URL", "model": "OLLAMA_MODEL_NAME_CONVERSATIONAL"},
    "OLLAMA_MODEL_NAME_CONVERSATIONAL",
)
DOCS = _Alias(
    ("sources", "docs", "elasticsearch"),
    {"url": "ELASTICSEARCH_URL", "index": "ELASTICSEARCH_INDEX"},
    "ELASTICSEARCH_URL",
)
EMBEDDINGS = _Alias(
    ("embeddings", "ollama"), {"url": "OLLAMA_URL", "model": "OLLAMA_EMB_MODEL_NAME"}, "OLLAMA_EMB_MODEL_NAME"
)


def lay_agent_variables(draft: Draft) -> None:
    """Lay the variables over the file, below our own variables and flags, which the draft has already."""
    given = {name: draft.environ[name] for name in AGENT_VARIABLES if draft.environ.get(name)}
    is_new = "OLLAMA_URL" in given and not _has_agent(draft)
    used: set[str] = set()
    if is_new or draft.tree.get("agents"):
        used = {name for alias in (MAIN, CONVERSATIONAL, DOCS) for name in _lay_alias(draft, alias, given, is_new)}
        used |= _lay_alias(draft, EMBEDDINGS, given, True)
    if is_new and draft.is_asked_for(*MAIN.entry):
        _add_agent(draft)
    reason = "what it stands for is set otherwise" if draft.tree.get("agents") else "there is no agent"
    for name in given:
        if name not in used:
            draft.warn(f"{name} has no effect: {reason}")


def _has_agent(draft: Draft) -> bool:
    """Whether the settings have agents; `default` counts only with a model."""
    agents = draft.tree.get("agents")
    is_default = isinstance(agents, dict) and DEFAULT_AGENT in agents
    return bool(agents) and (not is_default or draft.is_asked_for("agents", DEFAULT_AGENT, "main"))


def _lay_alias(draft: Draft, alias: _Alias, given: Mapping[str, str], may_add: bool) -> set[str]:
    """The variables that count for an endpoint: of one that the settings have, or that a variable asks for."""
    is_there = draft.is_asked_for(*alias.path)
    is_added = may_add and alias.asks in given and not _is_otherwise(draft, alias)
    names = {name for name in alias.variables.values() if name in given} if is_there or is_added else set()
    keys = {(*alias.path, key): name for key, name in alias.variables.items()}
    missing = {path: name for path, name in keys.items() if name not in given and not draft.is_asked_for(*path)}
    if is_added and missing:
        for path, name in missing.items():
            draft.blame(path, f"is required with `{alias.asks}`", Check.VARIABLE, name)
        return names
    for path, name in keys.items():
        if name in names:
            _fill(draft, path, given[name], name)
    return names


def _is_otherwise(draft: Draft, alias: _Alias) -> bool:
    """Whether the settings have an entry of that name that is of another kind."""
    return len(alias.entry) > 1 and draft.is_asked_for(*alias.entry) and not draft.is_asked_for(*alias.path)


def _fill(draft: Draft, path: Path, value: object, source: str) -> None:
    if not draft.is_asked_for(*path) or draft.source_of(path) == draft.base:
        draft.lay_over(Override(path, value, source))


def _add_agent(draft: Draft) -> None:
    """What the agent `default` leaves open: the models and the source that the variables stand for."""
    agent = ("agents", DEFAULT_AGENT)
    parts = {"main": MAIN, "conversational": CONVERSATIONAL, "sources": DOCS}
    for key, alias in parts.items():
        name = alias.entry[-1]
        if draft.is_asked_for(*alias.entry) and not draft.is_asked_for(*agent, key):
            draft.lay_over(Override((*agent, key), [name] if key == "sources" else name, "OLLAMA_URL"))
