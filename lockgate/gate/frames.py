# SPDX-License-Identifier: Apache-2.0
"""FrameLog: the frames received and not yet released.

Decides which frames a release completes, so that what a frame carried beside its text leaves exactly once. Keeps
nothing that has been released. Does not decide when to release: that is the gate's.
"""

from collections import deque

from lockgate.gate.values import Frame


class FrameLog:
    """The unreleased end of one text, as frames."""

    __slots__ = ("_head_start", "first", "frames", "last", "received", "released")

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self._head_start = 0
        self.received = 0
        self.released = 0
        self.first = self.last = 0  # numbers of the first and the last frame whose text the latest release holds

    def append(self, frame: Frame) -> None:
        """Take in one frame; its text follows what was received before."""
        self.frames.append(frame)
        self.received += len(frame.text)

    def release(self, upto: int) -> tuple[str, tuple[Frame, ...]]:
        """The text from the last release up to `upto`, and the frames whose last character it contains."""
        if not self.released <= upto <= self.received:
            raise RuntimeError(f"cannot release up to {upto}: released {self.released}, received {self.received}")
        frames, texts, completed = self.frames, [], []
        position, start = self.released, self._head_start
        if frames:
            self.first = frames[0].number
        while frames:
            text = frames[0].text
            end = start + len(text)
            if text and start < upto:
                self.last = frames[0].number
            if end > upto:
                texts.append(text[position - start : upto - start])
                break
            texts.append(text[position - start :] if position > start else text)
            completed.append(frames.popleft())
            start = position = end
        self._head_start, self.released = start, upto
        return "".join(texts), tuple(completed)
