# SPDX-License-Identifier: Apache-2.0
"""Identifiers in fixed forms: cards, network addresses, national ids.

A table of forms: how a value looks, what proves it, and the words that it needs or must not have before it. Knows
what surrounds a value in a text; refuses to know who asked for it.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

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

from lockgate.embedded.scanning import Found, PatternTable


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
GLUED_BEFORE = re.compile(rb"(?:[\w$\xa3]|\w-|\d[.,/])\Z")
GLUED_AFTER = re.compile(rb"\w|-\w|[.,/]\d")
_DIGIT_GROUPS = re.compile(rb"\d[ -]\Z"), re.compile(rb"[ -]\d{4}\b")
_HEX_GROUPS = re.compile(rb"\b[0-9A-Fa-f]{1,4}:\Z"), re.compile(rb":[0-9A-Fa-f]")


def stands_alone(data: bytes, start: int, end: int) -> bool:
    """Whether no more letters or digits are glued to the value."""
    return not (GLUED_AFTER.match(data, end) or GLUED_BEFORE.search(data, max(0, start - 2), start))


def _is_part(groups: tuple[re.Pattern[bytes], re.Pattern[bytes]], data: bytes, start: int, end: int) -> bool:
    before, after = groups
    return bool(after.match(data, end) or before.search(data, max(0, start - 6), start))


def follows(cue: re.Pattern[bytes], data: bytes, start: int) -> bool:
    """Whether the cue stands shortly before the value."""
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
ORDER_WORDS = _just_before(
    r"\b(?:order|invoice|ticket|tracking|reference|ref|isbn|issn|sku|serial|case|part|model|batch|article|item"
    r"|pedido|factura|referencia|albar\xe1n|expediente|bestellung|bestellnummer|rechnung|rechnungsnummer|auftrag"
    r"|auftragsnummer|artikel|artikelnummer|kundennummer|sendungsnummer|aktenzeichen)|#"
)
PHONE_WORDS = _cue(
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
        ORDER_WORDS,
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


def find_form(form: Form, number: int, table: PatternTable, page: Page) -> Iterator[Found]:
    """The values of one form that pass its checks."""
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
        yield Found(start, end, form.entity, form.score, {"rule": form.rule})
