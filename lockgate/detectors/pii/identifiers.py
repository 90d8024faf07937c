# SPDX-License-Identifier: Apache-2.0
"""Finds identifiers in the fixed forms of `identifiers.toml`: cards, network addresses, national ids."""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stdnum.ca import sin
from stdnum.es import dni
from stdnum.in_ import aadhaar
from stdnum.util import get_cc_module

from lockgate.data_files import Table, fill_parts, fill_pattern, join_lines, read_table, split_words
from lockgate.detectors.scans import PatternTable, ScanMatch


class Page(NamedTuple):
    """A text, and the same text with one ASCII or Latin-1 byte per code point."""

    text: str
    data: bytes


class FormEntry(Table, frozen=True):
    """The pattern of a value, and the names of its check and of text that must not be next to it."""

    rule: str
    entity: str
    pattern: str
    check: str
    score: float
    cue: str = ""
    not_after: str = ""
    apart_from: str = ""


class Form(NamedTuple):
    """An entry of the file with its names resolved."""

    entry: FormEntry
    pattern: str
    check: Callable[[str], bool]
    cue: re.Pattern[bytes] | None
    not_after: re.Pattern[bytes] | None
    apart_from: tuple[re.Pattern[bytes], re.Pattern[bytes]] | None


class PhoneForm(Table, frozen=True):
    """A way to write a number; `style` chooses the regions (see `_find_style`), "" all of them."""

    rule: str
    pattern: str
    score: float
    style: str = ""
    is_cued: bool = False


class IdentifierFile(Table, frozen=True):
    """The content of `identifiers.toml`."""

    issuers: tuple[tuple[str, str, tuple[int, ...]], ...]
    file_endings: str
    not_issued_nino: str
    phone_cue: str
    phones: tuple[PhoneForm, ...]
    iban_chars: dict[int, str]
    not_after: dict[str, str]
    parts: dict[str, str]
    forms: tuple[FormEntry, ...]


FILE = read_table(Path(__file__).with_name("identifiers.toml"), IdentifierFile)

# --- Surroundings ---------------------------------------------------------------------------------------------

_CUE_CHARS = 32
# A value right next to more letters or digits is a part of something else: `x12`, `1,234`, `a-12`, `$12`.
GLUED_BEFORE = re.compile(rb"(?:[\w$\xa3]|\w-|\d[.,/])\Z")
GLUED_AFTER = re.compile(rb"\w|-\w|[.,/]\d")
_DIGIT_GROUPS = re.compile(rb"\d[ -]\Z"), re.compile(rb"[ -]\d{4}\b")
_HEX_GROUPS = re.compile(rb"\b[0-9A-Fa-f]{1,4}:\Z"), re.compile(rb":[0-9A-Fa-f]")


def stands_alone(data: bytes, start: int, end: int) -> bool:
    """Returns whether no letters or digits are right next to the value."""
    return not (GLUED_AFTER.match(data, end) or GLUED_BEFORE.search(data, max(0, start - 2), start))


def _is_part(groups: tuple[re.Pattern[bytes], re.Pattern[bytes]], data: bytes, start: int, end: int) -> bool:
    before, after = groups
    return bool(after.match(data, end) or before.search(data, max(0, start - 6), start))


def follows(cue: re.Pattern[bytes], data: bytes, start: int) -> bool:
    """Returns whether the cue is shortly before the value."""
    return cue.search(data, max(0, start - _CUE_CHARS), start) is not None


def _cue(words: str) -> re.Pattern[bytes]:
    """Compiles words that announce a value; they may be a few words before it."""
    return re.compile(rb"(?i)(?:\b|_)(?:" + words.encode("latin-1") + rb")")


def _just_before(words: str) -> re.Pattern[bytes]:
    """Compiles words right before a value, with at most `no.`, a colon or a number sign between."""
    return re.compile(rb"(?i)(?:" + words.encode("latin-1") + rb")[\s.:#]*(?:no|nr|n\xfam|num|id|n)?[\s.:#\xba]*\Z")


_NOT_AFTER = {name: _just_before(join_lines(words)) for name, words in FILE.not_after.items()}
_APART_FROM = {"digits": _DIGIT_GROUPS, "hex": _HEX_GROUPS}
ORDER_WORDS = _NOT_AFTER["order"]
PHONE_WORDS = _cue(join_lines(FILE.phone_cue))

# --- Checks ---------------------------------------------------------------------------------------------------

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def _has_luhn(digits: str) -> bool:
    return (sum(map(int, digits[-1::-2])) + sum(_DOUBLED[int(digit)] for digit in digits[-2::-2])) % 10 == 0


def _is_card(value: str) -> bool:
    digits = value.replace(" ", "").replace("-", "")
    if " " in value and "-" in value:
        return False
    is_issued = any(low <= digits[: len(low)] <= high and len(digits) in sizes for low, high, sizes in FILE.issuers)
    return is_issued and _has_luhn(digits)


def _can_read(kind: Callable[[str], object], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _is_ipv6(value: str) -> bool:
    """Returns whether the address is valid and not `a::b`, which is more often a name in a program."""
    groups = [group for group in value.split(":") if group]
    return (len(groups) >= 3 or any(char.isdigit() for char in value)) and _can_read(ipaddress.IPv6Address, value)


def _is_mac(value: str) -> bool:
    """Accepts six pairs, no fingerprint of twenty; with `-` or `.` a letter is needed."""
    if value[2] == ":":
        return len(value) == 17
    return len(value) in (14, 17) and any(char.isalpha() for char in value)


_NOT_ISSUED_NINO = split_words(FILE.not_issued_nino)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "card": _is_card,
    "ipv4": partial(_can_read, ipaddress.IPv4Address),
    "ipv6": _is_ipv6,
    "mac": _is_mac,
    "nino": lambda value: value[:2] not in _NOT_ISSUED_NINO,
    "aadhaar": lambda value: len(value) <= 14 and bool(aadhaar.is_valid(value)),  # longer numbers match too
    "dni": lambda value: bool(dni.is_valid(value.replace(".", ""))),
    "sin": lambda value: value[3] == value[7] and bool(sin.is_valid(value)),
}


def _find_check(name: str) -> Callable[[str], bool]:
    """Returns a check of this module or of python-stdnum, there named by country and module."""
    if name in _CHECKS:
        return _CHECKS[name]
    country, _, module = name.partition(".")
    found = get_cc_module(country, module)
    if found is None:
        raise LookupError(f"python-stdnum has no module {name}")
    return found.is_valid


def _build_form(entry: FormEntry, parts: Mapping[str, str]) -> Form:
    return Form(
        entry,
        fill_pattern(entry.pattern, parts),
        _find_check(entry.check),
        cue=_cue(entry.cue) if entry.cue else None,
        not_after=_NOT_AFTER[entry.not_after] if entry.not_after else None,
        apart_from=_APART_FROM[entry.apart_from] if entry.apart_from else None,
    )


_PARTS = fill_parts(FILE.parts.items())
FORMS = tuple(_build_form(entry, _PARTS) for entry in FILE.forms)


def find_form(form: Form, number: int, table: PatternTable, page: Page) -> Iterator[ScanMatch]:
    """Yields the values of one form that pass its checks."""
    data = page.data

    def accept(start: int, end: int) -> bool:
        return (
            stands_alone(data, start, end)
            and not (form.apart_from and _is_part(form.apart_from, data, start, end))
            and (form.cue is None or follows(form.cue, data, start))
            and not (form.not_after and follows(form.not_after, data, start))
            and form.check(data[start:end].decode("latin-1"))
        )

    for start, end in table.spans(number, data, accept):
        yield ScanMatch(start, end, form.entry.entity, form.entry.score, {"rule": form.entry.rule})
