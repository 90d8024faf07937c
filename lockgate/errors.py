# SPDX-License-Identifier: Apache-2.0
"""Every exception class of Lockgate.

LockgateError                 message, status hint
  RequestError                the request is wrong
    InvalidRequest            422: the request breaks a rule
      InvalidField            422: a field of the request breaks a rule
    UnsuitableDetector        400: a detector cannot serve this endpoint
    UnknownDetector           404: no such detector
    UnknownModel              404: no backend for the model
    Unauthorized              401: the caller is not known
    NotAllowed                403: the request asks for something that its caller may not have
    TooManyRequests           429: the caller is over its limit, try again after `retry_after_s`
    UnreadableBody            400, 413, 415: the body has the wrong type, is too large or is not JSON
    CannotEvaluate            412: an evaluation has no judge or no questions
  UpstreamError(service)      an upstream service is wrong
    Unavailable               503: not reachable
    TimedOut                  504: too slow
    Rejected                  4xx: refused our request
    BrokeProtocol             500: sent an answer that its contract forbids
    EvaluationFailed          503: not one question could be answered and judged
  CheckFailed                 502, 503, 504: a detector or chunker that a request needs gave no answer
  GenerationFailed            400: the model that a request names gave no answer
  TurnFailed                  503, 504: a turn of a conversation could not be completed
  OverloadedError             503: the server is overloaded, try again after `retry_after_s`
  HeldTooMuch                 413: more text had to be held than the limit allows
  RequestTimedOut             504: the request's overall limit passed
  CannotListen                at start only: a port cannot be opened
  SetupFailed                 before start only: weight files could not be fetched
  ConfigError(source, key)    at start only: a setting is wrong
    UnusableFile              the file cannot be read, or is not YAML
    ConfigFaults              all wrong settings at once

A blocked text is a verdict, not an error. Wrong use of a state machine is a bug and raises a plain RuntimeError.
"""


class LockgateError(Exception):
    """The base of all errors: a message for the caller, and an HTTP status."""

    status = 500

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status


class RequestError(LockgateError):
    """The request is wrong."""

    status = 400


class InvalidRequest(RequestError):
    """The request has the wrong shape or breaks a rule."""

    status = 422


class InvalidField(InvalidRequest):
    """A field of a request breaks a rule; `field` is empty if the fault is in no single field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


class UnsuitableDetector(RequestError):
    """A requested detector exists but cannot serve this endpoint."""


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
    """The request asks for something that its caller may not have."""

    status = 403


class TooManyRequests(RequestError):
    """The caller is over its limit for now."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnreadableBody(RequestError):
    """The body has the wrong type, is too large, or is not JSON."""


class CannotEvaluate(RequestError):
    """Answers cannot be judged: no judge or no questions are set, or the questions cannot be read."""

    status = 412


class UpstreamError(LockgateError):
    """An upstream service failed; `service` is the name that the caller knows."""

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
    """The service refused our request; its message may reach the caller."""

    status = 422


class BrokeProtocol(UpstreamError):
    """The service sent an answer that its contract forbids."""


class EvaluationFailed(UpstreamError):
    """Not one question could be answered and judged, or one measure got no verdict at all: there are no scores."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__("evaluation", message)


class CheckFailed(LockgateError):
    """A detector or chunker that a request needs gave no answer: the text that it should read does not leave."""

    status = 502

    def __init__(self, part: str, *, status: int | None = None) -> None:
        super().__init__(f"The text could not be checked: `{part}` failed", status=status)
        self.part = part


class GenerationFailed(LockgateError):
    """The model that a request names gave no answer, or only part of one; `path` is its name in the request."""

    status = 400

    def __init__(self, cause: str, path: str, latency_ms: int) -> None:
        super().__init__(f"Model generation failed: {cause}")
        self.path = path
        self.latency_ms = latency_ms


class TurnFailed(LockgateError):
    """A model or store that a turn needs failed or was too slow; the turn is not stored."""

    status = 503


class OverloadedError(LockgateError):
    """The server refuses a request before work begins; the caller may try again."""

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
    """A setting is wrong; `source` is the file or variable, `key` the setting in it."""

    def __init__(self, message: str, *, source: str, key: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.key = key

    def __str__(self) -> str:
        where = f"{self.source}: {self.key}" if self.key else self.source
        return f"{where}: {self.message}"


class UnusableFile(ConfigError):
    """The file cannot be read or is not YAML, so no setting can be checked."""

    def __str__(self) -> str:
        return self.message


class ConfigFaults(ConfigError):
    """All wrong settings, in a stable order."""

    def __init__(self, faults: tuple[ConfigError, ...], warnings: tuple[str, ...] = ()) -> None:
        count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
        lines = "".join(f"\n  {line}" for line in (*faults, *(f"warning: {words}" for words in warnings)))
        whole = str(faults[0]) if isinstance(faults[0], UnusableFile) else f"invalid config file: {count}{lines}"
        super().__init__(whole, source=faults[0].source, key=faults[0].key)
        self.faults = faults

    def __str__(self) -> str:
        return self.message


class CannotListen(LockgateError):
    """A port that we need is in use, or we may not open it."""


class SetupFailed(LockgateError):
    """Weight files could not be fetched; the message says what to do."""
