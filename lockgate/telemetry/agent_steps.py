# SPDX-License-Identifier: Apache-2.0
"""Steps and turns of agents, as metrics and traces see them."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

from lockgate.telemetry.log import CURRENT
from lockgate.telemetry.requests import ACTIVE, IncomingRequest, Observer

_NONE = "none"


@dataclass(slots=True, eq=False)
class AgentStep:
    """A context that measures a step of the current request: a node of the graph, or a phase.

    `error` is the type of the exception that ended it; to be cancelled is none.
    """

    name: str
    request: IncomingRequest | None = field(default_factory=CURRENT.get)
    span: Any = None  # where spans are recorded
    started_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""
    is_abandoned: bool = False
    _outer: "AgentStep | None" = None
    _observers: tuple[Observer, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.started_at

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        self._observers = ACTIVE.observers
        for observer in self._observers:
            observer.step_started(self)
        self._outer = CURRENT_STEP.get()
        CURRENT_STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is not None:
            self.is_abandoned = isinstance(error, asyncio.CancelledError | GeneratorExit)
            self.error = "" if self.is_abandoned else type(error).__name__
        if CURRENT_STEP.get() is self:  # a generator may be closed by another task than began it
            CURRENT_STEP.set(self._outer)
        self._outer = None
        for observer in self._observers:
            observer.step_ended(self)


CURRENT_STEP: ContextVar[AgentStep | None] = ContextVar("lockgate_agent_step", default=None)
agent_step = AgentStep


class EndedTurn(NamedTuple):
    """A turn that is over, however it ended."""

    label: str
    layer: str
    outcome: str
    first_token_s: float | None
    tokens: int


def observe_turn(*, label: str, layer: str, outcome: str, first_token_s: float | None, tokens: int) -> None:
    """A turn of the current request is over.

    `outcome` is answered, prompt_blocked, answer_blocked, repeated, aborted or failed; `layer` is what decided the
    label. Both are empty, and counted as `none`, where the turn ended before it had one.
    """
    turn = EndedTurn(label or _NONE, layer or _NONE, outcome, first_token_s, tokens)
    for observer in ACTIVE.observers:
        observer.turn_ended(turn)


def count_unreadable_label() -> None:
    """The model was asked for a label and answered none that there is."""
    for observer in ACTIVE.observers:
        observer.label_unreadable()
