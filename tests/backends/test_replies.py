# SPDX-License-Identifier: Apache-2.0
"""What replies of all foreign servers have in common: how much is forgiven, what it may cost, what a refusal says."""

import json
import math
from collections.abc import Iterable
from unittest.mock import Mock

import pytest

from lockgate.backends.http import LARGE_BYTES, refuse_dense
from lockgate.backends.http_model import DONE, AnswerReader
from lockgate.backends.replies import (
    MAX_VALUES,
    decode_any,
    mend,
    read_detail,
    refuse_many,
)
from lockgate.gate.sse import SseEvent


def plain(words: str) -> str:
    return words


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"detail":"no way"}', "no way"),
        (b'{"detail":[{"msg": "bad", "n": 1}]}', '[{"msg":"bad","n":1}]'),
        (b'{"detail":null,"x":1}', '{"detail":null,"x":1}'),
        (b'{"detail":"","x":1}', '{"detail":"","x":1}'),
        (b'{"other":1}', '{"other":1}'),
        (b"<html>down</html>", "<html>down</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b" \n", ""),
        (b"", ""),
        ("ü".encode() * 300, "ü" * 200),
        (b'{"detail":"' + b"x" * 5000 + b'"}', "x" * 1000),
        (b'{"detail":[' + b"1," * 90_000 + b"1]}", ("[" + "1," * 500)[:1000]),
    ],
)
def test_a_refusal_is_told_by_its_detail_or_its_beginning(body: bytes, detail: str) -> None:
    assert read_detail(body, plain) == detail


def test_words_are_scrubbed_before_they_are_cut() -> None:
    body = b"x" * 195 + b"secret-token" + b"x" * 100
    assert "secr" not in read_detail(body, lambda words: words.replace("secret-token", "***"))


def test_what_no_standard_allows_is_forgiven() -> None:
    value = decode_any('{"a": NaN, "b": 1e999, "c": "\\ud83d", "d": %s}' % ("9" * 400))
    assert isinstance(value, dict)
    assert math.isnan(value["a"])
    assert (value["b"], value["c"], value["d"]) == (math.inf, "\ud83d", math.inf)
    assert mend(value["c"]) == "\ufffd"


@pytest.mark.parametrize("unit", ["1,", "[],", "{},", '{"a":[]},', "[[]],", '"",'])
def test_a_body_of_too_many_values_is_not_decoded_without_a_shape(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[" + unit * MAX_VALUES + "NaN]"
    for decode in ("lockgate.backends.replies._decode", "json.loads"):
        monkeypatch.setattr(decode, Mock(side_effect=AssertionError("decoded")))
    for body in (text, text.encode()):
        with pytest.raises(ValueError, match="too many values"):
            decode_any(body)


def test_a_long_text_is_no_many_values() -> None:
    words = "one, two and [three] words\n" * 80_000
    assert decode_any(json.dumps({"a": words, "b": math.nan}))["a"] == words  # type: ignore[index]
    refuse_many(b"," * MAX_VALUES)


@pytest.mark.parametrize("unit", [b"[],", b'{"a":[]},', b"1,", b"{},"])
def test_a_large_body_of_tiny_values_is_dense(unit: bytes) -> None:
    with pytest.raises(ValueError, match="too many values"):
        refuse_dense(unit * (LARGE_BYTES // len(unit) + 1))
    refuse_dense(unit * (LARGE_BYTES // len(unit)))
    refuse_dense(b"word, " * LARGE_BYTES)


class Echo(AnswerReader):
    """Every event is a piece; the word `bad` is a failure."""

    def _read_event(self, event: SseEvent) -> Iterable[str]:
        self.is_done = event.data == DONE
        self.failure = "bad" if event.data == "bad" else None
        return [] if event.data in (DONE, "bad") else [event.data, ""]


def test_no_event_is_read_behind_the_end_or_a_failure_and_no_piece_is_empty() -> None:
    for last in (DONE, "bad"):
        reader = Echo()
        assert not reader.has_events
        assert reader.feed(f"data: a\n\ndata: {last}\n\ndata: b\n\n".encode()) == ["a"]
        assert reader.feed(b"data: c\n\n") == reader.finish() == []
        ended = (True, True, None) if last == DONE else (True, False, last)
        assert (reader.has_events, reader.is_done, reader.failure) == ended


def test_a_stream_that_breaks_off_ends_its_last_event() -> None:
    reader = Echo()
    assert reader.feed(b"data: a\n\ndata: b") == ["a"]
    assert reader.finish() == ["b"]
