# SPDX-License-Identifier: Apache-2.0
"""Personal data with a form of its own: addresses, numbers, national identifiers.

This module decides what counts as a sighting: a form, then its check digits or its library's verdict, then its
surroundings (a version number is no IP address). One set of patterns tells in a single pass which forms occur at
all; the costly checks see only those. It refuses to know names of people: no model for them is at hand.
"""

import ipaddress
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import phonenumbers
from stdnum import iban
from stdnum.at import vnr
from stdnum.au import tfn
from stdnum.be import nn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.ch import ssn as ahv
from stdnum.de import idnr
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.in_ import aadhaar, pan
from stdnum.it import codicefiscale
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.pl import pesel
from stdnum.se import personnummer
from stdnum.us import itin, ssn

from lockgate.core.values import Detection
from lockgate.embedded.scanning import (
    LOOKBEHIND_CHARS,
    Found,
    Params,
    PatternTable,
    Scan,
    ScanningDetector,
    detections,
    flatten,
    keep_best,
)

KNOWN = ("entities", "regions")
DEFAULT_REGIONS = ("US",)


class Page(NamedTuple):
    """A text, and the same text with one ASCII or Latin-1 byte per code point."""

    text: str
    data: bytes


class Form(NamedTuple):
    """One rule of the table: how a value looks, what proves it, and the word it needs or must not have before it.

    `apart_from`: what before or behind it makes it a part of a longer row of groups.
    """

    rule: str
    entity: str
    pattern: str
    check: Callable[[str], bool]
    score: float
    cue: re.Pattern[bytes] | None = None
    not_after: re.Pattern[bytes] | None = None
    apart_from: tuple[re.Pattern[bytes], re.Pattern[bytes]] | None = None


# --- Surroundings ---------------------------------------------------------------------------------------------

_CUE_CHARS = 32
# A value glued to more letters or digits is a part of something else: `x12`, `1,234`, `a-12`, `$12`.
_GLUED_BEFORE = re.compile(rb"(?:[\w$\xa3]|\w-|\d[.,/])\Z")
_GLUED_AFTER = re.compile(rb"\w|-\w|[.,/]\d")
_DIGIT_GROUPS = re.compile(rb"\d[ -]\Z"), re.compile(rb"[ -]\d{4}\b")
_HEX_GROUPS = re.compile(rb"\b[0-9A-Fa-f]{1,4}:\Z"), re.compile(rb":[0-9A-Fa-f]")


def _stands_alone(data: bytes, start: int, end: int) -> bool:
    return not (_GLUED_AFTER.match(data, end) or _GLUED_BEFORE.search(data, max(0, start - 2), start))


def _is_part(groups: tuple[re.Pattern[bytes], re.Pattern[bytes]], data: bytes, start: int, end: int) -> bool:
    before, after = groups
    return bool(after.match(data, end) or before.search(data, max(0, start - 6), start))


def _follows(cue: re.Pattern[bytes], data: bytes, start: int) -> bool:
    return cue.search(data, max(0, start - _CUE_CHARS), start) is not None


def _cue(words: str) -> re.Pattern[bytes]:
    """Words that announce a value; they may stand a few words before it."""
    return re.compile(rb"(?i)(?:\b|_)(?:" + words.encode("latin-1") + rb")")


def _just_before(words: str) -> re.Pattern[bytes]:
    """Words that stand right before a value, with at most `no.`, a colon or a number sign between."""
    return re.compile(rb"(?i)(?:" + words.encode("latin-1") + rb")[\s.:#]*(?:no|nr|n\xfam|num|id|n)?[\s.:#\xba]*\Z")


_VERSION = _just_before(
    r"\b(?:version|versi\xf3n|ver|v|release|rev|build|firmware|driver|section|sec|chapter|clause|annex|oid|abschnitt"
    r"|kapitel|ziffer|punkt|secci\xf3n|cap\xedtulo|art\xedculo|apartado|paragraph)|\xa7"
)
_ORDER = _just_before(
    r"\b(?:order|invoice|ticket|tracking|reference|ref|isbn|issn|sku|serial|case|part|model|batch|article|item"
    r"|pedido|factura|referencia|albar\xe1n|expediente|bestellung|bestellnummer|rechnung|rechnungsnummer|auftrag"
    r"|auftragsnummer|artikel|artikelnummer|kundennummer|sendungsnummer|aktenzeichen)|#"
)
_PHONE_CUE = _cue(
    r"phone|tel\b|tel[.:]|tel\xe9fono|telefon|mobile|mobil|m\xf3vil|handy|cell|call|fax|whatsapp|sms|ll\xe1m|ruf|celular"
)

# --- Checks of our own ----------------------------------------------------------------------------------------

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
# Issuer, lowest and highest prefix, lengths. Prefixes are compared in as many digits as they have.
_ISSUERS = (
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("6011", "6011", (16, 19)),
    ("644", "659", (16, 19)),
    ("300", "305", (14, 16)),
    ("309", "309", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("3528", "3589", (16, 17, 18, 19)),
    ("62", "62", (16, 17, 18, 19)),
    ("2200", "2204", (16,)),
    ("5018", "5018", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("5020", "5020", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("5038", "5038", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("6304", "6304", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("6759", "6763", (12, 13, 14, 15, 16, 17, 18, 19)),
)


def _has_luhn(digits: str) -> bool:
    return (sum(map(int, digits[-1::-2])) + sum(_DOUBLED[int(digit)] for digit in digits[-2::-2])) % 10 == 0


def _is_card(value: str) -> bool:
    digits = value.replace(" ", "").replace("-", "")
    if " " in value and "-" in value:
        return False
    is_issued = any(low <= digits[: len(low)] <= high and len(digits) in sizes for low, high, sizes in _ISSUERS)
    return is_issued and _has_luhn(digits)


def _is_ipv4(value: str) -> bool:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        return False
    return True


def _is_ipv6(value: str) -> bool:
    """Valid, and not `a::b`, which is more often a name in a program."""
    groups = [group for group in value.split(":") if group]
    if len(groups) < 3 and not any(char.isdigit() for char in value):
        return False
    try:
        ipaddress.IPv6Address(value)
    except ValueError:
        return False
    return True


def _is_mac(value: str) -> bool:
    """Six pairs, not a fingerprint of twenty; with `-` or `.` it needs a letter, or it may be just numbers."""
    if value[2] == ":":
        return len(value) == 17
    return len(value) in (14, 17) and any(char.isalpha() for char in value)


_NOT_ISSUED_NINO = frozenset({"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"})


def _is_nino(value: str) -> bool:
    return value[:2] not in _NOT_ISSUED_NINO


def _is_aadhaar(value: str) -> bool:
    """Three groups of four; the pattern takes more, so that a part of a longer number is none."""
    return len(value) <= 14 and bool(aadhaar.is_valid(value))


def _is_dni(value: str) -> bool:
    return bool(dni.is_valid(value.replace(".", "")))


def _is_sin(value: str) -> bool:
    return value[3] == value[7] and bool(sin.is_valid(value))


_HEX = "[0-9A-Fa-f]"
_H16 = f"{_HEX}{{1,4}}"
_IPV4 = r"(?:\d{1,3}\.){3}\d{1,3}"

FORMS = (
    Form(
        "card",
        "CreditCard",
        r"\b\d{4}[ -]\d{4}[ -]\d{4}[ -]\d{4}(?:[ -]\d{3})?\b|\b3\d{3}[ -]\d{6}[ -]\d{4,5}\b|\b\d{12,19}\b",
        _is_card,
        0.95,
    ),
    Form("ipv4", "IPAddress", rf"\b{_IPV4}\b", _is_ipv4, 0.9, not_after=_VERSION),
    Form(
        "ipv6",
        "IPAddress",
        rf"(?:^|[^\w:.])((?:{_H16}:){{7}}{_H16}|(?:{_H16}(?::{_H16}){{0,6}})?::(?:(?:{_H16}:){{0,5}}(?:{_IPV4}|{_H16}))?)",
        _is_ipv6,
        0.95,
        apart_from=_HEX_GROUPS,
    ),
    Form(
        "mac",
        "MACAddress",
        rf"\b{_HEX}{{2}}(?::{_HEX}{{2}}){{5,31}}\b|\b{_HEX}{{2}}(?:-{_HEX}{{2}}){{5,31}}\b"
        rf"|\b{_HEX}{{4}}\.{_HEX}{{4}}\.{_HEX}{{4}}\b",
        _is_mac,
        0.9,
        apart_from=_HEX_GROUPS,
    ),
    Form("us-ssn", "US_SSN", r"\b\d{3}-\d{2}-\d{4}\b", ssn.is_valid, 0.9),
    Form(
        "us-ssn-cued",
        "US_SSN",
        r"\b\d{3} ?\d{2} ?\d{4}\b",
        ssn.is_valid,
        0.85,
        _cue(r"ssn|social security|seguro social"),
    ),
    Form("us-itin", "US_ITIN", r"\b9\d{2}-\d{2}-\d{4}\b", itin.is_valid, 0.9),
    Form("es-dni", "ES_DNI", r"\b(?:\d{8}|\d{1,2}\.\d{3}\.\d{3})-?[A-Za-z]\b", _is_dni, 0.9),
    Form("es-nie", "ES_NIE", r"\b[XYZxyz]-?\d{7}-?[A-Za-z]\b", nie.is_valid, 0.9),
    Form(
        "de-steuer-id",
        "DE_STEUER_ID",
        r"\b[1-9]\d \d{3} \d{3} \d{3}\b|\b[1-9]\d{10}\b",
        idnr.is_valid,
        0.75,
        None,
        _ORDER,
    ),
    Form(
        "gb-nino",
        "GB_NINO",
        r"\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z](?: ?\d{2}){3} ?[A-D]\b",
        _is_nino,
        0.85,
    ),
    Form("gb-nhs", "GB_NHS", r"\b\d{3}[ -]?\d{3}[ -]?\d{4}\b", nhs.is_valid, 0.9, _cue(r"nhs")),
    Form("fr-nir", "FR_NIR", r"\b[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}\b", nir.is_valid, 0.9),
    Form(
        "it-codice-fiscale",
        "IT_CODICE_FISCALE",
        r"\b[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]\b",
        codicefiscale.is_valid,
        0.95,
    ),
    Form("in-aadhaar", "IN_AADHAAR", r"\b\d{4}(?:[ -]\d{4}){2,5}\b", _is_aadhaar, 0.8, apart_from=_DIGIT_GROUPS),
    Form("in-aadhaar-cued", "IN_AADHAAR", r"\b\d{12}\b", aadhaar.is_valid, 0.85, _cue(r"aadhaar|aadhar|uidai")),
    Form("in-pan", "IN_PAN", r"\b[A-Z]{3}[PH][A-Z]\d{4}[A-Z]\b", pan.is_valid, 0.7),
    Form("br-cpf", "BR_CPF", r"\b\d{3}\.\d{3}\.\d{3}-\d{2}\b", cpf.is_valid, 0.95),
    Form("br-cpf-cued", "BR_CPF", r"\b\d{11}\b", cpf.is_valid, 0.85, _cue(r"cpf")),
    Form("pl-pesel", "PL_PESEL", r"\b\d{11}\b", pesel.is_valid, 0.9, _cue(r"pesel")),
    Form("nl-bsn", "NL_BSN", r"\b\d{9}\b|\b\d{4}[. ]\d{2}[. ]\d{3}\b", bsn.is_valid, 0.9, _cue(r"bsn|burgerservice")),
    Form("ch-ahv", "CH_AHV", r"\b756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}\b", ahv.is_valid, 0.9),
    Form(
        "at-svnr", "AT_SVNR", r"\b\d{4} ?\d{6}\b", vnr.is_valid, 0.9, _cue(r"svnr|sv-nummer|sozialvers|versicherungsn")
    ),
    Form("se-personnummer", "SE_PERSONNUMMER", r"\b(?:19|20)?\d{6}[-+]\d{4}\b", personnummer.is_valid, 0.85),
    Form("fi-hetu", "FI_HETU", r"\b\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y]\b", hetu.is_valid, 0.9),
    Form("be-nn", "BE_NN", r"\b\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}\b", nn.is_valid, 0.95),
    Form("ca-sin", "CA_SIN", r"\b\d{3}[ -]\d{3}[ -]\d{3}\b", _is_sin, 0.85, _cue(r"sin\b|social insurance|nas\b")),
    Form("au-tfn", "AU_TFN", r"\b\d{3} ?\d{3} ?\d{2,3}\b", tfn.is_valid, 0.9, _cue(r"tfn|tax file")),
    Form("mx-curp", "MX_CURP", r"\b[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d\b", curp.is_valid, 0.95),
)


def _find_form(form: Form, number: int, table: PatternTable, page: Page) -> Iterator[Found]:
    data = page.data

    def accept(start: int, end: int) -> bool:
        return (
            _stands_alone(data, start, end)
            and not (form.apart_from and _is_part(form.apart_from, data, start, end))
            and (form.cue is None or _follows(form.cue, data, start))
            and not (form.not_after and _follows(form.not_after, data, start))
            and form.check(data[start:end].decode("latin-1"))
        )

    for start, end in table.spans(number, data, accept):
        yield Found(start, end, form.entity, form.score, {"rule": form.rule})


# --- E-mail ---------------------------------------------------------------------------------------------------

_EMAIL = r"@"
_LOCAL_CHARS = 64
_DOMAIN_CHARS = 253
_LOCAL = re.compile(r"\w(?:[\w+%&'~-]|\.(?!\.))*(?<!\.)\Z")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_](?:[^\W_]|-(?=[^\W_])){1,62}(?![\w@])")
# `icon@2x.png` is a file; no such top-level domains exist.
_FILE_ENDINGS = frozenset({"avif", "bmp", "css", "gif", "ico", "jpeg", "jpg", "js", "json", "png", "svg", "webp"})


def _find_emails(page: Page) -> Iterator[Found]:
    text = page.text
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - _LOCAL_CHARS), at)
        domain = local and _DOMAIN.match(text, at + 1, at + 1 + _DOMAIN_CHARS)
        if local and domain and _is_mailbox(text, local, domain):
            yield Found(local.start(), domain.end(), "EmailAddress", 0.95, {"rule": "email"})
        at = text.find("@", at + 1)


def _is_mailbox(text: str, local: re.Match[str], domain: re.Match[str]) -> bool:
    """Not a file name, not the password in a URL, not the user of a repository's address."""
    start, end = local.start(), domain.end()
    if text[start - 1 : start] == ":" and "://" in text[max(0, start - 80) : start].rsplit(maxsplit=1)[-1]:
        return False
    if local.group() == "git" and text[end : end + 1] == ":":
        return False
    return text[domain.start() : end].rsplit(".", 1)[-1].lower() not in _FILE_ENDINGS


# --- IBAN -----------------------------------------------------------------------------------------------------

_IBAN = r"(?i)\b[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{3}"
# Lengths from the IBAN registry (ISO 13616); they tell where a number ends and the next word begins.
_IBAN_CHARS = {
    code: chars
    for chars, codes in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
    }.items()
    for code in codes.split()
}

_LETTER_VALUES = {ord("A") + number: str(10 + number) for number in range(26)}


def _find_ibans(number: int, table: PatternTable, page: Page) -> Iterator[Found]:
    data = page.data
    ends: dict[int, int] = {}

    def accept(start: int, _end: int) -> bool:
        ends[start] = end = _iban_end(data, start)
        return end > 0 and _stands_alone(data, start, end)

    for start, _ in table.spans(number, data, accept):
        country = data[start : start + 2].decode().upper()
        yield Found(start, ends[start], "IBAN", 0.99, {"rule": "iban", "country": country})


def _iban_end(data: bytes, start: int) -> int:
    """Where the IBAN that begins at `start` ends; 0 where none begins."""
    wanted = _IBAN_CHARS.get(data[start : start + 2].decode("latin-1").upper(), 0)
    value, end = "", start
    while len(value) < wanted and end < len(data):
        char = chr(data[end])
        if char.isascii() and char.isalnum():
            value += char.upper()
        elif char not in " -" or not data[end - 1 : end].isalnum():
            return 0
        end += 1
    if not wanted or len(value) < wanted:
        return 0
    return end if _has_mod97(value) and iban.is_valid(value) else 0


def _has_mod97(value: str) -> bool:
    """The cheap half of the library's check, which costs twenty times as much."""
    return int((value[4:] + value[:4]).translate(_LETTER_VALUES)) % 97 == 1


# --- Phone numbers --------------------------------------------------------------------------------------------


class PhoneForm(NamedTuple):
    """How a number may be written; `style` says in which regions (see `_style_of`), "" in all of them."""

    rule: str
    pattern: str
    score: float
    style: str = ""
    is_cued: bool = False


_GAP = r"[ ().\-/]{0,3}"
_INTERNATIONAL = PhoneForm("phone-international", rf"(?:\+|\b00)[1-9]\d{{0,2}}(?:{_GAP}\d){{6,14}}", 0.95)
PHONE_FORMS = (
    _INTERNATIONAL,
    PhoneForm("phone-3-3-4", r"(?:\b1[ .-])?(?:\(\d{3}\) ?|\b\d{3}[ .-])\d{3}[ .-]\d{4}\b", 0.85, "3-3-4"),
    PhoneForm("phone-trunk", r"(?:\(0\d{1,4}\)|\b0\d{1,5})(?:[ ./-]{1,3}\d{2,8}){1,5}\b", 0.75, "trunk"),
    PhoneForm("phone-groups", r"\b\d{2,4}(?:[ .-]\d{2,4}){2,4}\b", 0.7, "groups"),
    PhoneForm("phone-cued", r"\b\d{9,13}\b", 0.8, is_cued=True),
)
# What stands before a national number must not be one more group; a `+` begins a number anyhow.
_PHONE_GLUED_BEFORE = re.compile(rb"(?:[\w$#+=\xa3]|[\w/]-|\d[.,/: ])\Z")
_NO_PHONE = re.compile(  # Dates and social security numbers.
    r"\d{1,2}[./-]\d{1,2}[./-](?:\d{2}|\d{4})|(?:19|20)\d{2}[./-]\d{1,2}[./-]\d{1,2}.*|\d{3}-\d{2}-\d{4}"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3})+")
_MAX_GROUPS = 8
_MAX_CUTS = 3


def _style_of(region: str) -> str:
    """How people of a region write: 3, 3 and 4 digits in North America, a 0 first in many countries, else groups."""
    if phonenumbers.country_code_for_region(region) == 1:
        return "3-3-4"
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    return "trunk" if metadata and metadata.national_prefix == "0" else "groups"


class PhoneFinder:
    """Finds the numbers of some regions, and international ones."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = [(region, _style_of(region)) for region in regions]
        self._styles = {style for _, style in self._regions}

    def is_needed(self, form: PhoneForm) -> bool:
        return form.style in self._styles if form.style else form is _INTERNATIONAL or bool(self._regions)

    def find(self, form: PhoneForm, number: int, table: PatternTable, page: Page) -> Iterator[Found]:
        data = page.data
        known: dict[int, tuple[int, str]] = {}

        def accept(start: int, end: int) -> bool:
            glued = _GLUED_BEFORE if data.startswith(b"+", start) else _PHONE_GLUED_BEFORE
            if glued.search(data, max(0, start - 2), start) or _follows(_ORDER, data, start):
                return False
            if form.is_cued and not _follows(_PHONE_CUE, data, start):
                return False
            known[start] = _, region = self._recognise(data, start, end, form)
            return region != ""

        for start, _ in table.spans(number, data, accept):
            end, region = known[start]
            yield Found(start, end, "PhoneNumber", form.score, {"rule": form.rule, "region": region})

    def _recognise(self, data: bytes, start: int, end: int, form: PhoneForm) -> tuple[int, str]:
        """Where the number ends and whose it is; the pattern may have run into numbers that follow it."""
        for _ in range(_MAX_CUTS):
            value = data[start:end].decode("latin-1")
            if _GLUED_AFTER.match(data, end) is None and (region := self._region(value, form)):
                return end, region
            end = start + _last_gap(value)
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


def _last_gap(value: str) -> int:
    """Where the last group of digits and the gap before it begin."""
    return len(value.rstrip("0123456789").rstrip(" ().-/"))


def _region_of(value: str, region: str | None) -> str:
    """The region of a number that the library calls valid; empty for any other."""
    try:
        number = phonenumbers.parse(value, region)
    except phonenumbers.NumberParseException:
        return ""
    found = region or phonenumbers.region_code_for_number(number)
    return found if found and phonenumbers.is_valid_number_for_region(number, found) else ""


# --- The detector ---------------------------------------------------------------------------------------------

ENTITIES = tuple(dict.fromkeys(("EmailAddress", "PhoneNumber", "CreditCard", "IBAN", *(form.entity for form in FORMS))))
_PATTERNS = (_EMAIL, _IBAN, *(form.pattern for form in PHONE_FORMS), *(form.pattern for form in FORMS))
_FIRST_PHONE = 2
_FIRST_FORM = _FIRST_PHONE + len(PHONE_FORMS)
_PATTERN_ENTITIES = ("EmailAddress", "IBAN", *("PhoneNumber" for _ in PHONE_FORMS), *(form.entity for form in FORMS))


class PiiScan:
    """The scan of one request: which entities, and whose phone numbers."""

    def __init__(self, table: PatternTable, entities: Sequence[str], regions: Sequence[str]) -> None:
        self._table = table
        self._phones = PhoneFinder(regions)
        self._wanted = [entity in entities for entity in _PATTERN_ENTITIES]
        for number, form in enumerate(PHONE_FORMS, _FIRST_PHONE):
            self._wanted[number] &= self._phones.is_needed(form)

    def __call__(self, text: str) -> list[Detection]:
        data = flatten(text)
        numbers = [number for number in self._table.occurring(data) if self._wanted[number]]
        if not numbers:
            return []
        page = Page(text, data)
        found = [hit for number in numbers for hit in self._find(number, page)]
        return detections(keep_best(found), text, "pii")

    def _find(self, number: int, page: Page) -> Iterator[Found]:
        if number >= _FIRST_FORM:
            return _find_form(FORMS[number - _FIRST_FORM], number, self._table, page)
        if number >= _FIRST_PHONE:
            return self._phones.find(PHONE_FORMS[number - _FIRST_PHONE], number, self._table, page)
        return _find_ibans(number, self._table, page) if number else _find_emails(page)


def _read_regions(params: Params) -> tuple[str, ...] | None:
    known = sorted(phonenumbers.SUPPORTED_REGIONS)
    values = params.items("regions", len(known))
    for value in values:
        if not isinstance(value, str) or value not in phonenumbers.SUPPORTED_REGIONS:
            given = f"`{value}`" if isinstance(value, str) else "a value that is no string"
            raise params.fault("regions", f"`regions` has {given}, expected country codes such as `US` or `DE`")
    return None if params.value("regions") is None else tuple(values)


@asynccontextmanager
async def open_pii_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    given = Params.of_options(options, KNOWN)
    entities = given.choices("entities", ENTITIES) or ENTITIES
    regions = _read_regions(given)
    if regions is None:
        regions = DEFAULT_REGIONS
    table = PatternTable(_PATTERNS)
    for region in regions:  # The library reads its tables on first use: better now than in a request.
        _region_of("0", region)

    default = PiiScan(table, entities, regions)

    def prepare(params: Params) -> Scan:
        if params.is_empty:
            return default
        asked = _read_regions(params)
        return PiiScan(table, params.choices("entities", ENTITIES) or entities, regions if asked is None else asked)

    yield ScanningDetector(prepare, KNOWN, LOOKBEHIND_CHARS)
