# SPDX-License-Identifier: Apache-2.0
"""Why a model refused a request, in every form that servers write it (D-36, D-41)."""

import json
from typing import Any

import pytest

from lockgate.backends.refusals import MAX_ERROR_BYTES, read_refusal
from lockgate.errors import Refusal


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        ({"error": "m"}, Refusal(500)),
        ({"detail": "m"}, Refusal(500)),
        ({"object": "error", "message": "m", "type": "t", "code": -1}, Refusal(500)),
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, Refusal(400, "BadRequestError")),
        ({"error": {"message": "m", "code": "x"}}, Refusal(500)),
        ({"error": {"message": "m", "type": "rate_limit_error", "code": None}}, Refusal(429, "rate_limit_error")),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, Refusal(400, "", "context_length_exceeded")),
        ({"error": {"message": "m", "type": "NotFoundError", "code": 404}}, Refusal(404, "NotFoundError")),
        ({"error": {"message": "m", "type": "T", "code": 404}}, Refusal(500)),
        ({"error": {"message": "m", "type": ["T"], "code": {"a": 1}}}, Refusal(500)),
        ({"error": {"message": "m", "code": 429, "type": "my card is 4111"}}, Refusal(429)),
    ],
)
def test_an_error_of_any_form_has_its_words_and_a_type_and_code_that_clients_know(
    error: dict[str, Any], refusal: Refusal
) -> None:
    assert read_refusal(json.dumps(error)) == ("m", refusal)


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_the_status_of_a_response_counts_more_than_the_code_in_its_body(status: int) -> None:
    body = json.dumps({"error": {"message": "m", "code": 418}}).encode()
    assert read_refusal(body, status, 7) == ("m", Refusal(status, retry_after_s=7))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"error":null}', b"\xff", b"[" * 100_000])
def test_what_is_no_error_has_no_words(body: bytes) -> None:
    assert read_refusal(body, 500) == ("", Refusal(500))


def test_the_text_of_a_very_long_error_is_not_read() -> None:
    assert read_refusal(b'{"error":"' + b"x" * MAX_ERROR_BYTES + b'"}', 400) == ("", Refusal(400))


def test_a_lone_surrogate_in_an_error_breaks_nothing() -> None:
    assert read_refusal(b'{"error":"a\\ud800"}', 400).words == "a\ufffd"
