# SPDX-License-Identifier: Apache-2.0
"""Receipt: who read what of one request, whether that was everything that was let through, and what became of it.

Counts what detectors were really given, beside what was released, and compares the two at the end. So it does not rest
on the gate's promise but would show if that were broken. White space that a chunker drops need not have been read.

FrameChain: one value for everything that was released, in its order, that changes with any change of it. Each frame is
hashed together with the value before it, with the name of its lane and with both lengths, so that no two sequences of
frames give the same bytes. The steps are written down in docs/receipts.md. It is no signature: anybody can build a
chain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from lockgate.gate.verdicts import REPLACING, Action, DocumentAction

_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())
_ASCII_SPACES = tuple(one for one in _SPACES if one.isascii())
_ONE_LANE = ("content",)
ALGORITHM: Final = "sha256-chain-1"
_START: Final = sha256(b"lockgate receipt 1").digest()
_LANE_BYTES, _TEXT_BYTES = 4, 8  # how wide the lengths are written


class RequestPart(StrEnum):
    """What is read of a request."""

    PROMPT = "prompt"
    DOCUMENTS = "documents"
    ANSWER = "answer"


class Outcome(IntEnum):
    """What became of a request, from mild to strict; in shadow, what would have become of it."""

    RELEASED = 0  # as it was
    MASKED = 1  # some text was hidden, or a document left out; the rest went on
    STOPPED = 2  # the answer ended at a finding
    BLOCKED = 3  # the prompt or the answer was withheld
    FAILED = 4  # it ended with an error, as a detector that it needs gave no answer


_OUTCOMES = {
    "annotate": Outcome.RELEASED,
    "flag": Outcome.RELEASED,
    **{action.name.lower(): Outcome.MASKED for action in REPLACING},
    "drop": Outcome.MASKED,
    "stop": Outcome.STOPPED,
    "block": Outcome.BLOCKED,
} | {outcome.name.lower(): outcome for outcome in Outcome}


class DetectorRead(NamedTuple):
    """What one detector did: the characters that it read of each part, and whether it covered what was released."""

    detector_id: str
    chars: dict[RequestPart, int]
    chunks: int
    findings: int
    seconds: float
    is_covered: bool
    has_failed: bool = False


@dataclass(slots=True)
class _DetectorFigures:
    """The running figures of one detector."""

    chars: dict[RequestPart, int] = field(default_factory=dict)
    solid: dict[RequestPart, int] = field(default_factory=dict)
    chunks: int = 0
    findings: int = 0
    seconds: float = 0.0
    has_failed: bool = False


@dataclass(slots=True, eq=False)
class FrameChain:
    """Frames in, one value out. A frame without text is none."""

    frames: int = 0
    _digest: bytes = _START
    _lane: str = ""  # the last one, which is nearly always the next one too
    _head: bytes = bytes(_LANE_BYTES)

    def add(self, lane: str, text: str) -> None:
        """The text is released in this lane."""
        if not text:
            return
        if lane != self._lane:
            name = lane.encode("utf-8", "surrogatepass")
            self._lane, self._head = lane, len(name).to_bytes(_LANE_BYTES, "big") + name
        body = text.encode("utf-8", "surrogatepass")
        self._digest = sha256(self._digest + self._head + len(body).to_bytes(_TEXT_BYTES, "big") + body).digest()
        self.frames += 1

    @property
    def value(self) -> str:
        """The value up to here, in hexadecimal digits."""
        return self._digest.hex()


class Receipt:
    """The figures of one request, under which policy it was, and the chain of the frames that left."""

    def __init__(self, policy: str = "", *, is_shadow: bool = False, lanes: Sequence[str] = _ONE_LANE) -> None:
        self.policy = policy
        self.is_shadow = is_shadow
        self.lanes = tuple(lanes)  # what is read of an answer that has several texts
        self.outcome = Outcome.RELEASED
        self.chain = FrameChain()
        self.released = dict.fromkeys(RequestPart, 0)
        self._accounts: dict[str, _DetectorFigures] = {}
        self._solid = dict.fromkeys(RequestPart, 0)

    def expect(self, detector_id: str, part: RequestPart) -> None:
        """The detector is to read this part."""
        account = self._accounts.setdefault(detector_id, _DetectorFigures())
        account.chars.setdefault(part, 0)
        account.solid.setdefault(part, 0)

    def note_read(self, detector_id: str, part: RequestPart, texts: Iterable[str], seconds: float) -> None:
        """The detector has read these chunks of the part."""
        account = self._accounts[detector_id]
        account.seconds += seconds
        for text in texts:
            account.chunks += 1
            account.chars[part] += len(text)
            account.solid[part] += _count_solid(text)

    def note_failure(self, detector_id: str, *, ends: bool = False) -> None:
        """The detector failed. `ends`: that ends the request, or would if this were not shadow."""
        self._accounts.setdefault(detector_id, _DetectorFigures()).has_failed = True
        if ends:
            self.note_action(Outcome.FAILED)

    def note_finding(self, detector_id: str) -> None:
        """The detector has found something that is reported."""
        account = self._accounts.get(detector_id)
        if account is not None:
            account.findings += 1

    def note_action(
        self, action: Outcome | Action | DocumentAction | str, part: RequestPart = RequestPart.ANSWER
    ) -> None:
        """This was done, or in shadow would have been; the strictest counts. A document is hidden at most."""
        word = action if isinstance(action, str) else action.name.lower()
        outcome = _OUTCOMES.get(word)
        if outcome is None:
            raise RuntimeError(f"`{word}` is no action")
        if part is RequestPart.DOCUMENTS and outcome is not Outcome.FAILED:
            outcome = min(outcome, Outcome.MASKED)
        self.outcome = max(self.outcome, outcome)

    def note_released(self, part: RequestPart, text: str) -> None:
        """The text goes on: to a source or the model, or to the client."""
        self.released[part] += len(text)
        self._solid[part] += _count_solid(text)

    def take_back(self, part: RequestPart) -> None:
        """Nothing of the part has left after all: resets its counts of released text."""
        self.released[part] = self._solid[part] = 0

    def note_dropped(self, part: RequestPart, chars: int) -> None:
        """So many released characters of the part have not left after all: the answer ended before their turn came."""
        self.released[part] -= chars

    def note_withheld(self, part: RequestPart, text: str) -> None:
        """The text was read and does not go on: that it was read stands for nothing that did."""
        self._solid[part] += _count_solid(text)

    @property
    def is_covered(self) -> bool:
        """Whether every detector has read all that it was to read of what was released."""
        return all(map(self._covers, self._accounts.values()))

    def settle(self) -> list[DetectorRead]:
        """What every detector did, in the order in which they were expected."""
        return [
            DetectorRead(name, its.chars, its.chunks, its.findings, its.seconds, self._covers(its), its.has_failed)
            for name, its in self._accounts.items()
        ]

    def _covers(self, account: _DetectorFigures) -> bool:
        return not account.has_failed and all(count >= self._solid[part] for part, count in account.solid.items())


def _count_solid(text: str) -> int:
    """Characters that are no white space. Counted by kind: no pieces of a long text are made."""
    kinds = _ASCII_SPACES if text.isascii() else _SPACES
    return len(text) - sum(map(text.count, kinds))
