# SPDX-License-Identifier: Apache-2.0
"""The values that a message type allows at each place of a JSON document, named as in the reference (serde).

A struct is called by its class name, a union by its title; `Annotated[..., Meta(title=...)]` gives either, or an
integer, another name. Limits other than integer bounds are refused: they are rules, not shapes.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from msgspec import inspect

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"  # around a value of the request in the text of a fault
_MARKS, _QUOTED = re.compile(f"[{_OPEN}{_CLOSE}]"), re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}")
Scalar = str | bool | int | float | None


class JsonPlace:
    """The values allowed at one place of a document."""

    words: str
    opens = ""  # the bracket with which a value of this place begins, if any

    def objection(self, found: Scalar) -> str | None:
        """The reference's error text for this value, or None if it accepts it."""
        return f"invalid type: {describe(found)}, expected {self.words}"


@dataclass(frozen=True, slots=True, eq=False)
class Simple(JsonPlace):
    """Scalars of some types."""

    words: str
    types: tuple[type, ...]

    def objection(self, found: Scalar) -> str | None:
        return None if type(found) in self.types else f"invalid type: {describe(found)}, expected {self.words}"


FREE = Simple("any value", (str, bool, int, float, type(None)))  # any JSON
TEXT = Simple("a string", (str,))


@dataclass(frozen=True, slots=True, eq=False)
class Whole(JsonPlace):
    words: str
    low: int
    high: int

    def objection(self, found: Scalar) -> str | None:
        if not isinstance(found, int) or isinstance(found, bool):
            return f"invalid type: {describe(found)}, expected {self.words}"
        if self.low <= found <= self.high:
            return None
        return f"invalid value: {describe(found)}, expected {self.words}"


@dataclass(frozen=True, slots=True, eq=False)
class Variant(JsonPlace):
    names: tuple[str, ...]
    words: str = "variant identifier"

    def objection(self, found: Scalar) -> str | None:
        if found in self.names:
            return None
        return "unknown variant" + _quote(f"`{found}`") + f", expected {one_of(self.names)}"


@dataclass(frozen=True, slots=True, eq=False)
class Listing(JsonPlace):
    item: JsonPlace
    words: str = "a sequence"
    opens: str = "["


@dataclass(frozen=True, slots=True, eq=False)
class Mapping(JsonPlace):
    item: JsonPlace
    words: str = "a map"
    opens: str = "{"


@dataclass(slots=True, eq=False)
class Record(JsonPlace):
    """A struct; `fields` is in declaration order, and is filled last so that a struct may contain itself."""

    words: str
    denies_unknown: bool
    fields: dict[str, JsonPlace] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    opens: str = "{"


@dataclass(frozen=True, slots=True, eq=False)
class Nullable(JsonPlace):
    inner: JsonPlace
    words: str = "any value"


@dataclass(frozen=True, slots=True, eq=False)
class Untagged(JsonPlace):
    name: str
    options: tuple[JsonPlace, ...]
    words: str = "any value"


def describe(found: Scalar) -> str:
    """The reference's name for a value that it did not expect."""
    if found is None:
        return "null"
    if isinstance(found, bool):
        return "boolean" + _quote(f"`{str(found).lower()}`")
    if isinstance(found, int):
        return "integer" + _quote(f"`{found}`")
    if isinstance(found, float):
        return "floating point" + _quote(f"`{_real(found)}`")
    return "string" + _quote(f'"{_escaped(found)}"')


def _quote(value: str) -> str:
    """A quoted value between marks, so that it can be left out."""
    return f"{_OPEN} {_MARKS.sub('', value)}{_CLOSE}"


def with_values(text: str) -> str:
    """The text of a fault with the values that it quotes, as the reference writes it."""
    return _MARKS.sub("", text)


def without_values(text: str) -> str:
    """The text of a fault without the values that it quotes."""
    return _QUOTED.sub("", text)


def one_of(names: Iterable[str]) -> str:
    """The reference's list of the names that it accepts."""
    quoted = [f"`{name}`" for name in names]
    if not quoted:
        return "no names"
    if len(quoted) <= 2:
        return " or ".join(quoted)
    return f"one of {', '.join(quoted)}"


def _real(number: float) -> str:
    """The shortest digits that read back as the number, with an exponent below 1e-5 and from 1e16."""
    digits, _, exponent = repr(number).partition("e")
    if exponent == "-05":
        return format(Decimal(repr(number)), "f")
    return f"{digits}e{int(exponent)}" if exponent else digits


_ESCAPES = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _escaped(text: str) -> str:
    """Rust's debug form of a string."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    shown = []
    for char in text:
        is_plain = char.isprintable() and unicodedata.category(char) not in ("Mn", "Me")
        shown.append(_ESCAPES.get(char) or (char if is_plain else f"\\u{{{ord(char):x}}}"))
    return "".join(shown)


_PLAIN: dict[type[inspect.Type], JsonPlace] = {
    inspect.AnyType: FREE,
    inspect.RawType: FREE,
    inspect.StrType: TEXT,
    inspect.BoolType: Simple("a boolean", (bool,)),
    inspect.FloatType: Simple("f64", (int, float)),
}


class PlaceReader:
    """Reads places from a type, and notes where msgspec alone accepts more than the reference."""

    def __init__(self) -> None:
        self.records: dict[type, Record] = {}
        self.field_names: set[str] = set()
        self.leaves_unread = False  # the decoder skips parts of a document unchecked
        self.has_unbounded_integers = False

    def read(self, kind: inspect.Type, name: str | None = None) -> JsonPlace:
        """The place that `kind` describes; `name` overrides what a struct or union is called."""
        match kind:
            case inspect.Metadata():
                return self.read(kind.type, name or (kind.extra_json_schema or {}).get("title"))
            case inspect.StructType(tag=None, array_like=False):
                return self._record(kind, name or kind.cls.__name__)
            case inspect.UnionType():
                return self._union(kind, name)
            case inspect.ListType(min_length=None, max_length=None):
                return Listing(self.read(kind.item_type))
            case inspect.DictType(key_type=inspect.StrType() | inspect.AnyType(), min_length=None, max_length=None):
                return Mapping(self.read(kind.value_type))
            case inspect.IntType(multiple_of=None):
                return self._whole(kind, name)
            case inspect.EnumType() | inspect.LiteralType():
                values = [one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else kind.values
                names = tuple(one for one in values if isinstance(one, str))
                if len(names) == len(values):
                    return Variant(names)
            case inspect.StrType() | inspect.FloatType() | inspect.AnyType() | inspect.BoolType() | inspect.RawType():
                self.leaves_unread |= isinstance(kind, inspect.RawType)
                if kind == type(kind)():  # without limits
                    return _PLAIN[type(kind)]
        raise TypeError(f"a request body cannot hold {kind}")

    def _record(self, kind: inspect.StructType, name: str) -> Record:
        if kind.cls in self.records:
            return self.records[kind.cls]
        record = self.records[kind.cls] = Record(f"struct {name}", kind.forbid_unknown_fields)
        self.leaves_unread |= not kind.forbid_unknown_fields
        self.field_names.update(field.encode_name for field in kind.fields)
        record.fields.update({field.encode_name: self.read(field.type) for field in kind.fields})
        record.required = tuple(field.encode_name for field in kind.fields if field.required)
        return record

    def _union(self, kind: inspect.UnionType, name: str | None) -> JsonPlace:
        options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
        if len(options) > 1:
            place: JsonPlace = Untagged(name or "Value", tuple(self.read(option) for option in options))
        else:
            place = self.read(options[0], name)
        return Nullable(place) if len(options) < len(kind.types) else place

    def _whole(self, kind: inspect.IntType, name: str | None) -> Whole:
        low = kind.gt + 1 if kind.gt is not None else kind.ge
        high = kind.lt - 1 if kind.lt is not None else kind.le
        self.has_unbounded_integers |= low is None or high is None
        is_unsigned = low is not None and low >= 0
        least, most = (0, 2**64 - 1) if is_unsigned else (-(2**63), 2**63 - 1)
        low, high = least if low is None else low, most if high is None else high
        is_small = high < 2**32 if is_unsigned else low >= -(2**31) and high < 2**31
        return Whole(name or f"{'u' if is_unsigned else 'i'}{32 if is_small else 64}", low, high)
