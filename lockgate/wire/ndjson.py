# SPDX-License-Identifier: Apache-2.0
"""LineSplitter: bytes into lines of newline-delimited JSON, each of bounded length."""

from lockgate.errors import UnreadableBody


class LineSplitter:
    """Bytes in, lines out; any cut gives the same lines. A last line needs no line feed."""

    __slots__ = ("_max_bytes", "_rest", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
        first, *others = data.split(b"\n")
        self._keep(first)
        lines = []
        for part in others:
            lines.append(b"".join(self._rest))
            self._rest.clear()
            self._size = 0
            self._keep(part)
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if it had no line feed."""
        last = b"".join(self._rest)
        self._rest.clear()
        return [last] if last else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            raise UnreadableBody(f"a line is longer than {self._max_bytes} bytes", status=413)
        if part:
            self._rest.append(part)
