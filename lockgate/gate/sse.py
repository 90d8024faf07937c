# SPDX-License-Identifier: Apache-2.0
"""Parses and encodes server-sent events.

Only CR, LF and CRLF end a line. U+2028 and similar characters are plain text: a parser that splits there corrupts JSON.
"""

import re
from typing import NamedTuple

from lockgate.errors import BrokeProtocol

_ANY_LINE_END = re.compile(r"\r\n|\r|\n")
_OWN_TYPES = ("", "message", "error")
_PING = re.compile(r'\s*(?:ping|\{\s*"type"\s*:\s*"(?:ping|heartbeat|keep-?alive)"[^{}]*\})?\s*')
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One complete event; `event` is empty if the sender gave no type."""

    data: str
    event: str = ""


def is_aside(data: str, event: str) -> bool:
    """Returns whether an event without a message or error can be skipped: its type is unknown, or it is a ping."""
    return event not in _OWN_TYPES or _PING.fullmatch(data) is not None


class SseParser:
    """Takes bytes, returns events. Any cut of the bytes gives the same events."""

    __slots__ = (
        "_data", "_data_size", "_event", "_is_first_line", "_max_bytes", "_rest", "_rest_size", "_service", "_skip_lf",
    )  # fmt: skip

    def __init__(self, service: str = "model", *, max_event_bytes: int = 4 * 1024 * 1024) -> None:
        self._service = service
        self._max_bytes = max_event_bytes
        self._rest: list[bytes] = []  # pieces of an incomplete line
        self._rest_size = 0
        self._skip_lf = False  # the last line ended with CR: a following LF belongs to it
        self._is_first_line = True
        self._data: list[bytes] = []
        self._data_size = 0
        self._event = b""

    def feed(self, data: bytes) -> list[SseEvent]:
        """Returns the events that these bytes complete."""
        events: list[SseEvent] = []
        if self._skip_lf or b"\r" in data:
            data = self._with_one_line_end(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest.clear()
            self._rest_size = 0
        for line in lines:
            if line.startswith(b"data: "):  # the common case
                self._is_first_line = False
                value: bytes | None = line[6:]
            else:
                value = self._take_line(line, events)
            if value is not None:
                self._data.append(value)
                self._data_size += len(value) + 1
                if self._data_size > self._max_bytes:
                    self._check_size(self._data_size)
        if rest:
            self._rest.append(rest)
            self._rest_size += len(rest)
            self._check_size(self._rest_size)
        return events

    def finish(self) -> list[SseEvent]:
        """Ends the input; drops an event without its closing blank line, as the standard requires."""
        self._rest.clear()
        self._data.clear()
        return []

    def _with_one_line_end(self, data: bytes) -> bytes:
        """Returns the bytes with LF for every line end."""
        if data:
            if self._skip_lf:
                data = data.removeprefix(b"\n")
            self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_line(self, line: bytes, events: list[SseEvent]) -> bytes | None:
        """Returns the line's data, or None; an empty line completes an event."""
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                kind = self._event.decode("utf-8", "replace") if self._event else ""
                events.append(SseEvent(data.decode("utf-8", "replace"), kind))
                self._data.clear()
                self._data_size = 0
            self._event = b""
            return None
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.removeprefix(b" ")
        return value.removeprefix(b" ") if name == b"data" else None

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BrokeProtocol(self._service, f"an event is longer than {self._max_bytes} bytes")


def encode_event(data: str, event: str = "") -> bytes:
    """Encodes one event; each line of `data` becomes a `data:` line."""
    head = f"event: {event}\n" if event else ""
    if "\n" in data or "\r" in data:
        data = "\ndata: ".join(_ANY_LINE_END.split(data))
    return f"{head}data: {data}\n\n".encode()
