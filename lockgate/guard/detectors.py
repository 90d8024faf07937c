# SPDX-License-Identifier: Apache-2.0
"""Guards: the configured detectors, and the detectors chosen for one request.

A request may name configured detectors of a type that the endpoint allows, with a numeric threshold and parameters
that the detector accepts.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard, TypeVar

from lockgate.errors import (
    InvalidRequest,
    LockgateError,
    RequestError,
    UnknownDetector,
    UnsuitableDetector,
    UpstreamError,
)
from lockgate.gate.messages import text_of
from lockgate.gate.values import TEXT_CONTENTS, WHOLE_TEXT_CHUNKER, Conversation, Detection, Excerpt, Generated, Subject
from lockgate.gate.verdicts import keep
from lockgate.guard.plugin_parts import accept_plugin
from lockgate.interfaces import (
    Chunker,
    Detector,
    Headers,
    InPlaceChunker,
    LookbehindDetector,
    Reading,
    Review,
    Reviewer,
    SharingDetector,
)
from lockgate.task_groups import run_together

T = TypeVar("T")
FailureHandler = Callable[[LockgateError], bool]
_FEW_VALUES = 4  # more of them may take long to prepare


@dataclass(frozen=True, slots=True)
class Guard:
    """A configured detector. A detector of contents has a chunker; a reviewer reads whole texts and needs none."""

    id: str
    type: str
    detector: Detector | Reviewer
    chunker_id: str
    chunker: Chunker | None
    default_threshold: float
    is_plugin: bool = False  # not written by Lockgate: its answers are checked
    is_remote: bool = False  # a service: its words are not trusted
    lookbehind_chars: int = field(init=False)
    in_place: InPlaceChunker | None = field(init=False)  # the chunker, if it can be called in place
    reads_whole_text: bool = field(init=False)  # its one chunk is the whole text
    shares_readings: bool = field(init=False)  # all requests use the same reading

    def __post_init__(self) -> None:
        look = self.detector.lookbehind_chars if isinstance(self.detector, LookbehindDetector) else 0
        object.__setattr__(self, "lookbehind_chars", look)
        object.__setattr__(self, "in_place", self.chunker if isinstance(self.chunker, InPlaceChunker) else None)
        object.__setattr__(self, "reads_whole_text", self.chunker_id == WHOLE_TEXT_CHUNKER)
        shares = isinstance(self.detector, SharingDetector) and self.detector.shares_readings
        object.__setattr__(self, "shares_readings", shares)


@dataclass(frozen=True, slots=True)
class Rules:
    """The detectors and parameters that an endpoint allows, and the status for unsuitable ones."""

    types: tuple[str, ...] = (TEXT_CONTENTS,)
    unsuitable_status: int = 400
    allows_whole_text: bool = True
    whole_text_holds: bool = True
    checks_threshold: bool = True


@dataclass(frozen=True, slots=True)
class ActiveGuard:
    """A guard chosen for requests. `passes`: if it fails, text that it has not read may leave.

    `on_failure` handles a failure of its chunker and returns whether the text may pass unread. `params` are the
    parameters that the reading accepted. `max_hold_s`: how long it may hold a text.
    """

    guard: Guard
    reading: Reading
    threshold: float
    holds: bool
    passes: bool = False
    on_failure: FailureHandler | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_hold_s: float | None = None
    roles: frozenset[str] | None = None  # of the messages that it reads; None: all
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by role

    def reads_role(self, role: str) -> bool:
        """Returns whether it reads texts of this role; texts outside messages have none and are always read."""
        return not role or self.roles is None or role in self.roles

    def for_role(self, role: str) -> "ActiveGuard":
        """Returns the guard with its threshold for texts of this role."""
        threshold = self.thresholds.get(role)
        return self if threshold is None else replace(self, threshold=threshold)

    def bind(self, headers: Headers) -> "ActiveGuard":
        """Returns the guard with a reading for one request."""
        return self if self.guard.shares_readings else replace(self, reading=_accept(self.guard, self.params, headers))


@dataclass(frozen=True, slots=True)
class ActiveReview:
    """A reviewer chosen for requests. `passes`: if it fails, the text may pass. `params`: the accepted parameters."""

    guard: Guard
    review: Review
    threshold: float
    passes: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    max_hold_s: float | None = None

    def bind(self, headers: Headers) -> "ActiveReview":
        """Returns the reviewer with a review for one request."""
        return self if self.guard.shares_readings else replace(self, review=_accept(self.guard, self.params, headers))


class ChosenDetectors(NamedTuple):
    """The detectors of a request: detectors of contents, and reviewers."""

    contents: tuple[ActiveGuard, ...] = ()
    reviews: tuple[ActiveReview, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no detector is chosen."""
        return not (self.contents or self.reviews)


def choose(
    guards: Mapping[str, Guard],
    requested: Mapping[str, Mapping[str, Any]],
    rules: Rules,
    headers: Headers = (),
) -> ChosenDetectors:
    """Returns the detectors that a request names, in its order; checks all of them before any parameter."""
    if rules.checks_threshold:
        check_thresholds(requested)
    chosen = [_find(guards, name, rules) for name in requested]
    contents: list[ActiveGuard] = []
    reviews: list[ActiveReview] = []
    for guard in chosen:
        wanted = requested[guard.id]
        params = {name: wanted[name] for name in sorted(wanted) if name != "threshold"}
        accepted = _accept(guard, params, headers)
        given = wanted.get("threshold")
        threshold = float(given) if _is_number(given) else guard.default_threshold
        if guard.type == TEXT_CONTENTS:
            holds = not guard.reads_whole_text or rules.whole_text_holds
            contents.append(ActiveGuard(guard, accepted, threshold, holds, params=params))
        else:
            reviews.append(ActiveReview(guard, accepted, threshold, params=params))
    return ChosenDetectors(tuple(contents), tuple(reviews))


class DetectorAsReviewer(NamedTuple):
    """Lets a detector of contents serve as a reviewer: it reads the last text."""

    detector: Detector

    def accept(self, params: Mapping[str, Any], headers: Headers) -> Review:
        """Returns a review that uses the detector's reading."""
        return _ReadingAsReview(self.detector.accept(params, headers))


class _ReadingAsReview(NamedTuple):
    reading: Reading

    async def review(self, subject: Subject) -> Sequence[Detection]:
        found = await self.reading.read([Excerpt(last_text(subject))])
        return [one for part in found for one in part]


async def prepare(requested: Iterable[Mapping[str, Any]], accept: Callable[[], T]) -> T:
    """Returns the result of `accept`, which runs in a thread if the parameters have long lists, such as patterns."""
    lists = (value for params in requested for value in params.values() if isinstance(value, list))
    if any(len(one) > _FEW_VALUES for one in lists):
        return await asyncio.to_thread(accept)
    return accept()


def last_text(subject: Subject) -> str:
    """Returns the last text of the subject: of a chat its last message, else the generated text or the claim."""
    if isinstance(subject, Conversation):
        return text_of(subject.messages[-1])
    return subject.text if isinstance(subject, Generated) else subject.content


def apply_failure_policy(
    chosen: ChosenDetectors, passes: Callable[[str], bool], max_hold_s: Callable[[str], float | None]
) -> ChosenDetectors:
    """Returns the detectors with `passes` and `max_hold_s` set by their ids."""

    def apply(one: Any) -> Any:
        return replace(one, passes=passes(one.guard.id), max_hold_s=max_hold_s(one.guard.id))

    return ChosenDetectors(tuple(map(apply, chosen.contents)), tuple(map(apply, chosen.reviews)))


def check_thresholds(requested: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises InvalidRequest if a threshold is not a number."""
    for name, params in requested.items():
        if "threshold" in params and not _is_number(params["threshold"]):
            raise InvalidRequest(f"`threshold` parameter specified for model `{name}` must be a number")


def _find(guards: Mapping[str, Guard], name: str, rules: Rules) -> Guard:
    guard = guards.get(name)
    if guard is None:
        raise UnknownDetector(name)
    if guard.type not in rules.types:
        raise UnsuitableDetector(f"detector `{name}` is not supported by this endpoint", status=rules.unsuitable_status)
    if guard.reads_whole_text and not rules.allows_whole_text:
        raise InvalidRequest(
            f"detector `{name}` uses chunker `{WHOLE_TEXT_CHUNKER}`, which is not supported by this endpoint"
        )
    return guard


def _accept(guard: Guard, params: Mapping[str, Any], headers: Headers) -> Any:
    """Returns the Reading or Review that accepts the parameters."""
    try:
        if guard.is_plugin:
            return accept_plugin(guard.id, guard.type, guard.detector, params, headers)
        return guard.detector.accept(params, headers)
    except RequestError as error:
        raise to_invalid_request(guard.id, error) from error


def to_invalid_request(detector: str, error: RequestError) -> InvalidRequest:
    """Returns a detector's request error as an error for the caller."""
    return InvalidRequest(f"detector request failed for `{detector}`: {error.message}", status=error.status)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


async def review_all(reviews: Sequence[ActiveReview], subject: Subject, max_open: int = 5) -> list[Detection]:
    """Returns the findings of all reviewers, in the order of the reviewers."""
    found = await run_together([partial(_review, one, subject) for one in reviews], max_open)
    return [one for of_reviewer in found for one in of_reviewer]


async def _review(active: ActiveReview, subject: Subject) -> list[Detection]:
    name = active.guard.id
    try:
        found = await active.review.review(subject)
    except RequestError as error:
        raise to_invalid_request(name, error) from error
    except UpstreamError as error:
        error.known_as = name
        raise
    return [one._replace(detector_id=name) for one in keep(found, active.threshold)]
