# SPDX-License-Identifier: Apache-2.0
"""Receipt: records the text of a request that each detector read, whether it covers the released text, and the outcome.

It counts the characters given to detectors and the characters released, and compares them at the end. So the receipt
would show an error of the gate. White space that a chunker drops does not have to be read.

FrameChain: one digest of all released text in order; any change of the text changes it. Each frame is hashed with the
previous digest, the name of its lane and both lengths, so different sequences of frames never give the same bytes.
docs/receipts.md describes the steps. The digest is not a signature: any program can compute a chain.
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
_LANE_BYTES, _TEXT_BYTES = 4, 8  # the widths of the two lengths


class RequestPart(StrEnum):
    """The parts of a request that detectors read."""

    PROMPT = "prompt"
    FIELDS = "fields"  # names, keys, ids, schemas and headers of the request
    DOCUMENTS = "documents"
    ANSWER = "answer"
    SOURCES = "sources"  # the documents that an answer shows


class Outcome(IntEnum):
    """The outcome of a request, from mild to strict; in shadow mode, the outcome that `enforce` would have had."""

    RELEASED = 0  # unchanged
    MASKED = 1  # some text was masked, or a document dropped; the rest was used
    STOPPED = 2  # the answer ended at a finding
    BLOCKED = 3  # the prompt or the answer was blocked
    FAILED = 4  # the request ended with an error because a required detector failed


_OUTCOMES = {
    "annotate": Outcome.RELEASED,
    "flag": Outcome.RELEASED,
    **{action.name.lower(): Outcome.MASKED for action in REPLACING},
    "drop": Outcome.MASKED,
    "stop": Outcome.STOPPED,
    "block": Outcome.BLOCKED,
} | {outcome.name.lower(): outcome for outcome in Outcome}


class DetectorRead(NamedTuple):
    """One detector's work: the characters that it read of each part, and whether they cover the released text."""

    detector_id: str
    chars: dict[RequestPart, int]
    chunks: int
    findings: int
    seconds: float
    is_covered: bool
    has_failed: bool = False
    cached: int = 0  # those of the characters that an earlier request had read


@dataclass(slots=True)
class _DetectorFigures:
    """The counts of one detector so far."""

    chars: dict[RequestPart, int] = field(default_factory=dict)
    solid: dict[RequestPart, int] = field(default_factory=dict)
    chunks: int = 0
    findings: int = 0
    seconds: float = 0.0
    has_failed: bool = False
    cached: int = 0


@dataclass(slots=True, eq=False)
class FrameChain:
    """Computes one digest over frames; frames without text do not count."""

    frames: int = 0
    _digest: bytes = _START
    _lane: str = ""  # the lane of the last frame, cached because the next frame usually has the same
    _head: bytes = bytes(_LANE_BYTES)

    def add(self, lane: str, text: str) -> None:
        """Adds a text released in this lane."""
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
        """The current digest in hexadecimal digits."""
        return self._digest.hex()


class Receipt:
    """The counts of one request, its policy, its outcome and the digest of its released frames."""

    def __init__(self, policy: str = "", *, is_shadow: bool = False, lanes: Sequence[str] = _ONE_LANE) -> None:
        self.policy = policy
        self.is_shadow = is_shadow
        self.lanes = tuple(lanes)  # the lanes of an answer that detectors read
        self.outcome = Outcome.RELEASED
        self.chain = FrameChain()
        self.released = dict.fromkeys((RequestPart.PROMPT, RequestPart.DOCUMENTS, RequestPart.ANSWER), 0)
        self.unread: dict[str, int] = {}  # by field: texts that went on and that no detector could read
        self.dropped: dict[str, int] = {}  # by field: values of an answer that were left out
        self.prompt_sent_to: list[str] | None = None  # sources and model that got it; None: not recorded
        self._figures: dict[str, _DetectorFigures] = {}
        self._solid = dict.fromkeys(RequestPart, 0)

    def expect(self, detector_id: str, part: RequestPart) -> None:
        """Records that the detector has to read this part."""
        figures = self._figures.setdefault(detector_id, _DetectorFigures())
        figures.chars.setdefault(part, 0)
        figures.solid.setdefault(part, 0)

    def note_read(self, detector_id: str, part: RequestPart, texts: Iterable[str], seconds: float) -> None:
        """Counts chunks of the part that the detector has read."""
        figures = self._figures[detector_id]
        figures.seconds += seconds
        for text in texts:
            figures.chunks += 1
            figures.chars[part] += len(text)
            figures.solid[part] += _count_solid(text)

    def note_cached(self, detector_id: str, part: RequestPart, text: str) -> None:
        """Counts a text of the part that the detector has read for an earlier request."""
        self.expect(detector_id, part)
        figures = self._figures[detector_id]
        figures.chars[part] += len(text)
        figures.solid[part] += _count_solid(text)
        figures.cached += len(text)

    def note_exempt(self, detector_id: str, part: RequestPart, text: str) -> None:
        """Records that the detector need not read this text of the part, because of its message's role."""
        solid = self._figures[detector_id].solid
        if part in solid:
            solid[part] += _count_solid(text)

    def note_failure(self, detector_id: str, *, ends: bool = False) -> None:
        """Records a failure of the detector. `ends`: it ends the request, or would outside shadow mode."""
        self._figures.setdefault(detector_id, _DetectorFigures()).has_failed = True
        if ends:
            self.note_action(Outcome.FAILED)

    def note_finding(self, detector_id: str) -> None:
        """Counts a reported finding of the detector."""
        figures = self._figures.get(detector_id)
        if figures is not None:
            figures.findings += 1

    def note_action(
        self, action: Outcome | Action | DocumentAction | str, part: RequestPart = RequestPart.ANSWER
    ) -> None:
        """Records an action; the strictest becomes the outcome. An action on documents counts as `masked` at most."""
        word = action if isinstance(action, str) else action.name.lower()
        outcome = _OUTCOMES.get(word)
        if outcome is None:
            raise RuntimeError(f"`{word}` is no action")
        if part is RequestPart.DOCUMENTS and outcome is not Outcome.FAILED:
            outcome = min(outcome, Outcome.MASKED)
        self.outcome = max(self.outcome, outcome)

    def note_released(self, part: RequestPart, text: str) -> None:
        """Counts text sent on to a source, the model or the client."""
        self.released[part] = self.released.get(part, 0) + len(text)
        self._solid[part] += _count_solid(text)

    def reset_released(self, part: RequestPart) -> None:
        """Resets the counts of released text of the part, when none of it was sent."""
        self.released[part] = self._solid[part] = 0

    def note_dropped(self, part: RequestPart, chars: int) -> None:
        """Subtracts released characters that were not sent because the answer ended earlier."""
        self.released[part] -= chars

    def note_withheld(self, part: RequestPart, text: str) -> None:
        """Counts text that was read and withheld, so that reading it cannot stand for unread released text."""
        self._solid[part] += _count_solid(text)

    def note_unread(self, field: str, count: int = 1) -> None:
        """Counts values of this field that went on unread."""
        self.unread[field] = self.unread.get(field, 0) + count

    def note_left_out(self, field: str, count: int = 1) -> None:
        """Counts values of this field of an answer that were left out, because no detector could read them."""
        self.dropped[field] = self.dropped.get(field, 0) + count

    @property
    def is_covered(self) -> bool:
        """Whether every detector has read all released text of its parts, and nothing else went on unread."""
        return not self.unread and all(map(self._covers, self._figures.values()))

    def list_reads(self) -> list[DetectorRead]:
        """Returns every detector's counts, in the order of `expect` calls."""
        return [
            DetectorRead(
                name,
                figures.chars,
                figures.chunks,
                figures.findings,
                figures.seconds,
                self._covers(figures),
                figures.has_failed,
                figures.cached,
            )
            for name, figures in self._figures.items()
        ]

    def _covers(self, figures: _DetectorFigures) -> bool:
        return not figures.has_failed and all(count >= self._solid[part] for part, count in figures.solid.items())


def _count_solid(text: str) -> int:
    """Counts characters that are not white space, without splitting a long text."""
    kinds = _ASCII_SPACES if text.isascii() else _SPACES
    return len(text) - sum(map(text.count, kinds))
