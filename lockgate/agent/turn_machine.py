# SPDX-License-Identifier: Apache-2.0
"""TurnMachine: decides what one turn of a conversation stores in its session. TABLE has its states.

A turn is stored once, after its last piece, or it is recorded as aborted, or nothing is stored; never two of these.
An aborted turn has its question only if the input was read. A request id that was stored before gives the stored
answer to the same question and is refused for another. An event that is not in the table raises RuntimeError.

The machine awaits nothing and calls nothing: lockgate.agent.turns calls it and carries out its effects.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from lockgate.errors import InvalidRequest
from lockgate.sessions.turns import AbortedTurn, RememberedAnswer, Turn, forget_reasoning

REPEATED, ABORTED, FAILED = "repeated", "aborted", "failed"  # how a turn may end, besides the outcomes of its answer
MAX_STORED_CHARS = 1_048_576  # of an answer; the client gets the rest, the session does not
_LEFT = "the client left"
_USED_BEFORE = "this request id was used before, for another question"


class TurnPhase(Enum):
    """The states of a turn."""

    LOADING = auto()
    READING = auto()
    ANSWERING = auto()
    STORING = auto()
    OVER = auto()


class TurnEvent(Enum):
    """The events of a turn."""

    LOAD = auto()
    PREPARE = auto()
    READ = auto()
    SAY = auto()
    WITHHOLD = auto()
    COMPLETE = auto()
    KEEP = auto()
    STORE = auto()
    BREAK_OFF = auto()


TABLE: Final = {
    (TurnPhase.LOADING, TurnEvent.LOAD): TurnPhase.READING,
    (TurnPhase.READING, TurnEvent.PREPARE): TurnPhase.READING,  # a speculative policy does not wait for the input
    (TurnPhase.READING, TurnEvent.READ): TurnPhase.ANSWERING,
    (TurnPhase.READING, TurnEvent.SAY): TurnPhase.READING,  # the text in place of an answer, where the input is blocked
    (TurnPhase.READING, TurnEvent.WITHHOLD): TurnPhase.OVER,
    (TurnPhase.ANSWERING, TurnEvent.PREPARE): TurnPhase.ANSWERING,
    (TurnPhase.ANSWERING, TurnEvent.SAY): TurnPhase.ANSWERING,
    (TurnPhase.ANSWERING, TurnEvent.WITHHOLD): TurnPhase.OVER,  # the answer is blocked: nothing is stored
    (TurnPhase.ANSWERING, TurnEvent.COMPLETE): TurnPhase.OVER,  # NoteLabel; nothing for a repeated turn
    (TurnPhase.ANSWERING, TurnEvent.KEEP): TurnPhase.STORING,  # Store
    (TurnPhase.STORING, TurnEvent.STORE): TurnPhase.OVER,  # NoteLabel
    **{(state, TurnEvent.BREAK_OFF): TurnPhase.OVER for state in TurnPhase},  # NoteAborted, unless it was over
}


class Label(NamedTuple):
    """The label of a question, the layer that chose it, and what the question is about."""

    label: str = ""
    layer: str = ""
    topic: str = ""
    confidence: float | None = None


class Store(NamedTuple):
    """Store the turn, then call `stored`."""

    turn: Turn


class NoteLabel(NamedTuple):
    """Export the label of a complete turn."""

    question: str
    label: Label


class NoteAborted(NamedTuple):
    """Record an aborted turn, which no prompt will contain."""

    turn: AbortedTurn


Effect = Store | NoteLabel | NoteAborted


class TurnMachine:
    """One turn: events in, effects out. `ending` is REPEATED, ABORTED, FAILED or empty."""

    __slots__ = ("_has_session", "_question", "_repeated", "_request_id", "ending", "label", "remembered", "state")

    def __init__(self, request_id: str = "", *, has_session: bool, max_chars: int = MAX_STORED_CHARS) -> None:
        self.state = TurnPhase.LOADING
        self.ending = ""
        self._request_id = request_id
        self._has_session = has_session
        self.remembered = RememberedAnswer(max_chars if has_session else 0)
        self._question = ""
        self.label = Label()  # of the question, once it has one
        self._repeated: Turn | None = None

    def load(self, repeated: Turn | None = None) -> None:
        """Takes the turn that the session has stored under this request id, if any."""
        self._move(TurnEvent.LOAD)
        self._repeated = repeated

    def prepare(self, question: str) -> Turn | None:
        """Takes the question, masks applied; returns the turn that was stored for it, if any."""
        self._move(TurnEvent.PREPARE)
        repeated = self._repeated
        if repeated is not None and repeated.question != question:
            raise InvalidRequest(_USED_BEFORE, status=400)
        self._question = question
        if repeated is not None:
            self.label = Label(repeated.label, repeated.layer, repeated.topic, repeated.confidence)
        return repeated

    def read(self) -> None:
        """The input has been read and is not blocked."""
        self._move(TurnEvent.READ)

    def say(self, piece: str) -> None:
        """A piece goes to the client."""
        if self.state is not TurnPhase.ANSWERING:  # which SAY keeps
            self._move(TurnEvent.SAY)
        self.remembered.add(piece)

    def finish(self, *, is_answered: bool) -> list[Effect]:
        """The client has the last piece: of the answer, or of the text that replaces it."""
        is_repeat = self._repeated is not None
        is_kept = is_answered and not is_repeat and self._has_session
        self._move(TurnEvent.KEEP if is_kept else TurnEvent.COMPLETE if is_answered else TurnEvent.WITHHOLD)
        self.ending = REPEATED if is_repeat else ""
        if is_kept:
            return [Store(self._build_turn())]
        return [] if is_repeat or not is_answered else [NoteLabel(self._question, self.label)]

    def stored(self) -> list[Effect]:
        """The turn has been stored."""
        self._move(TurnEvent.STORE)
        return [NoteLabel(self._question, self.label)]

    def leave(self) -> list[Effect]:
        """The client left, or the process ends."""
        return self._break_off(ABORTED, _LEFT, is_noted=True)

    def fail(self, reason: str, *, is_callers: bool = False) -> list[Effect]:
        """The turn failed. `is_callers`: by a mistake of the caller."""
        return self._break_off(FAILED, reason, is_noted=not is_callers)

    def _break_off(self, ending: str, reason: str, *, is_noted: bool) -> list[Effect]:
        before = self.state
        self._move(TurnEvent.BREAK_OFF)
        if before is TurnPhase.OVER:
            return []
        self.ending = ending
        if not (is_noted and self._has_session):
            return []
        question = self._question if before in (TurnPhase.ANSWERING, TurnPhase.STORING) else ""
        turn = AbortedTurn(question, self.remembered.text, reason, self.label.label, self._request_id)
        return [NoteAborted(turn)]

    def _build_turn(self) -> Turn:
        label, layer, topic, confidence = self.label
        answer = forget_reasoning(self.remembered.text)
        return Turn(self._question, answer, label, topic, layer, confidence, self._request_id)

    def _move(self, event: TurnEvent) -> None:
        following = TABLE.get((self.state, event))
        if following is None:
            raise RuntimeError(f"{event.name} cannot follow in {self.state.name}")
        self.state = following
