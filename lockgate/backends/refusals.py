# SPDX-License-Identifier: Apache-2.0
"""Reads why a model refused a request: its text, and the type and code that clients know.

Servers write errors in several forms; `code` may be a number, a string or null. Types and codes are kept only from a
closed list, since a caller gets them without a detector's check.
"""

from typing import Any, NamedTuple

from lockgate.backends.replies import decode_any, mend
from lockgate.errors import Refusal

MAX_ERROR_BYTES = 1024 * 1024  # of an error's body; the text of a longer one is not read

_KINDS = frozenset(
    {
        *("invalid_request_error", "not_found_error", "rate_limit_error", "rate_limit_exceeded", "insufficient_quota"),
        *("server_error", "api_error", "internal_server_error", "overloaded_error", "service_unavailable"),
        *("authentication_error", "permission_error", "timeout_error", "tokens", "requests", "invalid_prompt"),
        *("BadRequestError", "NotFoundError", "UnprocessableEntityError", "RateLimitError", "InternalServerError"),
        *("exceed_context_size_error", "unavailable_error", "not_supported_error"),
    }
)
_CODES = {  # and the status that a code means if the error has none
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "billing_hard_limit_reached": 429,
    "content_filter": 400,
    "content_policy_violation": 400,
    "invalid_prompt": 400,
    "invalid_type": 400,
    "invalid_value": 400,
    "invalid_request_error": 400,
    "unsupported_value": 400,
    "unsupported_parameter": 400,
    "unknown_parameter": 400,
    "missing_required_parameter": 400,
    "string_above_max_length": 400,
    "array_above_max_length": 400,
    "integer_above_max_value": 400,
    "integer_below_min_value": 400,
    "decimal_above_max_value": 400,
    "decimal_below_min_value": 400,
    "empty_string": 400,
    "empty_array": 400,
    "server_error": 500,
    "service_unavailable": 503,
}
_STATUS_OF_KIND = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "exceed_context_size_error": 400,
    "UnprocessableEntityError": 422,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "RateLimitError": 429,
    "insufficient_quota": 429,
    "overloaded_error": 503,
    "service_unavailable": 503,
    "unavailable_error": 503,
    "timeout_error": 504,
}
_UNKNOWN_MODEL = "model_not_found"
_NOT_FOUND = frozenset({"not_found_error", "NotFoundError"})
_FAILED = 500


class ErrorText(NamedTuple):
    """The text of an error, and how the model refused."""

    words: str
    refusal: Refusal


def read_refusal(body: bytes | str, status: int | None = None, retry_after_s: int | None = None) -> ErrorText:
    """Returns the error in a body or, without a status, in an event of a stream."""
    error = _find_error(body)
    words = next((mend(one) for key in ("message", "detail") if isinstance(one := error.get(key), str)), "")
    kind, code = _pick(error.get("type"), _KINDS), _pick(error.get("code"), _CODES)
    if status is None:
        status = _find_status(error.get("code"), kind, code)
    if status == 404 and not (code == _UNKNOWN_MODEL or kind in _NOT_FOUND):
        status = _FAILED  # of the path, say: the settings are wrong, not the request
    return ErrorText(words, Refusal(status, kind, code, retry_after_s))


def _find_error(body: bytes | str) -> dict[str, Any]:
    try:
        value = decode_any(body) if len(body) <= MAX_ERROR_BYTES else None
    except (ValueError, RecursionError):
        value = None
    error = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _find_status(number: object, kind: str, code: str) -> int:
    if isinstance(number, int) and 400 <= number < 600:
        return number
    return _CODES.get(code) or _STATUS_OF_KIND.get(kind) or _FAILED


def _pick(value: object, known: frozenset[str] | dict[str, int]) -> str:
    return value if isinstance(value, str) and value in known else ""
