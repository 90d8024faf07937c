# SPDX-License-Identifier: Apache-2.0
"""The receipt says what was read, whether that was everything that was released, and what was done. The laws bite."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate import receipts
from lockgate.gate.receipts import Outcome, Receipt, RequestPart
from lockgate.gate.verdicts import Action, DocumentAction
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

TEXTS = st.lists(st.text("ab \n", max_size=6), max_size=6)
Account = tuple[str, str, RequestPart, str]


READERS = [(name, part) for name in ("d", "e") for part in (RequestPart.ANSWER, RequestPart.PROMPT)]


def happenings(*kinds: str, most: int) -> st.SearchStrategy[list[Account]]:
    one = st.tuples(st.sampled_from(kinds), st.sampled_from(READERS), st.text("ab \u3000", max_size=3))
    return st.lists(one.map(lambda drawn: (drawn[0], *drawn[1], drawn[2])), max_size=most)


# What may become of a request: who is to read what; then who reads, what leaves and what is withheld; then who fails.
ACCOUNTS = st.tuples(
    st.sets(st.sampled_from(READERS), min_size=1).map(lambda some: [("expect", *one, "") for one in sorted(some)]),
    happenings("read", "release", "read", "withhold", "find", most=8),
    happenings("fail", most=1),
).map(lambda phases: [one for phase in phases for one in phase])


def read(receipt: Receipt, *texts: str, part: RequestPart = RequestPart.ANSWER) -> Receipt:
    receipt.expect("d", part)
    receipt.note_read("d", part, texts, 0.001)
    return receipt


@given(TEXTS, st.data())
def test_what_is_read_in_any_cut_is_covered(texts: list[str], data: st.DataObject) -> None:
    receipt = read(Receipt(), *texts)
    text = "".join(texts)
    upto = data.draw(st.integers(0, len(text)))
    for piece in (text[:upto], text[upto:]):
        receipt.note_released(RequestPart.ANSWER, piece)
    (only,) = receipt.list_reads()
    assert only.is_covered
    assert only.chars == {RequestPart.ANSWER: len(text)} == {RequestPart.ANSWER: receipt.released[RequestPart.ANSWER]}


@given(TEXTS, st.text("ab", min_size=1, max_size=3))
def test_one_word_that_nobody_read_is_seen(texts: list[str], unread: str) -> None:
    receipt = read(Receipt(), *texts)
    receipt.note_released(RequestPart.ANSWER, "".join(texts) + unread)
    assert not receipt.list_reads()[0].is_covered


def test_white_space_that_a_chunker_drops_need_not_be_read() -> None:
    receipt = read(Receipt(), "One.", "Two.")
    receipt.note_released(RequestPart.ANSWER, "One. \n Two.\n")
    assert receipt.list_reads()[0].is_covered


def test_every_part_that_a_detector_was_to_read_counts() -> None:
    receipt = read(Receipt(), "prompt", part=RequestPart.PROMPT)
    receipt.expect("d", RequestPart.ANSWER)
    receipt.note_released(RequestPart.PROMPT, "prompt")
    assert receipt.list_reads()[0].is_covered
    receipt.note_released(RequestPart.ANSWER, "answer")
    assert not receipt.list_reads()[0].is_covered


def test_a_part_that_it_was_not_to_read_does_not_count() -> None:
    receipt = read(Receipt(), "answer")
    receipt.note_released(RequestPart.DOCUMENTS, "never shown to it")
    receipt.note_released(RequestPart.ANSWER, "answer")
    assert receipt.list_reads()[0].is_covered


def test_a_detector_that_failed_covers_nothing() -> None:
    receipt = read(Receipt(), "answer")
    receipt.note_failure("d")
    assert not receipt.list_reads()[0].is_covered


def test_chunks_findings_and_time_add_up() -> None:
    receipt = read(read(Receipt(), "a", "b"), "c", part=RequestPart.PROMPT)
    receipt.note_finding("d")
    receipt.note_finding("of nobody")
    (only,) = receipt.list_reads()
    assert (only.chunks, only.findings, round(only.seconds, 6)) == (3, 1, 0.002)


def solid(text: str) -> int:
    return sum(not one.isspace() for one in text)


def play(account: Sequence[Account]) -> tuple[Receipt, dict[str, bool]]:
    """A receipt of what happened, and by a plain count who has covered what was released."""
    receipt = Receipt()
    left = dict.fromkeys(RequestPart, 0)
    seen: dict[tuple[str, RequestPart], int] = {}
    failed: set[str] = set()
    for what, detector, part, text in account:
        if what == "expect":
            receipt.expect(detector, part)
            seen.setdefault((detector, part), 0)
        elif what == "read" and (detector, part) in seen:
            receipt.note_read(detector, part, [text], 0.001)
            seen[detector, part] += solid(text)
        elif what == "fail":
            receipt.note_failure(detector)
            failed.add(detector)
        elif what in ("release", "withhold"):
            (receipt.note_released if what == "release" else receipt.note_withheld)(part, text)
            left[part] += solid(text)
        elif what == "find":
            receipt.note_finding(detector)
    names = {detector for detector, _ in seen} | failed
    return receipt, {
        name: name not in failed and all(seen[one] >= left[one[1]] for one in seen if one[0] == name) for name in names
    }


@given(ACCOUNTS)
def test_a_detector_is_covered_only_if_it_read_at_least_what_was_released(account: list[Account]) -> None:
    receipt, covered = play(account)
    assert {one.detector_id: one.is_covered for one in receipt.list_reads()} == covered


@given(ACCOUNTS)
def test_a_receipt_is_covered_only_if_every_detector_is(account: list[Account]) -> None:
    receipt, covered = play(account)
    assert receipt.is_covered is all(covered.values())


@given(ACCOUNTS, st.lists(st.sampled_from(["image", "id"])), st.lists(st.sampled_from(["logprobs", "id"])))
def test_what_went_on_unread_is_counted_and_never_covered(
    account: list[Account], unread: list[str], left_out: list[str]
) -> None:
    receipt, covered = play(account)
    for name in unread:
        receipt.note_unread(name)
    for name in left_out:
        receipt.note_left_out(name)
    assert receipt.is_covered is (not unread and all(covered.values()))
    assert (receipt.unread, receipt.dropped) == (Counter(unread), Counter(left_out))


@given(ACCOUNTS)
def test_a_detector_that_failed_says_so_and_is_not_covered(account: list[Account]) -> None:
    receipt, _ = play(account)
    failed = {detector for what, detector, _, _ in account if what == "fail"}
    assert {one.detector_id for one in receipt.list_reads() if one.has_failed} == failed
    assert not any(one.is_covered for one in receipt.list_reads() if one.has_failed)


@given(ACCOUNTS, st.text("ab", min_size=1, max_size=3), st.sampled_from(RequestPart))
def test_more_that_is_released_never_covers_more(account: list[Account], text: str, part: RequestPart) -> None:
    receipt, covered = play(account)
    receipt.note_released(part, text)
    assert all(covered[one.detector_id] for one in receipt.list_reads() if one.is_covered)


ACTIONS: Sequence[Any] = [*Action, *DocumentAction, *Outcome, "annotate", "mask", "stop", "block", "flag", "drop"]
MEANINGS = {
    "annotate": Outcome.RELEASED,
    "flag": Outcome.RELEASED,
    "released": Outcome.RELEASED,
    "mask": Outcome.MASKED,
    "drop": Outcome.MASKED,
    "masked": Outcome.MASKED,
    "stop": Outcome.STOPPED,
    "stopped": Outcome.STOPPED,
    "block": Outcome.BLOCKED,
    "blocked": Outcome.BLOCKED,
    "failed": Outcome.FAILED,
}


def mean(action: Any) -> Outcome:
    return MEANINGS[action if isinstance(action, str) else action.name.lower()]


@given(st.lists(st.sampled_from(ACTIONS), max_size=6))
def test_the_outcome_is_the_strictest_that_was_done_in_any_order(actions: list[Any]) -> None:
    receipt = Receipt()
    for action in actions:
        receipt.note_action(action)
    assert receipt.outcome is max([mean(one) for one in actions], default=Outcome.RELEASED)


@given(st.lists(st.sampled_from(ACTIONS), max_size=6))
def test_what_is_done_to_documents_never_blocks_the_answer(actions: list[Any]) -> None:
    receipt = Receipt()
    for action in actions:
        receipt.note_action(action, RequestPart.DOCUMENTS)
    assert receipt.outcome in (Outcome.RELEASED, Outcome.MASKED) or Outcome.FAILED in map(mean, actions)
    if any(mean(one) is not Outcome.RELEASED for one in actions):
        assert receipt.outcome >= Outcome.MASKED


def test_outcomes_go_from_mild_to_strict() -> None:
    words = [one.name.lower() for one in sorted(Outcome)]
    assert words == ["released", "masked", "stopped", "blocked", "failed"]


def test_a_failure_is_an_outcome_only_where_it_would_have_ended_the_request() -> None:
    receipt = read(Receipt("strict", is_shadow=True), "answer")
    receipt.note_failure("d")
    receipt.note_action(Action.BLOCK)
    outcomes = [receipt.outcome]
    receipt.note_failure("d", ends=True)
    assert [*outcomes, receipt.outcome] == [Outcome.BLOCKED, Outcome.FAILED]
    assert (receipt.policy, receipt.is_shadow, receipt.is_covered) == ("strict", True, False)


def test_a_failure_of_a_detector_that_nobody_expected_is_not_silent() -> None:
    receipt = Receipt()
    receipt.note_failure("late")
    assert [(one.detector_id, one.has_failed, one.is_covered) for one in receipt.list_reads()] == [
        ("late", True, False)
    ]
    assert not receipt.is_covered


def test_a_word_that_is_no_action_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="`shrug` is no action"):
        Receipt().note_action("shrug")


def test_receipts_share_nothing() -> None:
    one, other = Receipt(), Receipt()
    one.chain.add("answer", "Hi")
    one.note_released(RequestPart.ANSWER, "Hi")
    assert (other.chain.frames, other.released[RequestPart.ANSWER]) == (0, 0)
    assert one.chain.value != other.chain.value


# Bugs that the laws must catch.

BUGS = Bugs()


@BUGS.caught_by(test_a_receipt_is_covered_only_if_every_detector_is)
def one_detector_that_covers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    covers = property(lambda self: any(map(self._covers, self._figures.values())) or not self._figures)
    monkeypatch.setattr(Receipt, "is_covered", covers)


@BUGS.caught_by(test_what_went_on_unread_is_counted_and_never_covered)
def unread_text_is_covered_if_the_detectors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receipt, "is_covered", property(lambda self: all(map(self._covers, self._figures.values()))))


@BUGS.caught_by(
    test_a_detector_is_covered_only_if_it_read_at_least_what_was_released,
    test_a_detector_that_failed_says_so_and_is_not_covered,
)
def a_detector_that_failed_and_read_before_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt._covers

    def covers(self: Receipt, account: Any) -> bool:
        has_failed, account.has_failed = account.has_failed, False
        is_covered = honest(self, account)
        account.has_failed = has_failed
        return is_covered

    monkeypatch.setattr(Receipt, "_covers", covers)


@BUGS.caught_by(test_a_detector_is_covered_only_if_it_read_at_least_what_was_released)
def one_part_that_was_read_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def covers(self: Receipt, account: Any) -> bool:
        read = [count >= self._solid[part] for part, count in account.solid.items()]
        return not account.has_failed and (any(read) or not read)

    monkeypatch.setattr(Receipt, "_covers", covers)


@BUGS.caught_by(test_a_detector_is_covered_only_if_it_read_at_least_what_was_released)
def white_space_makes_up_for_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "_count_solid", len)


@BUGS.caught_by(test_a_detector_is_covered_only_if_it_read_at_least_what_was_released)
def what_is_withheld_makes_up_for_what_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receipt, "note_withheld", lambda self, part, text: None)


@BUGS.caught_by(test_a_detector_is_covered_only_if_it_read_at_least_what_was_released)
def a_detector_of_the_prompt_is_credited_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt.note_read

    def note(self: Receipt, detector: str, part: RequestPart, texts: Any, seconds: float) -> None:
        for one in self._figures[detector].chars:
            honest(self, detector, one, texts, seconds)

    monkeypatch.setattr(Receipt, "note_read", note)


@BUGS.caught_by(test_more_that_is_released_never_covers_more)
def what_is_released_is_counted_down(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt.note_released

    def note(self: Receipt, part: RequestPart, text: str) -> None:
        honest(self, part, text)
        self._solid[part] -= 2 * solid(text)

    monkeypatch.setattr(Receipt, "note_released", note)


@BUGS.caught_by(test_the_outcome_is_the_strictest_that_was_done_in_any_order)
def the_last_action_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt.note_action

    def note(self: Receipt, action: Any, part: RequestPart = RequestPart.ANSWER) -> None:
        self.outcome = Outcome.RELEASED
        honest(self, action, part)

    monkeypatch.setattr(Receipt, "note_action", note)


@BUGS.caught_by(test_the_outcome_is_the_strictest_that_was_done_in_any_order)
def actions_are_taken_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt.note_action

    def note(self: Receipt, action: Any, part: RequestPart = RequestPart.ANSWER) -> None:
        honest(self, action if isinstance(action, str) else Outcome(int(action)), part)

    monkeypatch.setattr(Receipt, "note_action", note)


@BUGS.caught_by(test_what_is_done_to_documents_never_blocks_the_answer)
def a_dropped_document_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Receipt.note_action
    monkeypatch.setattr(Receipt, "note_action", lambda self, action, part: honest(self, action))


@pytest.mark.parametrize(("planted", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(planted: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(planted, law, monkeypatch)
