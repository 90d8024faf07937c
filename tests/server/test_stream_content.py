# SPDX-License-Identifier: Apache-2.0
"""POST stream-content over a socket (G-73 … G-75, G-150 … G-153, D-1 … D-4): what is answered, and when."""

import asyncio
from typing import Any

import pytest

from tests.server.http_client import NDJSON_TYPE, STREAM, build_line, call, connect, stream
from tests.server.processes import ServerProcess
from tests.waits import is_pending

LINES = (
    {"detectors": {"pii": {}}, "content": "😀 Hello. Mail a@b.ex"},
    {"content": "ample now. 茶！"},
    {"content": "Bye."},
)
MAIL = (
    '"text":"a@b.example","detection":"EmailAddress","detection_type":"pii","detector_id":"pii","score":0.95,'
    '"metadata":{"rule":"email"}}'
)


def spans(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(line["start_index"], line["processed_index"]) for line in lines]


def findings(lines: list[dict[str, Any]]) -> list[list[tuple[str, int]]]:
    return [[(found["detector_id"], found["start"]) for found in line["detections"]] for line in lines]


async def test_each_sentence_is_one_line_and_offsets_count_from_the_start_of_the_stream(mixed: ServerProcess) -> None:
    """G-46, G-75, D-1, D-4: byte-exact, offsets in code points."""
    answer = await stream(mixed.api_port, *LINES)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.body.decode() == (
        '{"detections":[],"processed_index":9,"start_index":0}\n'
        f'{{"detections":[{{"start":14,"end":25,{MAIL}],"processed_index":31,"start_index":9}}\n'
        '{"detections":[],"processed_index":33,"start_index":31}\n'
        '{"detections":[],"processed_index":37,"start_index":33}\n'
    )


async def test_under_fms_offsets_count_from_the_start_of_the_line_and_no_content_type_is_sent(
    fms: ServerProcess,
) -> None:
    """G-73, G-151, D-1, D-4."""
    answer = await stream(fms.api_port, *LINES)
    assert answer.status == 200
    assert "content-type" not in answer.headers
    assert answer.body.decode() == (
        '{"detections":[],"processed_index":9,"start_index":0}\n'
        f'{{"detections":[{{"start":5,"end":16,{MAIL}],"processed_index":31,"start_index":9}}\n'
        '{"detections":[],"processed_index":33,"start_index":31}\n'
        '{"detections":[],"processed_index":37,"start_index":33}\n'
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_any_cut_of_the_bytes_gives_the_same_answer(mixed: ServerProcess, size: int) -> None:
    """Lines, code points and chunks of the transfer coding need not agree; the last line needs no line feed."""
    raw = b"".join(build_line(**line) for line in LINES).rstrip(b"\n")
    expected = await stream(mixed.api_port, *LINES)
    async with connect(mixed.api_port) as client:
        await client.start_stream()
        await client.send(b"".join(b"%x\r\n%b\r\n" % (len(raw[at : at + size]), raw[at : at + size])
                                   for at in range(0, len(raw), size)) + b"0\r\n\r\n")  # fmt: skip
        assert (await client.read_answer()).body == expected.body


async def test_detectors_with_different_chunkers_serve_one_request(mixed: ServerProcess) -> None:
    """D-2, `max_processed_index`: a release ends where the slowest first answer does. G-181: by detector."""
    detectors: dict[str, Any] = {"words": {}, "pii": {}, "paragraphs": {}}
    text = "Some tea. Mail a@b.example, paragraph end.\n\n茶 and tea. Done."
    answer = await stream(mixed.api_port, {"detectors": detectors, "content": text})
    assert spans(answer.lines()) == [(0, 44), (44, 60)]
    assert findings(answer.lines()) == [
        [("words", 5), ("pii", 15), ("paragraphs", 5), ("paragraphs", 28)],
        [("words", 44), ("words", 50), ("paragraphs", 50)],
    ]
    one_by_one = await stream(
        mixed.api_port, {"detectors": detectors, "content": text[0]}, *({"content": letter} for letter in text[1:])
    )
    assert one_by_one.body == answer.body


async def test_an_answer_comes_while_the_request_is_still_open(mixed: ServerProcess) -> None:
    """G-150: full duplex."""
    async with connect(mixed.api_port) as client:
        await client.start_stream()
        assert (await client.read_head()).status == 200
        await client.send_line(detectors={"pii": {}}, content="One sentence. Two")
        assert await client.read_chunk() == b'{"detections":[],"processed_index":14,"start_index":0}\n'
        await client.send_line(content=" sentences. Three")
        assert await client.read_chunk() == b'{"detections":[],"processed_index":29,"start_index":14}\n'
        await client.send_chunk(b"")
        assert await client.read_chunk() == b'{"detections":[],"processed_index":34,"start_index":29}\n'
        assert await client.read_chunk() == b""


async def test_a_whole_document_detector_holds_everything_to_the_end(mixed: ServerProcess) -> None:
    """D-3, `hold`."""
    async with connect(mixed.api_port) as client:
        await client.start_stream()
        await client.read_head()
        await client.send_line(detectors={"pii": {}, "whole": {}}, content="One a@b.example here. Two. The ")
        reading = asyncio.create_task(client.read_chunk())
        assert await is_pending(reading)
        await client.send_line(content="end.")
        await client.send_chunk(b"")
        line = await reading
        assert await client.read_chunk() == b""
    assert b'"processed_index":35,"start_index":0' in line
    assert line.index(b'"detector_id":"pii"') < line.index(b'"detector_id":"whole"')


async def test_a_trailing_whole_document_detector_holds_nothing_and_reports_with_the_last_line(
    trailing: ServerProcess,
) -> None:
    """D-3, `trail`."""
    async with connect(trailing.api_port) as client:
        await client.start_stream()
        await client.read_head()
        await client.send_line(detectors={"pii": {}, "whole": {}}, content="The end. Two. Three")
        assert await client.read_line() == b'{"detections":[],"processed_index":9,"start_index":0}\n'
        assert await client.read_line() == b'{"detections":[],"processed_index":14,"start_index":9}\n'
        await client.send_chunk(b"")
        assert await client.read_line() == b'{"detections":[],"processed_index":19,"start_index":14}\n'
        last = await client.read_line()
        assert await client.read_chunk() == b""
    assert last.startswith(b'{"detections":[{"start":4,"end":7,"text":"end"')
    assert last.endswith(b',"processed_index":19,"start_index":19}\n')


async def test_one_megabyte_without_a_space_flows_in_bounded_lines_and_a_torn_address_is_found_once(
    mixed: ServerProcess,
) -> None:
    text = "x" * 1985 + "(torn.address@example.org)" + "y" * 1_000_000
    pieces = [text[at : at + 50_000] for at in range(0, len(text), 50_000)]
    first, *others = ({"content": piece} for piece in pieces)
    answer = await stream(mixed.api_port, {"detectors": {"pii": {}}, **first}, *others)
    lines = answer.lines()
    borders = [line["processed_index"] for line in lines]
    assert spans(lines) == list(zip([0, *borders], borders, strict=False))
    assert borders[-1] == len(text)
    assert max(end - start for start, end in spans(lines)) <= 2000
    assert [found for found in findings(lines) if found] == [[("pii", 1986)]]
    torn = next(found for line in lines for found in line["detections"])
    assert (torn["end"], torn["text"]) == (2010, "torn.address@example.org")


@pytest.mark.parametrize("kind", ["application/x-ndjson; charset=utf-8", "APPLICATION/X-NDJSON"])
async def test_the_content_type_may_have_parameters(mixed: ServerProcess, kind: str) -> None:
    """G-73: it must start with the name."""
    body = build_line(detectors={"pii": {}}, content="x")
    answer = await call(mixed.api_port, STREAM, body, headers={**NDJSON_TYPE, "content-type": kind})
    assert answer.body == b'{"detections":[],"processed_index":1,"start_index":0}\n'


async def test_later_detectors_are_ignored(mixed: ServerProcess) -> None:
    """G-74."""
    answer = await stream(
        mixed.api_port, {"detectors": {"pii": {}}, "content": "x "}, {"detectors": {"no": {}}, "content": "y"}
    )
    assert spans(answer.lines()) == [(0, 3)]
