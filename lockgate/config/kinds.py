# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that settings have, each with a parser. Errors never repeat a value, because it may be secret."""

import dataclasses
import math
import re
import secrets
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.refs import check_segment, check_url

MAX_INTEGER = 2**63 - 1
TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII)
_SPECIAL_ORIGINS = ("*", "null")  # any, and those of pages without an origin


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A value without settings inside it. `is_text` and `is_list` decide how the text of a variable is parsed."""

    name: str
    parse: Callable[[object], Any]
    is_text: bool = False
    is_list: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A map of settings. `shared`: the name under which pages describe it once; `can_be_named`: or an entry's name."""

    fields_of: type
    shared: str = ""
    can_be_named: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SectionMap:
    """A map from ids that the operator chooses to sections."""

    fields_of: type
    shared: str = ""


AnyKind = Kind | Section | SectionMap


def describe(value: object) -> str:
    """Return the type of a YAML value in words."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (Mapping, "a map"),
        ((list, tuple), "a list"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def suggest(word: str, known: list[str]) -> str:
    """Return `; did you mean ...?` when a known word is similar, else an empty string."""
    close = get_close_matches(word, known, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def describe_unknown_key(key: str, known: list[str]) -> str:
    """Return the fault of an unknown key, with a similar key or all keys."""
    hint = suggest(key, known) or f"; remove it, or use one of {', '.join(known)}"
    return f"no such key{hint}"


def _parse_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # an id such as 7 needs no quotes in the file
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {describe(value)}")
    return value


def _parse_boolean(value: object) -> bool:
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise ValueError(f"must be true or false, not {describe(value)}")


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {describe(value)}")
    if math.isnan(value) or (abs(value) > MAX_INTEGER and not math.isinf(value)):
        raise ValueError(f"must be a number from -{MAX_INTEGER} to {MAX_INTEGER}")
    return float(value)


def _parse_duration(value: object) -> float:
    seconds = _parse_number(value)
    if not 0 < seconds < math.inf:
        raise ValueError("must be more than 0 seconds")
    return seconds


def _parse_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of strings, not {describe(value)}")
    return tuple(_parse_text(item) for item in value)


def _parse_origins(value: object) -> tuple[str, ...]:
    """Return the origins as browsers send them: in lower case, without a slash at the end."""
    words = [text.lower().rstrip("/") for text in _parse_texts(value)]
    if not all(word in _SPECIAL_ORIGINS or _ORIGIN.fullmatch(word) for word in words):
        raise ValueError("must be a list of origins such as https://app.example.com, or of `*`")
    return tuple(dict.fromkeys(words))


def _parse_map(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a map, not {describe(value)}")
    return dict(value)


def _parse_level(value: object) -> str:
    word = _parse_text(value).upper()
    word = {"TRACE": "DEBUG", "WARN": "WARNING", "OFF": "CRITICAL"}.get(word, word)
    if word not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return word


def integer(low: int = 0, high: int = MAX_INTEGER, name: str = "integer") -> Kind:
    """An integer from `low` to `high`, both included."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be an integer, not {describe(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be at least {low}" if value < low else f"must be at most {high}")
        return value

    return Kind(name, parse)


def between(low: float, high: float) -> Kind:
    """A number from `low` to `high`, both included."""

    def parse(value: object) -> float:
        number = _parse_number(value)
        if not low <= number <= high:
            raise ValueError(f"must be from {low:g} to {high:g}")
        return number

    return Kind("number", parse)


def choice(*words: str, is_case_kept: bool = True) -> Kind:
    """One of a few words."""

    def parse(value: object) -> str:
        word = value if isinstance(value, str) else ""
        word = word if is_case_kept else word.lower()
        if word in words:
            return word
        given = f"`{word[:40]}`" if word else describe(value)
        raise ValueError(f"must be one of {', '.join(words)}, not {given}{suggest(word, list(words))}")

    return Kind(" | ".join(words), parse, is_text=True)


def word_or_map(*words: str) -> Kind:
    """One of a few words, or a map with a word for each part; the reader of the setting checks the words."""

    def parse(value: object) -> str | dict[str, Any]:
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            return dict(value)
        raise ValueError(f"must be one of {', '.join(words)}, or a map, not {describe(value)}")

    return Kind(f"{' | '.join(words)} | map", parse)


def words_of(*words: str) -> Kind:
    """A list of some of these words, in any case."""
    one = choice(*words, is_case_kept=False)

    def parse(value: object) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.parse(item.strip()) for item in _parse_texts(value)))

    return Kind(f"list of {' | '.join(words)}", parse, is_list=True)


def checked(name: str, find_fault: Callable[[str], str | None]) -> Kind:
    """A string in which `find_fault` finds nothing wrong."""

    def parse(value: object) -> str:
        text = _parse_text(value)
        if (fault := find_fault(text)) is not None:
            raise ValueError(fault)
        return text

    return Kind(name, parse, is_text=True)


def matching(pattern: str, fault: str) -> Kind:
    """A string that matches a pattern."""
    return checked("string", lambda text: None if re.fullmatch(pattern, text) else fault)


def normalised(kind: Kind, change: Callable[[Any], Any]) -> Kind:
    """The same kind, its value changed after parsing."""
    return dataclasses.replace(kind, parse=lambda value: change(kind.parse(value)))


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOG_FORMATS = ("full", "compact", "pretty", "json", "console")
OTLP_PROTOCOLS = ("grpc", "http")

TEXT = Kind("string", _parse_text, is_text=True)
NAME = checked("string", lambda text: None if text else "must not be empty")
EMBEDDED = matching(r"[\w-]+|[\w.]+:[\w.]+", "must be the name of an embedded part or `module:attribute`")
TEXTS = Kind("list of strings", _parse_texts, is_list=True)
ORIGINS = Kind("list of origins", _parse_origins, is_list=True)
URL = normalised(checked("URL", check_url), lambda text: text.rstrip("/"))
SLUG = checked("string", check_segment)
TABLE = matching(
    "[a-z_][a-z0-9_]{0,47}",
    "must be a name of at most 48 lower-case letters, digits and _, and not begin with a digit",
)
BOOLEAN = Kind("boolean", _parse_boolean)
NUMBER = Kind("number", _parse_number)
DURATION = Kind("seconds", _parse_duration)
MAP = Kind("map", _parse_map)
PATH = normalised(checked("path", lambda text: "must be a path" if not text or "\0" in text else None), Path)
LEVEL = Kind(" | ".join(LEVELS), _parse_level, is_text=True)
PORT = integer(0, 65535, "port")
COUNT = integer(0)
POSITIVE = integer(1)
SECONDS = integer(0, name="seconds")


class Secret:
    """A value that is never shown: its text form is `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value, for the call that needs it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "***"


class Option(NamedTuple):
    """The metadata of a field that is a setting. `shown` replaces its default in the documentation."""

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
    """Return a dataclass field that is a setting. `variables`: its names besides LOCKGATE_<PATH>, lowest rank first."""
    metadata = {"option": Option(kind, help_text, shown, variables)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def make_key() -> Secret:
    """Return a new random key."""
    return Secret(secrets.token_hex(32))


def empty_map() -> Mapping[str, Any]:
    """Return an empty map that cannot be changed."""
    return MappingProxyType({})
