# SPDX-License-Identifier: Apache-2.0
"""The sections `models`, `sources` and `upstreams`: who answers and who knows, by id, and who else may be called.

Decides that each entry is of exactly one kind and complete; an unknown key in one is a fault, for it may be what keeps
something closed. Refuses to know whether anybody answers there, and how one speaks to them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.draft import Draft, build, read_fields, read_secret
from lockgate.config.kinds import suggest
from lockgate.config.schema import Path, options_of
from lockgate.config.settings import (
    ModelSettings,
    OpenAIModelSettings,
    SourceSettings,
    SpaceSettings,
    UpstreamSettings,
)
from lockgate.core.addresses import check_entry

# What may be written and cannot be had yet: kinds, and embedded parts by name.
LATER_KINDS = ("ollama", "postgres", "elasticsearch")
LATER_PARTS = ("llamacpp", "index")


class _Shape(NamedTuple):
    """What an entry of a section may be: `remote` is the kind of which somebody's endpoint is called.

    Of an endpoint `token_name` is the field that names a variable, `token` the one for what that holds.
    """

    cls: type
    kinds: tuple[str, ...]
    remote: str
    endpoint: type
    token_name: str
    token: str


_MODEL = _Shape(
    ModelSettings, ("openai", "ollama", "embedded"), "openai", OpenAIModelSettings, "api_token", "api_token_value"
)
_SOURCE = _Shape(
    SourceSettings,
    ("syftai_space", "embedded", "postgres", "elasticsearch"),
    "syftai_space",
    SpaceSettings,
    "token_env",
    "token",
)


def read_models(draft: Draft) -> Mapping[str, ModelSettings | None]:
    """The models by id, in the order of the file; one that is None is faulty, which has been noted."""
    return _read_section(draft, "models", _MODEL)


def read_sources(draft: Draft) -> Mapping[str, SourceSettings | None]:
    """The data sources by id, in the order of the file; one that is None is faulty, which has been noted."""
    return _read_section(draft, "sources", _SOURCE)


def check_upstreams(draft: Draft, upstreams: UpstreamSettings) -> None:
    """Every entry of `allow` is a name or an address; a typo there would open or close the wrong door."""
    _take_known(draft, draft.tree.get("upstreams"), ("upstreams",), UpstreamSettings)
    for number, entry in enumerate(upstreams.allow):
        if fault := check_entry(entry):
            draft.blame(("upstreams", "allow", str(number)), fault)


def kind_of(part: ModelSettings | SourceSettings) -> str:
    """The one kind that an entry is of."""
    kinds = _MODEL.kinds if isinstance(part, ModelSettings) else _SOURCE.kinds
    return next(kind for kind in kinds if getattr(part, kind) is not None)


def is_for_later(part: object) -> bool:
    """Whether this version cannot serve it."""
    if not isinstance(part, ModelSettings | SourceSettings):
        return False
    return kind_of(part) in LATER_KINDS or part.embedded in LATER_PARTS


def _read_section(draft: Draft, section: str, shape: _Shape) -> Mapping[str, Any]:
    entries = draft.take_map(draft.tree.get(section), (section,))
    return MappingProxyType({name: _read_entry(draft, raw, (section, name), shape) for name, raw in entries.items()})


def _read_entry(draft: Draft, value: object, path: Path, shape: _Shape) -> Any:  # noqa: ANN401 - of the shape's class
    if not path[-1]:
        draft.blame(path, "needs an id")
    raw = _take_known(draft, value, path, shape.cls)
    if raw is None:
        return None
    found = read_fields(draft, shape.cls, raw, path, special=(shape.remote,))
    if raw.get(shape.remote) is not None:
        found[shape.remote] = _read_endpoint(draft, raw[shape.remote], (*path, shape.remote), shape)
    kind = _find_kind(draft, raw, path, shape.kinds)
    return shape.cls(id=path[-1], **found) if found.get(kind) is not None else None


def _take_known(draft: Draft, value: object, path: Path, cls: type) -> dict[str, Any] | None:
    """The known keys of a map; None when it is none."""
    raw = draft.take_map(value, path)
    known = list(options_of(cls))
    for key in raw:
        if key not in known:
            draft.blame((*path, key), f"no such key{suggest(key, known)}")
    return {key: raw[key] for key in known if key in raw} if value is None or isinstance(value, dict) else None


def _find_kind(draft: Draft, raw: dict[str, Any], path: Path, kinds: tuple[str, ...]) -> str:
    """The one kind that an entry is of; empty when it is of none or of several."""
    chosen = [kind for kind in kinds if raw.get(kind) is not None]
    if len(chosen) != 1:
        has = f"has {' and '.join(f'`{kind}`' for kind in chosen)}: " if chosen else ""
        draft.blame(path, f"{has}needs exactly one of {', '.join(kinds)}")
        return ""
    if chosen != ["embedded"] and raw.get("options"):
        draft.warn(f"{'.'.join(path)}.options is ignored: only what runs here has options")
    return chosen[0]


def _read_endpoint(draft: Draft, value: object, path: Path, shape: _Shape) -> Any:  # noqa: ANN401 - its endpoint
    """Somebody's endpoint, its token taken from the variable that is named; None when it is faulty."""
    raw = _take_known(draft, value, path, shape.endpoint)
    if raw is None:
        return None
    found = read_fields(draft, shape.endpoint, raw, path)
    if (name := found.get(shape.token_name)) is not None:
        found[shape.token] = read_secret(draft, name, (*path, shape.token_name), "token")
    return build(shape.endpoint, found)
