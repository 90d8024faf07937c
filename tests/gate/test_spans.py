# SPDX-License-Identifier: Apache-2.0
"""The place of a finding: what stands there is what the detector says, or the detector has failed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate import values
from lockgate.gate.values import Detection
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

TEXTS = st.text("ab😀é", max_size=8)
PLACES = st.integers(-10, 10)
BUGS = Bugs()


def build_finding(start: int, end: int, text: str) -> Detection:
    return Detection(start, end, text, "x", "y", 1.0)


@given(TEXTS, TEXTS, PLACES, PLACES)
def test_a_place_is_accepted_exactly_where_it_holds_some_of_the_text_that_was_read(
    before: str, text: str, start: int, end: int
) -> None:
    whole = list(enumerate(before + text, -len(before)))
    inside = [char for at, char in whole if start <= at < end]
    is_held = len(inside) == end - start > 0 or (start == end == 0 and not text)
    found = build_finding(start, end, "".join(inside))
    assert (values.find_span_fault(found, text, before) == "") == is_held


@given(TEXTS, TEXTS, PLACES, PLACES, st.text("ab😀é", max_size=4))
def test_another_text_than_that_at_the_place_is_a_fault(
    before: str, text: str, start: int, end: int, said: str
) -> None:
    found = build_finding(start, end, said)
    if not values.find_span_fault(found, text, before):
        assert said == (before + text)[start + len(before) : end + len(before)]


def test_a_fault_quotes_nothing_of_the_text() -> None:
    for found in (build_finding(0, 9, "secret"), build_finding(0, 0, ""), build_finding(0, 3, "tex")):
        fault = values.find_span_fault(found, "secret")
        assert fault
        assert not any(word in fault for word in ("secret", "sec"))


def _plant(change: Any) -> Patch:
    honest = values.find_span_fault

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def find(found: Detection, text: str, before: str = "") -> str:
            return honest(*change(found, text, before))

        monkeypatch.setattr(values, "find_span_fault", find)

    return plant


PLACE = test_a_place_is_accepted_exactly_where_it_holds_some_of_the_text_that_was_read
TEXT = test_another_text_than_that_at_the_place_is_a_fault


@BUGS.caught_by(TEXT)
def any_text_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(found: Detection, text: str, before: str) -> Any:
        there = (before + text)[max(found.start + len(before), 0) : max(found.end + len(before), 0)]
        return found._replace(text=there), text, before

    _plant(believe)(monkeypatch)


@BUGS.caught_by(PLACE)
def the_end_may_lie_behind_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(lambda found, text, before: (found._replace(end=min(found.end, len(text))), text, before))(monkeypatch)


@BUGS.caught_by(PLACE)
def the_text_before_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(lambda found, text, before: (found, text, ""))(monkeypatch)


@BUGS.caught_by(PLACE)
def an_empty_place_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = values.find_span_fault

    def find(found: Detection, text: str, before: str = "") -> str:
        return "" if 0 <= found.start == found.end <= len(text) else honest(found, text, before)

    monkeypatch.setattr(values, "find_span_fault", find)


@BUGS.caught_by(TEXT)
def places_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(found: Detection, text: str, before: str = "") -> str:
        there = text.encode()[max(found.start, 0) : max(found.end, 0)]
        return "" if there and there == found.text.encode() else "wrong"

    monkeypatch.setattr(values, "find_span_fault", find)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
