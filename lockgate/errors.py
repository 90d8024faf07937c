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
  UpstreamError(service)      an upstream service is wrong; `reply_status` is the status for the caller
    Unavailable               503: not reachable
    TimedOut                  504: too slow
    Rejected                  4xx: refused our request
    BrokeOff                  502: the connection ended within its answer
    BrokeProtocol             502: sent an answer that its contract forbids
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

from typing import NamedTuple

MODEL = "model"  # the name of the model in errors
MAX_WORDS_CHARS = 1000  # of a service's error text that a caller gets

_MODEL_STATUSES = frozenset({400, 404, 422, 429})  # that a model gives to a request at fault
_EXPLAINED = _MODEL_STATUSES | {503}  # of a service; the texts of others, such as 401, are for operators
_UNAVAILABLE, _LATE, _FAILED = 503, 504, 502
_SUMMARIES = {_FAILED: "failed", _UNAVAILABLE: "is not available", _LATE: "did not answer in time"}
_REFUSED = "refused the request"


class LockgateError(Exception):
    """The base of all errors: a message for the caller, and an HTTP status; `known_as` is the service that failed."""

    status = 500
    known_as = ""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status


class RequestError(LockgateError):
    """The request is wrong. `unquoted` is the message without values of the request, if the message quotes one."""

    status = 400
    unquoted = ""


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


class Refusal(NamedTuple):
    """How a model refused a request: the status that it means, and its type and code if both sides know them."""

    status: int
    kind: str = ""
    code: str = ""
    retry_after_s: int | None = None


class UpstreamError(LockgateError):
    """An upstream service failed.

    `message` and `status` are for the log and for compatibility modes. `words` are the service's own text; `own` is the
    message without it. `known_as` is the name of the service that the caller knows, by default `service`.
    """

    def __init__(
        self,
        service: str,
        message: str,
        *,
        status: int | None = None,
        words: str | None = None,
        own: str = "",
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(message, status=status)
        self.service = service
        self.words = (self._default_words() if words is None else words)[:MAX_WORDS_CHARS]
        self.own = own
        self.refusal = refusal

    @property
    def reply_status(self) -> int:
        """The status for the caller: a model may refuse a request; any other failure is 502, 503 or 504."""
        status = self._answered
        if status in (_UNAVAILABLE, _LATE):
            return status
        is_refused = self.known_as == MODEL and status in _MODEL_STATUSES
        return status if is_refused and (status != 404 or self.refusal is not None) else _FAILED

    @property
    def summary(self) -> str:
        """Names the service and says how it failed, without its own text."""
        return f"`{self.known_as or self.service}` {_SUMMARIES.get(self.reply_status, _REFUSED)}"

    @property
    def reply_text(self) -> str:
        """The summary, with the service's own text if its status lets callers have it."""
        return f"{self.summary}: {self.words}" if self.words and self._answered in _EXPLAINED else self.summary

    def drop_words(self) -> None:
        """Removes the service's own text."""
        self.message, self.words = self.own or self.summary, ""

    @property
    def _answered(self) -> int:
        return self.status if self.refusal is None else self.refusal.status

    def _default_words(self) -> str:
        return self.message


class Unavailable(UpstreamError):
    """The service cannot be reached."""

    status = _UNAVAILABLE

    @property
    def reply_status(self) -> int:
        """Always 503."""
        return _UNAVAILABLE


class TimedOut(UpstreamError):
    """The service did not answer in time."""

    status = _LATE

    @property
    def reply_status(self) -> int:
        """Always 504."""
        return _LATE

    def _default_words(self) -> str:
        return ""


class Rejected(UpstreamError):
    """The service refused our request; its message may reach the caller."""

    status = 422


class BrokeOff(UpstreamError):
    """The connection ended before the service's answer was complete."""

    status = _FAILED


class BrokeProtocol(UpstreamError):
    """The service sent an answer that its contract forbids."""

    def _default_words(self) -> str:
        return ""


class EvaluationFailed(UpstreamError):
    """Not one question could be answered and judged, or one measure got no verdict at all: there are no scores."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__("evaluation", message)

    @property
    def reply_text(self) -> str:
        """The message, which is Lockgate's own."""
        return self.message


class CheckFailed(LockgateError):
    """A detector or chunker that a request needs gave no answer: the text that it should read does not leave."""

    status = 502

    def __init__(self, part: str, *, status: int | None = None) -> None:
        super().__init__(f"The text could not be checked: `{part}` failed", status=status)
        self.part = part


class GenerationFailed(LockgateError):
    """The model that a request names gave no answer, or only part of one; `path` is its name in the request."""

    status = 400

    def __init__(self, cause: str, path: str, latency_ms: int, *, words: str = "", own: str = "") -> None:
        super().__init__(f"Model generation failed: {cause}")
        self.path = path
        self.latency_ms = latency_ms
        self.words = words  # of the model, in the cause
        self._own = own

    def drop_words(self) -> None:
        """Removes the model's own text."""
        self.message, self.words = f"Model generation failed: {self._own}", ""


class TurnFailed(LockgateError):
    """A model or store that a turn needs failed or was too slow; the turn is not stored."""

    status = 503

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


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
