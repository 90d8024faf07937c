# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, both ways.

Decides where a line and an event end. Only CR, LF and CRLF end a line: U+2028 and its like are plain text, and a
parser that splits there corrupts JSON. Knows nothing of what the data mean.
"""

import re
from typing import NamedTuple

from lockgate.errors import BrokeProtocol

_LINE_END = re.compile(rb"[\r\n]")
_ANY_LINE_END = re.compile(r"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event; `event` is empty where the sender named none."""

    data: str
    event: str = ""


class SseParser:
    """Bytes in, events out. Any cut of the bytes gives the same events."""

    __slots__ = (
        "_buffer", "_data", "_data_size", "_event", "_is_first_line", "_max_bytes", "_searched", "_service", "_skip_lf",
    )  # fmt: skip

    def __init__(self, service: str = "model", *, max_event_bytes: int = 4 * 1024 * 1024) -> None:
        self._service = service
        self._max_bytes = max_event_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._skip_lf = False
        self._is_first_line = True
        self._data: list[bytes] = []
        self._data_size = 0
        self._event = b""

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that these bytes complete."""
        buffer = self._buffer
        buffer += data
        events: list[SseEvent] = []
        start = 0
        while (found := _LINE_END.search(buffer, max(start, self._searched))) is not None:
            end = found.start()
            if self._skip_lf and end == start and buffer[end] == 0x0A:
                self._skip_lf = False
            else:
                self._skip_lf = buffer[end] == 0x0D
                self._take_line(bytes(buffer[start:end]), events)
            start = end + 1
            self._searched = start
        if start:
            del buffer[:start]
        self._searched = len(buffer)
        self._check_size(len(buffer))
        return events

    def finish(self) -> list[SseEvent]:
        """The end of the bytes: an event without its closing blank line is dropped, as the standard says."""
        self._buffer.clear()
        self._data.clear()
        return []

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_size += len(value) + 1
            self._check_size(self._data_size)
        elif name == b"event":
            self._event = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            data = b"\n".join(self._data).decode("utf-8", "replace")
            events.append(SseEvent(data, self._event.decode("utf-8", "replace")))
            self._data.clear()
            self._data_size = 0
        self._event = b""

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BrokeProtocol(self._service, f"an event is longer than {self._max_bytes} bytes")


def encode_event(data: str, event: str = "") -> bytes:
    """One event as bytes; a line end inside `data` becomes a further `data:` line."""
    head = f"event: {event}\n" if event else ""
    if "\n" in data or "\r" in data:
        data = "\ndata: ".join(_ANY_LINE_END.split(data))
    return f"{head}data: {data}\n\n".encode()
