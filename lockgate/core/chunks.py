# SPDX-License-Identifier: Apache-2.0
"""ChunkAligner: ties a chunker's answers to the text that it was given.

Decides whether a chunk may be believed. In a stream chunks must follow each other: white space may be left out
between them, anything else that no detector would read, an overlap, or text that was never sent is the chunker's
fault, because cleared text may already have left. When the text is whole, nothing leaves before every chunk has been
read, so gaps, overlaps and any order are fine; only text that does not match is a fault.
"""

from collections import deque

from lockgate.core.values import Chunk
from lockgate.errors import BrokeProtocol


class ChunkAligner:
    """One chunker's view of one text."""

    __slots__ = ("_chunker", "_head", "_is_whole", "_pieces", "placed", "received")

    def __init__(self, chunker: str, *, is_whole: bool = False) -> None:
        self._chunker = chunker
        self._is_whole = is_whole
        self._pieces: deque[str] = deque()
        self._head = 0  # characters of the first piece that are already placed
        self.received = 0
        self.placed = 0

    def receive(self, text: str) -> None:
        """More text has been given to the chunker."""
        if text:
            self._pieces.append(text)
            self.received += len(text)

    def place(self, chunk: Chunk) -> list[Chunk]:
        """The chunk, if it is one to read; an empty one is passed over unless the whole text is empty."""
        if not 0 <= chunk.start <= chunk.end <= self.received:
            raise self._fault(f"chunk {chunk.start}..{chunk.end} lies outside the {self.received} characters sent")
        if self._is_whole:
            self._match_anywhere(chunk)
        else:
            self._match_next(chunk)
        return [chunk] if chunk.end > chunk.start or (self._is_whole and not self.received) else []

    def finish(self) -> int:
        """The chunker has ended: the position up to which its chunks count, which is all that was sent."""
        if not self._is_whole:
            self._skip(self.received)
        self.placed = self.received
        self._pieces.clear()
        return self.received

    def _match_next(self, chunk: Chunk) -> None:
        if chunk.start < self.placed:
            raise self._fault(f"chunk {chunk.start}..{chunk.end} overlaps the one before, which ends at {self.placed}")
        if chunk.start > self.placed:
            self._skip(chunk.start)
        if self._take(chunk.end - chunk.start) != chunk.text:
            raise self._fault(f"chunk {chunk.start}..{chunk.end} is not the text that was sent")
        self.placed = chunk.end

    def _match_anywhere(self, chunk: Chunk) -> None:
        if len(self._pieces) > 1:
            self._pieces = deque(["".join(self._pieces)])
        text = self._pieces[0] if self._pieces else ""
        if text[chunk.start : chunk.end] != chunk.text:
            raise self._fault(f"chunk {chunk.start}..{chunk.end} is not the text that was sent")
        self.placed = max(self.placed, chunk.end)

    def _skip(self, upto: int) -> None:
        gap = self._take(upto - self.placed)
        if gap and not gap.isspace():
            raise self._fault(f"text at {self.placed}..{upto} is in no chunk")
        self.placed = upto

    def _take(self, length: int) -> str:
        pieces, taken = self._pieces, []
        while length > 0:
            piece, head = pieces[0], self._head
            part = piece[head : head + length]
            length -= len(part)
            self._head += len(part)
            if self._head == len(piece):
                pieces.popleft()
                self._head = 0
            taken.append(part)
        return taken[0] if len(taken) == 1 else "".join(taken)

    def _fault(self, reason: str) -> BrokeProtocol:
        return BrokeProtocol(self._chunker, f"chunker `{self._chunker}`: {reason}")
