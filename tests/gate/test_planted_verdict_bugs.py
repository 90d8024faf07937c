# SPDX-License-Identifier: Apache-2.0
"""The laws of verdicts bite: each bug planted in the judge is caught by a named law."""

import re
from collections.abc import Callable, Sequence

import pytest

from lockgate.gate import verdicts
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import MASK_CHARACTER, Action, Judge, Mask, Masker, Verdict
from tests.gate import test_verdicts, test_verdicts_mixed
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()
Found = Sequence[Detection]


def _plant_in_masks(patch: pytest.MonkeyPatch, spoil: Callable[[Masker, int, Found], Found]) -> None:
    """What the masker is told is spoiled before it listens."""
    honest = Masker.mask

    def mask(self: Masker, start: int, length: int, found: Found) -> list[Mask]:
        return honest(self, start, length, spoil(self, start, found))

    patch.setattr(Masker, "mask", mask)


def _plant_in_verdicts(patch: pytest.MonkeyPatch, spoil: Callable[[Judge, str, Verdict], Verdict]) -> None:
    """A verdict is spoiled before it is told."""
    honest = Judge.judge

    def judge(self: Judge, start: int, text: str, found: Found = ()) -> Verdict:
        return spoil(self, text, honest(self, start, text, found))

    patch.setattr(Judge, "judge", judge)


@BUGS.caught_by(
    test_verdicts.test_no_character_that_a_finding_covers_leaves_in_clear,
    test_verdicts.test_any_cut_of_the_releases_gives_the_same_masked_text,
    test_verdicts.test_behind_the_gate_no_part_of_a_finding_in_one_chunk_leaves_in_clear,
)
def a_mask_ends_with_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(masker: Masker, _start: int, found: Found) -> Found:
        masker.ahead = []
        return found

    _plant_in_masks(monkeypatch, forget)


@BUGS.caught_by(test_verdicts.test_what_no_finding_covers_is_unchanged)
def a_finding_that_came_early_masks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry(masker: Masker, start: int, found: Found) -> Found:
        masker.ahead = [one._replace(start=start) for one in masker.ahead]
        return found

    _plant_in_masks(monkeypatch, hurry)


@BUGS.caught_by(
    test_verdicts.test_a_mask_keeps_the_length_of_every_release, test_verdicts.test_what_no_finding_covers_is_unchanged
)
def a_finding_becomes_a_single_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorten(_judge: Judge, _text: str, verdict: Verdict) -> Verdict:
        return verdict._replace(text=re.sub(f"{MASK_CHARACTER}+", MASK_CHARACTER, verdict.text))

    _plant_in_verdicts(monkeypatch, shorten)


@BUGS.caught_by(test_verdicts.test_masking_a_masked_text_changes_nothing)
def a_mask_is_taken_off_when_it_is_put_on_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_off(_judge: Judge, text: str, verdict: Verdict) -> Verdict:
        pairs = zip(text, verdict.text, strict=True)
        return verdict._replace(text="".join("?" if old == MASK_CHARACTER else new for old, new in pairs))

    _plant_in_verdicts(monkeypatch, take_off)


@BUGS.caught_by(test_verdicts.test_a_mask_keeps_the_length_of_every_release)
def a_mask_covers_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def stretch(_judge: Judge, text: str, verdict: Verdict) -> Verdict:
        pairs = zip(text, verdict.text, strict=True)
        return verdict._replace(
            text="".join(new * len(old.encode()) if new == MASK_CHARACTER else new for old, new in pairs)
        )

    _plant_in_verdicts(monkeypatch, stretch)


def _plant_in_ends(patch: pytest.MonkeyPatch, spoil: Callable[[Judge, int, str, Found], int]) -> None:
    """How much leaves of the text with which it ends is wrong."""
    patch.setattr(Judge, "_find_end", spoil)


@BUGS.caught_by(
    test_verdicts.test_no_character_that_a_finding_covers_leaves_in_clear,
    test_verdicts.test_a_text_stops_after_whole_sentences_or_where_it_had_been_released,
)
def a_text_stops_at_its_last_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._find_end
    _plant_in_ends(monkeypatch, lambda judge, start, text, found: honest(judge, start, text, sorted(found)[-1:]))


@BUGS.caught_by(test_verdicts.test_a_text_stops_after_whole_sentences_or_where_it_had_been_released)
def a_text_stops_where_its_release_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_ends(monkeypatch, lambda _judge, _start, _text, _found: 0)


@BUGS.caught_by(
    test_verdicts.test_a_text_stops_after_whole_sentences_or_where_it_had_been_released,
    test_verdicts.test_any_cut_between_sentences_stops_with_the_same_text,
)
def half_a_sentence_leaves_before_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_end(_judge: Judge, start: int, _text: str, found: Found) -> int:
        return max(min(one.start for one in found) - start, 0)

    _plant_in_ends(monkeypatch, find_end)


@BUGS.caught_by(
    test_verdicts.test_the_fallback_stands_on_a_line_of_its_own_or_alone,
    test_verdicts.test_a_text_stops_after_whole_sentences_or_where_it_had_been_released,
)
def the_fallback_is_glued_to_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "put_fallback", lambda fallback, *, has_left: fallback)


@BUGS.caught_by(test_verdicts.test_the_fallback_stands_on_a_line_of_its_own_or_alone)
def a_lone_fallback_begins_with_a_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "put_fallback", lambda fallback, *, has_left: f"\n{fallback}")


@BUGS.caught_by(test_verdicts.test_a_stricter_action_never_releases_more)
def a_blocked_release_leaves_before_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._find_end

    def find_end(judge: Judge, start: int, text: str, found: Found) -> int:
        return 1000 if judge._measures.action is Action.BLOCK else honest(judge, start, text, found)

    _plant_in_ends(monkeypatch, find_end)


@BUGS.caught_by(test_verdicts.test_after_a_block_nothing_of_the_text_leaves_and_the_fallback_leaves_once)
def a_block_lasts_for_one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(judge: Judge, _text: str, verdict: Verdict) -> Verdict:
        judge._is_blocked = False
        return verdict

    _plant_in_verdicts(monkeypatch, forget)


@BUGS.caught_by(test_verdicts.test_after_a_block_nothing_of_the_text_leaves_and_the_fallback_leaves_once)
def the_fallback_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeat(judge: Judge, _text: str, verdict: Verdict) -> Verdict:
        return verdict._replace(text=verdict.text or judge._measures.fallback) if verdict.is_blocked else verdict

    _plant_in_verdicts(monkeypatch, repeat)


@BUGS.caught_by(test_verdicts.test_before_the_first_finding_nothing_is_changed)
def everything_is_blocked_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(judge: Judge, _text: str, verdict: Verdict) -> Verdict:
        return verdict._replace(is_blocked=judge._measures.action is Action.BLOCK)

    _plant_in_verdicts(monkeypatch, block)


@BUGS.caught_by(test_verdicts.test_every_finding_is_told_once_in_its_place)
def findings_behind_a_block_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge.judge

    def judge(self: Judge, start: int, text: str, found: Found = ()) -> Verdict:
        return honest(self, start, text, () if self._is_blocked else found)

    monkeypatch.setattr(Judge, "judge", judge)


@BUGS.caught_by(test_verdicts.test_a_finding_does_not_tell_what_was_hidden)
def the_evidence_of_a_hidden_finding_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "hide", lambda found: found._replace(text=MASK_CHARACTER * len(found.text)))


@BUGS.caught_by(test_verdicts.test_a_finding_does_not_tell_what_was_hidden)
def the_rule_of_a_hidden_finding_repeats_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_hide_word", lambda metadata, _word: metadata)


@BUGS.caught_by(test_verdicts.test_text_without_findings_is_the_same_object)
def text_without_findings_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge.judge

    def judge(self: Judge, start: int, text: str, found: Found = ()) -> Verdict:
        return honest(self, start, "".join([*text, ""]), found)

    monkeypatch.setattr(Judge, "judge", judge)


# Each detector with an action of its own.


def _plant_in_choice(
    patch: pytest.MonkeyPatch, choose: Callable[[Judge, Detection, Action, Action, bool], bool]
) -> None:
    """Which findings are masked, and which end the text, is wrong."""

    def select(self: Judge, found: Found, mildest: Action, strictest: Action) -> list[Detection]:
        honest = [mildest <= self._measures.of(one.detector_id) <= strictest for one in found]
        return [one for one, is_it in zip(found, honest, strict=True) if choose(self, one, mildest, strictest, is_it)]

    patch.setattr(Judge, "_select", select)


@BUGS.caught_by(test_verdicts_mixed.test_nothing_leaves_that_a_detector_hides_whatever_the_others_say)
def one_action_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_choice(
        monkeypatch, lambda judge, _one, mildest, strictest, _: mildest <= judge._measures.action <= strictest
    )


@BUGS.caught_by(test_verdicts_mixed.test_findings_that_are_only_told_change_nothing)
def where_one_masks_all_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_choice(monkeypatch, lambda _judge, _one, mildest, _strictest, is_it: is_it or mildest is Action.MASK)


@BUGS.caught_by(test_verdicts_mixed.test_a_stricter_policy_never_releases_more)
def where_one_stops_no_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._find_end

    def find_end(judge: Judge, start: int, text: str, found: Found) -> int:
        stopping = [one for one in found if judge._measures.of(one.detector_id) is Action.STOP]
        return honest(judge, start, text, stopping or found)

    _plant_in_ends(monkeypatch, find_end)


@BUGS.caught_by(test_verdicts_mixed.test_nothing_leaves_that_a_detector_hides_whatever_the_others_say)
def where_a_text_ends_nothing_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_cut", lambda _masks, _end: [])


@BUGS.caught_by(test_verdicts_mixed.test_what_is_done_is_what_the_strictest_finding_calls_for)
def a_finding_that_masks_ends_the_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_choice(monkeypatch, lambda _judge, _one, mildest, _strictest, is_it: is_it or mildest is Action.STOP)


@BUGS.caught_by(test_verdicts_mixed.test_a_finding_tells_only_what_has_left_in_the_clear)
def a_finding_tells_what_another_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = verdicts._has_left
    monkeypatch.setattr(verdicts, "_has_left", lambda one, start, left, _masks: honest(one, start, left, ()))


@BUGS.caught_by(test_verdicts_mixed.test_a_finding_tells_only_what_has_left_in_the_clear)
def a_finding_tells_what_will_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_has_left", lambda one, start, left, masks: one.start >= start + len(left))


@BUGS.caught_by(test_verdicts_mixed.test_a_finding_tells_only_what_has_left_in_the_clear)
def a_reason_quotes_what_was_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_FREE_WORDS", frozenset())


@BUGS.caught_by(test_verdicts_mixed.test_a_finding_whose_text_has_just_left_tells_it)
def no_finding_tells_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_has_left", lambda *_: False)


@BUGS.caught_by(test_verdicts_mixed.test_every_finding_is_told_once_with_its_place_kind_and_score)
def only_findings_that_may_tell_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(judge: Judge, _text: str, verdict: Verdict) -> Verdict:
        return verdict._replace(detections=tuple([one for one in verdict.detections if one.evidence]))

    _plant_in_verdicts(monkeypatch, drop)


# Shadow.


def _plant_in_shadow(patch: pytest.MonkeyPatch, keep: Sequence[str]) -> None:
    """Some of what would have been done is done."""
    honest = Judge.judge

    def judge(self: Judge, start: int, text: str, found: Found = ()) -> Verdict:
        verdict = honest(self, start, text, found)
        if self._measures.is_shadow and found:
            done = Judge(self._measures._replace(is_shadow=False)).judge(start, text, found)
            return verdict._replace(**{name: getattr(done, name) for name in keep})
        return verdict

    patch.setattr(Judge, "judge", judge)


@BUGS.caught_by(test_verdicts_mixed.test_shadow_changes_nothing_and_tells_nothing_but_what_it_would_have_done)
def shadow_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_shadow(monkeypatch, ["text"])


@BUGS.caught_by(test_verdicts_mixed.test_shadow_changes_nothing_and_tells_nothing_but_what_it_would_have_done)
def shadow_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_shadow(monkeypatch, ["detections"])


@BUGS.caught_by(test_verdicts_mixed.test_shadow_changes_nothing_and_tells_nothing_but_what_it_would_have_done)
def shadow_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_shadow(monkeypatch, ["is_blocked"])


@BUGS.caught_by(test_verdicts_mixed.test_shadow_changes_nothing_and_tells_nothing_but_what_it_would_have_done)
def shadow_does_not_know_what_it_would_have_done(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge.judge

    def judge(self: Judge, start: int, text: str, found: Found = ()) -> Verdict:
        return honest(self, start, text, () if self._measures.is_shadow else found)

    monkeypatch.setattr(Judge, "judge", judge)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
