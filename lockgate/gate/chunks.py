# SPDX-License-Identifier: Apache-2.0
"""ChunkerInput: the text of a lane as its chunkers see it. ChunkAligner: ties a chunker's answers to that text.

Decides whether a chunk may be believed. In a stream chunks must follow each other: white space may be left out
between them, anything else that no detector would read, an overlap, or text that was never sent is the chunker's
fault, because cleared text may already have left. When the text is whole, nothing leaves before every chunk has been
read, so gaps, overlaps and any order are fine; only text that does not match is a fault.
"""

from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Chunk, Frame

_MAX_GAP = 64  # of white space before a chunk whose place has to be found


class ChunkerInput:
    """The frames that some chunker has not placed, stored once for all; each aligner keeps its own place in them."""

    __slots__ = ("first", "frames", "received")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.first = 0  # how many frames were forgotten
        self.received = 0

    def append(self, frame: Frame) -> None:
        """Take in a frame with text."""
        self.frames.append(frame)
        self.received += len(frame.text)

    def forget(self, before: int) -> None:
        """No aligner needs the frames before that one any more."""
        del self.frames[: before - self.first]
        self.first = before

    def join(self) -> str:
        """The text of all frames."""
        return "".join([frame.text for frame in self.frames])


class ChunkAligner:
    """One chunker's view of one text: how much it was given, and how much it has placed."""

    __slots__ = ("_chunker", "_head", "_input", "_is_whole", "_reads_empty", "_whole", "given", "placed", "reached")

    def __init__(
        self, chunker: str, chunker_input: ChunkerInput, *, is_whole: bool = False, reads_empty: bool = False
    ) -> None:
        self._chunker = chunker
        self._reads_empty = reads_empty
        self._is_whole = is_whole
        self._input = chunker_input
        self._whole: str | None = None
        self._head = 0  # characters of the frame `reached` that are already placed
        self.reached = 0  # the first frame that is not placed whole
        self.given = 0  # frames that the chunker has taken
        self.placed = 0

    @property
    def is_fed(self) -> bool:
        """Whether the chunker has taken all there is."""
        return self.given == self._input.first + len(self._input.frames)

    def feed(self) -> list[Frame]:
        """The frames that the chunker has not yet taken."""
        chunker_input = self._input
        frames = chunker_input.frames[self.given - chunker_input.first :]
        if frames:
            self.given += len(frames)
        return frames

    def place(self, chunk: Chunk) -> bool:
        """Whether the chunk is one to read: in a stream an empty one is passed over, unless empty texts are read."""
        start, end, text = chunk.start, chunk.end, chunk.text
        received = self._input.received
        if not 0 <= start <= end <= received:
            raise self._fault(f"chunk {start}..{end} lies outside the {received} characters sent")
        if self._is_whole:
            if self._whole is None:
                self._whole = self._input.join()
            if self._whole[start:end] != text:
                raise self._fault(f"chunk {start}..{end} is not the text that was sent")
            return True
        if start != self.placed:
            self._skip(start)
        if self._take(end - start) != text:
            raise self._fault(f"chunk {start}..{end} is not the text that was sent")
        self.placed = end
        return end > start or (self._reads_empty and not received)

    def find(self, text: str) -> int | None:
        """Where the text stands that a chunker names, if it is what comes next; white space may be left out."""
        start, wanted = self.placed, len(text)
        come, size = [], 0
        head = self._head
        for frame in self._input.frames[self.reached - self._input.first :]:
            come.append(frame.text[head:])
            size += len(frame.text) - head
            head = 0
            if size >= wanted + _MAX_GAP:
                break
        rest = "".join(come)
        gap = 0 if rest.startswith(text) else len(rest) - len(rest.lstrip())
        return start + gap if rest.startswith(text, gap) else None

    def finish(self) -> int:
        """The chunker has ended: the position up to which its chunks count, which is all that was sent."""
        received = self._input.received
        if not self._is_whole:
            self._skip(received)
        self.placed = received
        self.reached = self._input.first + len(self._input.frames)
        return received

    def pass_over(self) -> int:
        """The chunker has failed, and its text goes on unread: the position up to which that is so."""
        self.placed, self._head = self._input.received, 0
        self.reached = self.given = self._input.first + len(self._input.frames)
        return self.placed

    def _skip(self, upto: int) -> None:
        if upto < self.placed:
            raise self._fault(f"a chunk at {upto} overlaps the one before, which ends at {self.placed}")
        gap = self._take(upto - self.placed)
        if gap and not gap.isspace():
            raise self._fault(f"text at {self.placed}..{upto} is in no chunk")
        self.placed = upto

    def _take(self, length: int) -> str:
        frames, at, head = self._input.frames, self.reached - self._input.first, self._head
        if not head and length and len(frames[at].text) == length:  # exactly one frame
            self.reached += 1
            return frames[at].text
        taken = []
        while length > 0:
            text = frames[at].text
            if not head and len(text) <= length:
                part = text
                at += 1
            else:
                part = text[head : head + length]
                head += len(part)
                if head == len(text):
                    head = 0
                    at += 1
            length -= len(part)
            taken.append(part)
        self.reached, self._head = at + self._input.first, head
        return taken[0] if len(taken) == 1 else "".join(taken)

    def _fault(self, reason: str) -> BrokeProtocol:
        return BrokeProtocol(self._chunker, f"chunker `{self._chunker}`: {reason}")
