# SPDX-License-Identifier: Apache-2.0
"""Draft: the values of file, variables and flags, the origin of each, and every fault. Loading goes on after faults."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.kinds import AnyKind, Kind, Secret, Section, SectionMap, describe, describe_unknown_key, suggest
from lockgate.config.schema import Path, options_of, required_of
from lockgate.errors import ConfigError

INVALID = object()
# Sections that only Lockgate has.
_LOCKGATE_SECTIONS = ("policies", "required_policies", "callers", "agents", "sessions", "models", "sources")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z_][a-z0-9_]*", re.ASCII)


class Check(IntEnum):
    """The order in which faults are reported; 2 to 9 are the rows of the existing orchestrator's table (G-22)."""

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
    """A value from a variable or a flag that replaces the value at a path."""

    path: Path
    value: Any
    source: str


@dataclasses.dataclass(slots=True)
class Draft:
    """The state of one load. `base` names the origin of values that no override has set."""

    base: str
    tree: dict[str, Any]
    environ: Mapping[str, str]
    origins: dict[Path, str] = dataclasses.field(default_factory=dict)
    faults: list[tuple[Check, ConfigError]] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def apply(self, override: Override) -> None:
        """Set a value. If something on its path is not a map, nothing is set: that is reported as a fault elsewhere."""
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
        """Return the file, variable or flag that set the value at a path."""
        parts = (path[:depth] for depth in range(len(path), 0, -1))
        return next((self.origins[part] for part in parts if part in self.origins), self.base)

    def add_fault(self, path: Path, message: str, check: Check = Check.SHAPE, source: str = "") -> None:
        """Add a fault to the list."""
        fault = ConfigError(message, source=source or self.source_of(path), key=".".join(path))
        self.faults.append((check, fault))

    def add_missing_variable(self, path: Path, variable: str, noun: str) -> None:
        """Add a fault for a secret's variable that is not set; without repeating a text that may be the secret."""
        if _VARIABLE.fullmatch(variable):
            self.add_fault(path, f"env var `{variable}` not found")
        else:
            self.add_fault(path, f"must be the name of an environment variable that is set, not the {noun} itself")

    def is_set(self, *path: str) -> bool:
        """Return whether a file, variable or flag sets the value at a path."""
        node: object = self.tree
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        return node is not None

    def warn(self, message: str) -> None:
        """Add a warning: something that does not stop the start."""
        if message not in self.warnings:
            self.warnings.append(message)

    def read_map(self, value: object, path: Path) -> dict[str, Any]:
        """Return the value if it is a map; an empty map for null, and with a fault for anything else."""
        if value is not None and not isinstance(value, dict):
            self.add_fault(path, f"must be a map, not {describe(value)}")
        return value if isinstance(value, dict) else {}


def check_named(draft: Draft, path: Path, section: str, name: str, known: Collection[str]) -> None:
    """Add a fault if no entry of the section has the name."""
    if name not in known:
        noun = {"policies": "policy"}.get(section, section.removesuffix("s"))
        hint = suggest(name, list(known)) or "; add it there, or name another"
        draft.add_fault(path, f"{noun} `{name}` not found in section `{section}`{hint}")


def read_fields(
    draft: Draft,
    cls: type,
    raw: dict[str, Any],
    path: Path,
    *,
    special: Collection[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the fields of `cls` in a map, without faulty ones and the `special` ones, which the caller reads."""
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
            found |= {key: value} if value is not INVALID else {}
        elif key in required:
            draft.add_fault((*path, key), "is required")
    return found


def _warn_unknown(draft: Draft, raw: dict[str, Any], known: Collection[str], path: Path) -> None:
    """Warn of unknown keys, which existing files have; add a fault where a typing error may leave text unguarded."""
    where = f" in {'.'.join(path)}" if path else ""
    for key in raw:
        if key in known:
            continue
        hint = suggest(key, list(known))
        is_default = path == ("openai",) and "policies`" in hint
        is_section = not path and any(f"`{one}`" in hint for one in _LOCKGATE_SECTIONS)
        if path[:1] in (("policies",), ("callers",)) or is_default or is_section:
            draft.add_fault((*path, key), describe_unknown_key(key, list(known)))
        else:
            draft.warn(f"unknown key `{key}`{where} is ignored{hint}")


def read_secret(draft: Draft, variable: str, path: Path, noun: str) -> Secret | None:
    """Return the value of a variable, without the line end that files of secrets often have; None with a fault."""
    value = draft.environ.get(variable)
    secret = (value or "").strip()
    if value is None:
        draft.add_missing_variable(path, variable, noun)
    elif not secret:
        draft.add_fault(path, f"env var `{variable}` is empty: set it to the {noun}")
    elif not secret.isprintable():
        draft.add_fault(path, f"env var `{variable}` has control characters or line breaks: set it to the {noun} alone")
    else:
        return Secret(secret)
    return None


def read_value(draft: Draft, kind: AnyKind, value: Any, path: Path) -> Any:
    """Return one value, or INVALID when it is faulty."""
    if isinstance(kind, Kind):
        try:
            return kind.parse(value)
        except ValueError as error:
            draft.add_fault(path, str(error))
            return INVALID
    raw = draft.read_map(value, path)
    if isinstance(kind, SectionMap):
        section = Section(kind.fields_of)
        return MappingProxyType({key: read_value(draft, section, item, (*path, key)) for key, item in raw.items()})
    return build(kind.fields_of, read_fields(draft, kind.fields_of, raw, path))


def build(cls: type, found: Mapping[str, Any]) -> Any:
    """Return an object of `cls`, or None when a required field is missing; its fault is in the draft already."""
    return cls(**found) if required_of(cls) <= found.keys() else None
