# SPDX-License-Identifier: Apache-2.0
"""Whatever is thrown at it, the server gives a well-formed answer, never a 500, and goes on."""

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.http_client import CONTENT, NDJSON_TYPE, STREAM, build_head, call, connect
from tests.server.processes import ServerProcess

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
NAMES = st.sampled_from(["pii", "secrets", "regex", "keywords", "format", "citations", "no", ""])
PARAMS = st.dictionaries(
    st.sampled_from(
        [
            "threshold",
            "entities",
            "regions",
            "patterns",
            "keywords",
            "ignore_case",
            "whole_words",
            "format",
            "sources",
            "x",
        ]
    ),
    VALUES | st.sampled_from([["EmailAddress"], ["a+", "("], "json", ["US"]]) | st.floats(0, 1),
)
NEARLY_RIGHT = st.fixed_dictionaries(
    {"content": st.text() | VALUES, "detectors": st.dictionaries(NAMES, PARAMS | VALUES, max_size=3)},
    optional={"extra": VALUES},
)
ANYTHING = VALUES | NEARLY_RIGHT
LIVELY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encode(value: object) -> bytes:
    return json.dumps(value).encode()  # escapes lone surrogates, as a client might


def check_error(value: dict[str, Any], status: int) -> None:
    assert list(value) == ["code", "details"]
    assert value["code"] == status
    assert isinstance(value["details"], str)


def check_content(status: int, body: bytes) -> None:
    assert status in (200, 400, 404, 413, 415, 422)
    if status == 200:
        assert list(json.loads(body)) == ["detections"]
    else:
        check_error(json.loads(body), status)


def check_stream(body: bytes) -> None:
    end = 0
    assert body.endswith(b"\n")
    for line in map(json.loads, body.splitlines()):
        if "code" in line:
            check_error(line, line["code"])
            assert line["code"] in (400, 404, 413, 422)
            return
        assert list(line) == ["detections", "processed_index", "start_index"]
        assert line["start_index"] == end
        end = line["processed_index"]


@LIVELY
@given(ANYTHING)
def test_any_json_at_the_content_endpoint_gets_a_well_formed_answer(server: ServerProcess, value: object) -> None:
    answer = asyncio.run(call(server.api_port, CONTENT, encode(value)))
    check_content(answer.status, answer.body)


@LIVELY
@given(st.lists(ANYTHING, min_size=1, max_size=4))
def test_any_lines_at_the_stream_endpoint_get_well_formed_lines(server: ServerProcess, values: list[object]) -> None:
    body = b"\n".join(map(encode, values))
    answer = asyncio.run(call(server.api_port, STREAM, body, headers=NDJSON_TYPE))
    assert answer.status == 200
    check_stream(answer.body)


@LIVELY
@given(st.binary(max_size=300), st.sampled_from([CONTENT, STREAM, "/health", "/ready", "/openapi.json"]))
def test_any_bytes_at_any_endpoint_get_a_well_formed_answer(server: ServerProcess, body: bytes, path: str) -> None:
    headers = NDJSON_TYPE if path == STREAM else {"content-type": "application/json"}
    answer = asyncio.run(call(server.api_port, path, body, headers=headers))
    if path == STREAM:
        check_stream(answer.body)
    elif path == CONTENT:
        check_content(answer.status, answer.body)
    else:
        assert (answer.status, answer.body) == (405, b'{"code":405,"details":"this path takes GET, HEAD"}')


@LIVELY
@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from([b"", b"POST ", b"GET /health HTTP/1.1\r\n", build_head("GET", "/x", {})]),
)
def test_any_bytes_in_place_of_a_request_leave_the_server_well(server: ServerProcess, raw: bytes, start: bytes) -> None:
    async def throw() -> None:
        async with connect(server.api_port) as client:
            await client.send(start + raw)
            client.writer.write_eof()
            said = await client.reader.read()
            assert said == b"" or said.startswith(b"HTTP/1.1 ")
            assert b" 500 " not in said

    asyncio.run(throw())
    answer = asyncio.run(call(server.api_port, "/health", method="GET"))
    assert answer.status == 200
