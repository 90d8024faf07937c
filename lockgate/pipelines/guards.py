# SPDX-License-Identifier: Apache-2.0
"""Which detectors guard a text: the configured ones, and those that one request has chosen.

Decides what a request may ask for: known detectors, of a type that the endpoint serves, with a threshold that is a
number and parameters that the detector accepts. Knows no wire shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockgate.core.batching import Reader
from lockgate.core.values import WHOLE_TEXT_CHUNKER
from lockgate.errors import InvalidRequest, RequestError, UnknownDetector, UnsuitableDetector
from lockgate.interfaces import Chunker, Detector, Headers, Reading


@dataclass(frozen=True, slots=True)
class Guard:
    """A configured detector with its chunker."""

    id: str
    type: str
    detector: Detector
    chunker_id: str
    chunker: Chunker
    default_threshold: float


@dataclass(frozen=True, slots=True)
class Rules:
    """What an endpoint allows, and how it answers what it does not."""

    types: tuple[str, ...] = ("text_contents",)
    unsuitable_status: int = 400
    allows_whole_text: bool = True
    whole_text_holds: bool = True
    checks_threshold: bool = True


@dataclass(frozen=True, slots=True)
class ActiveGuard:
    """A guard at work for one request."""

    guard: Guard
    reading: Reading
    threshold: float
    holds: bool
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        guard = self.guard
        reader = Reader(guard.id, guard.chunker_id, self.threshold, guard.detector.lookbehind_chars, self.holds)
        object.__setattr__(self, "reader", reader)


def choose_guards(
    guards: Mapping[str, Guard],
    requested: Mapping[str, Mapping[str, Any]],
    rules: Rules,
    headers: Headers = (),
) -> tuple[ActiveGuard, ...]:
    """The guards that a request asks for, in its order. Every detector is checked before any reads a parameter."""
    if rules.checks_threshold:
        check_thresholds(requested)
    chosen = [_find(guards, name, rules) for name in requested]
    return tuple(_activate(guard, requested[guard.id], rules, headers) for guard in chosen)


def check_thresholds(requested: Mapping[str, Mapping[str, Any]]) -> None:
    """A threshold, where given, is a number."""
    for name, params in requested.items():
        if "threshold" in params and not _is_number(params["threshold"]):
            raise InvalidRequest(f"`threshold` parameter specified for model `{name}` must be a number")


def _find(guards: Mapping[str, Guard], name: str, rules: Rules) -> Guard:
    guard = guards.get(name)
    if guard is None:
        raise UnknownDetector(name)
    if guard.type not in rules.types:
        raise UnsuitableDetector(f"detector `{name}` is not supported by this endpoint", status=rules.unsuitable_status)
    if guard.chunker_id == WHOLE_TEXT_CHUNKER and not rules.allows_whole_text:
        raise InvalidRequest(
            f"detector `{name}` uses chunker `{WHOLE_TEXT_CHUNKER}`, which is not supported by this endpoint"
        )
    return guard


def _activate(guard: Guard, params: Mapping[str, Any], rules: Rules, headers: Headers) -> ActiveGuard:
    threshold = params.get("threshold")
    rest = {name: params[name] for name in sorted(params) if name != "threshold"}
    try:
        reading = guard.detector.accept(rest, headers)
    except RequestError as error:
        raise refuse(guard.id, error) from error
    return ActiveGuard(
        guard,
        reading,
        float(threshold) if threshold is not None and _is_number(threshold) else guard.default_threshold,
        holds=guard.chunker_id != WHOLE_TEXT_CHUNKER or rules.whole_text_holds,
    )


def refuse(detector: str, error: RequestError) -> InvalidRequest:
    """What a detector says against a request, as the caller reads it."""
    return InvalidRequest(f"detector request failed for `{detector}`: {error.message}", status=error.status)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
