# SPDX-License-Identifier: Apache-2.0
"""Reports personal data: a set of patterns finds candidates quickly, and only these get costly checks."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import phonenumbers
from stdnum import iban

from lockgate.data_files import split_words
from lockgate.detectors.pii.identifiers import (
    FILE,
    FORMS,
    GLUED_AFTER,
    GLUED_BEFORE,
    ORDER_WORDS,
    PHONE_WORDS,
    Page,
    PhoneForm,
    find_form,
    follows,
    stands_alone,
)
from lockgate.detectors.scans import (
    LOOKBEHIND_CHARS,
    PatternTable,
    Scan,
    ScanMatch,
    ScanningDetector,
    flatten,
    report,
)
from lockgate.gate.values import Detection
from lockgate.params import Params

KNOWN = ("entities", "regions")
DEFAULT_REGIONS = ("US",)


# --- E-mail ---------------------------------------------------------------------------------------------------

_EMAIL = r"@"
_LOCAL_CHARS = 64
_DOMAIN_CHARS = 253
_LOCAL = re.compile(r"\w(?:[\w+%&'~-]|\.(?!\.))*(?<!\.)\Z")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_](?:[^\W_]|-(?=[^\W_])){1,62}(?![\w@])")
_FILE_ENDINGS = split_words(FILE.file_endings)


def _find_emails(page: Page) -> Iterator[ScanMatch]:
    text = page.text
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - _LOCAL_CHARS), at)
        domain = local and _DOMAIN.match(text, at + 1, at + 1 + _DOMAIN_CHARS)
        if local and domain:
            start, end = local.start(), domain.end()
            before = text[max(0, start - 80) : start]
            is_password = before.endswith(":") and "://" in before.rsplit(maxsplit=1)[-1]
            is_repository = local.group() == "git" and text[end : end + 1] == ":"
            is_file = domain.group().rsplit(".", 1)[-1].lower() in _FILE_ENDINGS
            if not (is_password or is_repository or is_file):
                yield ScanMatch(start, end, "EmailAddress", 0.95, {"rule": "email"})
        at = text.find("@", at + 1)


# --- IBAN -----------------------------------------------------------------------------------------------------

_IBAN = r"(?i)\b[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{3}"
_IBAN_CHARS = {code: chars for chars, codes in FILE.iban_chars.items() for code in codes.split()}
_LETTER_VALUES = {ord("A") + number: str(10 + number) for number in range(26)}


def _find_ibans(number: int, table: PatternTable, page: Page) -> Iterator[ScanMatch]:
    data = page.data
    ends: dict[int, int] = {}

    def accept(start: int, _end: int) -> bool:
        ends[start] = end = _iban_end(data, start)
        return end > 0 and stands_alone(data, start, end)

    for start, _ in table.spans(number, data, accept):
        country = data[start : start + 2].decode().upper()
        yield ScanMatch(start, ends[start], "IBAN", 0.99, {"rule": "iban", "country": country})


def _iban_end(data: bytes, start: int) -> int:
    """Returns the end of the IBAN that begins at `start`; 0 if none does."""
    size = _IBAN_CHARS.get(data[start : start + 2].decode("latin-1").upper(), 0)
    value, end = "", start
    while len(value) < size and end < len(data):
        char = chr(data[end])
        if char.isascii() and char.isalnum():
            value += char.upper()
        elif char not in " -" or not data[end - 1 : end].isalnum():
            return 0
        end += 1
    if not size or len(value) < size:
        return 0
    # First the cheap half of the library's check: the whole takes twenty times as long.
    has_mod97 = int((value[4:] + value[:4]).translate(_LETTER_VALUES)) % 97 == 1
    return end if has_mod97 and iban.is_valid(value) else 0


# --- Phone numbers --------------------------------------------------------------------------------------------


PHONE_FORMS = FILE.phones
_INTERNATIONAL = PHONE_FORMS[0]
# A national number must not follow another group of digits; a `+` always begins a number.
_PHONE_GLUED_BEFORE = re.compile(rb"(?:[\w$#+=\xa3]|[\w/]-|\d[.,/: ])\Z")
_NO_PHONE = re.compile(  # Dates and social security numbers.
    r"\d{1,2}[./-]\d{1,2}[./-](?:\d{2}|\d{4})|(?:19|20)\d{2}[./-]\d{1,2}[./-]\d{1,2}.*|\d{3}-\d{2}-\d{4}"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3})+")
_MAX_GROUPS = 8
_MAX_CUTS = 3


def _find_style(region: str) -> str:
    """Returns a region's style: 3, 3 and 4 digits in North America, a leading 0 in many countries, else groups."""
    if phonenumbers.country_code_for_region(region) == 1:
        return "3-3-4"
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    return "trunk" if metadata and metadata.national_prefix == "0" else "groups"


class PhoneFinder:
    """Finds phone numbers of some regions, and international ones."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = [(region, _find_style(region)) for region in regions]
        self._styles = {style for _, style in self._regions}

    def is_needed(self, form: PhoneForm) -> bool:
        """Returns whether any of the regions writes numbers in this form."""
        return form.style in self._styles if form.style else form is _INTERNATIONAL or bool(self._regions)

    def find(self, form: PhoneForm, number: int, table: PatternTable, page: Page) -> Iterator[ScanMatch]:
        """Yields the valid numbers of one form."""
        data = page.data
        known: dict[int, tuple[int, str]] = {}

        def accept(start: int, end: int) -> bool:
            glued = GLUED_BEFORE if data.startswith(b"+", start) else _PHONE_GLUED_BEFORE
            if glued.search(data, max(0, start - 2), start) or follows(ORDER_WORDS, data, start):
                return False
            if form.is_cued and not follows(PHONE_WORDS, data, start):
                return False
            known[start] = _, region = self._recognise(data, start, end, form)
            return region != ""

        for start, _ in table.spans(number, data, accept):
            end, region = known[start]
            yield ScanMatch(start, end, "PhoneNumber", form.score, {"rule": form.rule, "region": region})

    def _recognise(self, data: bytes, start: int, end: int, form: PhoneForm) -> tuple[int, str]:
        """Returns the number's end and region; the pattern may have matched more groups after it."""
        for _ in range(_MAX_CUTS):
            value = data[start:end].decode("latin-1")
            if GLUED_AFTER.match(data, end) is None and (region := self._region(value, form)):
                return end, region
            end = start + len(value.rstrip("0123456789").rstrip(" ().-/"))  # before the last group of digits
            if form.is_cued or end - start < 8:
                break
        return end, ""

    def _region(self, value: str, form: PhoneForm) -> str:
        if len(re.findall(r"\d+", value)) > _MAX_GROUPS:
            return ""
        if form is _INTERNATIONAL:
            return _region_of("+" + value[2:] if value.startswith("00") else value, None)
        if _NO_PHONE.fullmatch(value) or (_THOUSANDS.fullmatch(value) and not form.is_cued):
            return ""
        fitting = (region for region, style in self._regions if form.is_cued or style == form.style)
        return next((region for region in fitting if _region_of(value, region)), "")


def _region_of(value: str, region: str | None) -> str:
    try:
        number = phonenumbers.parse(value, region)
    except phonenumbers.NumberParseException:
        return ""
    found = region or phonenumbers.region_code_for_number(number)
    return found if found and phonenumbers.is_valid_number_for_region(number, found) else ""


# --- The detector ---------------------------------------------------------------------------------------------

_FORM_ENTITIES = tuple(form.entry.entity for form in FORMS)
ENTITIES = tuple(dict.fromkeys(("EmailAddress", "PhoneNumber", "CreditCard", "IBAN", *_FORM_ENTITIES)))
_PATTERNS = (_EMAIL, _IBAN, *(form.pattern for form in PHONE_FORMS), *(form.pattern for form in FORMS))
_FIRST_PHONE = 2
_FIRST_FORM = _FIRST_PHONE + len(PHONE_FORMS)
_PATTERN_ENTITIES = ("EmailAddress", "IBAN", *("PhoneNumber" for _ in PHONE_FORMS), *_FORM_ENTITIES)


class PiiScan(Scan):
    """Reports a request's entities, and phone numbers of its regions."""

    reads_folded = True

    def __init__(self, table: PatternTable, entities: Sequence[str], regions: Sequence[str]) -> None:
        self._table = table
        phones = PhoneFinder(regions)
        finders: list[Callable[[Page], Iterator[ScanMatch]]] = [
            _find_emails,
            partial(_find_ibans, 1, table),
            *(partial(phones.find, form, number, table) for number, form in enumerate(PHONE_FORMS, _FIRST_PHONE)),
            *(partial(find_form, form, number, table) for number, form in enumerate(FORMS, _FIRST_FORM)),
        ]
        unused = {number for number, form in enumerate(PHONE_FORMS, _FIRST_PHONE) if not phones.is_needed(form)}
        used = {number for number, entity in enumerate(_PATTERN_ENTITIES) if entity in entities}
        self._finders = {number: finders[number] for number in used - unused}

    def __call__(self, text: str) -> list[Detection]:
        data = flatten(text)
        numbers = [number for number in self._table.occurring(data) if number in self._finders]
        if not numbers:
            return []
        page = Page(text, data)
        found = [hit for number in numbers for hit in self._finders[number](page)]
        return report(found, text, "pii")

    def may_find(self, text: str) -> bool:
        """Returns whether the pattern of any chosen entity matches."""
        return not self._finders.keys().isdisjoint(self._table.occurring(flatten(text)))


def _read_regions(params: Params, default: tuple[str, ...]) -> tuple[str, ...]:
    known = sorted(phonenumbers.SUPPORTED_REGIONS)
    values = params.items("regions", len(known))
    for value in values:
        if not isinstance(value, str) or value not in phonenumbers.SUPPORTED_REGIONS:
            given = f"`{value}`" if isinstance(value, str) else "a value that is no string"
            raise params.fault("regions", f"`regions` has {given}, expected country codes such as `US` or `DE`")
    return default if params.value("regions") is None else tuple(values)


@asynccontextmanager
async def open_pii_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports personal data. Options: `entities`, `regions`."""
    given = Params.of_options(options, KNOWN)
    entities = given.choices("entities", ENTITIES) or ENTITIES
    regions = _read_regions(given, DEFAULT_REGIONS)
    table = PatternTable(_PATTERNS)
    for region in regions:  # The library reads its tables on first use: now, not in a request.
        _region_of("0", region)

    def prepare(params: Params) -> Scan:
        return PiiScan(table, params.choices("entities", ENTITIES) or entities, _read_regions(params, regions))

    yield ScanningDetector(prepare, KNOWN, LOOKBEHIND_CHARS)
