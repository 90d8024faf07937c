# SPDX-License-Identifier: Apache-2.0
"""The set of all patterns, which is asked first, hides no finding; plain prose costs little more than that set."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import phonenumbers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from lockgate.detectors.pii.detector import PiiScan, open_pii_detector
from lockgate.detectors.pii.identifiers import Page
from lockgate.detectors.scans import ScanMatch, flatten, report
from lockgate.gate.values import Detection

LABELLED = Path(__file__).parents[2] / "benchmarks" / "labelled"
PIECES = [
    "4111 1111 1111 1111",
    "+49 30 901820",
    "(212) 555-0100",
    "DE89 3704 0044 0532 0130 00",
    "::1",
    "aa:bb:cc:dd:ee:ff",
]
PIECES += [
    "ana@example.org",
    "phone 4155552671",
    "RSSMRA85T10A562S",
    "ssn 536904399",
    "face::",
    "1984",
    ", ",
    "é",
    " at ",
    "\n",
]


async def _open() -> PiiScan:
    async with open_pii_detector({}) as detector:
        scan = detector.accept({"regions": ["US", "DE", "ES"]}, ()).scan
        assert isinstance(scan, PiiScan)
        return scan


SCAN = asyncio.run(_open())


def ask_every_finder(text: str) -> list[Detection]:
    page = Page(text, flatten(text))
    found = [hit for _, finder in sorted(SCAN._finders.items()) for hit in finder(page)]
    return report(sorted(found, key=lambda hit: hit.start), text, "pii")


def by_place(hits: list[Detection]) -> list[tuple[int, int, str]]:
    return [(hit.start, hit.end, hit.detection) for hit in hits]


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join))
def test_the_set_of_patterns_hides_no_finding(text: str) -> None:
    assert by_place(SCAN(text)) == by_place(ask_every_finder(text))


@pytest.mark.parametrize("name", ["pii", "secrets", "language", "toxicity"])
def test_the_set_of_patterns_hides_no_finding_in_labelled_texts(name: str) -> None:
    texts = [json.loads(line)["text"] for line in (LABELLED / f"{name}.jsonl").read_text("utf-8").splitlines()]
    assert len(texts) > 100
    for text in texts:
        assert by_place(SCAN(text)) == by_place(ask_every_finder(text))


def test_plain_prose_is_asked_for_no_single_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(number: int, _page: Page) -> list[ScanMatch]:
        asked.append(number)
        return []

    monkeypatch.setattr(SCAN, "_finders", {number: partial(note, number) for number in SCAN._finders})
    assert (
        SCAN("The library opens at nine, and in 1894 it had 5 rooms: see page 12, section 3.2 (or 4-7) of the guide.")
        == []
    )
    assert asked == []
    SCAN("Write to ana@example.org.")
    assert asked == [0]


# --- Phone numbers --------------------------------------------------------------------------------------------

FORMATS = (PhoneNumberFormat.INTERNATIONAL, PhoneNumberFormat.E164, PhoneNumberFormat.RFC3966)


def _list_international() -> Iterator[tuple[str, str]]:
    for region in sorted(phonenumbers.SUPPORTED_REGIONS):
        for kind in (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE):
            number = phonenumbers.example_number_for_type(region, kind)
            if number is not None:
                for form in FORMATS:
                    yield region, phonenumbers.format_number(number, form).removeprefix("tel:")


def test_international_numbers_of_all_regions_are_found_as_they_are_written() -> None:
    written = list(_list_international())
    assert len(written) > 1_400
    assert {region for region, _ in written} == phonenumbers.SUPPORTED_REGIONS
    for _, number in written:
        for form in (number, number.replace("+", "00", 1)):
            assert form in [hit.text for hit in SCAN(f"Please call {form} tomorrow.")]
