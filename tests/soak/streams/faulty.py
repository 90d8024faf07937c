# SPDX-License-Identifier: Apache-2.0
"""Eight ways to break the server, each by one small change to a part of it, and the laws that each breaks.

This is the only place here that knows how the server is made inside. Every change strikes now and then, not always:
the judge has to find it in the crowd.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from tests.soak.streams.plans import ODDS, Odds

WHOLE = "whole"


class Variant(NamedTuple):
    """A broken server: how it is broken, which laws may report it, and what must happen often for it to show."""

    plant: Callable[[], None]
    laws: frozenset[str]
    odds: Odds = ODDS


def break_server(name: str) -> None:
    """Break the server that this process will run."""
    VARIANTS[name].plant()


def _every(number: int) -> Callable[[], bool]:
    """True for one call of so many."""
    calls = count(1)
    return lambda: next(calls) % number == 0


def release_early() -> None:
    """Text leaves when the first detector has read it, not the last."""
    from lockgate.gate.release import ReleaseGate

    honest, is_time = ReleaseGate.clear, _every(3)

    def clear(self: ReleaseGate, detector: str, upto: int, detections: Sequence[Any] = ()) -> list[Any]:
        releases = honest(self, detector, upto, detections)
        furthest = max(self._frontiers.values(), default=0)
        if furthest > self.released and is_time():
            releases.append(self._release(furthest))
        return releases

    ReleaseGate.clear = clear  # type: ignore[method-assign]


def lose_a_batch() -> None:
    """A release does not reach the reader."""
    from lockgate.gate.release import ReleaseGate

    honest, is_time = ReleaseGate.clear, _every(20)

    def clear(self: ReleaseGate, detector: str, upto: int, detections: Sequence[Any] = ()) -> list[Any]:
        releases = honest(self, detector, upto, detections)
        return [] if releases and is_time() else releases

    ReleaseGate.clear = clear  # type: ignore[method-assign]


def double_a_detection() -> None:
    """A finding leaves a second time."""
    from lockgate.gate.release import Release, ReleaseGate

    honest, is_time = ReleaseGate._release, _every(10)

    def leave(self: ReleaseGate, upto: int, *, is_final: bool = False) -> Release:
        release = honest(self, upto, is_final=is_final)
        found = release.detections
        return release._replace(detections=(*found, found[0])) if found and is_time() else release

    ReleaseGate._release = leave  # type: ignore[method-assign]


def swap_choices() -> None:
    """An event is sent as another choice's."""
    from lockgate.api.openai.events import EventWriter

    honest, is_time = EventWriter._event, _every(5)

    def build(self: EventWriter, *args: Any, **more: Any) -> dict[str, Any]:
        event = honest(self, *args, **more)
        if event["choices"][0]["index"] and is_time():
            event["choices"][0]["index"] = event["detections"]["output"][0]["choice_index"] = 0
        return event

    EventWriter._event = build  # type: ignore[method-assign]


def shift_offsets() -> None:
    """A finding stands one character beside its place."""
    from lockgate.gate.release import Release, ReleaseGate

    honest, is_time = ReleaseGate._release, _every(10)

    def leave(self: ReleaseGate, upto: int, *, is_final: bool = False) -> Release:
        release = honest(self, upto, is_final=is_final)
        if not release.detections or not is_time():
            return release
        first, *others = release.detections
        return release._replace(detections=(first._replace(start=first.start + 1, end=first.end + 1), *others))

    ReleaseGate._release = leave  # type: ignore[method-assign]


def forget_done() -> None:
    """A stream ends without its end mark."""
    from lockgate.api.openai.events import DONE, EventWriter

    honest, is_time = EventWriter.finish, _every(5)
    EventWriter.finish = lambda self: honest(self).removesuffix(DONE if is_time() else b"")  # type: ignore[method-assign]


def lose_the_finish() -> None:
    """A finish reason does not leave."""
    from lockgate.api.openai.deltas import has_finish
    from lockgate.api.openai.events import EventWriter

    honest, is_time = EventWriter._pass_on, _every(5)

    def pass_on(self: EventWriter, index: int, message: Mapping[str, Any]) -> bytes:
        return b"" if has_finish(message) and is_time() else honest(self, index, message)

    EventWriter._pass_on = pass_on  # type: ignore[method-assign]


def leave_the_model() -> None:
    """Nobody stops the model when the client leaves."""
    from lockgate.server.exchange import HttpRequest

    HttpRequest.watch = lambda self, task: None  # type: ignore[method-assign]


VARIANTS = {
    "early release": Variant(release_early, frozenset({"held"})),
    "lost batch": Variant(lose_a_batch, frozenset({"text", "offsets"})),
    "doubled detection": Variant(double_a_detection, frozenset({"finding twice"})),
    "swapped choices": Variant(swap_choices, frozenset({"text", "offsets"})),
    "shifted offsets": Variant(shift_offsets, frozenset({"finding wrong", "finding place"})),
    "missing done": Variant(forget_done, frozenset({"done"})),
    "lost finish reason": Variant(lose_the_finish, frozenset({"finish"})),
    "model left running": Variant(leave_the_model, frozenset({"model stops"}), Odds(leave=0.3)),
}
