# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.errors import BrokeProtocol
from lockgate.gate.sse import SseEvent, SseParser, encode_event

PIECES = st.sampled_from(
    [
        b"data: a\n",
        b"data:b\r\n",
        b"\n",
        b"\r",
        b"\r\n",
        b":note\n",
        b"event: error\n",
        "data: x\u2028y\u0085z\n".encode(),
    ]
)
STREAMS = st.lists(PIECES, max_size=12).map(b"".join)


def _parse(pieces: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


@given(STREAMS, st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_any_cut_of_the_bytes_gives_the_same_events(data: bytes, sizes: list[int]) -> None:
    start, pieces = 0, list[bytes]()
    while start < len(data):
        pieces.append(data[start : start + sizes[len(pieces) % len(sizes)]])
        start += len(pieces[-1])
    assert _parse(pieces) == _parse([data])


@given(st.lists(st.tuples(st.text().filter(lambda text: "\r" not in text), st.sampled_from(["", "error"])), max_size=4))
def test_what_is_encoded_is_parsed_again(events: list[tuple[str, str]]) -> None:
    data = b"".join(encode_event(text, name) for text, name in events)
    assert _parse([data]) == [SseEvent(text, name) for text, name in events]


@given(st.text(alphabet=st.sampled_from("ab\u2028\u2029\u0085\x0b\x0c\x1c")))
def test_only_cr_and_lf_end_a_line(text: str) -> None:
    assert _parse([b"data: " + text.encode() + b"\n\n"]) == [SseEvent(text)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_all_three_line_ends_are_known(end: bytes) -> None:
    assert _parse([b"data: a" + end + b"data: b" + end + end]) == [SseEvent("a\nb")]


def test_a_byte_order_mark_at_the_very_start_is_skipped() -> None:
    assert _parse([b"\xef\xbb", b"\xbfdata: a\n\n"]) == [SseEvent("a")]


def test_an_event_without_its_blank_line_is_dropped_at_the_end() -> None:
    assert _parse([b"data: a\n\ndata: b\n"]) == [SseEvent("a")]


def test_an_endless_event_is_the_senders_fault() -> None:
    parser = SseParser("model", max_event_bytes=100)
    with pytest.raises(BrokeProtocol, match="longer than 100 bytes"):
        for _ in range(20):
            parser.feed(b"data: 0123456789\n")
    with pytest.raises(BrokeProtocol):
        SseParser("model", max_event_bytes=100).feed(b"x" * 101)


def test_an_event_may_carry_a_name() -> None:
    assert encode_event('{"code":500}', "error") == b'event: error\ndata: {"code":500}\n\n'
