# SPDX-License-Identifier: Apache-2.0
"""Lists the settings that exist, from the fields of the dataclasses, so that nothing is listed twice."""

import dataclasses
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from lockgate.config.kinds import AnyKind, Kind, Option, Section, SectionMap
from lockgate.config.settings import Settings

PREFIX = "LOCKGATE_"
Path = tuple[str, ...]


class Setting(NamedTuple):
    """One row of the reference page. `<id>` in a path is a name that the operator chooses."""

    path: str
    type: str
    default: str
    help: str
    variables: tuple[str, ...]


class SettingPath(NamedTuple):
    """A setting's path with the keys as the file spells them, and the kind of its value."""

    path: Path
    kind: AnyKind


def options_of(cls: type) -> dict[str, Option]:
    """Return the settings among the fields of a dataclass, by key."""
    found = {field.name: field.metadata.get("option") for field in dataclasses.fields(cls)}
    return {name: entry for name, entry in found.items() if entry is not None}


def required_of(cls: type) -> set[str]:
    """Return the fields without a default."""
    missing = dataclasses.MISSING
    return {f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing}


def variable_of(path: str) -> str:
    """Return the LOCKGATE_ variable of a setting."""
    return PREFIX + path.replace(".", "__").upper()


def list_settings() -> list[Setting]:
    """Return every setting; objects that occur in several places are listed once, under `<service>` and `<tls>`."""
    shared: dict[str, type] = {}
    found = list(_walk(Settings, "", shared))
    listed: set[str] = set()
    while todo := [name for name in shared if name not in listed]:
        listed.add(todo[0])
        found += _walk(shared[todo[0]], todo[0], shared)
    return found


def _walk(cls: type, prefix: str, shared: dict[str, type]) -> Iterator[Setting]:
    for key, entry in options_of(cls).items():
        path = f"{prefix}.{key}" if prefix else key
        yield _describe(cls, key, path, entry)
        kind = entry.kind
        if isinstance(kind, Kind):
            continue
        if kind.shared:
            shared.setdefault(kind.shared, kind.fields_of)
        else:
            yield from _walk(kind.fields_of, f"{path}.<id>" if isinstance(kind, SectionMap) else path, shared)


def _describe(cls: type, key: str, path: str, entry: Option) -> Setting:
    kind = entry.kind
    name = kind.name if isinstance(kind, Kind) else f"map of {kind.shared or 'maps'}"
    if isinstance(kind, Section):
        name = kind.shared or "map"
    variables = () if path.startswith("<") else (variable_of(path), *entry.variables)
    return Setting(path, name, entry.shown or _show_default(cls, key, entry), entry.help, variables)


def _show_default(cls: type, key: str, entry: Option) -> str:
    if key in required_of(cls):
        return "required"
    if not isinstance(entry.kind, Kind):
        return "none"
    default = next(field.default for field in dataclasses.fields(cls) if field.name == key)
    words: dict[Any, str] = {None: "null", (): "[]", "": "empty"}
    return str(default).lower() if isinstance(default, bool) else words.get(default, str(default))


def find_setting(names: list[str], tree: Mapping[str, Any]) -> SettingPath | None:
    """Return the setting of a path of names in any case; ids are spelled as in the tree, or in lower case if new."""
    return _find_in(Settings, names, tree, ())


def _find_in(cls: type, names: list[str], tree: object, path: Path) -> SettingPath | None:
    key = names[0].lower()
    entry = options_of(cls).get(key)
    if entry is None:
        return None
    inner = tree.get(key) if isinstance(tree, Mapping) else None
    return _find_below(entry.kind, names[1:], inner, (*path, key))


def _find_below(kind: AnyKind, names: list[str], tree: object, path: Path) -> SettingPath | None:
    if not names:
        return SettingPath(path, kind)
    if isinstance(kind, Section):
        return _find_in(kind.fields_of, names, tree, path)
    if isinstance(kind, SectionMap):
        key, rest = _match_id(names, tree)
        inner = tree.get(key) if isinstance(tree, Mapping) else None
        return _find_below(Section(kind.fields_of), rest, inner, (*path, key))
    if kind.name != "map":
        return None
    while names:
        key, names = _match_id(names, tree)
        tree = tree.get(key) if isinstance(tree, Mapping) else None
        path = (*path, key)
    return SettingPath(path, Kind("any", lambda value: value))


def _match_id(names: list[str], tree: object) -> tuple[str, list[str]]:
    """Return the id of the tree with which the names begin, and the names after it; an id may contain `__`."""
    ids = sorted(tree, key=len, reverse=True) if isinstance(tree, Mapping) else []
    for count in range(len(names), 0, -1):
        wanted = "__".join(names[:count]).lower()
        for name in ids:
            if name.lower() == wanted:
                return name, names[count:]
    return names[0].lower(), names[1:]


def nearest_setting(names: list[str]) -> str:
    """Return the path of the setting that is most similar to these names."""
    wanted = ".".join(names).lower()
    chosen = names[1].lower() if len(names) > 1 else "<id>"
    known = [setting.path.replace("<id>", chosen) for setting in list_settings() if not setting.path.startswith("<")]
    ends = [path for path in known if path.endswith(("." + wanted, "." + wanted.replace(".", "_")))]
    return get_close_matches(wanted, ends or known, n=1, cutoff=0.0)[0]
