# SPDX-License-Identifier: Apache-2.0
"""Params: reads the parameters of a request or the options of a factory one by one; faults name the value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from lockgate.errors import ConfigError, InvalidRequest, LockgateError

Fault = Callable[[str, str], LockgateError]


def request_fault(_key: str, message: str) -> LockgateError:
    """A fault of a request."""
    return InvalidRequest(message)


def option_fault(key: str, message: str) -> LockgateError:
    """A fault of the settings; `key` names the option."""
    return ConfigError(message, source="options", key=key)


class Params:
    """The parameters of a request or the options of a factory, read and checked one by one."""

    def __init__(self, values: Mapping[str, Any], known: Sequence[str], fault: Fault) -> None:
        self.fault = fault
        self._values = values
        for name in values:
            if name not in known:
                raise fault(name, f"unknown parameter `{name}`, {_expected(known)}")

    @classmethod
    def of_request(cls, values: Mapping[str, Any], known: Sequence[str]) -> Self:
        """The parameters of a request."""
        return cls(values, known, request_fault)

    @classmethod
    def of_options(cls, values: Mapping[str, Any], known: Sequence[str]) -> Self:
        """The options of a factory."""
        return cls(values, known, option_fault)

    def value(self, name: str) -> Any:
        """The value; None if it is missing."""
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; `default` if the value is missing."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, f"`{name}` must be true or false, not {shown(value)}")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """One of `allowed`; None if the value is missing."""
        value = self._values.get(name)
        if value is not None and value not in allowed:
            raise self.fault(name, f"`{name}` must be {listed(allowed)}, not {shown(value)}")
        return value

    def choices(self, name: str, allowed: Sequence[str]) -> tuple[str, ...] | None:
        """A list of some of `allowed`, at least one; None if the value is missing."""
        if self._values.get(name) is None:
            return None
        values = tuple(self.items(name, len(allowed)))
        for value in values:
            if value not in allowed:
                raise self.fault(name, f"`{name}` has {shown(value)}, expected {listed(allowed)}")
        if not values:
            raise self.fault(name, f"`{name}` must not be empty, expected {listed(allowed)}")
        return values

    def items(self, name: str, max_count: int) -> list[Any]:
        """A list of at most `max_count` values of any type; empty if the value is missing."""
        values = self._values.get(name)
        if values is None:
            return []
        if not isinstance(values, list | tuple):
            raise self.fault(name, f"`{name}` must be a list, not {shown(values)}")
        if len(values) > max_count:
            raise self.fault(name, f"`{name}` has {len(values)} entries, at most {max_count} are allowed")
        return list(values)

    def texts(self, name: str, max_count: int, max_chars: int) -> list[str]:
        """A list of strings that are not empty; empty if the value is missing."""
        entries = self.items(name, max_count)
        return [self.text(name, f"{name}[{at}]", entry, max_chars) for at, entry in enumerate(entries)]

    def text(self, name: str, place: str, value: object, max_chars: int) -> str:
        """One entry of a list: a string that is not empty and at most `max_chars` long."""
        if not isinstance(value, str) or not value:
            raise self.fault(name, f"`{place}` must be a string that is not empty, not {shown(value)}")
        if len(value) > max_chars:
            raise self.fault(name, f"`{place}` has {len(value)} characters, at most {max_chars} are allowed")
        return value


def shown(value: object) -> str:
    """Formats a value for an error message: short, and as the caller writes it."""
    if isinstance(value, str):
        return f"`{value[:40]}…`" if len(value) > 40 else f"`{value}`"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return "a list" if isinstance(value, list | tuple) else "an object" if isinstance(value, Mapping) else "this"


def listed(names: Sequence[str]) -> str:
    """Formats names for an error message."""
    quoted = [f"`{name}`" for name in names]
    return " or ".join(quoted) if len(quoted) < 3 else f"one of {', '.join(quoted)}"


def _expected(known: Sequence[str]) -> str:
    return f"expected {listed(known)}" if known else "this detector takes none"
