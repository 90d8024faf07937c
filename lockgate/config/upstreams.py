# SPDX-License-Identifier: Apache-2.0
"""The sections `models`, `sources` and `upstreams`: who answers and who knows, by id, and who else may be called.

Decides that each entry is of exactly one kind and complete; an unknown key in one is a fault, for it may be what keeps
something closed. Refuses to know whether anybody answers there, and how one speaks to them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.addresses import check_entry
from lockgate.config.draft import Draft, build, read_fields, read_secret
from lockgate.config.kinds import Section, suggest
from lockgate.config.schema import Path, options_of
from lockgate.config.settings import (
    ElasticsearchSettings,
    ModelSettings,
    OpenAIModelSettings,
    PostgresSettings,
    PostgresSourceSettings,
    SourceSettings,
    SpaceSettings,
    UpstreamSettings,
)

AGENT_MODEL = "brunix"  # what requests call the agent `default`
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
    """The fields of `cls`; those that are somebody's endpoint have their secrets filled in, and are None if faulty."""
    sections = {key: entry.kind for key, entry in options_of(cls).items() if isinstance(entry.kind, Section)}
    found = read_fields(draft, cls, raw, path, special=sections)
    for key, section in sections.items():
        if raw.get(key) is not None:
            found[key] = _read_endpoint(draft, raw[key], (*path, key), section.fields_of)
    return found


def _read_endpoint(draft: Draft, value: object, path: Path, cls: type) -> Any:
    """Somebody's endpoint, its secret taken from the variable that is named; None when it is faulty."""
    raw = take_known(draft, value, path, cls)
    if raw is None:
        return None
    found = read_fields(draft, cls, raw, path)
    hidden = _SECRETS.get(cls)
    if hidden is not None and (name := found.get(hidden.name)) is not None:
        found[hidden.value] = read_secret(draft, name, (*path, hidden.name), hidden.what)
    return build(cls, found)
