# SPDX-License-Identifier: Apache-2.0
"""The laws of masks: any spans, any cut of the text into releases, any order of delivery, and all that may be written.

The letters of the texts are in no label and no made-up name, and none occurs twice: one that left in the clear is
known when it is seen. What should be left is worked out here once more, the slow way.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate import verdicts
from lockgate.gate.release import Strategy
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import (
    MASK_CHARACTER,
    Action,
    Judge,
    Mask,
    Masker,
    MaskWith,
    Measures,
    Pseudonyms,
    apply_masks,
    label,
    mask_part,
)
from tests.gate.worlds import World, play, worlds

LETTERS = "αβγδεζηθ\n 中文क्षि😀é́\u2028ß"
CUTS = st.sets(st.integers(1, len(LETTERS) - 1), max_size=6)
WAYS = st.sampled_from(MaskWith)
KINDS = ("EmailAddress", "PERSON", "credit card", "prompt_injection", "", "δ", "αβγ")


@dataclass
class Case:
    """A text, the borders of its releases, and spans with how many releases too early each is known."""

    text: str
    borders: list[int]
    found: list[tuple[Detection, int]]

    def recut(self, cuts: set[int]) -> "Case":
        """The same text in other releases."""
        return Case(self.text, _borders(self.text, cuts), self.found)

    def releases(self) -> list[tuple[int, str, list[Detection]]]:
        """Each release with what comes with it: all that it overlaps first, some of it earlier."""
        return [
            (start, self.text[start:end], [one for one, early in self.found if self._turn(one, early) == turn])
            for turn, (start, end) in enumerate(pairwise(self.borders))
        ]

    def mask(self, how: MaskWith) -> list[list[Mask]]:
        """The masks of each release."""
        masker = Masker(how)
        return [masker.mask(start, len(text), found) for start, text, found in self.releases()]

    def join(self, how: MaskWith) -> str:
        """The text as it leaves."""
        pairs = zip(self.releases(), self.mask(how), strict=True)
        return "".join([apply_masks(start, text, masks) for (start, text, _), masks in pairs])

    def covered(self) -> set[int]:
        """The places that some span covers."""
        return {place for one, _ in self.found for place in range(one.start, one.end)}

    def groups(self) -> list[tuple[int, int, Detection]]:
        """Where masks must be: spans that overlap are one, under the name of the first."""
        groups: list[tuple[int, int, Detection]] = []
        for one in sorted([one for one, _ in self.found], key=lambda one: (one.start, -one.end)):
            low, high = max(one.start, 0), min(one.end, len(self.text))
            if low >= high:
                continue
            if groups and low < groups[-1][1]:
                start, end, first = groups.pop()
                groups.append((start, max(end, high), first))
            else:
                groups.append((low, high, one))
        return groups

    def expected(self, how: MaskWith) -> str:
        """What must leave."""
        names = Pseudonyms()
        parts: list[str] = []
        place = 0
        for low, high, first in self.groups():
            written = {
                MaskWith.BLOCK: MASK_CHARACTER * (high - low),
                MaskWith.LABEL: f"[{label(first)}]",
                MaskWith.PSEUDONYM: names.name(first) if how is MaskWith.PSEUDONYM else "",
            }
            parts += self.text[place:low], written[how]
            place = high
        return "".join([*parts, self.text[place:]])

    def _turn(self, one: Detection, early: int) -> int:
        first = min(max(one.start, 0), len(self.text) - 1)
        turn = next(turn for turn, end in enumerate(self.borders[1:]) if first < end)
        return max(turn - early, 0)


def _borders(text: str, cuts: set[int]) -> list[int]:
    return sorted({0, len(text)} | {cut for cut in cuts if cut < len(text)})


def _detect(text: str, start: int, length: int, kind: str) -> Detection:
    word = text[max(start, 0) : max(start + length, 0)]
    return Detection(start, start + length, word, kind, "type", 0.8, "pii")


def find(text: str, kind: str) -> Detection:
    """Something of this kind."""
    return Detection(0, 1, text, kind, "", 1.0)


@st.composite
def cases(draw: st.DrawFn, least: int = 0) -> Case:
    """Spans may overlap, touch, lie in one another, be empty, begin before the text and end beyond it."""
    text = LETTERS[: draw(st.integers(1, len(LETTERS)))]
    span = st.tuples(
        st.integers(-3, len(text) + 2), st.integers(0, 8), st.sampled_from(KINDS), st.sampled_from([0, 0, 1, 9])
    )
    drawn = draw(st.lists(span, min_size=least, max_size=5, unique_by=lambda one: one[:2]))
    found = [(_detect(text, start, length, kind), early) for start, length, kind, early in drawn]
    return Case(text, _borders(text, draw(CUTS)), found)


def _own(text: str) -> str:
    """What is left of the letters."""
    return "".join([one for one in text if one in LETTERS])


def test_no_letter_of_the_texts_is_in_what_is_written_for_masks() -> None:
    assert len(set(LETTERS)) == len(LETTERS)
    named = [Pseudonyms().name(find(LETTERS, kind)) for kind in KINDS]
    labels = [label(find(LETTERS, kind)) for kind in KINDS]
    assert _own("".join([*named, *labels, MASK_CHARACTER])) == ""


@given(cases(), WAYS)
def test_what_no_span_covers_is_unchanged_and_nothing_else_is_left(case: Case, how: MaskWith) -> None:
    covered = case.covered()
    open_ = "".join([letter for place, letter in enumerate(case.text) if place not in covered])
    assert _own(case.join(how)) == open_


@given(cases(), WAYS)
def test_spans_that_overlap_are_one_mask_under_the_name_of_the_first(case: Case, how: MaskWith) -> None:
    assert case.join(how) == case.expected(how)


@given(cases(), WAYS, CUTS)
def test_any_cut_gives_the_same_text(case: Case, how: MaskWith, cuts: set[int]) -> None:
    assert case.recut(cuts).join(how) == case.join(how)


@given(cases(), WAYS)
def test_masks_of_a_release_lie_in_it_in_order_and_apart(case: Case, how: MaskWith) -> None:
    for (start, text, _), masks in zip(case.releases(), case.mask(how), strict=True):
        places = [place for mask in masks for place in (mask.start, mask.end)]
        assert all(mask.start < mask.end for mask in masks)
        assert places == sorted([start, *places, start + len(text)])[1:-1]
        hidden = {place for mask in masks for place in range(mask.start, mask.end)}
        assert hidden == case.covered() & set(range(start, start + len(text)))


@given(cases(), WAYS)
def test_the_parts_of_a_masked_text_join_to_it(case: Case, how: MaskWith) -> None:
    masks = case.recut(set()).mask(how)[0]
    parts = [mask_part(start, case.text[start:end], masks) for start, end in pairwise(case.borders)]
    assert "".join(parts) == apply_masks(0, case.text, masks) == case.expected(how)


@given(cases(), WAYS)
def test_masks_are_remembered_no_longer_than_they_last(case: Case, how: MaskWith) -> None:
    masker = Masker(how)
    for start, text, found in case.releases():
        masker.mask(start, len(text), found)
    assert bool(masker.ahead) == any(one.end > max(one.start, len(case.text)) for one, _ in case.found)


@given(cases(), WAYS, st.integers(1, 3))
def test_a_span_that_comes_late_hides_what_has_not_left(case: Case, how: MaskWith, late: int) -> None:
    case.found = [(one, -late) for one, _ in case.found]
    masker = Masker(how)
    hidden: set[int] = set()
    for turn, (start, text, _) in enumerate(case.releases()):
        found = [one for one, early in case.found if case._turn(one, early) == turn]
        hidden |= {place for one in found for place in range(max(one.start, start), one.end)}
        left = apply_masks(start, text, masker.mask(start, len(text), found))
        assert _own(left) == "".join([one for place, one in enumerate(text, start) if place not in hidden])


@given(worlds(trailing=False, max_choices=1), WAYS, st.integers(0, 1 << 32), st.integers(0, 1 << 32))
def test_behind_the_gate_any_order_of_events_gives_the_same_text(
    world: World, how: MaskWith, one: int, other: int
) -> None:
    texts = [_play(world, how, strategy, seed) for strategy, seed in zip(Strategy, (one, other), strict=True)]
    assert texts[0] == texts[1]


def _play(world: World, how: MaskWith, strategy: Strategy, seed: int) -> str:
    masker = Masker(how)
    parts = []
    for one in play(world, strategy, seed).releases:
        found = [each._replace(detection=each.detector_id) for each in one.detections]
        parts.append(apply_masks(one.start, one.text, masker.mask(one.start, len(one.text), found)))
    return "".join(parts)


# Verdicts tell their masks.


@given(cases(), WAYS, st.sampled_from(Action), st.sampled_from(Action))
def test_the_text_of_a_verdict_is_what_was_kept_with_its_masks(
    case: Case, how: MaskWith, action: Action, of_odd: Action
) -> None:
    judge = Judge(Measures(action, {"odd": of_odd}, how, "!"))
    has_ended = False
    for start, text, found in case.releases():
        given_ = [one._replace(detector_id="odd") if one.start % 2 else one for one in found]
        verdict = judge.judge(start, text, given_)
        ending = "" if not verdict.is_blocked or has_ended else "\n!" if start or verdict.kept else "!"
        assert verdict.text == apply_masks(start, text[: verdict.kept], verdict.masks) + ending
        assert all(start <= mask.start < mask.end <= start + verdict.kept for mask in verdict.masks)
        has_ended = verdict.is_blocked


@given(cases(), WAYS)
def test_a_verdict_masks_like_the_masker(case: Case, how: MaskWith) -> None:
    judge = Judge(Measures(Action.MASK, mask_with=how))
    verdicts = [judge.judge(start, text, found) for start, text, found in case.releases()]
    assert [list(verdict.masks) for verdict in verdicts] == case.mask(how)
    assert [verdict.kept for verdict in verdicts] == [end - start for start, end in pairwise(case.borders)]


# Made-up names.

WORDS = st.text(st.sampled_from("ehronmapl@.x-"), min_size=1, max_size=6) | st.sampled_from(
    ["heron", "Maple", "ROBIN HOOD", "heron@masked.invalid", "email-otter", "example.com", "ana@example.org", "😀"]
)
FINDS = st.lists(st.builds(find, WORDS, st.sampled_from(KINDS)), max_size=12)


@given(FINDS)
def test_the_same_value_has_the_same_name_and_another_value_another(found: list[Detection]) -> None:
    names = Pseudonyms()
    given_: dict[str, str] = {}
    for one in found:
        came_back = one.text in names.values
        name = names.name(one)
        assert name == names.name(one._replace(detection="other"))
        assert given_.setdefault(one.text, name) == name or came_back
        if not came_back:
            assert names.values[name] == one.text
            assert name != one.text
    assert len(set(names.values.values())) == len(names.values)


@given(FINDS)
def test_a_name_that_comes_back_is_not_renamed(found: list[Detection]) -> None:
    names = Pseudonyms()
    known = [names.name(one) for one in found]
    assert [names.name(one._replace(text=name)) for one, name in zip(found, known, strict=True)] == known
    before = dict(names.values)
    assert [names.name(one._replace(text=name)) for one, name in zip(found, known, strict=True)] == known
    assert names.values == before


@given(FINDS)
def test_nobody_knows_a_value_by_its_name(found: list[Detection]) -> None:
    names = Pseudonyms()
    for one in found:
        if one.text in names.values:
            continue
        name = names.name(one)
        word = max(name.removesuffix("@masked.invalid").split("-"), key=len) if "@" in name else name.split("-")[-1]
        squeezed = "".join([letter for letter in one.text.casefold() if letter.isalnum()])
        assert word.casefold() not in squeezed
        assert not squeezed or squeezed not in word.casefold()


def test_a_name_shows_what_it_stands_for() -> None:
    names = Pseudonyms()
    kinds = ("EmailAddress", "PERSON", "CreditCard", "Name", "E-Mail", "")
    given_ = [names.name(find(f"{n}", kind)) for n, kind in enumerate(kinds)]
    heron, finch = "heron@masked.invalid", "finch@masked.invalid"
    assert given_ == [heron, "person-maple", "credit-card-otter", "name-cedar", finch, "masked-birch"]


def test_names_do_not_run_out_before_there_are_very_many() -> None:
    names = Pseudonyms()
    given_ = [names.name(find(f"<{n}>", "Name")) for n in range(10_002)]
    assert len(set(given_[:10_000])) == len(names.values) == 10_000
    assert given_[10_000:] == ["[NAME]", "[NAME]"]
    assert names.name(find("<5>", "Name")) == given_[5]


@pytest.mark.parametrize("value", ["", "x" * 4097])
def test_a_value_that_is_empty_or_has_no_end_gets_no_name(value: str) -> None:
    names = Pseudonyms()
    assert names.name(find(value, "Email")) == "[EMAIL]"
    assert names.values == {}


@given(st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=6), st.randoms())
def test_with_a_key_a_value_keeps_its_name_in_any_order(values: list[str], order: random.Random) -> None:
    first, later, other = Pseudonyms(b"key"), Pseudonyms(b"key"), Pseudonyms(b"another")
    given_ = {value: first.name(find(value, "Name")) for value in values}
    shuffled = order.sample(values, len(values))
    again = {value: later.name(find(value, "Name")) for value in shuffled}
    assert len(set(given_.values())) == len(given_)
    assert {value: again[value] for value in given_} == given_
    assert not values or {value: other.name(find(value, "Name")) for value in values} != given_


def find_mail(text: str) -> Detection:
    return Detection(0, len(text), text, "EmailAddress", "pii", 0.9, "mail")


def test_with_a_key_a_name_of_a_former_turn_is_not_renamed_and_moves_no_other() -> None:
    key = b"k" * 32
    first = Pseudonyms(key).name(find_mail("ana@example.org"))
    later = Pseudonyms(key)
    assert later.name(find_mail(first)) == first
    assert later.name(find_mail("ana@example.org")) == first
    assert later.values == {first: "ana@example.org"}
    for text in (
        f"x{first}",
        f"{first}.example",
        f"ana-{first}",
        first.replace("masked", "example"),
        "heron@a.example",
    ):
        assert later.name(find_mail(text)) != text


def test_two_values_never_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_WORDS", ("heron",))
    names = Pseudonyms(b"key")
    given_ = [names.name(find(f"<{n}>", "Name")) for n in range(2000)]  # of 9000 names: many want the same one
    assert len(set(given_)) == len(names.values) == 2000


def test_masks_of_one_request_share_their_names() -> None:
    names = Pseudonyms()
    first = Masker(MaskWith.PSEUDONYM, names).mask(0, 9, [Detection(0, 3, "ana", "Name", "", 1.0)])
    later = Masker(MaskWith.PSEUDONYM, names).mask(0, 9, [Detection(4, 7, "ana", "Email", "", 1.0)])
    assert [first[0].text, later[0].text] == ["name-heron", "name-heron"]
    assert names.values == {"name-heron": "ana"}


# Labels.


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("EmailAddress", "ana@example.org", "EMAIL"),
        ("email_address", "ana@example.org", "EMAIL"),
        ("Address", "1 Main St", "ADDRESS"),
        ("credit card", "4111", "CREDIT_CARD"),
        ("IPv4", "127.0.0.1", "IPV4"),
        ("HAP", "fool", "HAP"),
        ("", "x", "MASKED"),
        ("电子邮件", "x", "MASKED"),
        ("--", "x", "MASKED"),
        ("hunter2", "hunter2", "MASKED"),
        ("rule:Hunter-2", "hunter2", "MASKED"),
        ("straße", "STRASSE", "MASKED"),
        ("k" * 200, "k" * 100, "MASKED"),
        ("k" * 200, "x", "K" * 40),
        ("hunter2" + "k" * 200, "hunter2" + "k" * 100, "MASKED"),
        ("hunter2", "the key is hunter2", "MASKED"),
        ("on", "one", "ON"),
    ],
)
def test_a_label_is_the_kind_and_never_what_was_found(kind: str, text: str, expected: str) -> None:
    assert label(find(text, kind)) == expected


FORMS = st.sampled_from([str, str.upper, str.swapcase, str.title, "-".join])
SOME = st.text(max_size=30) | st.text("abCD12 _", max_size=60)


@given(SOME, SOME, SOME, FORMS)
def test_no_label_holds_what_was_found(text: str, before: str, behind: str, form: Callable[[str], str]) -> None:
    told = label(find(text, before + form(text) + behind))
    letters = "".join([one for one in text.casefold() if one.isalnum()])
    assert told == "MASKED" or not letters or letters not in told.replace("_", "").casefold()
    assert not set(told) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
    assert 0 < len(told) <= 40
