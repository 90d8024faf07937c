# SPDX-License-Identifier: Apache-2.0
"""How a field of a dataclass says that it is a setting, and what is never shown of one. Knows no setting by name."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.kinds import AnyKind


class Secret:
    """A value that is never shown: every way to print it gives `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one call that needs it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "***"


class Option(NamedTuple):
    """What a field says about itself as a setting. `shown` replaces its default in the documentation."""

    kind: AnyKind
    help: str
    shown: str | None
    variables: tuple[str, ...]


def option(
    kind: AnyKind,
    help_text: str,
    default: Any = dataclasses.MISSING,
    shown: str | None = None,
    variables: tuple[str, ...] = (),
) -> Any:
    """A field that is a setting. `variables` are the names it has besides LOCKGATE_<PATH>, lowest rank first."""
    metadata = {"option": Option(kind, help_text, shown, variables)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def empty_map() -> Mapping[str, Any]:
    """A map without entries that cannot get any."""
    return MappingProxyType({})
