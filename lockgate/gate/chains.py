# SPDX-License-Identifier: Apache-2.0
"""FrameChain: one value for everything that was released, in its order, that changes with any change of it.

Each frame is hashed together with the value before it, with the name of its lane and with both lengths, so that no two
sequences of frames give the same bytes: where a frame ends and to which lane it belongs counts like its text. The steps
are written down in docs/receipts.md. It is no signature: anybody can build a chain.
"""

from hashlib import sha256
from typing import Final

ALGORITHM: Final = "sha256-chain-1"
_START: Final = sha256(b"lockgate receipt 1").digest()
_LANE_BYTES, _TEXT_BYTES = 4, 8  # how wide the lengths are written


class FrameChain:
    """Frames in, one value out. A frame without text is none."""

    __slots__ = ("_digest", "_head", "_lane", "frames")

    def __init__(self) -> None:
        self.frames = 0
        self._digest = _START
        self._lane = ""  # the last one, which is nearly always the next one too
        self._head = _build_head("")

    def add(self, lane: str, text: str) -> None:
        """The text is released in this lane."""
        if not text:
            return
        if lane != self._lane:
            self._lane, self._head = lane, _build_head(lane)
        body = text.encode("utf-8", "surrogatepass")
        self._digest = sha256(self._digest + self._head + len(body).to_bytes(_TEXT_BYTES, "big") + body).digest()
        self.frames += 1

    @property
    def value(self) -> str:
        """The value up to here, in hexadecimal digits."""
        return self._digest.hex()


def _build_head(lane: str) -> bytes:
    name = lane.encode("utf-8", "surrogatepass")
    return len(name).to_bytes(_LANE_BYTES, "big") + name
