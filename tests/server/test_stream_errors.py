# SPDX-License-Identifier: Apache-2.0
"""What a stream-content request can do wrong, and the exact words for it (G-42, G-43, G-73 … G-75, G-152, D-10)."""

import json

import pytest

from tests.server.http_client import STREAM, build_head, build_line, call, connect, stream
from tests.server.processes import ServerProcess
from tests.waits import until


def error(code: int, details: str) -> bytes:
    return json.dumps({"code": code, "details": details}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


FIRST = build_line(detectors={"pii": {}}, content="One. Two. Three")
RELEASED = (
    b'{"detections":[],"processed_index":5,"start_index":0}\n{"detections":[],"processed_index":10,"start_index":5}\n'
)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "x-application/x-ndjson"])
async def test_another_content_type_is_refused_with_its_status(mixed: ServerProcess, kind: str) -> None:
    """G-73."""
    answer = await call(mixed.api_port, STREAM, FIRST, headers={"content-type": kind})
    assert (answer.status, answer.body) == (415, b'{"code":415,"details":"expected application/x-ndjson"}')
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "code", "details"),
    [
        # G-74
        (b"", 422, "`detectors` is required for the first message"),
        (b'{"content":"x"}', 422, "`detectors` is required for the first message"),
        (b'{"content":"x","detectors":null}', 422, "`detectors` is required for the first message"),
        (b'{"content":"x","detectors":{}}', 422, "`detectors` must not be empty"),
        (b'{"content":"","detectors":{"pii":{}}}', 422, "`content` cannot be empty"),
        (b'{"content":"x","detectors":{"pii":{}},"extra":1}', 422,
         "unknown field `extra`, expected `detectors` or `content` at line 1 column 45"),
        (b"\n", 422, "EOF while parsing a value at line 1 column 0"),
        (b'{"detectors":{"pii":{}}}', 422, "missing field `content` at line 1 column 24"),
        (b'{"content":5}', 422, "invalid type: integer, expected a string at line 1 column 12"),
        (b'{"content":"x', 422, "EOF while parsing a string at line 1 column 13"),
        (b'{"content":"\\ud800"}', 422, "unexpected end of hex escape at line 1 column 19"),
        (b'{"content":"\xff"}', 422, "invalid unicode code point at line 1 column 13"),
        (b'{"content":"\x00"}', 422,
         "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 13"),
        (b'{"content":"x"} {}', 422, "trailing characters at line 1 column 17"),
        # G-42, G-43, D-10, D-20
        (b'{"content":"x","detectors":{"no":{}}}', 404, "detector `no` not found"),
        (b'{"content":"x","detectors":{"chat":{},"no":{}}}', 400, "detector `chat` is not supported by this endpoint"),
        (b'{"content":"x","detectors":{"pii":{"threshold":"high"}}}', 422,
         "`threshold` parameter specified for model `pii` must be a number"),
        (b'{"content":"x","detectors":{"pii":{"x":1}}}', 422,
         "detector request failed for `pii`: unknown parameter `x`, expected `entities` or `regions`"),
        (b'{"content":"x","detectors":{"regex":{"patterns":["[z-a]"]}}}', 422,
         "detector request failed for `regex`: bad pattern 1 at position 1: invalid character class range: z-a"),
        # D-41
        (b'{"content":"x","detectors":{"broken":{}}}', 502, "`broken` failed"),
    ],
)  # fmt: skip
async def test_a_bad_first_line_is_answered_with_one_error_line(
    mixed: ServerProcess, body: bytes, code: int, details: str
) -> None:
    answer = await stream(mixed.api_port, body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.body == error(code, details)


@pytest.mark.parametrize(
    ("detectors", "code", "details"),
    [
        ({"no": {}, "chat": {}, "whole": {}}, 404, "detector `no` not found"),
        ({"chat": {}, "whole": {}}, 422, "detector `chat` is not supported by this endpoint"),
        ({"whole": {}, "no": {}}, 422,
         "detector `whole` uses chunker `whole_doc_chunker`, which is not supported by this endpoint"),
    ],
)  # fmt: skip
async def test_under_fms_detectors_are_refused_in_the_order_of_the_request(
    fms: ServerProcess, detectors: dict[str, object], code: int, details: str
) -> None:
    """G-42, D-3, D-10."""
    answer = await stream(fms.api_port, {"detectors": detectors, "content": "x"})
    assert (answer.status, answer.body) == (200, error(code, details))


async def test_under_fms_a_threshold_that_is_no_number_is_dropped(fms: ServerProcess) -> None:
    """G-45, D-20: the configured default applies."""
    answer = await stream(fms.api_port, {"detectors": {"pii": {"threshold": "high"}}, "content": "a@b.example"})
    assert [len(line["detections"]) for line in answer.lines()] == [1]


@pytest.mark.parametrize(
    ("bad", "details"),
    [
        (b'{"content":""}\n', "`content` cannot be empty"),
        (
            b'{"content":"x","extra":1}\n',
            "unknown field `extra`, expected `detectors` or `content` at line 1 column 22",
        ),
        (b"\n", "EOF while parsing a value at line 1 column 0"),
    ],
)
async def test_a_bad_later_line_lets_what_is_complete_leave_first(
    mixed: ServerProcess, bad: bytes, details: str
) -> None:
    """G-152: what is already complete, the error line, the end; nothing after it counts."""
    answer = await stream(mixed.api_port, FIRST, bad, b'{"content":"never"}\n')
    assert answer.body == RELEASED + error(422, details)


async def test_an_error_ends_the_answer_while_the_request_is_still_open(mixed: ServerProcess) -> None:
    async with connect(mixed.api_port) as client:
        await client.start_stream()
        await client.send_line(content="no detectors")
        answer = await client.read_answer()
        assert answer.body == error(422, "`detectors` is required for the first message")
        assert await client.is_closed()  # nobody reads the rest for ever


async def test_a_line_that_never_ends_is_refused_at_its_limit(narrow: ServerProcess) -> None:
    """`limits.line_bytes`; what came before it is answered."""
    for body in (b'{"content":"' + b"x" * 2000, FIRST + b'{"content":"' + b"x" * 2000):
        async with connect(narrow.api_port) as client:
            await client.start_stream()
            await client.send_chunk(body)
            answer = await client.read_answer()
        expected = RELEASED if body.startswith(FIRST) else b""
        assert answer.body == expected + error(413, "a line is longer than 1000 bytes")


async def test_a_line_of_exactly_the_limit_is_taken(narrow: ServerProcess) -> None:
    line = build_line(detectors={"pii": {}}, content="x" * 10)[:-2]
    assert spans_end(await stream_raw(narrow, line + b" " * (999 - len(line)) + b"}\n")) == 10
    assert (await stream_raw(narrow, line + b" " * (1000 - len(line)) + b"}\n")).endswith(b'than 1000 bytes"}\n')


async def stream_raw(server: ServerProcess, body: bytes) -> bytes:
    return (await stream(server.api_port, body)).body


def spans_end(body: bytes) -> int:
    return int(json.loads(body)["processed_index"])


async def test_more_held_text_than_allowed_ends_the_request_and_none_of_it_leaves(narrow: ServerProcess) -> None:
    """`limits.max_held_chars`."""
    lines = [build_line(content="x" * 200)] * 3
    answer = await stream(narrow.api_port, build_line(detectors={"whole": {}}, content="x"), *lines)
    assert answer.body == error(413, "more than 500 characters wait for a detector")


async def test_a_request_that_takes_too_long_is_a_504(hasty: ServerProcess) -> None:
    """D-30: as a body where no answer has begun, else as the last line."""
    answer = await call(hasty.api_port, "/api/v2/text/detection/content", b'{"content":"x","detectors":{"slow":{}}}')
    assert (answer.status, answer.body) == (504, b'{"code":504,"details":"request timed out"}')
    answer = await stream(hasty.api_port, {"detectors": {"slow": {}}, "content": "x"})
    assert (answer.status, answer.body) == (200, error(504, "request timed out"))
    async with connect(hasty.api_port) as client:
        await client.start_stream()
        await client.send_line(detectors={"pii": {}}, content="One. Two")
        assert (await client.read_answer()).body.endswith(error(504, "request timed out"))


async def test_too_many_requests_at_once_are_refused_at_the_door_while_health_is_still_answered(
    narrow: ServerProcess,
) -> None:
    """`limits.max_streams` is 1; nothing waits in line."""
    async with connect(narrow.api_port) as client:
        await client.send(build_head("POST", STREAM, {"content-type": "application/x-ndjson", "content-length": "99"}))
        await client.read_head()
        for path in (STREAM, "/api/v2/text/detection/content"):
            refused = await call(narrow.api_port, path, FIRST)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.body == b'{"code":503,"details":"too many requests at once, try again later"}'
        assert (await call(narrow.api_port, "/health", method="GET")).status == 200
    while (answer := await stream(narrow.api_port, FIRST)).status == 503:
        pass  # that the client has left is noticed a little later
    assert answer.body.startswith(RELEASED)


async def test_the_log_tells_what_a_stream_ended_with(server: ServerProcess) -> None:
    before = len(server.events("request"))
    answer = await stream(server.api_port, {"detectors": {"nobody": {}}, "content": "x"})
    assert answer.lines()[-1]["code"] == 404

    def logged() -> list[tuple[int, int | None]]:
        return [(event["status"], event.get("code")) for event in server.events("request")[before:]]

    await until(lambda: (200, 404) in logged(), "the event in the log")
