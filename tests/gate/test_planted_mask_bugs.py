# SPDX-License-Identifier: Apache-2.0
"""The laws of masks bite: each bug planted in the masks is caught by a named law."""

from collections.abc import Callable, Sequence

import pytest

from lockgate.gate import verdicts
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import MASK_CHARACTER, Judge, Mask, Masker, Pseudonyms
from tests.gate import test_masks
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()
Found = Sequence[Detection]
Masks = list[Mask]


def _plant(patch: pytest.MonkeyPatch, spoil: Callable[[Masker, int, int, Masks], Masks]) -> None:
    """The masks of a release are spoiled before they are used."""
    honest = Masker.mask

    def mask(self: Masker, start: int, length: int, found: Found) -> Masks:
        return spoil(self, start, length, honest(self, start, length, found))

    patch.setattr(Masker, "mask", mask)


@BUGS.caught_by(
    test_masks.test_what_no_span_covers_is_unchanged_and_nothing_else_is_left,
    test_masks.test_any_cut_gives_the_same_text,
    test_masks.test_masks_of_a_release_lie_in_it_in_order_and_apart,
    test_masks.test_a_span_that_comes_late_hides_what_has_not_left,
    test_masks.test_behind_the_gate_any_order_of_events_gives_the_same_text,
)
def a_mask_ends_with_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(masker: Masker, _start: int, _length: int, found: Masks) -> Masks:
        masker.ahead = []
        return found

    _plant(monkeypatch, forget)


@BUGS.caught_by(
    test_masks.test_any_cut_gives_the_same_text,
    test_masks.test_spans_that_overlap_are_one_mask_under_the_name_of_the_first,
    test_masks.test_behind_the_gate_any_order_of_events_gives_the_same_text,
)
def a_mask_is_written_again_in_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(masker: Masker, _start: int, _length: int, found: Masks) -> Masks:
        masker._upto = 0
        return found

    _plant(monkeypatch, forget)


@BUGS.caught_by(test_masks.test_spans_that_overlap_are_one_mask_under_the_name_of_the_first)
def each_of_two_that_overlap_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Masker._add

    def add(self: Masker, found: Masks, one: Detection, low: int, high: int) -> None:
        low = max(low, found[-1].end) if found else low
        self._upto = min(self._upto, low)
        if low < high:
            honest(self, found, one, low, high)

    monkeypatch.setattr(Masker, "_add", add)


@BUGS.caught_by(test_masks.test_spans_that_overlap_are_one_mask_under_the_name_of_the_first)
def two_that_only_touch_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Masker._add

    def add(self: Masker, found: Masks, one: Detection, low: int, high: int) -> None:
        self._upto += low == self._upto and low > 0
        honest(self, found, one, low, high)

    monkeypatch.setattr(Masker, "_add", add)


@BUGS.caught_by(test_masks.test_any_cut_gives_the_same_text)
def the_first_that_comes_gives_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Masker.mask

    def mask(self: Masker, start: int, length: int, found: Found) -> Masks:
        spans = [*self.ahead, *found]
        if spans:
            first = spans[0]
            found = [one._replace(detection=first.detection, text=first.text) for one in found]
        return honest(self, start, length, found)

    monkeypatch.setattr(Masker, "mask", mask)


@BUGS.caught_by(test_masks.test_what_no_span_covers_is_unchanged_and_nothing_else_is_left)
def a_mask_hides_all_but_its_last_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorten(_masker: Masker, _start: int, _length: int, found: Masks) -> Masks:
        return [one._replace(end=one.end - 1) if one.end - one.start > 5 else one for one in found]

    _plant(monkeypatch, shorten)


@BUGS.caught_by(
    test_masks.test_what_no_span_covers_is_unchanged_and_nothing_else_is_left,
    test_masks.test_spans_that_overlap_are_one_mask_under_the_name_of_the_first,
)
def a_mask_takes_the_space_behind_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def lengthen(_masker: Masker, start: int, length: int, found: Masks) -> Masks:
        return [*found[:-1], found[-1]._replace(end=min(found[-1].end + 1, start + length))] if found else found

    _plant(monkeypatch, lengthen)


@BUGS.caught_by(test_masks.test_the_parts_of_a_masked_text_join_to_it)
def a_mask_is_written_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(mask: Mask, start: int, end: int) -> Mask:
        return Mask(max(mask.start, start), min(mask.end, end), mask.text)

    monkeypatch.setattr(verdicts, "clip_mask", clip)


@BUGS.caught_by(test_masks.test_the_parts_of_a_masked_text_join_to_it)
def a_mask_that_began_before_a_part_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = verdicts.mask_part

    def mask_part(start: int, text: str, found: Sequence[Mask]) -> str:
        return honest(start, text, [one for one in found if one.start >= start])

    monkeypatch.setattr(test_masks, "mask_part", mask_part)


@BUGS.caught_by(test_masks.test_masks_are_remembered_no_longer_than_they_last)
def masks_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Masker.mask

    def mask(self: Masker, start: int, length: int, found: Found) -> Masks:
        before = [*self.ahead, *found]
        masked = honest(self, start, length, found)
        self.ahead = before
        return masked

    monkeypatch.setattr(Masker, "mask", mask)


@BUGS.caught_by(
    test_masks.test_what_no_span_covers_is_unchanged_and_nothing_else_is_left,
    test_masks.test_the_text_of_a_verdict_is_what_was_kept_with_its_masks,
)
def what_stands_behind_the_last_mask_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(start: int, text: str, found: Sequence[Mask]) -> str:
        return verdicts.apply_masks(start, text[: found[-1].end - start], found) if found else text

    monkeypatch.setattr(test_masks, "apply_masks", apply)


@BUGS.caught_by(test_masks.test_the_text_of_a_verdict_is_what_was_kept_with_its_masks)
def masks_reach_beyond_where_the_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_cut", lambda found, _end: list(found))


@BUGS.caught_by(test_masks.test_the_text_of_a_verdict_is_what_was_kept_with_its_masks)
def more_is_said_to_be_kept_than_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._apply

    def apply(self: Judge, start: int, text: str, found: Found) -> verdicts.Verdict:
        return honest(self, start, text, found)._replace(kept=len(text))

    monkeypatch.setattr(Judge, "_apply", apply)


@BUGS.caught_by(test_masks.test_a_verdict_masks_like_the_masker)
def a_verdict_always_masks_with_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Judge._apply

    def apply(self: Judge, start: int, text: str, found: Found) -> verdicts.Verdict:
        verdict = honest(self, start, text, found)
        blocks = [one._replace(text=MASK_CHARACTER * (one.end - one.start)) for one in verdict.masks]
        return verdict._replace(masks=tuple(blocks))

    monkeypatch.setattr(Judge, "_apply", apply)


@BUGS.caught_by(test_masks.test_the_same_value_has_the_same_name_and_another_value_another)
def every_finding_gets_a_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Pseudonyms.name

    def name(self: Pseudonyms, found: Detection) -> str:
        self._names.pop(found.text, None)
        return honest(self, found)

    monkeypatch.setattr(Pseudonyms, "name", name)


@BUGS.caught_by(test_masks.test_the_same_value_has_the_same_name_and_another_value_another)
def names_are_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pseudonyms, "_invent", lambda _self, kind, value: f"{kind}-{len(value)}")


@BUGS.caught_by(test_masks.test_the_same_value_has_the_same_name_and_another_value_another)
def a_kind_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Pseudonyms.name

    def name(self: Pseudonyms, found: Detection) -> str:
        return honest(self, found._replace(text=f"{found.detection} {found.text}"))

    monkeypatch.setattr(Pseudonyms, "name", name)


@BUGS.caught_by(test_masks.test_a_name_that_comes_back_is_not_renamed)
def a_name_that_comes_back_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Pseudonyms.name

    def name(self: Pseudonyms, found: Detection) -> str:
        if found.text in self.values:
            self.values.setdefault(found.text + "2", found.text)
            return found.text + "2"
        return honest(self, found)

    monkeypatch.setattr(Pseudonyms, "name", name)


@BUGS.caught_by(test_masks.test_nobody_knows_a_value_by_its_name)
def a_value_may_be_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Pseudonyms, "_invent", lambda self, kind, _value: verdicts._format_name(kind, verdicts._WORDS[len(self._names)])
    )


@BUGS.caught_by(test_masks.test_no_label_holds_what_was_found)
def a_label_is_what_a_detector_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_squeeze", lambda text: text + "?")


@BUGS.caught_by(test_masks.test_no_label_holds_what_was_found)
def a_label_is_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_squeeze", lambda text: text)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
