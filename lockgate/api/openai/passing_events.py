# SPDX-License-Identifier: Apache-2.0
"""Streams of completions under a policy that holds nothing: messages pass as they came, and all lanes are read beside.

`PassingEvents` tells at the end what was found; `ShadowEvents` tells nobody. A message that may be the last one waits
for the next, as the last event bears the receipt. Decides nothing about findings and never changes a text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lockgate.api.openai.deltas import CALLS_LANE, CONTENT, CONTENT_LANE, list_lane_texts
from lockgate.api.openai.events import Events, Manner
from lockgate.api.openai.format import Asked
from lockgate.api.openai.tool_calls import list_call_texts
from lockgate.api.openai.whole_answer import Dialect
from lockgate.gate.arguments import ArgumentsDecoder
from lockgate.gate.release import Release
from lockgate.gate.values import Frame
from lockgate.gate.verdicts import Verdict

_MESSAGES = 0  # the lane in which messages pass


class PassingEvents(Events):
    """Every message as it came, at once; its texts are read beside."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._lanes = manner.lanes or frozenset()
        self._reads_content = CONTENT_LANE in self._lanes or not self._is_chat
        self._places: dict[tuple[int, str], int] = {}  # the lanes of texts
        self._texts: list[tuple[int, str]] = [(0, "")]  # and back
        self._decoders: dict[int, ArgumentsDecoder] = {}  # by lane
        self._waiting: list[Mapping[str, Any]] = []  # a message that may be the last

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message without a text, in a lane of its own, and its texts in theirs."""
        number = self._count
        self._count += 1
        frames = [Frame(number, "", _MESSAGES, message)]
        if not message["choices"]:
            self._note_bare(message)
        for index, choice, _ in self._split(message):
            text = self._text_of(choice)
            if not self._remember(index, choice, text).is_read:
                continue
            if text and self._reads_content:
                frames.append(Frame(number, text, self._find_lane(index, CONTENT)))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                frames += self._read_others(number, index, delta)
        return frames

    def _read_others(self, number: int, index: int, delta: Mapping[str, Any]) -> Iterable[Frame]:
        for field, words in list_lane_texts(delta, self._lanes):
            yield Frame(number, words, self._find_lane(index, field))
        for call in list_call_texts(delta) if CALLS_LANE in self._lanes else ():
            lane = self._find_lane(index, call.field)
            plain = call.text
            if call.is_json:
                plain = self._decoders.setdefault(lane, ArgumentsDecoder()).feed(plain)
            if plain:
                yield Frame(number, plain, lane)

    def _find_lane(self, index: int, field: str) -> int:
        lane = self._places.get((index, field))
        if lane is None:
            lane = self._places[index, field] = len(self._texts)
            self._texts.append((index, field))
        return lane

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The messages that came; of texts what was found in them is kept for the end."""
        if release.choice != _MESSAGES:
            self._note_late(*self._texts[release.choice], release)
            return b""
        parts = []
        for frame in release.frames:
            assert frame.fields is not None
            parts += [self._encode(one) for one in self._waiting]
            self._waiting = [frame.fields] if _may_be_last(frame.fields) else []
            parts += [] if self._waiting else [self._encode(frame.fields)]
        return b"".join(parts)

    def finish(self) -> bytes:
        """The end of the stream."""
        return self._encode_last(self._build_last([dict(one) for one in self._waiting]))


class ShadowEvents(PassingEvents):
    """The same in shadow: nobody hears what was found."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner._replace(trailing=frozenset()))
        self._tells_late = False

    def _late_detections(self) -> dict[str, Any]:
        return {}

    def _late_warnings(self) -> list[dict[str, str]]:
        return self.warnings


def _may_be_last(message: Mapping[str, Any]) -> bool:
    """Whether a message ends a choice, or has none."""
    choices = message["choices"]
    return not choices or any(one.get("finish_reason") is not None for one in choices)
