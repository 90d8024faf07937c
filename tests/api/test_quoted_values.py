# SPDX-License-Identifier: Apache-2.0
"""Errors quote values of a request only where the orchestrator's texts are asked for."""

from typing import Any

import pytest

from lockgate.api.guardrails.format import CONTENT_LINE, CONTENT_REQUEST
from lockgate.api.openai.format import CHAT
from lockgate.api.openai.turn_fields import refuse_with_400
from lockgate.api.shapes import Shape
from lockgate.errors import InvalidRequest
from lockgate.server.error_replies import reply_to

MARK = "bluebird"


@pytest.mark.parametrize(
    ("shape", "body", "quoted", "plain"),
    [
        (CHAT, '{"model": "m", "messages": [{"role": "bluebird"}]}', "unknown variant `bluebird`, expected",
         "messages[0].role: unknown variant, expected one of `user`"),
        (CHAT, '{"model": "m", "messages": "bluebird"}', 'invalid type: string "bluebird", expected a sequence',
         "messages: invalid type: string, expected a sequence"),
        (CONTENT_REQUEST, '{"content": 4111111111111111}', "integer `4111111111111111`, expected a string",
         "content: invalid type: integer, expected a string"),
        (CONTENT_REQUEST, '{"content": 4.5}', "floating point `4.5`",
         "content: invalid type: floating point, expected"),
        (CONTENT_REQUEST, '{"content": true}', "boolean `true`", "content: invalid type: boolean, expected"),
        (CONTENT_REQUEST, '{"content": null, "detectors": {}}', "null, expected",
         "content: invalid type: null, expected"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_quotes_the_value_only_for_fms(
    shape: Shape[Any], body: str, quoted: str, plain: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        shape.decode(body.encode())
    assert quoted in reply_to(caught.value, names_failures=False).details
    assert reply_to(caught.value).details.startswith(plain)


def test_an_error_in_a_line_of_a_stream_quotes_nothing() -> None:
    with pytest.raises(InvalidRequest) as caught:
        CONTENT_LINE.decode_line(f'{{"content": ["{MARK}"], "detectors": "{MARK}"}}'.encode())
    assert MARK not in reply_to(caught.value).details


def test_a_status_that_clients_expect_keeps_the_value_out() -> None:
    with pytest.raises(InvalidRequest) as caught, refuse_with_400():
        CHAT.decode(f'{{"model": "m", "messages": [{{"role": "{MARK}"}}]}}'.encode())
    reply = reply_to(caught.value)
    assert (reply.status, MARK in reply.details) == (400, False)


def test_marks_of_the_quoting_in_a_value_change_nothing() -> None:
    with pytest.raises(InvalidRequest) as caught:
        CHAT.decode(f'{{"model": "m", "messages": [{{"role": "\ue0f1{MARK}\ue0f0"}}]}}'.encode())
    assert MARK not in reply_to(caught.value).details
