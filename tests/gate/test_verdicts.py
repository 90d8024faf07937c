# SPDX-License-Identifier: Apache-2.0
"""The laws of the judge: any cut of the releases, any findings, each handed over in time or earlier.

No character occurs twice in the texts, so that one which left in clear is known when it is seen.
"""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.release import Strategy
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import (
    MASK_CHARACTER,
    TEXT_ACTIONS,
    Action,
    DocumentAction,
    Judge,
    Measures,
    Verdict,
    hide,
    judge_whole,
    put_fallback,
)
from tests.gate.worlds import World, play, worlds

LETTERS = "abcdefghi\n 中文क्षि😀é́\u2028ß"
FALLBACK = "[WITHHELD]"
ACTIONS = st.sampled_from(Action)
STRICTER = st.sampled_from([Action.STOP, Action.BLOCK])
HIDING = st.sampled_from([Action.MASK, Action.STOP, Action.BLOCK])
CUTS = st.sets(st.integers(1, len(LETTERS) - 1), max_size=5)


def find_sentence(text: str, at: int) -> int:
    """Where the sentence with the character at `at` begins: here a letter of these ends one, and white space too."""
    return max(text.rfind(end, 0, at) + 1 for end in "cf\n \u2028文😀")


@dataclass
class Case:
    """A text, the borders of its releases, and findings with how many releases too early each is known."""

    text: str
    borders: list[int]
    found: list[tuple[Detection, int]]

    def recut(self, cuts: set[int]) -> "Case":
        return Case(self.text, _borders(self.text, cuts), self.found)

    def on_time(self) -> "Case":
        return Case(self.text, self.borders, [(one, 0) for one, _ in self.found])

    def covered(self) -> set[int]:
        return {place for one, _ in self.found for place in range(one.start, one.end)}

    def judge(self, action: Action) -> list[Verdict]:
        judge = Judge(Measures(action, fallback=FALLBACK), None, find_sentence)
        return [
            judge.judge(start, self.text[start:end], [one for one, early in self.found if self._at(one, early) == turn])
            for turn, (start, end) in enumerate(pairwise(self.borders))
        ]

    def _at(self, one: Detection, early: int) -> int:
        """The release with which the gate lets it out: the first that overlaps it, else the nearest; or earlier."""
        first = min(max(one.start, 0), len(self.text) - 1)
        turn = next(turn for turn, end in enumerate(self.borders[1:]) if first < end)
        return max(turn - early, 0)


def test_no_letter_of_the_texts_occurs_twice() -> None:
    assert len(set(LETTERS)) == len(LETTERS)
    assert not set(LETTERS) & set(FALLBACK + MASK_CHARACTER)


def _borders(text: str, cuts: set[int]) -> list[int]:
    return sorted({0, len(text)} | {cut for cut in cuts if cut < len(text)})


def _detect(text: str, start: int, length: int) -> Detection:
    """A finding that tells what it found in every field that may; its span may lie outside the text or be empty."""
    word = text[max(start, 0) : max(start + length, 0)]
    evidence = ({"name": "seen", "value": word},)
    return Detection(start, start + length, word, "kind", "type", 0.8, "pii", evidence, {"rule": f"<{word}>", "n": [1]})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = LETTERS[: draw(st.integers(1, len(LETTERS)))]
    spans = st.tuples(st.integers(-3, len(text) + 2), st.integers(0, 8), st.sampled_from([0, 0, 0, 1, 9]))
    found = [(_detect(text, start, length), early) for start, length, early in draw(st.lists(spans, max_size=4))]
    return Case(text, _borders(text, draw(CUTS)), found)


def _join(verdicts: list[Verdict]) -> str:
    return "".join(verdict.text for verdict in verdicts)


def _join_bodies(verdicts: list[Verdict]) -> str:
    """What leaves of the text itself."""
    return "".join(verdict.body for verdict in verdicts)


def _mask(text: str, covered: set[int]) -> str:
    return "".join(MASK_CHARACTER if place in covered else letter for place, letter in enumerate(text))


@given(cases())
def test_a_mask_keeps_the_length_of_every_release(case: Case) -> None:
    lengths = [len(verdict.text) for verdict in case.judge(Action.MASK)]
    assert lengths == [end - start for start, end in pairwise(case.borders)]


@given(cases(), HIDING)
def test_no_character_that_a_finding_covers_leaves_in_clear(case: Case, action: Action) -> None:
    hidden = {case.text[place] for place in case.covered() if 0 <= place < len(case.text)}
    assert not hidden & set(_join_bodies(case.judge(action)))


@given(cases(), st.sampled_from([Action.ANNOTATE, Action.MASK]))
def test_what_no_finding_covers_is_unchanged(case: Case, action: Action) -> None:
    text = _join(case.judge(action))
    open_places = set(range(len(case.text))) - (case.covered() if action is Action.MASK else set())
    assert {place: text[place] for place in open_places} == {place: case.text[place] for place in open_places}


@given(cases(), CUTS)
def test_any_cut_of_the_releases_gives_the_same_masked_text(case: Case, cuts: set[int]) -> None:
    text = _join(case.judge(Action.MASK))
    assert text == _join(case.recut(cuts).judge(Action.MASK)) == _mask(case.text, case.covered())


def _find_first(case: Case) -> int | None:
    """The place of the first finding; one outside the text counts at its nearest character."""
    return min((min(max(one.start, 0), len(case.text) - 1) for one, _ in case.found), default=None)


def _expect_stop(case: Case) -> str:
    """The whole sentences before the first finding, and what had left before its release; then a new line."""
    first = _find_first(case)
    if first is None:
        return case.text
    begin = max(border for border in case.borders if border <= first)
    while 0 < begin < first and case.text[begin].isspace():
        begin += 1
    end = max(begin, find_sentence(case.text, first) if first else 0)
    return f"{case.text[:end]}\n{FALLBACK}" if end else FALLBACK


@given(cases(), CUTS)
def test_a_text_stops_after_whole_sentences_or_where_it_had_been_released(case: Case, cuts: set[int]) -> None:
    case = case.on_time().recut(cuts)
    assert _join(case.judge(Action.STOP)) == _expect_stop(case)


@given(cases(), st.sets(st.sampled_from([find_sentence(LETTERS, at) for at in range(1, len(LETTERS))])))
def test_any_cut_between_sentences_stops_with_the_same_text(case: Case, cuts: set[int]) -> None:
    case = case.on_time()
    whole = _join(case.recut(set()).judge(Action.STOP))
    assert _join(case.recut(cuts - {0}).judge(Action.STOP)) == whole == _expect_stop(case.recut(set()))


@given(cases(), CUTS, STRICTER)
def test_the_fallback_stands_on_a_line_of_its_own_or_alone(case: Case, cuts: set[int], action: Action) -> None:
    said = _join(case.recut(cuts).judge(action))
    if case.found:
        left = said.removesuffix(FALLBACK)
        assert said == left + FALLBACK
        assert not left or (left.endswith("\n") and case.text.startswith(left[:-1]) and left != "\n")


@given(cases(), ACTIONS, ACTIONS)
def test_a_stricter_action_never_releases_more(case: Case, one: Action, other: Action) -> None:
    mild, strict = sorted([one, other])
    texts = [set(_join_bodies(case.judge(action))) & set(LETTERS) for action in (strict, mild)]
    assert texts[0] <= texts[1]


@given(cases(), STRICTER)
def test_after_a_block_nothing_of_the_text_leaves_and_the_fallback_leaves_once(case: Case, action: Action) -> None:
    verdicts = case.judge(action)
    blocked = [turn for turn, verdict in enumerate(verdicts) if verdict.is_blocked]
    assert blocked == (list(range(blocked[0], len(verdicts))) if case.found else [])
    assert _join(verdicts).count(FALLBACK) == bool(case.found)
    assert all(verdicts[turn].text == "" for turn in blocked[1:])
    if blocked and action is Action.BLOCK:
        assert (verdicts[blocked[0]].body, verdicts[blocked[0]].ending.strip()) == ("", FALLBACK)


@given(cases(), ACTIONS)
def test_before_the_first_finding_nothing_is_changed(case: Case, action: Action) -> None:
    for verdict, (start, end) in zip(case.judge(action), pairwise(case.borders), strict=True):
        if verdict.detections:
            break
        assert (verdict.text, verdict.is_blocked) == (case.text[start:end], False)


@given(cases(), ACTIONS)
def test_every_finding_is_told_once_in_its_place(case: Case, action: Action) -> None:
    told = [[one[:2] + one[3:7] for one in verdict.detections] for verdict in case.judge(action)]
    given_ = [[one[:2] + one[3:7] for one in verdict.detections] for verdict in case.judge(Action.ANNOTATE)]
    assert told == given_
    assert sum(map(len, told)) == len(case.found)


@given(cases(), HIDING)
def test_a_finding_does_not_tell_what_was_hidden(case: Case, action: Action) -> None:
    for verdict in case.judge(action):
        for one in verdict.detections:
            assert not set(LETTERS) & set(f"{one.text}{one.evidence}{(one.metadata or {})['rule']}")
            assert (one.metadata or {})["n"] == [1]
    lengths = sorted(len(one.text) for verdict in case.judge(action) for one in verdict.detections)
    assert lengths == sorted(len(one.text) for one, _ in case.found)


@given(cases())
def test_masking_a_masked_text_changes_nothing(case: Case) -> None:
    found = [one for one, _ in case.found]
    masked = judge_whole(case.text, found, Measures(Action.MASK)).text
    assert judge_whole(masked, found, Measures(Action.MASK)).text == masked


@given(cases(), HIDING)
def test_a_whole_text_is_judged_like_a_single_release(case: Case, action: Action) -> None:
    found = [one for one, _ in case.found]
    measures = Measures(action, fallback=FALLBACK)
    assert [judge_whole(case.text, found, measures, None, find_sentence)] == case.recut(set()).judge(action)


@given(cases(), ACTIONS)
def test_text_without_findings_is_the_same_object(case: Case, action: Action) -> None:
    assert Judge(Measures(action, fallback=FALLBACK)).judge(0, case.text, ()).text is case.text


@given(worlds(trailing=False), st.sampled_from(Strategy), st.integers(0, 1 << 32))
def test_behind_the_gate_no_part_of_a_finding_in_one_chunk_leaves_in_clear(
    world: World, how: Strategy, seed: int
) -> None:
    releases = play(world, how, seed).releases
    for choice, text in enumerate(world.texts):
        judge = Judge(Measures(Action.MASK))
        parts = [judge.judge(one.start, one.text, one.detections) for one in releases if one.choice == choice]
        spans = [span for keeper in world.keepers for span in world.expected(keeper, choice)]
        assert _join(parts) == _mask(text, {place for span in spans for place in range(*span)})


BAD = Detection(9, 12, "bad", "kind", "type", 0.9, "pii")


def test_stop_and_block_differ_in_the_release_that_brings_the_finding() -> None:
    found = BAD._replace(start=12, end=15)
    for action, expected in (
        (Action.STOP, ["Good. ", "So. \n[WITHHELD]", ""]),
        (Action.BLOCK, ["Good. ", "\n[WITHHELD]", ""]),
    ):
        judge = Judge(Measures(action, fallback=FALLBACK), None, lambda text, at: text.rfind(". ", 0, at) + 2)
        parts = [judge.judge(0, "Good. "), judge.judge(6, "So. A bad. ", [found]), judge.judge(17, "More.")]
        assert [part.text for part in parts] == expected
        assert [part.is_blocked for part in parts] == [False, True, True]


@pytest.mark.parametrize("span", [(7, 7), (-5, -2), (90, 99), (0, 2)])
def test_a_finding_that_covers_nothing_of_the_release_masks_nothing_and_blocks(span: tuple[int, int]) -> None:
    found = [BAD._replace(start=span[0], end=span[1], text="")]
    text = "So bad. "
    assert Judge(Measures(Action.MASK)).judge(6, text, found).text is text
    assert Judge(Measures(Action.BLOCK, fallback=FALLBACK)).judge(6, text, found).text == f"\n{FALLBACK}"


def test_an_empty_fallback_adds_no_line() -> None:
    assert Judge(Measures(Action.BLOCK)).judge(6, "So bad. ", [BAD]).text == ""
    assert put_fallback("", has_left=True) == put_fallback("", has_left=False) == ""


def test_where_sentences_are_not_known_nothing_of_the_release_leaves() -> None:
    assert Judge(Measures(Action.STOP, fallback="!")).judge(0, "Good. So bad.", [BAD]).text == "!"


def test_a_finding_that_begins_in_text_that_has_left_masks_the_rest() -> None:
    judge = Judge(Measures(Action.MASK))
    assert judge.judge(0, "My key ab").text == "My key ab"
    assert judge.judge(9, "cd is", [BAD._replace(start=7, end=11)]).text == "██ is"


def test_findings_that_overlap_are_masked_together() -> None:
    found = [BAD._replace(start=2, end=5), BAD._replace(start=0, end=3), BAD._replace(start=3, end=4)]
    assert judge_whole("abcdefg", found, Measures(Action.MASK)).text == "█████fg"


def test_a_keyword_is_hidden_in_the_name_of_its_rule_in_any_case() -> None:
    found = BAD._replace(
        metadata={"rule": "Bad", "all": ["so bad", {"x": "BAD"}], "place": 9}, evidence=({"a": "bad"},)
    )
    assert hide(found) == BAD._replace(
        text="███", metadata={"rule": "███", "all": ["██████", {"x": "███"}], "place": 9}
    )


def test_a_finding_without_text_or_metadata_can_be_hidden() -> None:
    assert hide(BAD._replace(text="", metadata={"rule": "x"})) == BAD._replace(text="", metadata={"rule": "x"})
    assert hide(BAD).metadata is None


@pytest.mark.parametrize(
    ("action", "text", "told", "is_dropped"),
    [
        (DocumentAction.FLAG, "So, it is bad.", "bad", False),
        (DocumentAction.MASK, "So, it is ███.", "███", False),
        (DocumentAction.DROP, "", "███", True),
    ],
)
def test_a_document_is_flagged_masked_or_dropped(
    action: DocumentAction, text: str, told: str, is_dropped: bool
) -> None:
    found = BAD._replace(start=10, end=13)
    measures = Measures(TEXT_ACTIONS[action])
    verdict = judge_whole("So, it is bad.", [found], measures)
    assert verdict[:3] == (text, (found._replace(text=told),), is_dropped)
    assert judge_whole("Fine.", [], measures) == Verdict("Fine.", kept=5)


def found_by(detector: str, start: int, end: int, text: str) -> Detection:
    return Detection(start, end, text[start:end], "d", "t", 1.0, detector)


ACTIONS_BY_DETECTOR = {"masks": Action.MASK, "stops": Action.STOP, "blocks": Action.BLOCK}


def test_each_detector_has_its_own_action() -> None:
    text = "aa bb cc dd"
    judge = Judge(Measures(actions=ACTIONS_BY_DETECTOR, fallback="!"))
    assert judge.judge(0, text, [found_by("tells", 0, 2, text), found_by("masks", 3, 5, text)]).text == "aa ██ cc dd"
    judge = Judge(Measures(actions=ACTIONS_BY_DETECTOR, fallback="!"), None, find_sentence)
    verdict = judge.judge(0, text, [found_by("masks", 3, 5, text), found_by("stops", 6, 8, text)])
    assert verdict.text == "aa ██ \n!"
    assert verdict.is_blocked
    judge = Judge(Measures(actions=ACTIONS_BY_DETECTOR, fallback="!"))
    assert judge.judge(0, text, [found_by("stops", 6, 8, text), found_by("blocks", 9, 11, text)]).text == "!"


def test_where_one_detector_hides_text_no_finding_quotes_it() -> None:
    text = "aa bb cc"
    judge = Judge(Measures(actions={"masks": Action.MASK}))
    places = [found_by("tells", 0, 8, text), found_by("masks", 3, 5, text), found_by("tells", 6, 8, text)]
    assert [one.text for one in judge.judge(0, text, places).detections] == ["█" * 8, "██", "cc"]


def test_a_finding_that_reaches_beyond_what_has_left_does_not_quote_it() -> None:
    text = "aa bb cc"
    judge = Judge(Measures(actions={"masks": Action.MASK}))
    verdict = judge.judge(0, text[:3], [found_by("tells", 0, 8, text)])
    assert verdict.detections[0].text == "█" * 8
    assert judge.judge(3, text[3:], [found_by("masks", 3, 5, text)]).text == "██ cc"


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(0, 9)), max_size=5), st.data())
def test_a_stricter_action_of_one_detector_never_releases_more(
    places: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    text = "0123456789"
    found = [found_by(name, min(one, two), max(one, two) + 1, text) for name, one, two in places]
    mild, strict = sorted(data.draw(st.tuples(st.sampled_from(Action), st.sampled_from(Action))))
    other = data.draw(st.sampled_from(Action))
    said = [Judge(Measures(actions={"a": one, "b": other})).judge(0, text, found).text for one in (mild, strict)]
    shown = [sum(character != "█" for character in one) for one in said]
    assert shown[1] <= shown[0]
