# SPDX-License-Identifier: Apache-2.0
"""The judge of a run: what must be true of stored turns, of prompts and of what callers heard, whoever was killed when.

    lost     an acknowledged turn is stored
    answer   what was acknowledged is what is stored
    twice    no question is stored twice
    half     a stored turn is a question that was asked, with one of the model's whole answers to it
    rows     questions and answers alternate in the table, without gaps
    order    turns stand in the order in which they came to their end
    prompt   a prompt holds exactly the latest turns that stand before its own
    leak     nothing of another session is in a prompt, an answer or a session
    aborted  what is noted apart was asked here, and its answer is the beginning of one
    served   whoever stays gets an answer, unless the server was killed meanwhile

Knows nothing of how the server is made.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from lockgate.sessions.turns import StoredTurn
from tests.soak.agent.talk import ACKNOWLEDGED, ANSWER, CUT, LEFT, MARK, Attempt, Call, Evidence, Where, find_mark, mark
from tests.soak.streams.laws import Violation

RECALLED = 10  # turns of a session that a prompt holds at most


def judge(evidence: Evidence) -> list[Violation]:
    """Every law that was broken."""
    return list(_Judge(evidence).run())


class _Judge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._asked = evidence.asked
        self._turns = {where: [one for one in stored if not one.aborted] for where, stored in evidence.stored.items()}
        self._answers: dict[int, list[Call]] = {}
        for call in evidence.calls:
            if call.kind == ANSWER:
                self._answers.setdefault(call.number, []).append(call)
        self._attempts: dict[int, list[Attempt]] = {}
        for attempt in evidence.attempts:
            self._attempts.setdefault(attempt.number, []).append(attempt)

    def run(self) -> Iterator[Violation]:
        for where, turns in self._turns.items():
            for turn in turns:
                yield from self._judge_turn(where, turn)
            yield from self._judge_order(turns)
        yield from self._judge_twice()
        yield from _judge_rows(self._evidence)
        for attempt in self._evidence.attempts:
            yield from self._judge_attempt(attempt)
        for call in self._evidence.calls:
            yield from self._judge_leaks(call)
            if call.kind == ANSWER and call.number in self._asked:
                yield from self._judge_prompt(call)
        yield from self._judge_aborted()

    def _judge_turn(self, where: Where, turn: StoredTurn) -> Iterator[Violation]:
        number = find_mark(turn.question)
        asked = self._asked.get(number) if number is not None else None
        if number is None or asked is None or turn.question != asked.question:
            yield Violation("half", str(where), f"a question that nobody asked: {turn.question[:80]!r}")
            return
        name = mark(number)
        if where != asked.where:
            yield Violation("leak", name, f"asked in {asked.where}, stored in {where}")
        texts = [call.text for call in self._answers.get(number, ())]
        if turn.answer not in texts:
            is_part = any(text.startswith(turn.answer) for text in texts)
            words = "a part of an answer is stored" if is_part else "an answer that the model did not give is stored"
            yield Violation("half", name, f"{words}: {turn.answer[-60:]!r}")
        if turn.label != asked.expected_label:
            yield Violation("half", name, f"stored as {turn.label}, asked as {asked.expected_label}")

    def _judge_twice(self) -> Iterator[Violation]:
        seen: set[int | None] = set()
        for where, turns in self._turns.items():
            for number in (find_mark(turn.question) for turn in turns):
                if number in seen:
                    yield Violation("twice", mark(number or 0), f"stored a second time, in {where}")
                seen.add(number)

    def _judge_order(self, turns: Sequence[StoredTurn]) -> Iterator[Violation]:
        """Whoever was acknowledged before another's model had come to its end stands before it."""
        earliest, which = float("inf"), 0
        for turn in reversed(turns):
            number = find_mark(turn.question) or 0
            finished_at = self._find_end(turn)
            if earliest < finished_at:
                yield Violation("order", mark(number), f"stands before {mark(which)}, which was acknowledged earlier")
            at = self._acknowledged_at(number)
            if at < earliest:
                earliest, which = at, number

    def _find_end(self, turn: StoredTurn) -> float:
        """When the model had finished the answer that is stored."""
        calls = self._answers.get(find_mark(turn.question) or 0, ())
        return next((call.finished_at for call in calls if call.text == turn.answer), 0.0)

    def _acknowledged_at(self, number: int) -> float:
        ends = [one.ended_at for one in self._attempts.get(number, ()) if one.end == ACKNOWLEDGED]
        return min(ends, default=float("inf"))

    def _judge_attempt(self, attempt: Attempt) -> Iterator[Violation]:
        name, asked = mark(attempt.number), self._asked[attempt.number]
        if strangers := set(MARK.findall(attempt.heard)) - {f"{attempt.number:06d}"}:
            yield Violation("leak", name, f"heard of others: {sorted(strangers)[:3]}")
        if attempt.end == ACKNOWLEDGED:
            stored = [one.answer for one in self._turns.get(asked.where, ()) if one.question == asked.question]
            if not stored:
                yield Violation("lost", name, f"acknowledged by {attempt.door} and not stored")
            elif attempt.heard not in stored:
                yield Violation("answer", name, f"heard ...{attempt.heard[-40:]!r}, stored ...{stored[0][-40:]!r}")
        elif attempt.end != LEFT:
            killed_at = self._evidence.killed_at.get(attempt.server, float("inf"))
            if attempt.end != CUT or attempt.ended_at < killed_at:
                yield Violation(
                    "served", name, f"{attempt.door} of server {attempt.server}: {attempt.end}, {attempt.words}"
                )

    def _judge_prompt(self, call: Call) -> Iterator[Violation]:
        """What the model was told of the past is what stands before the turn; of one not stored, before some turn."""
        asked = self._asked[call.number]
        turns = self._turns.get(asked.where, [])
        questions = [turn.question for turn in turns]
        told = call.messages[1:-1]
        name = mark(call.number)
        own = next((place for place, one in enumerate(turns) if one.answer == call.text), None)
        if own is None:
            last = told[-2][1] if len(told) > 1 else None
            if last is not None and last not in questions:
                yield Violation("prompt", name, f"holds a turn that is not stored: {last[:60]!r}")
                return
            own = questions.index(last) + 1 if last is not None else 0
        recalled = turns[max(own - RECALLED, 0) : own]
        if told != [pair for one in recalled for pair in (("user", one.question), ("assistant", one.answer))]:
            held = [find_mark(text) for role, text in told if role == "user"]
            before = [find_mark(one.question) for one in recalled]
            yield Violation("prompt", name, f"holds {held}, before it stand {before}")
        if missing := [one for one in turns[own:] if self._is_before(one, call)]:
            yield Violation("prompt", name, f"was asked after {missing[0].question[:10]} and does not hold it")

    def _is_before(self, turn: StoredTurn, call: Call) -> bool:
        """Whether the turn was acknowledged before anybody can have sent the question of this call."""
        sent = [
            one.sent_at
            for one in self._attempts.get(call.number, ())
            if one.sent_at <= call.came_at and not (one.end == CUT and one.ended_at < call.came_at)
        ]
        return self._acknowledged_at(find_mark(turn.question) or 0) < min(sent, default=0.0)

    def _judge_leaks(self, call: Call) -> Iterator[Violation]:
        asked = self._asked.get(call.number)
        told = {int(number) for _, text in call.messages for number in MARK.findall(text)}
        if asked is None or (told and any(self._where(number) != asked.where for number in told)):
            strangers = [mark(one) for one in sorted(told) if asked is None or self._where(one) != asked.where]
            yield Violation("leak", mark(call.number), f"to {call.kind} belongs nothing of {strangers[:3]}")

    def _where(self, number: int) -> Where | None:
        return self._asked[number].where if number in self._asked else None

    def _judge_aborted(self) -> Iterator[Violation]:
        for where, stored in self._evidence.stored.items():
            for turn in (one for one in stored if one.aborted):
                number = find_mark(turn.question)
                asked = self._asked.get(number) if number is not None else None
                if not turn.question and not turn.answer:
                    continue  # whoever left before the question was read
                if number is None or asked is None or (asked.where, asked.question) != (where, turn.question):
                    yield Violation("aborted", str(where), f"noted and never asked here: {turn.question[:80]!r}")
                    continue
                if not any(call.text.startswith(turn.answer) for call in self._answers.get(number, ())) and turn.answer:
                    yield Violation(
                        "aborted", mark(number), f"delivered what no answer begins with: {turn.answer[:60]!r}"
                    )
                if all(one.end == ACKNOWLEDGED for one in self._attempts.get(number, ())):
                    yield Violation("aborted", mark(number), f"acknowledged, and noted as aborted: {turn.aborted}")


def _judge_rows(evidence: Evidence) -> Iterator[Violation]:
    for where, rows in groupby(evidence.rows, key=lambda row: (row.caller, row.session)):
        listed = list(rows)
        if [row.seq for row in listed] != list(range(len(listed))):
            yield Violation("rows", str(where), "the numbers have gaps")
        if [row.role for row in listed] != ["user", "assistant"] * (len(listed) // 2):
            yield Violation("rows", str(where), "questions and answers do not alternate")
