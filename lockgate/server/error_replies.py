# SPDX-License-Identifier: Apache-2.0
"""Turns errors into replies, and decides which error texts a caller may see."""

import logging
from http import HTTPStatus
from typing import NamedTuple

from lockgate.errors import (
    CheckFailed,
    GenerationFailed,
    HeldTooMuch,
    LockgateError,
    OverloadedError,
    Refusal,
    RequestError,
    RequestTimedOut,
    TooManyRequests,
    TurnFailed,
    UpstreamError,
)
from lockgate.telemetry import LogEvent, log_event, logger, name_causes

GENERIC = "unexpected error occurred while processing request"
_PASSED_ON = frozenset({400, 404, 422, 503})


class ErrorReply(NamedTuple):
    """The status and text of an error that the caller receives; `refusal` if a model has refused the request."""

    status: int
    details: str
    retry_after_s: int | None = None
    refusal: Refusal | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to the error: `www-authenticate`, `retry-after`."""
        headers = [(b"www-authenticate", b"Bearer")] if self.status == HTTPStatus.UNAUTHORIZED else []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        return headers


def reply_to(error: Exception, *, names_failures: bool = True) -> ErrorReply:
    """The reply to an error. Causes that the reply hides are logged.

    `names_failures`: the reply to a failure of a service names the service; else most of them have one general text.
    """
    match error:
        case OverloadedError() | TooManyRequests():
            return ErrorReply(error.status, error.message, error.retry_after_s)
        case TurnFailed():
            return ErrorReply(error.status, error.message, error.retry_after_s)
        case RequestError(unquoted=str(unquoted)) if unquoted and names_failures:
            return ErrorReply(error.status, unquoted)
        case RequestError() | HeldTooMuch() | RequestTimedOut() | GenerationFailed() | CheckFailed():
            return ErrorReply(error.status, error.message)
        case UpstreamError():
            note_failure(error)
            return _name_failure(error) if names_failures else _hide_failure(error)
        case LockgateError():
            log_event(LogEvent.FAILED, logging.ERROR, reason=error.message)
            return ErrorReply(500, GENERIC)
        case _:
            logger.error(LogEvent.FAILED.value, exc_info=error)
            return ErrorReply(500, GENERIC)


def _name_failure(error: UpstreamError) -> ErrorReply:
    status, refusal = error.reply_status, error.refusal
    if refusal is None or refusal.status != status:
        return ErrorReply(status, error.reply_text)
    return ErrorReply(status, error.reply_text, refusal.retry_after_s, refusal)


def _hide_failure(error: UpstreamError) -> ErrorReply:
    return ErrorReply(error.status, error.message) if error.status in _PASSED_ON else ErrorReply(500, GENERIC)


def note_failure(error: UpstreamError) -> None:
    """Log which service failed. The message is not logged: the service may have quoted the text or a header in it."""
    log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=error.service, reason=name_causes(error))
