# SPDX-License-Identifier: Apache-2.0
"""Ways to spoil what the judge is given, and the laws that must report each.

A run that was right is spoiled after it was played, so that the judge must find what it is there for among real turns.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from lockgate.sessions.turns import StoredTurn
from tests.soak.agent.laws import judge
from tests.soak.agent.talk import ACKNOWLEDGED, ANSWER, CUT, Attempt, Call, Evidence, Where, find_mark

Spoil = Callable[[Evidence], Evidence | None]


def lose_a_turn(right: Evidence) -> Evidence | None:
    """The last turn of a session is not there, though it was acknowledged."""
    for where, turns in _sessions(right):
        if _is_acknowledged(right, turns[-1]):
            return _with_turns(right, where, turns[:-1])
    return None


def halve_a_turn(right: Evidence) -> Evidence | None:
    """A stored answer lacks its end."""
    where, turns = next(_sessions(right))
    return _with_turns(right, where, [*turns[:-1], turns[-1]._replace(answer=turns[-1].answer[:-4])])


def swap_answers(right: Evidence) -> Evidence | None:
    """A question is stored with the answer to another."""
    where, turns = next(_sessions(right))
    first, second = turns[-2:]
    swapped = [first._replace(answer=second.answer), second._replace(answer=first.answer)]
    return _with_turns(right, where, [*turns[:-2], *swapped])


def lose_an_answer(right: Evidence) -> Evidence | None:
    """A question lies in the table without its answer."""
    last = next(place for place, row in enumerate(right.rows) if row.role == "assistant")
    return replace(right, rows=right.rows[:last] + right.rows[last + 1 :])


def double_a_turn(right: Evidence) -> Evidence | None:
    """A turn is stored twice."""
    where, turns = next(_sessions(right))
    return _with_turns(right, where, [*turns, turns[0]])


def swap_turns(right: Evidence) -> Evidence | None:
    """Two turns of a session have changed places, so that the order is not that of their acknowledgement."""
    for where, turns in _sessions(right):
        first, second = turns[-2:]
        ends = [_find_acknowledged(right, one) for one in (first, second)]
        if all(ends) and ends[0].ended_at < ends[1].sent_at:  # type: ignore[union-attr]
            return _with_turns(right, where, [*turns[:-2], second, first])
    return None


def mix_up_callers(right: Evidence) -> Evidence | None:
    """A turn is stored in the session of the same name of somebody else."""
    for (where, turns), (other, others) in pairwise(_sessions(right)):
        if where[0] != other[0]:
            spoiled = _with_turns(right, where, turns[:-1])
            return _with_turns(spoiled, other, [*others, turns[-1]])
    return None


def tell_of_others(right: Evidence) -> Evidence | None:
    """A prompt holds a turn of somebody else's session."""
    (where, _), (_, others) = (one for one, _ in zip(_sessions(right), range(2), strict=False))
    call = _find_call(right, where)
    said = [("user", others[0].question), ("assistant", others[0].answer)]
    return _with_call(right, call, replace(call, messages=[call.messages[0], *said, *call.messages[-1:]]))


def find_for_others(right: Evidence) -> Evidence | None:
    """The passages of somebody else's question stand in a prompt."""
    (where, _), (_, others) = (one for one, _ in zip(_sessions(right), range(2), strict=False))
    call = _find_call(right, where)
    role, text = call.messages[-1]
    asked = (role, f"passage about {others[0].question}\n\n{text}")
    return _with_call(right, call, replace(call, messages=[*call.messages[:-1], asked]))


def forget_a_turn(right: Evidence) -> Evidence | None:
    """A prompt lacks the turn before; its own turn is stored, so it is known what stands before it."""
    kept = {one.answer for _, turns in _sessions(right) for one in turns}
    calls = (one for one in right.calls if one.kind == ANSWER and one.text in kept)
    call = next((one for one in calls if len(one.messages) > 2), None)
    if call is None:
        return None
    return _with_call(right, call, replace(call, messages=[*call.messages[:-3], call.messages[-1]]))


def recall_an_aborted_turn(right: Evidence) -> Evidence | None:
    """A prompt holds a question of its session whose turn never came to its end."""
    kept = {one.question for stored in right.stored.values() for one in stored if not one.aborted}
    spoken = {right.asked[one.number].where: one for one in right.calls if one.kind == ANSWER}
    asked = next((one for one in right.asked.values() if one.question not in kept and one.where in spoken), None)
    if asked is None:
        return None
    call = spoken[asked.where]
    said = [("user", asked.question), ("assistant", "To be")]
    return _with_call(right, call, replace(call, messages=[*call.messages[:-1], *said, call.messages[-1]]))


def lose_a_token(right: Evidence) -> Evidence | None:
    """A caller was told another text than is stored."""
    attempt = next(one for one in right.attempts if one.end == ACKNOWLEDGED)
    return _with_attempt(right, attempt, replace(attempt, heard=attempt.heard[1:]))


def answer_another(right: Evidence) -> Evidence | None:
    """A caller hears the answer to somebody else's question."""
    first, second = [one for one in right.attempts if one.end == ACKNOWLEDGED][:2]
    return _with_attempt(right, first, replace(first, heard=second.heard))


def cut_one_off(right: Evidence) -> Evidence | None:
    """A server that nobody killed gives no answer."""
    attempt = next((one for one in right.attempts if one.server not in right.killed_at), None)
    return _with_attempt(right, attempt, replace(attempt, end=CUT)) if attempt is not None else None


VARIANTS: Mapping[str, tuple[Spoil, frozenset[str]]] = {
    "lost turn": (lose_a_turn, frozenset({"lost"})),
    "half turn": (halve_a_turn, frozenset({"half"})),
    "swapped answers": (swap_answers, frozenset({"half"})),
    "question without answer": (lose_an_answer, frozenset({"rows"})),
    "turn stored twice": (double_a_turn, frozenset({"twice"})),
    "swapped order": (swap_turns, frozenset({"order"})),
    "turn of another caller": (mix_up_callers, frozenset({"leak"})),
    "prompt with another's turn": (tell_of_others, frozenset({"leak"})),
    "prompt with another's passages": (find_for_others, frozenset({"leak"})),
    "prompt without the turn before": (forget_a_turn, frozenset({"prompt"})),
    "prompt with an aborted turn": (recall_an_aborted_turn, frozenset({"prompt"})),
    "lost token": (lose_a_token, frozenset({"answer"})),
    "answer to another": (answer_another, frozenset({"leak"})),
    "cut off": (cut_one_off, frozenset({"served"})),
}


def find_unnoticed(right: Evidence) -> dict[str, str]:
    """By variant, what the judge said instead of noticing it."""
    unnoticed: dict[str, str] = {}
    for name, (spoil, laws) in VARIANTS.items():
        spoiled = spoil(right)
        reported = {violation.law for violation in judge(spoiled)} if spoiled is not None else set()
        if not laws & reported:
            unnoticed[name] = f"reported: {sorted(reported)}" if spoiled is not None else "there was nothing to try"
    return unnoticed


def _sessions(right: Evidence) -> Iterator[tuple[Where, list[StoredTurn]]]:
    """Sessions with some turns, callers of one id after each other."""
    for where in sorted(right.stored, key=lambda one: (one[1], one[0])):
        turns = [one for one in right.stored[where] if not one.aborted]
        if len(turns) > 1:
            yield where, turns


def _find_acknowledged(right: Evidence, turn: StoredTurn) -> Attempt | None:
    number = find_mark(turn.question)
    return next((one for one in right.attempts if one.number == number and one.end == ACKNOWLEDGED), None)


def _is_acknowledged(right: Evidence, turn: StoredTurn) -> bool:
    return _find_acknowledged(right, turn) is not None


def _find_call(right: Evidence, where: Where) -> Call:
    calls = (one for one in right.calls if one.kind == ANSWER)
    return next(one for one in calls if right.asked[one.number].where == where)


def _with_turns(right: Evidence, where: Where, turns: list[StoredTurn]) -> Evidence:
    aborted = [one for one in right.stored[where] if one.aborted]
    return replace(right, stored={**right.stored, where: (*turns, *aborted)})


def _with_call(right: Evidence, call: Call, spoiled: Call) -> Evidence:
    return replace(right, calls=[spoiled if one is call else one for one in right.calls])


def _with_attempt(right: Evidence, attempt: Attempt, spoiled: Attempt) -> Evidence:
    return replace(right, attempts=[spoiled if one is attempt else one for one in right.attempts])
