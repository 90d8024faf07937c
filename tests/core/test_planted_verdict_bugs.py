# SPDX-License-Identifier: Apache-2.0
"""The laws of verdicts bite: each bug planted in the judge is caught by a named law."""

import re
from collections.abc import Callable, Sequence

import pytest

from lockgate.core import verdicts
from lockgate.core.masks import MASK_CHARACTER, Mask, Masker
from lockgate.core.values import Detection
from lockgate.core.verdicts import Action, Judge, Verdict
from tests.core import test_verdicts
from tests.core.planting import Bugs, Law, Patch, check_that_it_is_caught

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
        masker._ahead = []
        return found

    _plant_in_masks(monkeypatch, forget)


@BUGS.caught_by(test_verdicts.test_what_no_finding_covers_is_unchanged)
def a_finding_that_came_early_masks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry(masker: Masker, start: int, found: Found) -> Found:
        masker._ahead = [one._replace(start=start) for one in masker._ahead]
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


def _plant_in_ends(patch: pytest.MonkeyPatch, spoil: Callable[[Judge, int, Found], int]) -> None:
    """How much leaves of the text with which it ends is wrong."""
    patch.setattr(Judge, "_find_end", spoil)


@BUGS.caught_by(
    test_verdicts.test_no_character_that_a_finding_covers_leaves_in_clear,
    test_verdicts.test_any_cut_of_the_releases_stops_at_the_first_finding,
)
def a_text_stops_at_its_last_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._find_end
    _plant_in_ends(monkeypatch, lambda judge, start, found: honest(judge, start, sorted(found)[-1:]))


@BUGS.caught_by(test_verdicts.test_any_cut_of_the_releases_stops_at_the_first_finding)
def a_text_stops_where_its_release_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_in_ends(monkeypatch, lambda _judge, _start, _found: 0)


@BUGS.caught_by(test_verdicts.test_a_stricter_action_never_releases_more)
def a_blocked_release_leaves_before_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._find_end

    def find_end(judge: Judge, start: int, found: Found) -> int:
        return 1000 if judge._measures.action is Action.BLOCK else honest(judge, start, found)

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


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
