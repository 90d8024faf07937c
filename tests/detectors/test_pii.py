# SPDX-License-Identifier: Apache-2.0
"""Personal data: what is found, what only looks like it, and what both cost."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors import scans
from lockgate.detectors.citations import CitationReading
from lockgate.detectors.formats import open_format_detector
from lockgate.detectors.patterns import open_keywords_detector, open_regex_detector
from lockgate.detectors.pii.detector import ENTITIES, open_pii_detector
from lockgate.detectors.scans import ScanningDetector, ScanReading
from lockgate.detectors.secrets.detector import open_secrets_detector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from tests.waits import assert_linear, bounded_work

REGIONS = ["US", "ES", "DE", "GB"]


async def _opened(context: AbstractAsyncContextManager[ScanningDetector]) -> ScanningDetector:
    async with context as detector:
        return detector


def _reading(params: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> ScanReading:
    return asyncio.run(_opened(open_pii_detector(options or {}))).accept(params, ())


WIDE = _reading({"regions": REGIONS})
PLAIN = _reading({})


def scan(text: str, reading: ScanReading = WIDE) -> list[Detection]:
    return asyncio.run(reading.read([Excerpt(text)]))[0]


POSITIVE = [
    ("Write to jane.doe@example.com today.", "EmailAddress", "jane.doe@example.com"),
    ("mailto:bob+news@mail.example.co.uk", "EmailAddress", "bob+news@mail.example.co.uk"),
    ("Contact <o'brien@example.org>, please", "EmailAddress", "o'brien@example.org"),
    ("Escribe a maría.lópez@correo.es cuando puedas", "EmailAddress", "maría.lópez@correo.es"),
    ("Schreib an jürgen@müller-gmbh.de bitte", "EmailAddress", "jürgen@müller-gmbh.de"),
    ("a@b.museum, c@d.io", "EmailAddress", "c@d.io"),
    ("Wait...john@example.com", "EmailAddress", "john@example.com"),
    ("email='kim@example.net'", "EmailAddress", "kim@example.net"),
    ("почта: иван@пример.рф", "EmailAddress", "иван@пример.рф"),
    ("Call (212) 555-0100 now", "PhoneNumber", "(212) 555-0100"),
    ("my number is 212-555-0187.", "PhoneNumber", "212-555-0187"),
    ("415.555.2671 is the office", "PhoneNumber", "415.555.2671"),
    ("dial 1-800-356-9377", "PhoneNumber", "1-800-356-9377"),
    ("phone: 4155552671", "PhoneNumber", "4155552671"),
    ("+1 415 555 2671", "PhoneNumber", "+1 415 555 2671"),
    ("+14155552671", "PhoneNumber", "+14155552671"),
    ("Llámame al +34 612 345 678 mañana", "PhoneNumber", "+34 612 345 678"),
    ("Mi móvil es 612 34 56 78, gracias", "PhoneNumber", "612 34 56 78"),
    ("Teléfono: 912345678", "PhoneNumber", "912345678"),
    ("Oficina 912 345 678 en Madrid", "PhoneNumber", "912 345 678"),
    ("Ruf mich an: +49 30 901820", "PhoneNumber", "+49 30 901820"),
    ("Tel. 030/901820 (Zentrale)", "PhoneNumber", "030/901820"),
    ("Büro: (030) 901820", "PhoneNumber", "(030) 901820"),
    ("Handy 0151 23456789", "PhoneNumber", "0151 23456789"),
    ("aus dem Ausland 0049 30 901820", "PhoneNumber", "0049 30 901820"),
    ("London office 020 7946 0958", "PhoneNumber", "020 7946 0958"),
    ("电话+86 138 0013 8000。", "PhoneNumber", "+86 138 0013 8000"),
    ("Tel: +33 1 42 68 53 00", "PhoneNumber", "+33 1 42 68 53 00"),
    ("+49\u00a030\u202f901820", "PhoneNumber", "+49\u00a030\u202f901820"),
    ("card 4111 1111 1111 1111 exp 12/27", "CreditCard", "4111 1111 1111 1111"),
    ("4111-1111-1111-1111", "CreditCard", "4111-1111-1111-1111"),
    ("pay with 5555555555554444.", "CreditCard", "5555555555554444"),
    ("Amex 3782 822463 10005", "CreditCard", "3782 822463 10005"),
    ("tarjeta 6011111111111117", "CreditCard", "6011111111111117"),
    ("Karte: 3530111333300000", "CreditCard", "3530111333300000"),
    ('{"card":4242424242424242}', "CreditCard", "4242424242424242"),
    ("1234 4111 1111 1111 1111", "CreditCard", "4111 1111 1111 1111"),
    ("Konto DE89 3704 0044 0532 0130 00 bei der Bank", "IBAN", "DE89 3704 0044 0532 0130 00"),
    ("DE89370400440532013000 BIC COBADEFFXXX", "IBAN", "DE89370400440532013000"),
    ("Mi cuenta es ES91 2100 0418 4502 0005 1332.", "IBAN", "ES91 2100 0418 4502 0005 1332"),
    ("gb82 west 1234 5698 7654 32", "IBAN", "gb82 west 1234 5698 7654 32"),
    ("IBAN:NO9386011117947", "IBAN", "NO9386011117947"),
    ("server 192.168.10.1 is down", "IPAddress", "192.168.10.1"),
    ("http://10.0.0.1:8080/x", "IPAddress", "10.0.0.1"),
    ("La IP es 83.45.12.9, creo", "IPAddress", "83.45.12.9"),
    ("Adresse 2001:db8::ff00:42:8329 im Log", "IPAddress", "2001:db8::ff00:42:8329"),
    ("fe80::1", "IPAddress", "fe80::1"),
    ("[2001:0db8:0000:0000:0000:ff00:0042:8329]:443", "IPAddress", "2001:0db8:0000:0000:0000:ff00:0042:8329"),
    ("::ffff:10.1.2.3", "IPAddress", "::ffff:10.1.2.3"),
    ("MAC 00:1A:2B:3C:4D:5E", "MACAddress", "00:1A:2B:3C:4D:5E"),
    ("aa-bb-cc-dd-ee-0f on the wire", "MACAddress", "aa-bb-cc-dd-ee-0f"),
    ("switch 001a.2b3c.4d5e", "MACAddress", "001a.2b3c.4d5e"),
    ("SSN 536-90-4399", "US_SSN", "536-90-4399"),
    ("social security number: 536904399", "US_SSN", "536904399"),
    ("ITIN 912-90-3456", "US_ITIN", "912-90-3456"),
    ("Mi DNI es 12345678Z.", "ES_DNI", "12345678Z"),
    ("DNI 12.345.678-Z", "ES_DNI", "12.345.678-Z"),
    ("NIE X1234567L vigente", "ES_NIE", "X1234567L"),
    ("Meine Steuer-ID lautet 36574261809", "DE_STEUER_ID", "36574261809"),
    ("Steuer-ID: 36 574 261 809", "DE_STEUER_ID", "36 574 261 809"),
    ("NI number AB 12 34 56 C", "GB_NINO", "AB 12 34 56 C"),
    ("NHS number 943 476 5870", "GB_NHS", "943 476 5870"),
    ("NIR 2 95 10 99 126 111 93", "FR_NIR", "2 95 10 99 126 111 93"),
    ("codice fiscale RCCMNL83S18D969H", "IT_CODICE_FISCALE", "RCCMNL83S18D969H"),
    ("Aadhaar 2341 2341 2346", "IN_AADHAAR", "2341 2341 2346"),
    ("PAN ABCPE1234F", "IN_PAN", "ABCPE1234F"),
    ("CPF 390.533.447-05", "BR_CPF", "390.533.447-05"),
    ("PESEL 44051401359", "PL_PESEL", "44051401359"),
    ("BSN 111222333", "NL_BSN", "111222333"),
    ("AHV 756.9217.0769.85", "CH_AHV", "756.9217.0769.85"),
    ("personnummer 880320-0016", "SE_PERSONNUMMER", "880320-0016"),
    ("hetu 131052-308T", "FI_HETU", "131052-308T"),
    ("rijksregisternummer 85.07.30-033.28", "BE_NN", "85.07.30-033.28"),
    ("SIN 123-456-782", "CA_SIN", "123-456-782"),
    ("TFN 123 456 782", "AU_TFN", "123 456 782"),
    ("CURP BOXW310820HNERXN09", "MX_CURP", "BOXW310820HNERXN09"),
    ("SVNR 1237 010180", "AT_SVNR", "1237 010180"),
]


@pytest.mark.parametrize(("text", "entity", "value"), POSITIVE)
def test_personal_data_is_found_at_its_place(text: str, entity: str, value: str) -> None:
    hits = [hit for hit in scan(text) if hit.detection == entity]
    assert value in [hit.text for hit in hits]
    assert all(hit.text == text[hit.start : hit.end] and hit.detection_type == "pii" for hit in hits)


NEGATIVE = [
    "Nothing to see here, move along.",
    "",
    "Follow @jane on the site",
    "Sale @ 5 pm",
    "a@b and user@localhost",
    "icon@2x.png",
    "lodash@4.17.21",
    "git@github.com:org/repo.git",
    "https://bob:pw@example.com/x",
    "@@@@ @.@ .@. a@.com a@com.",
    "Version 1.2.3.4 is out",
    "v1.2.3.4",
    "release 10.0.19041.1",
    "Firmware 2.4.1.7 installieren",
    "siehe Abschnitt 3.2.1.4",
    "véase la sección 4.1.2.3",
    "section 1.2.3.4",
    "1.2.3.4.5",
    "999.1.1.1 and 256.256.256.256",
    "01.02.03.04 with zeros",
    "On 2024-05-17 we met",
    "am 17.05.2024 in Berlin",
    "el 17/05/2024 en Madrid",
    "von 03.05.2024 bis 07.06.2024",
    "2024-05-17T12:30:45Z",
    "at 12:30:45 sharp",
    "von 9:00-17:30 Uhr",
    "ISBN 978-3-16-148410-0",
    "ISBN 0-306-40615-2",
    "ISBN 9783161484100",
    "order 2125550100",
    "Order #212-555-0100",
    "order no. 415-555-2671",
    "Pedido nº 612 345 678",
    "Bestellnummer 030 901820",
    "Rechnung Nr. 4155552671",
    "$1,234,567.89",
    "€ 12.345.678,90",
    "costs 1 000 000 000 dollars",
    "a population of 331,449,281",
    "912.345.678 habitantes",
    "123-456-7890 has no such area code",
    "4111 1111 1111 1112 fails its check",
    "1234567812345670 has no issuer",
    "1234567890123456",
    "0000 0000 0000 0000",
    "4111 1111-1111 1111",
    "x4111111111111111",
    "DE89 3704 0044 0532 0130 01",
    "ZZ89370400440532013000",
    "GB82 WEST 1234",
    "std::vector<int> a::b Foo::Bar",
    "x = y :: z",
    "10:20:30:40",
    "AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD",
    "01-02-03-04-05-06",
    "d41d8cd98f00b204e9800998ecf8427e",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "123e4567-e89b-12d3-a456-426614174000",
    "commit 4f2a9c1 on 1715941234",
    "timestamp 1715941234567",
    "000-12-3456 and 666-12-3456",
    "536-90-43990",
    "12345678A has the wrong letter",
    "X1234567A",
    "36574261808 fails",
    "BG 12 34 56 C",
    "943 476 58 ist zu kurz",
    "2341 2341 2347",
    "390.533.447-06",
    "44051401359 ohne Wort davor",
    "pi is 3.14159265358979323846",
    "tracking 1Z999AA10123456784",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    "scores 10-12 20-22 30-31",
    "pages 100-200 and 300-400",
    "40.7128, -74.0060",
    "+5 000 000 new users",
    "2+2=4 and 1+1",
    "Section 212 555 pages",
    "ratio 16:9, 4:3",
    "Room 030 12",
]


@pytest.mark.parametrize("text", NEGATIVE)
def test_what_only_looks_like_personal_data_is_left_alone(text: str) -> None:
    assert scan(text) == []
    assert scan(text, PLAIN) == []


def test_the_cases_cover_every_entity() -> None:
    assert {entity for _, entity, _ in POSITIVE} == set(ENTITIES)
    assert len(POSITIVE) >= 60
    assert len(NEGATIVE) >= 60


def test_national_phone_numbers_need_their_region_and_international_ones_do_not() -> None:
    text = "Handy 0151 23456789, +34 612 345 678"
    assert [hit.text for hit in scan(text, PLAIN)] == ["+34 612 345 678"]
    assert [hit.text for hit in scan(text, _reading({"regions": ["DE"]}))] == ["0151 23456789", "+34 612 345 678"]


def test_only_the_entities_asked_for_are_reported() -> None:
    text = "a@example.com 10.0.0.1 4111 1111 1111 1111"
    reading = _reading({"entities": ["IPAddress"]}, {"entities": ["EmailAddress"]})
    assert [hit.detection for hit in scan(text, reading)] == ["IPAddress"]
    assert [hit.detection for hit in scan(text, _reading({}, {"entities": ["EmailAddress"]}))] == ["EmailAddress"]


def test_findings_come_in_order_and_do_not_overlap() -> None:
    text = "DE89 3704 0044 0532 0130 00 +1 415 555 2671, 4111 1111 1111 1111 a@b.com 10.0.0.1"
    hits = scan(text)
    assert [hit.detection for hit in hits] == ["IBAN", "PhoneNumber", "CreditCard", "EmailAddress", "IPAddress"]
    assert all(left.end <= right.start for left, right in zip(hits, hits[1:], strict=False))


def test_of_findings_that_overlap_in_part_none_hides_the_other() -> None:
    hits = scan("+1 415 555 2671 4111 1111 1111 1111")  # the last group of the phone number completes a card number
    assert [hit.detection for hit in hits] == ["PhoneNumber", "CreditCard"]
    assert hits[1].start < hits[0].end


def test_spans_count_code_points_whatever_stands_before() -> None:
    for prefix in ("é", "😀", "e\u0301", "\ud800", "漢字", "\U0010ffff", "ß"):
        text = f"{prefix * 3} 10.0.0.1 and {prefix} x@example.com"
        assert [hit.text for hit in scan(text)] == ["10.0.0.1", "x@example.com"]
        assert all(text[hit.start : hit.end] == hit.text for hit in scan(text))


async def test_a_finding_that_begins_before_the_text_starts_below_zero() -> None:
    excerpts = [Excerpt("ple.com and b@c.org", before="mail jane@exam"), Excerpt(" x", before="a@b.com")]
    first, second = await WIDE.read(excerpts)
    assert [(hit.start, hit.end, hit.text) for hit in first] == [(-9, 7, "jane@example.com"), (12, 19, "b@c.org")]
    assert [(hit.start, hit.end) for hit in second] == [(-7, 0)]


async def test_long_texts_give_the_same_findings_off_the_event_loop() -> None:
    text = "word " * 5_000 + "jane@example.com"
    assert [hit.text for hit in (await WIDE.read([Excerpt(text)]))[0]] == ["jane@example.com"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"x": 1}, "unknown parameter `x`, expected `entities` or `regions`"),
        ({"entities": "IBAN"}, "`entities` must be a list, not `IBAN`"),
        ({"regions": ["XX"]}, "`regions` has `XX`, expected country codes such as `US` or `DE`"),
        ({"regions": [7]}, "`regions` has a value that is no string, expected country codes such as `US` or `DE`"),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _reading(params)
    assert caught.value.message == message
    with pytest.raises(ConfigError) as at_start:
        _reading({}, params)
    assert (at_start.value.message, at_start.value.source, at_start.value.key) == (
        message,
        "options",
        next(iter(params)),
    )


def test_an_unknown_entity_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="`entities` has `Name`, expected one of `EmailAddress`, `PhoneNumber`, "):
        _reading({"entities": ["Name"]})
    with pytest.raises(InvalidRequest, match="`entities` must not be empty, expected one of "):
        _reading({"entities": []})


# --- All detectors: no input raises, and the work is linear ---------------------------------------------------


def _every_reading() -> dict[str, ScanReading]:
    async def open_all() -> dict[str, ScanReading]:
        patterns = {"patterns": [r"[a-z]+@[a-z]+", r"a.*b|a", r"\d{3}-\d{4}", r"\bx*\b"]}
        readings = {
            "pii": (await _opened(open_pii_detector({}))).accept({"regions": REGIONS}, ()),
            "secrets": (await _opened(open_secrets_detector({}))).accept({}, ()),
            "regex": (await _opened(open_regex_detector(patterns))).accept({}, ()),
            "keywords": (await _opened(open_keywords_detector({"keywords": ["a", "1 1", "日本", "--"]}))).accept(
                {}, ()
            ),
            "citations": CitationReading(["a/b", "faq"]),
        }
        formats = await _opened(open_format_detector({}))
        return readings | {name: formats.accept({"format": name}, ()) for name in ("json", "xml", "yaml")}

    return asyncio.run(open_all())


READINGS = _every_reading()
_SURROGATES = st.characters(categories=["Cs"])
_PIECES = st.sampled_from(
    [
        "@",
        "+1 ",
        "4111 ",
        "1",
        "-",
        ".",
        ":",
        "::",
        "a",
        "é",
        "😀",
        "DE89",
        "eyJ",
        "{",
        "[",
        "a/b]",
        "<a>",
        "*x",
        "&x ",
        '"',
        "\\",
    ]
)
TEXTS = st.text() | st.lists(_PIECES | _SURROGATES | st.text(max_size=3), max_size=60).map("".join)


@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_excerpts_read_together_give_what_each_gives_alone(texts: list[str]) -> None:
    for name in ("pii", "secrets"):
        together = asyncio.run(READINGS[name].read([Excerpt(text) for text in texts]))
        assert together == [asyncio.run(READINGS[name].read([Excerpt(text)]))[0] for text in texts]


@pytest.mark.parametrize("name", READINGS)
@given(text=TEXTS, before=st.text(max_size=64))
def test_no_text_raises_and_every_finding_is_in_it(name: str, text: str, before: str) -> None:
    (hits,) = asyncio.run(READINGS[name].read([Excerpt(text, before)]))
    whole = before + text
    assert [hit.start for hit in hits] == sorted(hit.start for hit in hits)
    for hit in hits:
        assert hit.text == whole[hit.start + len(before) : hit.end + len(before)]
        assert 0 <= hit.score <= 1
        assert -len(before) <= hit.start <= hit.end <= len(text)


UNITS = [
    "a",
    "1",
    "1 ",
    "@",
    ".",
    "-",
    "a@",
    "1.",
    "+1 ",
    "[",
    "[a/b]",
    "[a,b/c",
    ":",
    "1234 ",
    "a.b@c.de ",
    "eyJ",
    "é",
    "a: ",
    "<a>",
    '"\\',
]


@pytest.mark.parametrize("name", READINGS)
def test_the_work_grows_with_the_text_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MAX_FINDINGS", 1_000_000)
    for unit in UNITS:
        assert_linear(lambda size: READINGS[name]._read_all([Excerpt(unit * (size // len(unit)))]), 3_000)  # noqa: B023


@pytest.mark.parametrize("unit", ["a", "1", "1 ", "@", ".", "-"])
def test_the_work_on_a_megabyte_of_one_thing_is_bounded(unit: str) -> None:
    with bounded_work():
        READINGS["pii"]._read_all([Excerpt(unit * (1_000_000 // len(unit)))])
