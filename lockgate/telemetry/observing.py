# SPDX-License-Identifier: Apache-2.0
"""Observer: what telemetry sees of a process at work. ACTIVE is the one per process; `open_telemetry` fills it."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection

if TYPE_CHECKING:
    from lockgate.telemetry.incoming import AgentStep, IncomingRequest, SpokenTurn
    from lockgate.telemetry.outgoing import Call


class Observer:
    """Sees everything and notes nothing; those that count or trace override what they want to see."""

    __slots__ = ()

    def request_started(self, request: "IncomingRequest") -> None:
        """A request came in."""

    def answer_started(self, request: "IncomingRequest") -> None:
        """Its answer has a status."""

    def first_frame_sent(self, request: "IncomingRequest") -> None:
        """The first piece of a streamed answer left."""

    def request_ended(self, request: "IncomingRequest") -> None:
        """Its answer is complete, or will never be."""

    def call_started(self, call: "Call") -> None:
        """A service behind us is called."""

    def call_ended(self, call: "Call") -> None:
        """The call is over."""

    def generation_settled(self, call: "Call") -> None:
        """All is known of a call of a model that has ended."""

    def text_held(self, detector: str, seconds: float) -> None:
        """A piece of text waited for a detector."""

    def detections_found(self, detections: Sequence[Detection]) -> None:
        """Findings leave for the caller."""

    def policy_applied(self, receipt: Receipt) -> None:
        """A guarded request is over."""

    def step_started(self, step: "AgentStep") -> None:
        """An agent begins a step."""

    def step_ended(self, step: "AgentStep") -> None:
        """The step is over."""

    def turn_ended(self, turn: "SpokenTurn") -> None:
        """A turn of an agent is over."""

    def label_unreadable(self) -> None:
        """A model was asked for a label and gave none."""


class Active:
    """Who looks on now. `joins_traces`: whether the trace that a caller names is continued."""

    __slots__ = ("joins_traces", "observers", "render")

    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()
        self.joins_traces = True
        self.render: Callable[[], bytes] | None = None


ACTIVE = Active()
CURRENT: ContextVar["IncomingRequest | None"] = ContextVar("lockgate_request", default=None)


def observe_held(detector: str, seconds: float) -> None:
    """Text waited so long for this detector: from the moment its chunk was known until it was read."""
    for observer in ACTIVE.observers:
        observer.text_held(detector, seconds)


def count_detections(detections: Sequence[Detection]) -> None:
    """These findings leave for the caller."""
    for observer in ACTIVE.observers:
        observer.detections_found(detections)


def render_metrics() -> bytes:
    """All metrics in Prometheus' text format; of all processes where several share their numbers."""
    return ACTIVE.render() if ACTIVE.render is not None else b""
