# SPDX-License-Identifier: Apache-2.0
"""LineSplitter: splits bytes into lines of newline-delimited JSON with a maximum length."""

from collections.abc import Iterator

from lockgate.errors import UnreadableBody


class LineSplitter:
    """Takes bytes, returns lines; any cut of the bytes gives the same lines. The last line needs no line feed."""

    __slots__ = ("_max_bytes", "_rest", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the lines that these bytes complete; raises at a line that is too long, after the lines before it."""
        first, *others = data.split(b"\n")
        self._keep(first)
        for part in others:
            line = b"".join(self._rest)
            self._rest.clear()
            self._size = 0
            yield line
            self._keep(part)

    def finish(self) -> list[bytes]:
        """Returns the last line if it had no line feed."""
        last = b"".join(self._rest)
        self._rest.clear()
        return [last] if last else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            raise UnreadableBody(f"a line is longer than {self._max_bytes} bytes", status=413)
        if part:
            self._rest.append(part)
