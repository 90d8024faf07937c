# SPDX-License-Identifier: Apache-2.0
"""Applies environment variables and flags to the settings of the file; `_rank` orders those that set the same value."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from lockgate.config.draft import Check, Draft, Override
from lockgate.config.kinds import BOOLEAN, LEVEL, LOG_FORMATS, NAME, PORT, AnyKind, Kind
from lockgate.config.schema import PREFIX, Path, find_setting, list_settings, nearest_setting, variable_of
from lockgate.config.settings import ANY_HOST, Listener
from lockgate.config.yaml_text import BadYaml, parse_yaml
from lockgate.sessions.turns import DEFAULT_AGENT

AGGREGATOR = "AGGREGATOR_"
AGGREGATOR_VARIABLES = {
    "AGGREGATOR_HOST": "address of the aggregator's listener (0.0.0.0)",
    "AGGREGATOR_PORT": "port of the aggregator's listener (8001)",
    "AGGREGATOR_DEBUG": "serve `/docs`; log format console (false)",
    "AGGREGATOR_LOG_FORMAT": "json or console",
    "AGGREGATOR_LOG_LEVEL": "lowest level logged",
}
COMMAND_VARIABLES = frozenset({"LOCKGATE_KEY", "LOCKGATE_TRACE_TOKEN"})  # read by `lockgate ask`; not settings
COMMAND_LINE = "command line"
NULL_WORDS = ("null", "~", "")
ANY_WORD = "*"
FORMAT = ("log", "format")


def apply_variables(draft: Draft) -> list[str]:
    """Apply every variable to the draft. Return the LOCKGATE_ names that are not settings."""
    known = {name: item.path for item in list_settings() for name in item.variables[1:]}
    names = [n for n, text in draft.environ.items() if text and (n in known or n.startswith((PREFIX, AGGREGATOR)))]
    unknown = []
    for name in sorted(names, key=_rank):
        text = draft.environ[name]
        if name == "RUST_LOG":
            _apply_rust_log(draft, text)
        elif name == "LOG_FORMAT":
            _apply_format(draft, text, name)
        elif name in known:
            _apply_path(draft, name, text, known[name].split("."), name)
        elif name.startswith(AGGREGATOR):
            _apply_aggregator(draft, name)
        elif not _apply_path(draft, name, text, name[len(PREFIX) :].split("__"), name):
            unknown.append(name)
    return unknown


def apply_flags(draft: Draft, flags: Mapping[str, Any]) -> None:
    """Apply the values of the command line, which win over all others."""
    given = {name: value for name, value in flags.items() if value is not None}
    for name in sorted(given, key=lambda name: (name.count("."), name)):
        value = str(given[name]) if isinstance(given[name], PurePath) else given[name]
        if name == ".".join(FORMAT):
            _apply_format(draft, str(value), COMMAND_LINE)
        elif not _apply_path(draft, name, value, name.split("."), COMMAND_LINE):
            draft.add_fault((name,), _describe_unknown(name.split(".")), Check.VARIABLE, COMMAND_LINE)


def add_unknown_variables(draft: Draft, names: list[str]) -> None:
    """Add a fault for each LOCKGATE_ variable that is not a setting, unless a setting names it for a secret."""
    for name in names:
        if name not in COMMAND_VARIABLES and name not in _secret_names(draft.tree):
            message = _describe_unknown(name[len(PREFIX) :].split("__"))
            draft.add_fault((), message, Check.VARIABLE, name)


def read_aggregator_listener(draft: Draft) -> Listener | None:
    """Return the aggregator's listener if any AGGREGATOR_ variable is set, else None (D-16)."""
    if not any(name.startswith(AGGREGATOR) and text for name, text in draft.environ.items()):
        return None
    host = _read_variable(draft, "AGGREGATOR_HOST", NAME) or ANY_HOST
    port = _read_variable(draft, "AGGREGATOR_PORT", PORT)
    return Listener("aggregator", host, 8001 if port is None else port, True)


def _rank(name: str) -> tuple[int, int, str]:
    families = ("RUST_LOG", "AGGREGATOR_DEBUG", AGGREGATOR, PREFIX)
    family = next((i for i, start in enumerate(families) if name.startswith(start)), -1)
    # RUST_LOG < AGGREGATOR_ < AGGREGATOR_DEBUG < the orchestrator's names < LOCKGATE_, whole maps before their parts
    return ({0: 0, 2: 1, 1: 2, -1: 3, 3: 4}[family], name.count("__"), name)


def _apply_rust_log(draft: Draft, text: str) -> None:
    """Apply the plain level of a filter such as `warn,h2=off`; the other parts are ignored."""
    for word in (part.strip() for part in text.split(",")):
        try:
            draft.apply(Override(("log", "level"), LEVEL.parse(word), "RUST_LOG"))
        except ValueError:
            continue


def _apply_format(draft: Draft, text: str, source: str) -> None:
    """Apply the log format; an unknown one is a warning and means `full` (G-2)."""
    word = text.lower()
    if word not in LOG_FORMATS:
        draft.warn(f"unknown log format `{word[:40]}` ({source}): using full")
    draft.apply(Override(FORMAT, word if word in LOG_FORMATS else "full", source))


def _apply_aggregator(draft: Draft, name: str) -> None:
    if name == "AGGREGATOR_DEBUG" and _read_variable(draft, name, BOOLEAN):
        draft.apply(Override(("server", "docs"), True, name))
        draft.apply(Override(FORMAT, "console", name))
    if name not in AGGREGATOR_VARIABLES:
        draft.warn(f"{name} is ignored: there is no such setting; remove the variable")


def _read_variable(draft: Draft, name: str, kind: Kind) -> Any:
    if not (text := draft.environ.get(name)):
        return None
    try:
        return kind.parse(read_text(kind, text))
    except ValueError as error:
        draft.add_fault((), str(error), Check.VARIABLE, name)
        return None


def _apply_path(draft: Draft, name: str, value: object, names: list[str], source: str) -> bool:
    target = find_setting(names, draft.tree) if all(names) else None
    if target is None:
        return False
    try:
        value = read_text(target.kind, value) if isinstance(value, str) else value
        draft.apply(Override(target.path, value, source))
    except BadYaml:  # its message may repeat part of the text, which may be secret
        draft.add_fault(target.path, "is not valid YAML: write the value as in a config file", Check.VARIABLE, source)
    return True


def read_text(kind: AnyKind, text: str) -> Any:
    """Return the value of a variable: its text if the setting is a text, else the text parsed as YAML."""
    if text.strip() in NULL_WORDS:
        return None
    if isinstance(kind, Kind) and kind.is_text and not text.startswith(("'", '"')):
        return text
    if isinstance(kind, Kind) and kind.is_list and text.strip() == ANY_WORD:
        return [ANY_WORD]  # in YAML a lone `*` is an error
    value, duplicates = parse_yaml(text)
    if duplicates:
        raise BadYaml("duplicate key")
    if isinstance(kind, Kind) and kind.is_list and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _describe_unknown(names: list[str]) -> str:
    nearest = nearest_setting(names)
    return f"no such setting; the nearest is `{nearest}` ({variable_of(nearest)})"


def _secret_names(tree: object) -> set[str]:
    """Return the variables that the settings name for a token, a key or a DSN."""
    if isinstance(tree, list):
        return set().union(*map(_secret_names, tree))
    if not isinstance(tree, dict):
        return set()
    names = {v for k, v in tree.items() if isinstance(v, str) and (k == "api_token" or k.endswith("_env"))}
    return names.union(*map(_secret_names, tree.values()))


AGENT_VARIABLES = {
    "OLLAMA_URL": "address of the Ollama server; if it is set, there is an agent",
    "OLLAMA_MODEL_NAME": "model that answers; required with `OLLAMA_URL`",
    "OLLAMA_MODEL_NAME_CONVERSATIONAL": "model for everything else (the same)",
    "OLLAMA_EMB_MODEL_NAME": "embedding model (Lockgate computes embeddings)",
    "ELASTICSEARCH_URL": "address of Elasticsearch or OpenSearch (the embedded index is used)",
    "ELASTICSEARCH_INDEX": "index there; required with `ELASTICSEARCH_URL`",
}


class _Alias(NamedTuple):
    """An endpoint of the settings and the variables of its keys; the endpoint is added when the `trigger` is set."""

    path: Path
    variables: Mapping[str, str]
    trigger: str

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


def apply_agent_variables(draft: Draft) -> None:
    """Apply the agent's variables where no LOCKGATE_ variable or flag, which the draft has already, sets the value."""
    given = {name: draft.environ[name] for name in AGENT_VARIABLES if draft.environ.get(name)}
    is_new = "OLLAMA_URL" in given and not _has_agent(draft)
    used: set[str] = set()
    if is_new or draft.tree.get("agents"):
        used = {name for alias in (MAIN, CONVERSATIONAL, DOCS) for name in _apply_alias(draft, alias, given, is_new)}
        used |= _apply_alias(draft, EMBEDDINGS, given, True)
    if is_new and draft.is_set(*MAIN.entry):
        _add_agent(draft)
    reason = "the settings already have what it sets" if draft.tree.get("agents") else "there is no agent"
    for name in given:
        if name not in used:
            draft.warn(f"{name} has no effect: {reason}")


def _has_agent(draft: Draft) -> bool:
    """Return whether the settings have agents; `default` counts only if it has a model."""
    agents = draft.tree.get("agents")
    is_default = isinstance(agents, dict) and DEFAULT_AGENT in agents
    return bool(agents) and (not is_default or draft.is_set("agents", DEFAULT_AGENT, "main"))


def _apply_alias(draft: Draft, alias: _Alias, given: Mapping[str, str], may_add: bool) -> set[str]:
    """Apply an endpoint's variables if the settings have it, or its trigger adds it. Return the variables used."""
    is_configured = draft.is_set(*alias.path)
    is_other_kind = len(alias.entry) > 1 and draft.is_set(*alias.entry) and not is_configured
    is_added = may_add and alias.trigger in given and not is_other_kind
    names = {name for name in alias.variables.values() if name in given} if is_configured or is_added else set()
    keys = {(*alias.path, key): name for key, name in alias.variables.items()}
    missing = {path: name for path, name in keys.items() if name not in given and not draft.is_set(*path)}
    if is_added and missing:
        for path, name in missing.items():
            draft.add_fault(path, f"is required with `{alias.trigger}`: set this variable", Check.VARIABLE, name)
        return names
    for path, name in keys.items():
        is_from_file = not draft.is_set(*path) or draft.source_of(path) == draft.base
        if name in names and is_from_file:
            draft.apply(Override(path, given[name], name))
    return names


def _add_agent(draft: Draft) -> None:
    """Give the agent `default` the models and the source of the variables, where its settings name none."""
    agent = ("agents", DEFAULT_AGENT)
    parts = {"main": MAIN, "conversational": CONVERSATIONAL, "sources": DOCS}
    for key, alias in parts.items():
        name = alias.entry[-1]
        if draft.is_set(*alias.entry) and not draft.is_set(*agent, key):
            draft.apply(Override((*agent, key), [name] if key == "sources" else name, "OLLAMA_URL"))
