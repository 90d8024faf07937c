# SPDX-License-Identifier: Apache-2.0
"""Every exception that Lockgate raises on purpose.

LockgateError                 message, status hint
  RequestError                the caller is wrong
    InvalidRequest            422: the request breaks a rule
      InvalidField            422: one field of it does
    UnsuitableDetector        400: a detector cannot serve this endpoint
    UnknownDetector           404: no such detector
    UnknownModel              404: no backend for the model
    Unauthorized              401: the caller is not known
    NotAllowed                403: this request may not have what it asks for, no matter which caller sends it
    TooManyRequests           429: the caller has used up its share, try again after `retry_after_s`
    UnreadableBody            400, 413, 415: the body cannot be taken at all
    CannotEvaluate            412: answers are to be judged, and the settings do not say by whom or which
  UpstreamError(service)      they are wrong
    Unavailable               503: not reachable
    TimedOut                  504: too slow
    Rejected                  4xx: refused what we sent
    BrokeProtocol             500: answered something that their contract forbids
    EvaluationFailed          503: not one question could be answered and judged
  CheckFailed                 502, 503, 504: a detector or chunker that a request needs gave no answer
  GenerationFailed            400: the model that a request names gave no answer
  TurnFailed                  503, 504: a conversation's next turn came to no end
  OverloadedError             503: we refuse, try again after `retry_after_s`
  HeldTooMuch                 413: more text had to be held than the limit allows
  RequestTimedOut             504: the request's overall limit passed
  CannotListen                at start only: a port is taken
  SetupFailed                 before start only: weight files could not be brought in
  ConfigError(source, key)    at start only: a setting is wrong
    UnusableFile              the file cannot be read, or is no YAML
    ConfigFaults              everything that is wrong, at once

A blocked text is a verdict, not an error. Misuse of a machine is a bug and raises a plain RuntimeError.
"""


class LockgateError(Exception):
    """What every error of ours carries: words for the caller, and the HTTP status that fits them."""

    status = 500

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status


class RequestError(LockgateError):
    """The caller is wrong."""

    status = 400


class InvalidRequest(RequestError):
    """The request has the right shape and breaks a rule, or has the wrong shape."""

    status = 422


class InvalidField(InvalidRequest):
    """A field of a request breaks a rule; where no field is to blame, `field` is empty."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


class UnsuitableDetector(RequestError):
    """A requested detector exists and cannot serve this endpoint."""


class UnknownDetector(RequestError):
    """A requested detector is not configured."""

    status = 404

    def __init__(self, detector_id: str) -> None:
        super().__init__(f"detector `{detector_id}` not found")


class UnknownModel(RequestError):
    """No backend is configured for the model that a request names."""

    status = 404

    def __init__(self, what: str, model: str) -> None:
        super().__init__(f"{what} request failed for `{model}`: model not found: {model}")


class Unauthorized(RequestError):
    """The caller gave no key, or an unknown one."""

    status = 401


class NotAllowed(RequestError):
    """This request may not have what it asks for, no matter which caller sends it."""

    status = 403


class TooManyRequests(RequestError):
    """The caller has used up its share for now."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnreadableBody(RequestError):
    """The body has the wrong type, is too large, or is not JSON."""


class CannotEvaluate(RequestError):
    """Answers are to be judged, and no judge or no questions are set, or the questions cannot be read."""

    status = 412


class UpstreamError(LockgateError):
    """A service behind us failed; `service` names it as the caller knows it."""

    def __init__(self, service: str, message: str, *, status: int | None = None) -> None:
        super().__init__(message, status=status)
        self.service = service


class Unavailable(UpstreamError):
    """The service cannot be reached."""

    status = 503


class TimedOut(UpstreamError):
    """The service did not answer in time."""

    status = 504


class Rejected(UpstreamError):
    """The service refused what we sent; its words may reach the caller."""

    status = 422


class BrokeProtocol(UpstreamError):
    """The service answered something that its contract forbids."""


class EvaluationFailed(UpstreamError):
    """Not one question could be answered and judged, or one measure got no verdict at all: there are no scores."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__("evaluation", message)


class CheckFailed(LockgateError):
    """A detector or chunker that a request needs gave no answer: what it was to read does not leave."""

    status = 502

    def __init__(self, part: str, *, status: int | None = None) -> None:
        super().__init__(f"The text could not be checked: `{part}` failed", status=status)
        self.part = part


class GenerationFailed(LockgateError):
    """The model that a request names gave no answer, or only part of one; `path` is how the caller knows it."""

    status = 400

    def __init__(self, cause: str, path: str, latency_ms: int) -> None:
        super().__init__(f"Model generation failed: {cause}")
        self.path = path
        self.latency_ms = latency_ms


class TurnFailed(LockgateError):
    """A model or store that a turn needs is gone or too slow; nothing of the turn is remembered."""

    status = 503


class OverloadedError(LockgateError):
    """We refuse at the door; the caller may try again."""

    status = 503

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeldTooMuch(LockgateError):
    """More text had to be held back than the limit allows; none of it leaves."""

    status = 413


class RequestTimedOut(LockgateError):
    """The overall time limit of the request passed."""

    status = 504

    def __init__(self) -> None:
        super().__init__("request timed out")


class ConfigError(LockgateError):
    """A setting is wrong; `source` is the file or variable, `key` the place in it."""

    def __init__(self, message: str, *, source: str, key: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.key = key

    def __str__(self) -> str:
        where = f"{self.source}: {self.key}" if self.key else self.source
        return f"{where}: {self.message}"


class UnusableFile(ConfigError):
    """The file cannot be read or is not YAML: nothing else can be said."""

    def __str__(self) -> str:
        return self.message


class ConfigFaults(ConfigError):
    """Everything that is wrong with the settings, in a stable order."""

    def __init__(self, faults: tuple[ConfigError, ...], warnings: tuple[str, ...] = ()) -> None:
        count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
        lines = "".join(f"\n  {line}" for line in (*faults, *(f"warning: {words}" for words in warnings)))
        whole = str(faults[0]) if isinstance(faults[0], UnusableFile) else f"invalid config file: {count}{lines}"
        super().__init__(whole, source=faults[0].source, key=faults[0].key)
        self.faults = faults

    def __str__(self) -> str:
        return self.message


class CannotListen(LockgateError):
    """A port that we need is taken, or not ours to take."""


class SetupFailed(LockgateError):
    """Weight files could not be brought in; the words say what to do."""
