# SPDX-License-Identifier: Apache-2.0
"""Draft: the values of all layers, where each came from, and every fault. Reading goes on after a fault."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.kinds import AnyKind, Kind, Secret, Section, SectionMap, describe, suggest
from lockgate.config.schema import Path, options_of, required_of
from lockgate.errors import ConfigError

UNREAD = object()
_OUR_SECTIONS = ("policies", "callers", "agents", "sessions", "models", "sources")  # no existing file has them misspelt
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z_][a-z0-9_]*", re.ASCII)


class Check(IntEnum):
    """The order in which faults are reported; up to 9 they are the rows of the existing orchestrator's table (G-22)."""

    SHAPE = 2
    TLS_NAME = 3
    NO_DETECTORS = 4
    GENERATION_HOST = 5
    OPENAI_HOST = 6
    DETECTOR_HOST = 7
    CHUNKER_KNOWN = 8
    CHUNKER_HOST = 9
    ROUTER = 10
    VARIABLE = 11
    SERVER_TLS = 12
    OTLP = 13


class Override(NamedTuple):
    """A value that a variable or a flag lays over what is below it."""

    path: Path
    value: Any
    source: str


@dataclasses.dataclass(slots=True)
class Draft:
    """One run of loading. `base` names where values come from that no override has set."""

    base: str
    tree: dict[str, Any]
    environ: Mapping[str, str]
    origins: dict[Path, str] = dataclasses.field(default_factory=dict)
    faults: list[tuple[Check, ConfigError]] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def lay_over(self, override: Override) -> None:
        """Set a value. Where something other than a map is in the way nothing is set: that is a fault already."""
        node = self.tree
        for key in override.path[:-1]:
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
            if not isinstance(node, dict):
                return
        node[override.path[-1]] = override.value
        depth = len(override.path)
        self.origins = {path: name for path, name in self.origins.items() if path[:depth] != override.path}
        self.origins[override.path] = override.source

    def source_of(self, path: Path) -> str:
        """The file, variable or flag that the value at a path came from."""
        parts = (path[:depth] for depth in range(len(path), 0, -1))
        return next((self.origins[part] for part in parts if part in self.origins), self.base)

    def blame(self, path: Path, message: str, check: Check = Check.SHAPE, source: str = "") -> None:
        """Note a fault."""
        fault = ConfigError(message, source=source or self.source_of(path), key=".".join(path))
        self.faults.append((check, fault))

    def blame_missing(self, path: Path, variable: str, what: str) -> None:
        """Note that a variable which holds a secret is not set; what does not look like a name may be the secret."""
        if _VARIABLE.fullmatch(variable):
            self.blame(path, f"env var `{variable}` not found")
        else:
            self.blame(path, f"must be the name of an environment variable that is set, not the {what} itself")

    def is_asked_for(self, *path: str) -> bool:
        """Whether any layer sets the value at a path."""
        node: object = self.tree
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        return node is not None

    def warn(self, message: str) -> None:
        """Note something that does not stop the start."""
        if message not in self.warnings:
            self.warnings.append(message)

    def take_map(self, value: object, path: Path) -> dict[str, Any]:
        """The value if it is a map; nothing at all counts as an empty one."""
        if value is not None and not isinstance(value, dict):
            self.blame(path, f"must be a map, not {describe(value)}")
        return value if isinstance(value, dict) else {}


def check_named(draft: Draft, path: Path, section: str, name: str, known: Collection[str]) -> None:
    """Note a fault if no entry of the section has the name."""
    if name not in known:
        what = {"policies": "policy"}.get(section, section.removesuffix("s"))
        draft.blame(path, f"{what} `{name}` not found in section `{section}`{suggest(name, list(known))}")


def read_fields(
    draft: Draft,
    cls: type,
    raw: dict[str, Any],
    path: Path,
    *,
    special: Collection[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """What the map says about the fields of `cls`; `special` keys are left to the caller, faulty ones left out."""
    known = options_of(cls)
    _warn_unknown(draft, raw, known, path)
    required = required_of(cls)
    found: dict[str, Any] = {}
    for key, entry in known.items():
        if key in special:
            continue
        value = raw.get(key, defaults.get(key))
        value = defaults.get(key) if value is None else value
        if value is not None:
            value = read_value(draft, entry.kind, value, (*path, key))
            found |= {key: value} if value is not UNREAD else {}
        elif key in required:
            draft.blame((*path, key), "is required")
    return found


def _warn_unknown(draft: Draft, raw: dict[str, Any], known: Collection[str], path: Path) -> None:
    """An unknown key is ignored, as in existing files; but not where it may be what was to guard something."""
    where = f" in {'.'.join(path)}" if path else ""
    for key in raw:
        if key in known:
            continue
        hint = suggest(key, list(known))
        is_default = path == ("openai",) and "`policies`" in hint
        if path[:1] == ("policies",) or is_default or (not path and any(f"`{one}`" in hint for one in _OUR_SECTIONS)):
            draft.blame((*path, key), f"no such key{hint}")
        else:
            draft.warn(f"unknown key `{key}`{where} is ignored{hint}")


def read_secret(draft: Draft, variable: str, path: Path, what: str) -> Secret | None:
    """What the variable holds that the value at `path` names, without the line end that files of secrets often have."""
    value = draft.environ.get(variable)
    secret = (value or "").strip()
    if value is None:
        draft.blame_missing(path, variable, what)
    elif not secret:
        draft.blame(path, f"env var `{variable}` is empty")
    elif not secret.isprintable():
        draft.blame(path, f"env var `{variable}` holds characters that no {what} can have")
    else:
        return Secret(secret)
    return None


def read_value(draft: Draft, kind: AnyKind, value: Any, path: Path) -> Any:
    """One value, or UNREAD when it is faulty."""
    if isinstance(kind, Kind):
        try:
            return kind.parse(value)
        except ValueError as error:
            draft.blame(path, str(error))
            return UNREAD
    raw = draft.take_map(value, path)
    if isinstance(kind, SectionMap):
        section = Section(kind.fields_of)
        entries = {key: read_value(draft, section, item, (*path, key)) for key, item in raw.items()}
        return MappingProxyType(entries)
    return build(kind.fields_of, read_fields(draft, kind.fields_of, raw, path))


def build(cls: type, found: Mapping[str, Any]) -> Any:
    """The value, or None when a required field is missing, which has been noted as a fault."""
    return cls(**found) if required_of(cls) <= found.keys() else None
