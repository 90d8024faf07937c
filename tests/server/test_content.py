# SPDX-License-Identifier: Apache-2.0
"""POST detection/content over a socket, byte by byte (G-26 … G-32, G-42 … G-46, G-67, G-76)."""

import json
from typing import Any

import pytest

from tests.server.http_client import CONTENT, JSON_TYPE, build_head, call, connect, detect
from tests.server.processes import ServerProcess

NOT_JSON = "Failed to parse the request body as JSON: "
NOT_JSON_TYPE = "Expected request with `Content-Type: application/json`"
TOO_LARGE = "Failed to buffer the request body: length limit exceeded"


def error(code: int, details: str) -> bytes:
    return json.dumps({"code": code, "details": details}, separators=(",", ":"), ensure_ascii=False).encode()


async def test_findings_are_answered_byte_by_byte_with_offsets_in_code_points(server: ServerProcess) -> None:
    """G-39, G-46, G-67: key order, compact, unescaped, sorted by start."""
    text = "😀 茶 a@b.example, confidential"
    answer = await detect(server.api_port, {"content": text, "detectors": {
        "keywords": {"keywords": ["confidential"]}, "pii": {"threshold": 0.6}}})  # fmt: skip
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == (
        b'{"detections":['
        b'{"start":4,"end":15,"text":"a@b.example","detection":"EmailAddress","detection_type":"pii",'
        b'"detector_id":"pii","score":0.95,"metadata":{"rule":"email"}},'
        b'{"start":17,"end":29,"text":"confidential","detection":"Keyword","detection_type":"keyword",'
        b'"detector_id":"keywords","score":1.0,"metadata":{"rule":"confidential"}}]}'
    )


async def test_nothing_found_is_an_empty_list(server: ServerProcess) -> None:
    answer = await detect(server.api_port, {"content": "Nothing.", "detectors": {"pii": {}}})
    assert (answer.status, answer.body) == (200, b'{"detections":[]}')


async def test_findings_with_equal_starts_come_in_the_order_of_the_request(mixed: ServerProcess) -> None:
    """G-67, and different chunkers in one request (D-2)."""
    for order in (["words", "paragraphs", "whole"], ["whole", "paragraphs", "words"]):
        body = {"content": "end tea 茶.\n\nOther tea.", "detectors": {name: {} for name in order}}
        found = (await detect(mixed.api_port, body)).json()["detections"]
        expected = [(0, "whole"), *((4, name) for name in order if name != "whole"), (8, "words"),
                    *((18, name) for name in order if name != "whole")]  # fmt: skip
        assert [(one["start"], one["detector_id"]) for one in found] == expected


async def test_a_threshold_above_the_score_drops_the_finding(server: ServerProcess) -> None:
    for threshold, count in ((0.95, 1), (0.951, 0), (1, 0)):
        body = {"content": "a@b.example", "detectors": {"pii": {"threshold": threshold}}}
        assert len((await detect(server.api_port, body)).json()["detections"]) == count


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json", "APPLICATION/JSON"])
async def test_other_json_content_types_are_taken(server: ServerProcess, kind: str) -> None:
    """G-27."""
    answer = await call(
        server.api_port, CONTENT, b'{"content":"x","detectors":{"pii":{}}}', headers={"content-type": kind}
    )
    assert answer.status == 200


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-ndjson"}])
async def test_another_content_type_is_refused(server: ServerProcess, headers: dict[str, str]) -> None:
    """G-27."""
    answer = await call(server.api_port, CONTENT, b'{"content":"x","detectors":{"pii":{}}}', headers=headers)
    assert (answer.status, answer.body) == (415, error(415, NOT_JSON_TYPE))
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "code", "details"),
    [
        # G-27: not JSON
        (b"", 400, NOT_JSON + "EOF while parsing a value at line 1 column 0"),
        (b'{"content":"x', 400, NOT_JSON + "content: EOF while parsing a string at line 1 column 13"),
        (b'{"content":"x","detectors":{}} y', 400, NOT_JSON + "trailing characters at line 1 column 32"),
        (b'{"content":"\\ud800"}', 400, NOT_JSON + "content: unexpected end of hex escape at line 1 column 19"),
        (b'{"content":"\\udc00"}', 400, NOT_JSON + "content: lone leading surrogate in hex escape at line 1 column 18"),
        (b'{"content":"\xff"}', 400, NOT_JSON + "content: invalid unicode code point at line 1 column 13"),
        (b'{"content":"\xed\xa0\x80"}', 400, NOT_JSON + "content: invalid unicode code point at line 1 column 13"),
        (b'{"content":"a\x00b"}', 400,
         NOT_JSON + "content: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 14"),
        # G-28, G-30: wrong shapes, unknown fields
        (b"{}", 422, "missing field `content` at line 1 column 2"),
        (b'{"content":"x"}', 422, "missing field `detectors` at line 1 column 15"),
        (b'{"content":5}', 422, "content: invalid type: integer, expected a string at line 1 column 12"),
        (b'{"content":"x","detectors":null}', 422,
         "detectors: invalid type: null, expected a map at line 1 column 31"),
        (b'{"content":"x","detectors":{"pii":null}}', 422,
         "detectors.pii: invalid type: null, expected a map at line 1 column 38"),
        (b'{"content":"x","extra":1}', 422,
         "extra: unknown field `extra`, expected `content` or `detectors` at line 1 column 22"),
        (b'{"content":"x","content":"y"}', 422, "duplicate field `content` at line 1 column 24"),
        # G-67, G-31: own rules, in this order
        (b'{"content":"","detectors":{}}', 422, "`content` is required"),
        (b'{"content":"x","detectors":{}}', 422, "`detectors` is required"),
        # G-45, before G-42
        (b'{"content":"x","detectors":{"no":{"threshold":"1"}}}', 422,
         "`threshold` parameter specified for model `no` must be a number"),
        (b'{"content":"x","detectors":{"pii":{"threshold":true}}}', 422,
         "`threshold` parameter specified for model `pii` must be a number"),
        (b'{"content":"x","detectors":{"pii":{"threshold":null}}}', 422,
         "`threshold` parameter specified for model `pii` must be a number"),
        # G-42
        (b'{"content":"x","detectors":{"no":{}}}', 404, "detector `no` not found"),
        # what a detector says
        (b'{"content":"x","detectors":{"pii":{"x":1}}}', 422,
         "detector request failed for `pii`: unknown parameter `x`, expected `entities` or `regions`"),
        (b'{"content":"x","detectors":{"regex":{"patterns":["ab(c"]}}}', 422,
         "detector request failed for `regex`: bad pattern 1 at position 2: missing ): ab(c"),
        (b'{"content":"x","detectors":{"regex":{"patterns":["a","b(?=c)"]}}}', 422,
         "detector request failed for `regex`: bad pattern 2 at position 1: look-around is not supported: (?="),
        (b'{"content":"x","detectors":{"regex":{}}}', 422,
         "detector request failed for `regex`: `patterns` is required"),
    ],
)  # fmt: skip
async def test_a_bad_request_gets_its_exact_words(server: ServerProcess, body: bytes, code: int, details: str) -> None:
    answer = await detect(server.api_port, body)
    assert (answer.status, answer.body) == (code, error(code, details))
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("patterns", "code", "details"),
    [
        (["a" * 1000] * 64, 200, ""),
        (["a"] * 65, 422, "`patterns` has 65 entries, at most 64 are allowed"),
        (["a" * 1001], 422, "`patterns[0]` has 1001 characters, at most 1000 are allowed"),
    ],
)
async def test_a_request_may_bring_64_patterns_of_1000_characters(
    server: ServerProcess, patterns: list[str], code: int, details: str
) -> None:
    answer = await detect(server.api_port, {"content": "b", "detectors": {"regex": {"patterns": patterns}}})
    expected = error(code, f"detector request failed for `regex`: {details}") if details else b'{"detections":[]}'
    assert (answer.status, answer.body) == (code, expected)


async def test_the_first_bad_detector_of_the_request_is_named(mixed: ServerProcess, fms: ServerProcess) -> None:
    """G-42, D-10: 400 for the wrong type, 422 under `fms`; every detector is checked before any parameter."""
    unsuitable = "detector `chat` is not supported by this endpoint"
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"pii": {}, "no": {}, "chat": {}}, 404, "detector `no` not found"),
        ({"chat": {}, "no": {}}, 400, unsuitable),
        ({"pii": {"x": 1}, "chat": {}}, 400, unsuitable),
    ]
    for detectors, code, details in cases:
        body = {"content": "x", "detectors": detectors}
        answer = await detect(mixed.api_port, body)
        assert (answer.status, answer.body) == (code, error(code, details))
        answer = await detect(fms.api_port, body)
        expected = 422 if code == 400 else code
        assert (answer.status, answer.body) == (expected, error(expected, details))


async def test_a_whole_document_detector_serves_the_unary_endpoint_under_fms_too(fms: ServerProcess) -> None:
    """G-41."""
    answer = await detect(fms.api_port, {"content": "the end", "detectors": {"whole": {}}})
    assert [one["start"] for one in answer.json()["detections"]] == [4]


async def test_a_detector_with_a_bug_is_a_502_by_its_name_without_its_words(mixed: ServerProcess) -> None:
    """D-41."""
    answer = await detect(mixed.api_port, {"content": "x", "detectors": {"broken": {}}})
    assert (answer.status, answer.body) == (502, error(502, "`broken` failed"))


async def test_an_escaped_nul_is_text_like_any_other(server: ServerProcess) -> None:
    answer = await detect(server.api_port, b'{"content":"\\u0000 a@b.example","detectors":{"pii":{}}}')
    assert [(one["start"], one["end"]) for one in answer.json()["detections"]] == [(2, 13)]


async def test_a_body_over_the_limit_is_refused_before_and_after_reading(narrow: ServerProcess) -> None:
    """G-27: with a content-length nothing need be read; without one, reading stops."""
    fits = b'{"content":"x","detectors":{"pii":{}}}'.ljust(1000)
    assert (await call(narrow.api_port, CONTENT, fits)).status == 200
    answer = await call(narrow.api_port, CONTENT, fits + b" ")
    assert (answer.status, answer.body) == (413, error(413, TOO_LARGE))
    async with connect(narrow.api_port) as client:
        await client.send(build_head("POST", CONTENT, {**JSON_TYPE, "content-length": "3000000000"}))
        assert (await client.read_answer()).body == error(413, TOO_LARGE)
    async with connect(narrow.api_port) as client:
        await client.start_stream(JSON_TYPE, CONTENT)
        await client.send_chunk(b" " * 600)
        await client.send_chunk(b" " * 600)
        assert (await client.read_answer()).body == error(413, TOO_LARGE)


async def test_a_body_of_two_mebibytes_is_taken_and_one_byte_more_is_not(server: ServerProcess) -> None:
    """G-27."""
    fits = b'{"content":"x","detectors":{"pii":{}}}'.ljust(2_097_152)
    assert (await call(server.api_port, CONTENT, fits)).status == 200
    assert (await call(server.api_port, CONTENT, fits + b" ")).status == 413


async def test_one_megabyte_without_a_space_is_read_and_what_a_forced_cut_tears_is_found_once(
    server: ServerProcess,
) -> None:
    """Sentences of at most 2,000 characters: the address stands across the cut."""
    head, tail = "x" * 1985, "y" * 1_000_000
    text = head + "(torn.address@example.org)" + tail
    answer = await detect(server.api_port, {"content": text, "detectors": {"pii": {}, "secrets": {}}})
    found = [(one["start"], one["end"], one["text"]) for one in answer.json()["detections"]]
    assert found == [(1986, 2010, "torn.address@example.org")]
