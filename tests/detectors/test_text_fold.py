# SPDX-License-Identifier: Apache-2.0
"""Invisible and look-alike characters: what detectors find among them, and where it stands in the text."""

import asyncio
import unicodedata
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.chunkers.machines import WORD_MAX_CHARS, WordMachine, cut
from lockgate.detectors.patterns import open_keywords_detector, open_regex_detector
from lockgate.detectors.pii.detector import open_pii_detector
from lockgate.detectors.scans import LOOKBEHIND_CHARS, ScanningDetector, ScanReading
from lockgate.detectors.secrets.detector import open_secrets_detector
from lockgate.detectors.text_fold import MAX_LONGER, FoldedText, fold
from lockgate.gate.batcher import DetectionBatcher, DetectorSpec
from lockgate.gate.values import Detection, Excerpt
from tests.waits import assert_linear

# --- Readings -------------------------------------------------------------------------------------------------


async def _accept(context: AbstractAsyncContextManager[ScanningDetector], params: dict[str, Any]) -> ScanReading:
    async with context as detector:
        return detector.accept(params, ())


def _open(context: AbstractAsyncContextManager[ScanningDetector], **params: Any) -> ScanReading:
    return asyncio.run(_accept(context, params))


READINGS = {
    "pii": _open(open_pii_detector({})),
    "secrets": _open(open_secrets_detector({})),
    "keywords": _open(open_keywords_detector({}), keywords=["Project Bluebird", "café", "МОСКВА", "año"]),
    "regex": _open(open_regex_detector({}), patterns=[r"\bACME-\d{4}\b", "(?i)top secret"]),
}


def read(name: str, text: str, before: str = "") -> list[Detection]:
    return asyncio.run(READINGS[name].read([Excerpt(text, before)]))[0]


# --- The table of evasions ------------------------------------------------------------------------------------

VALUES = {
    "card": ("pii", "4111 1111 1111 1111"),
    "plain card": ("pii", "5500005555555559"),
    "iban": ("pii", "DE89 3704 0044 0532 0130 00"),
    "e-mail": ("pii", "jane.doe@example.com"),
    "phone": ("pii", "(212) 555-0100"),
    "ssn": ("pii", "536-90-4399"),
    "ip address": ("pii", "203.0.113.77"),
    "aws key": ("secrets", "AKIAIOSFODNN7EXAMPLE"),
    "github token": ("secrets", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    "keyword": ("keywords", "Project Bluebird"),
    "regex": ("regex", "ACME-4711"),
}
_LOOKALIKES = str.maketrans("AaBCcEeHIiKMOopPSsTXxy0", "АаВСсЕеНІіКМОорРЅѕТХхуО")


def _after_each(mark: str) -> Callable[[str], str]:
    return lambda value: mark.join(value)


def _over_each(mark: str) -> Callable[[str], str]:
    return lambda value: "".join(char + mark for char in value)


def _replace(value: str) -> str:
    return value.translate(_LOOKALIKES)


def _widen(value: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else "\u3000" for char in value)


TRICKS: dict[str, Callable[[str], str]] = {
    "zero-width spaces": _after_each("\u200b"),
    "word joiners and variation selectors": _after_each("\u2060\ufe0f"),
    "soft hyphens": _after_each("\u00ad"),
    "full width": _widen,
    "accents": _over_each("\u0301"),
    "strokes through": _over_each("\u0336"),
    "marks of another script": _over_each("\u05b7"),
    "look-alikes": _replace,
    "look-alikes and joiners": lambda value: "\u200d".join(_replace(value)),
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_among_odd_characters_is_found_with_all_of_them(kind: str, trick: str) -> None:
    name, value = VALUES[kind]
    hidden = TRICKS[trick](value)
    text = f"It is {hidden} – no, sir."
    hits = [hit for hit in read(name, text) if hit.text == hidden]
    assert [(text[hit.start : hit.end], hit.metadata) for hit in hits] == [
        (hidden, hit.metadata) for hit in read(name, f"It is {value} - no, sir.")
    ]


@pytest.mark.parametrize("trick", ["zero-width spaces", "soft hyphens", "accents", "full width"])
def test_a_finding_over_a_cut_counts_from_the_excerpt(trick: str) -> None:
    hidden = TRICKS[trick]("DE89370400440532013000")
    (hit,) = read("pii", hidden[5:] + ".", "x " + hidden[:5])
    assert (hit.start, hit.end, hit.text, hit.detection) == (-5, len(hidden) - 5, hidden, "IBAN")


def test_ordinary_letters_of_other_alphabets_and_accents_are_what_they_are() -> None:
    reading = _open(open_keywords_detector({}), keywords=["ano", "pop", "cop", "metro", "cafe", "he"])
    for text in ("año", "он сказал, что вор", "МЕТР", "кафе", "café", "не", "🇭🇪", "5 € für o ñ"):
        assert asyncio.run(reading.read([Excerpt(text)])) == [[]]


def test_a_keyword_of_another_alphabet_is_found_among_invisible_characters() -> None:
    assert [hit.text for hit in read("keywords", "МО\u200bСК\u200dВА, cafe\u0301, an\u0303o")] == [
        "МО\u200bСК\u200dВА",
        "cafe\u0301",
        "an\u0303o",
    ]


def test_text_hidden_in_tag_characters_is_read() -> None:
    hidden = "".join(chr(0xE0000 + ord(char)) for char in "jane.doe@example.com")
    (hit,) = read("pii", f"Fine. {hidden} Bye.")
    assert (hit.text, hit.detection) == (hidden, "EmailAddress")


def test_digits_of_other_scripts_and_forms_are_digits() -> None:
    for card in ("۴۱۱۱۱۱۱۱۱۱۱۱۱۱۱۱", "④①①①①①①①①①①①①①①①", "❹❶❶❶❶❶❶❶❶❶❶❶❶❶❶❶", "𝟒𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏", "⁴¹¹¹¹¹¹¹¹¹¹¹¹¹¹¹"):
        assert [hit.text for hit in read("pii", f"کارت {card} است")] == [card]


def test_a_finding_is_reported_once_and_as_long_as_it_is() -> None:
    digits = _open(open_regex_detector({}), patterns=[r"\d+", r"1"])
    (hits,) = asyncio.run(digits.read([Excerpt("41\u200b2 – 7")]))
    assert [(hit.text, hit.metadata) for hit in hits] == [
        ("41\u200b2", {"rule": r"\d+"}),
        ("1", {"rule": "1"}),
        ("7", {"rule": r"\d+"}),
    ]


# --- Laws -----------------------------------------------------------------------------------------------------

ODD = (
    "\u200b\u200d\u00ad\u2060\ufe0f\u034f\u0301\u0336\u05b7\u093f\u3099ﬁ１Ａ"
    "…ﷺ½№ﾞｶ각ᄀ각㎏éаОЗс\u0958😀\U000e0041\U0001d7d2۴\U00011067\ud800"
)
TEXTS = st.text(st.sampled_from("ab4 1.@-\n" + ODD) | st.characters(), max_size=30)
INVISIBLE = st.text(st.sampled_from("\u200b\u200c\u2060\u00ad\ufeff\U000e0001\u180e"), max_size=3)


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_text_has_no_views(text: str) -> None:
    assert fold(text) == ()


@pytest.mark.parametrize(
    "text", ["“Año nuevo…” – ¿qué?", "Straße", "café, naïve", "हिन्दी भाषा", "москва зимой", "東京。"]
)
def test_ordinary_text_without_odd_characters_has_no_views(text: str) -> None:
    assert fold(text) == ()


@given(TEXTS)
def test_every_character_of_a_view_has_its_place_in_the_text(text: str) -> None:
    for view in fold(text):
        places = [view.places.locate(at, at + 1) for at in range(len(view.text))]
        assert all(0 <= place.start < place.end <= len(text) for place in places)
        assert all(left == right or left.end <= right.start for left, right in zip(places, places[1:], strict=False))
        for char, place in zip(view.text, places, strict=True):
            assert char in _views_of(text[place.start : place.end]), (text, view)


def _views_of(text: str) -> str:
    return text + "".join(view.text for view in fold("x4" + text + "x4")) + "".join(view.text for view in fold(text))


def test_a_character_that_is_no_mark_leaves_its_neighbours_alone() -> None:
    for code in (*range(0xA0, 0x3400), *range(0xA000, 0xD800), *range(0xF900, 0x20000)):
        char = chr(code)
        if (
            unicodedata.category(char)[0] == "M"
            or unicodedata.category(unicodedata.normalize("NFKC", char)[0])[0] == "M"
        ):
            continue
        for view in fold(f"a {char} b"):
            assert view.text.startswith("a ")
            assert view.text.endswith(" b")
            assert view.places.locate(0, 2) == (0, 2), hex(code)
            assert view.places.locate(len(view.text) - 2, len(view.text)) == (3, 5), hex(code)


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_a_span_of_a_view_covers_all_that_stands_between(text: str, start: int, length: int) -> None:
    for view in fold(text):
        end = min(start + length, len(view.text))
        if start < end:
            places = [view.places.locate(at, at + 1) for at in range(start, end)]
            assert view.places.locate(start, end) == (places[0].start, places[-1].end)
        else:
            place = view.places.locate(start, start)
            assert place.start == place.end


@given(TEXTS)
def test_a_view_is_folded_already_and_not_much_longer(text: str) -> None:
    for view in fold(text):
        assert len(view.text) <= MAX_LONGER * len(text)
        assert not any(char in "\u200b\u00ad\ufeff\ufe0f" for char in view.text)


@given(st.sampled_from(list(VALUES)), st.lists(INVISIBLE, min_size=45, max_size=45), TEXTS)
def test_invisible_characters_anywhere_inside_hide_nothing(kind: str, marks: list[str], before: str) -> None:
    name, value = VALUES[kind]
    hidden = "".join(mark + char for mark, char in zip(["", *marks], value, strict=False))
    text = f"{before}\n\nIt is {hidden}, no?"
    spans = [(hit.start, hit.end) for hit in read(name, text)]
    start = len(text) - len(hidden) - 5
    assert (start, start + len(hidden)) in spans


@pytest.mark.parametrize("name", READINGS)
@given(TEXTS | st.lists(st.sampled_from([*(value for _, value in VALUES.values()), *ODD]), max_size=6).map("".join))
def test_no_finding_of_the_text_itself_is_lost(name: str, text: str) -> None:
    hits = read(name, text)
    for own in READINGS[name].scan(text):
        assert any(hit.start <= own.start and own.end <= hit.end and hit.metadata == own.metadata for hit in hits), (
            own,
            hits,
        )
    assert all(hit.text == text[hit.start : hit.end] != "" for hit in hits)


HIDDEN = st.sampled_from([TRICKS["soft hyphens"](value) for _, value in VALUES.values()])


@given(st.lists(TEXTS | HIDDEN, min_size=2, max_size=3), st.sampled_from(sorted(READINGS)))
def test_excerpts_read_together_give_what_each_gives_alone(texts: list[str], name: str) -> None:
    together = asyncio.run(READINGS[name].read([Excerpt(text) for text in texts]))
    assert together == [read(name, text) for text in texts]


@given(st.integers(1, 40), st.sampled_from(["zero-width spaces", "accents", "full width", "soft hyphens"]))
def test_any_cut_of_a_stream_gives_the_same_findings(size: int, trick: str) -> None:
    text = "Pay " + TRICKS[trick]("5500005555555559") + " to " + TRICKS[trick]("jane.doe@example.com") + " now. "
    machine = WordMachine(256)
    chunks = [chunk for at in range(0, len(text), size) for chunk in machine.feed(text[at : at + size])]
    chunks += machine.finish()
    assert chunks == cut(WordMachine(256), text)
    found = [hit.text for chunk in chunks for hit in read("pii", chunk.text)]
    assert [unicodedata.normalize("NFKC", one)[0] for one in found] == ["5", "j"]


def test_ascii_text_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[str] = []

    def note(text: str) -> tuple[FoldedText, ...]:
        folded.append(text)
        return ()

    monkeypatch.setattr("lockgate.detectors.scans.fold", note)
    read("pii", "Write to jane.doe@example.com.")
    assert folded == []
    read("pii", "Schreib an jane.doe@example.com – heute.")
    assert folded == ["Schreib an jane.doe@example.com – heute."]


@pytest.mark.parametrize(
    "unit", ["\u200b", "a\u200b", "a\u0301", "\u0301", "а", "aа", "1О ", "\u00ad\u05b7", "１", "ﷺ", "ि", "각"]
)
def test_the_work_grows_with_the_text_only(unit: str) -> None:
    assert_linear(lambda size: fold(unit * (size // len(unit))), 4_000)


@pytest.mark.parametrize("mark", ["\u200b" * 10, "\u00ad", "\u0336", "\u2060\ufe0f"])
@pytest.mark.parametrize("shift", range(0, 200, 23))
def test_a_forced_cut_among_odd_characters_parts_no_finding(shift: int, mark: str) -> None:
    hidden = mark.join("5500005555555559")
    text = "x" * (16 + shift) + "-(" + hidden + ")-" + "y" * 400
    batcher = DetectionBatcher([DetectorSpec("pii", "word", lookbehind_chars=LOOKBEHIND_CHARS)])
    chunks = cut(WordMachine(WORD_MAX_CHARS), text)
    assert len(chunks) > 1
    found: list[Detection] = []
    for one in chunks:
        for request in batcher.add("word", [one]):
            hits = asyncio.run(READINGS["pii"].read(request.excerpts))
            _, progress = batcher.answer(request, hits)
            for step in progress:
                assert all(hit.start < step.upto and hit.end <= one.end for hit in step.detections)
                found += step.detections
    assert [(hit.text, text[hit.start : hit.end]) for hit in found] == [(hidden, hidden)]
