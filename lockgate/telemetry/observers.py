# SPDX-License-Identifier: Apache-2.0
"""Observers: who hears of requests, calls and agents in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.gate.values import Detection

if TYPE_CHECKING:
    from lockgate.telemetry.requests import AgentStep, EndedTurn, IncomingRequest, ServiceCall


class Observer:
    """Sees everything and notes nothing; observers that count or trace override what they need."""

    def request_started(self, request: "IncomingRequest") -> None:
        """A request came in."""

    def answer_started(self, request: "IncomingRequest") -> None:
        """Its answer has a status."""

    def first_frame_sent(self, request: "IncomingRequest") -> None:
        """The first piece of a streamed answer left."""

    def request_ended(self, request: "IncomingRequest") -> None:
        """Its answer is complete, or will never be."""

    def call_started(self, call: "ServiceCall") -> None:
        """A service behind us is called."""

    def call_ended(self, call: "ServiceCall") -> None:
        """The call is over."""

    def generation_settled(self, call: "ServiceCall") -> None:
        """All is known of a call of a model that has ended."""

    def text_held(self, detector: str, seconds: float) -> None:
        """A piece of text waited for a detector."""

    def detections_found(self, detections: Sequence[Detection]) -> None:
        """Findings leave for the caller."""

    def policy_applied(self, policy: str, mode: str, outcome: str) -> None:
        """A guarded request is over."""

    def step_started(self, step: "AgentStep") -> None:
        """An agent begins a step."""

    def step_ended(self, step: "AgentStep") -> None:
        """The step is over."""

    def turn_ended(self, turn: "EndedTurn") -> None:
        """A turn of an agent is over."""

    def label_unreadable(self) -> None:
        """A model was asked for a label and gave none."""


@dataclass(slots=True)
class Active:
    """The observers of this process. `joins_traces`: whether the trace that a caller names is continued."""

    observers: tuple[Observer, ...] = ()
    joins_traces: bool = True
    render: Callable[[], bytes] | None = None


ACTIVE = Active()  # `open_telemetry` fills it


def render_metrics() -> bytes:
    """All metrics in Prometheus' text format; of all processes where several share their numbers."""
    return ACTIVE.render() if ACTIVE.render is not None else b""
