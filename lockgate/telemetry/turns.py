# SPDX-License-Identifier: Apache-2.0
"""AgentStep and SpokenTurn: an agent's work as metrics and traces see it.

A step is a node of the graph or one of the two phases; steps inside of others, and calls inside of steps, are shown
there. Holds no text. Refuses to know what the names of steps, labels and layers mean.
"""

import asyncio
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

from lockgate.telemetry.incoming import IncomingRequest
from lockgate.telemetry.observing import ACTIVE, CURRENT, Observer

_NONE = "none"


class AgentStep:
    """One step while it runs. `error` is the type of the exception that ended it; to be cancelled is none."""

    __slots__ = ("_observers", "_outer", "ended_at", "error", "is_abandoned", "name", "request", "span", "started_at")

    def __init__(self, name: str) -> None:
        self.name = name
        self.request: IncomingRequest | None = CURRENT.get()
        self.span: Any = None  # of whoever records spans
        self.started_at = self.ended_at = 0.0
        self.error = ""
        self.is_abandoned = False
        self._outer: AgentStep | None = None
        self._observers: tuple[Observer, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.started_at

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        self._observers = ACTIVE.observers
        for observer in self._observers:
            observer.step_started(self)
        self._outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is not None:
            self.is_abandoned = isinstance(error, asyncio.CancelledError | GeneratorExit)
            self.error = "" if self.is_abandoned else type(error).__name__
        if _current.get() is self:  # a generator may be closed by another task than began it
            _current.set(self._outer)
        self._outer = None
        for observer in self._observers:
            observer.step_ended(self)


class SpokenTurn(NamedTuple):
    """What is told of a turn that is over, however it ended."""

    label: str
    layer: str
    outcome: str
    first_token_s: float | None
    tokens: int


_current: ContextVar[AgentStep | None] = ContextVar("lockgate_agent_step", default=None)


def agent_step(name: str) -> AgentStep:
    """A context that measures a step of the current request: a node of the graph, or a phase."""
    return AgentStep(name)


def find_step(request: IncomingRequest | None) -> AgentStep | None:
    """The innermost step of this request that is under way here."""
    step = _current.get()
    return step if step is not None and step.request is request and not step.ended_at else None


def observe_turn(*, label: str, layer: str, outcome: str, first_token_s: float | None, tokens: int) -> None:
    """A turn of the current request is over.

    `outcome` is answered, prompt_blocked, answer_blocked, repeated, aborted or failed; `layer` is what decided the
    label. Both are empty, and told as `none`, where the turn ended before it had one.
    """
    turn = SpokenTurn(label or _NONE, layer or _NONE, outcome, first_token_s, tokens)
    for observer in ACTIVE.observers:
        observer.turn_ended(turn)


def count_unreadable_label() -> None:
    """The model was asked for a label and answered none that there is."""
    for observer in ACTIVE.observers:
        observer.label_unreadable()
