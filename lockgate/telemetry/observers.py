# SPDX-License-Identifier: Apache-2.0
"""Observers: the interface through which metrics and traces learn of requests, calls and agents in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.gate.values import Detection

if TYPE_CHECKING:
    from lockgate.telemetry.requests import AgentStep, EndedTurn, IncomingRequest, ServiceCall


class Observer:
    """An observer that ignores every event; those that count or trace override the methods they need."""

    def request_started(self, request: "IncomingRequest") -> None:
        """A request came in."""

    def answer_started(self, request: "IncomingRequest") -> None:
        """Its answer has a status."""

    def first_frame_sent(self, request: "IncomingRequest") -> None:
        """The first piece of a streamed answer left."""

    def request_ended(self, request: "IncomingRequest") -> None:
        """Its answer is complete, or it ended without one."""

    def call_started(self, call: "ServiceCall") -> None:
        """A call of an upstream service begins."""

    def call_ended(self, call: "ServiceCall") -> None:
        """The call is over."""

    def request_resent(self, kind: str, name: str) -> None:
        """A request to a service was lost with an idle connection, and is sent again."""

    def settings_reloaded(self, result: str) -> None:
        """A reload of the settings is over; the result is `ok` or `failed`."""

    def generation_settled(self, call: "ServiceCall") -> None:
        """A call of a model has ended, and its token counts and stream times are final."""

    def text_held(self, detector: str, seconds: float) -> None:
        """A chunk waited this long for a detector."""

    def detections_found(self, detections: Sequence[Detection]) -> None:
        """Detections are sent to the caller."""

    def policy_applied(self, policy: str, mode: str, outcome: str) -> None:
        """A guarded request is over."""

    def step_started(self, step: "AgentStep") -> None:
        """An agent begins a step."""

    def step_ended(self, step: "AgentStep") -> None:
        """The step is over."""

    def turn_ended(self, turn: "EndedTurn") -> None:
        """A turn of an agent is over."""

    def label_unreadable(self) -> None:
        """A model that was asked for a label answered without a known one."""


@dataclass(slots=True)
class Active:
    """The observers of this process. `joins_traces`: whether to continue the trace that a caller names."""

    observers: tuple[Observer, ...] = ()
    joins_traces: bool = True
    render: Callable[[], bytes] | None = None


ACTIVE = Active()  # `open_telemetry` fills it


def render_metrics() -> bytes:
    """All metrics in Prometheus' text format, of all processes if several share a directory."""
    return ACTIVE.render() if ACTIVE.render is not None else b""


def count_reload(result: str) -> None:
    """Count a reload of the settings: `ok` or `failed`."""
    for observer in ACTIVE.observers:
        observer.settings_reloaded(result)
