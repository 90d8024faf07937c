# SPDX-License-Identifier: Apache-2.0
"""The embedded chunkers: paragraph, word and whole text. Any cut of the input gives the same chunks."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, ClassVar
from unicodedata import category

from lockgate.errors import ConfigError
from lockgate.gate.values import Chunk, Frame
from lockgate.interfaces import Chunker, ChunkMachine

# How far back a forced cut may move so as not to part a character from its marks. Beyond this it cuts anyway.
MAX_ADJUST_CHARS = 32
MIN_MAX_CHARS = 16
MAX_MAX_CHARS = 1_000_000
SENTENCE_MAX_CHARS = 2000
PARAGRAPH_MAX_CHARS = 8000
WORD_MAX_CHARS = 256

# A text longer than this is cut in a thread; a longer frame is fed in slices, so that other tasks can run.
_INLINE_CHARS = 8_000
_SLICE_CHARS = 2_000

_WHITE = re.compile(r"\s")
_NON_WHITE = re.compile(r"\S")
_LINE_END = re.compile(r"\r\n|[\r\n]")
_PARAGRAPH_CANDIDATE = re.compile("[\r\n\u2029]")

_ZERO_WIDTH_JOINER = "\u200d"
# Not of category M, but part of the character before: joiners, skin tones, tags, Hangul vowels and finals.
_EXTENDER = re.compile("[\u200c\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
_REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]{2}")

# Ideographs and kana: in these scripts without spaces, every character is a chunk.
_IDEOGRAPHS = "\u3005-\u3007\u3041-\u30fa\u30fd-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_OPENERS = "「『（《〈【〔“‘"
_WORD_CANDIDATE = re.compile(rf"\s|(?<![{_OPENERS}])[{_IDEOGRAPHS}{_OPENERS}]|(?<=[{_IDEOGRAPHS}])\w")


def is_joined(text: str, at: int) -> bool:
    """Whether a cut before `text[at]` would part a base and its marks, an emoji, a flag or CR LF."""
    following, previous = text[at], text[at - 1]
    if following <= "\u02ff":  # below the first combining mark
        return (previous == "\r" and following == "\n") or (previous == _ZERO_WIDTH_JOINER and not following.isspace())
    return (
        category(following)[0] == "M"
        or _EXTENDER.match(following) is not None
        or (previous == _ZERO_WIDTH_JOINER and not following.isspace())
        or _REGIONAL.match(text, at - 1) is not None
    )


def has_blank_line(gap: str) -> bool:
    """Whether white space between two words contains a blank line or a paragraph separator."""
    return "\u2029" in gap or len(_LINE_END.findall(gap)) > 1


class CuttingMachine(ABC):
    """Cuts where `_judge` allows it after a match of `_candidate`, or by force at the maximum."""

    _candidate: ClassVar[re.Pattern[str]]
    # How many characters after a boundary `_judge` may read.
    _guard_chars: ClassVar[int] = 0

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._held = ""
        self._start = 0
        # The open gap's start, or -1. A chunk opens with a gap at 0: white space there never ends a chunk.
        self._gap = 0
        self._scanned = 0
        self._is_finished = False

    def feed(self, text: str) -> list[Chunk]:
        """The chunks that are certain now."""
        if self._is_finished:
            raise RuntimeError("text was fed to a chunk machine that is finished")
        # With a single reference, a local one, CPython appends in place: a feed costs only its own length.
        held = self._held
        self._held = ""
        held += text
        # The common case, as `_take` would decide it: no place to cut in the new text, and room for more.
        if self._gap < 0 and len(held) <= self._max_chars and not self._candidate.search(held, self._scanned):
            self._scanned = len(held)
            self._held = held
            return []
        return self._take(held, is_final=False)

    def finish(self) -> list[Chunk]:
        """Returns the remaining chunks; nothing can be fed after this."""
        self._is_finished = True
        return self._take(self._held, is_final=True)

    @abstractmethod
    def _judge(self, text: str, begin: int, gap: int, at: int, is_final: bool) -> int | None:
        """Where the chunk from `begin` ends if it ends around `gap`..`at`, else 0; None if it needs more text.

        May read `text` from `begin` to `at + _guard_chars` only; more text must not change a result that is not None.
        """

    def _take(self, text: str, is_final: bool) -> list[Chunk]:
        chunks: list[Chunk] = []
        begin = 0
        while begin < len(text):
            end, is_torn = self._find(text, begin, is_final), False
            limit = begin + self._max_chars
            if not end and is_final and len(text) <= limit:
                end = len(text)
            # Only when the text reaches past the guard has every candidate up to the limit been judged.
            elif not end and (is_final or len(text) > limit + self._guard_chars):
                end, is_torn = self._force(text, begin, limit)
            if not end:
                break
            chunks.append(Chunk(self._start + begin, self._start + end, text[begin:end], is_torn))
            begin, self._gap, self._scanned = end, 0, 0
        self._start += begin
        self._held = text[begin:] if begin else text
        return chunks

    def _find(self, text: str, begin: int, is_final: bool) -> int:
        """The first natural end up to the maximum, or 0 if there is none or it is not known yet."""
        limit = min(len(text), begin + self._max_chars + 1)
        while True:
            if self._gap < 0:
                candidate = self._candidate.search(text, begin + self._scanned, limit)
                if candidate is None:
                    self._scanned = limit - begin
                    return 0
                self._gap = self._scanned = candidate.start() - begin
            next_word = _NON_WHITE.search(text, begin + self._scanned, limit)
            if next_word is None:
                self._scanned = limit - begin
                return 0
            at = next_word.start()
            self._scanned = at - begin
            end = self._judge(text, begin, begin + self._gap, at, is_final) if self._gap else 0
            if end is None:
                return 0
            if end and not is_joined(text, end):
                return end
            self._gap = -1
            self._scanned += 1

    def _force(self, text: str, begin: int, limit: int) -> tuple[int, bool]:
        """The cut at the maximum, after white space in its last quarter if there is any, and if it is torn."""
        quarter = limit - self._max_chars // 4
        for white in reversed(list(_WHITE.finditer(text, quarter, limit))):
            if not is_joined(text, white.end()):
                return white.end(), False
        nearest = range(limit, max(begin, limit - MAX_ADJUST_CHARS - 1), -1)
        end = next((at for at in nearest if not is_joined(text, at)), limit)
        return end, not text[end - 1].isspace()


class ParagraphMachine(CuttingMachine):
    """A paragraph ends after one or more blank lines."""

    _candidate = _PARAGRAPH_CANDIDATE

    def _judge(self, text: str, begin: int, gap: int, at: int, is_final: bool) -> int | None:
        return at if has_blank_line(text[gap:at]) else 0


class WordMachine(CuttingMachine):
    """A word ends after the white space that follows it; an ideograph or kana is a word by itself."""

    _candidate = _WORD_CANDIDATE

    def _judge(self, text: str, begin: int, gap: int, at: int, is_final: bool) -> int | None:
        return at


class WholeTextMachine:
    """The whole text is one chunk, also when it is empty."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._is_finished = False

    def feed(self, text: str) -> list[Chunk]:
        """No chunk: it is known at the end."""
        if self._is_finished:
            raise RuntimeError("text was fed to a chunk machine that is finished")
        self._parts.append(text)
        return []

    def finish(self) -> list[Chunk]:
        """The one chunk."""
        self._is_finished = True
        text = "".join(self._parts)
        self._parts.clear()
        return [Chunk(0, len(text), text)]


def cut(machine: ChunkMachine, text: str) -> list[Chunk]:
    """All chunks of a complete text."""
    return [*machine.feed(text), *machine.finish()]


class MachineChunker:
    """A `Chunker` that makes one machine per text."""

    def __init__(self, build_machine: Callable[[], ChunkMachine]) -> None:
        self.build_machine = build_machine

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a complete text."""
        machine = self.build_machine()
        if len(text) > _INLINE_CHARS:
            return await asyncio.to_thread(cut, machine, text)
        return [*machine.feed(text), *machine.finish()]

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Chunks as soon as they are known; spans count from the first character of the first frame."""
        machine = self.build_machine()
        async for frame in frames:
            for start in range(0, len(frame.text) or 1, _SLICE_CHARS):
                piece = frame.text[start : start + _SLICE_CHARS]
                for chunk in machine.feed(piece):
                    yield chunk
                if len(piece) == _SLICE_CHARS:
                    await asyncio.sleep(0)
        for chunk in machine.finish():
            yield chunk


def open_sentence_chunker(options: Mapping[str, Any]) -> AbstractAsyncContextManager[Chunker]:
    """One chunk per sentence. Options: `max_chars`."""
    # Imported here: nupunkt and its model are not loaded for the other chunkers.
    from lockgate.chunkers.sentences import SentenceMachine, load_stop_judge

    return _open(partial(SentenceMachine, _read_max_chars(options, SENTENCE_MAX_CHARS), load_stop_judge()))


def open_paragraph_chunker(options: Mapping[str, Any]) -> AbstractAsyncContextManager[Chunker]:
    """One chunk per paragraph. Options: `max_chars`."""
    return _open(partial(ParagraphMachine, _read_max_chars(options, PARAGRAPH_MAX_CHARS)))


def open_word_chunker(options: Mapping[str, Any]) -> AbstractAsyncContextManager[Chunker]:
    """One chunk per word. Options: `max_chars`."""
    return _open(partial(WordMachine, _read_max_chars(options, WORD_MAX_CHARS)))


def open_whole_text_chunker(options: Mapping[str, Any]) -> AbstractAsyncContextManager[Chunker]:
    """The whole text as one chunk. No options."""
    _refuse_unknown(options, ())
    return _open(WholeTextMachine)


@asynccontextmanager
async def _open(build_machine: Callable[[], ChunkMachine]) -> AsyncIterator[Chunker]:
    yield MachineChunker(build_machine)


def _read_max_chars(options: Mapping[str, Any], default: int) -> int:
    _refuse_unknown(options, ("max_chars",))
    value = options.get("max_chars", default)
    if isinstance(value, int) and not isinstance(value, bool) and MIN_MAX_CHARS <= value <= MAX_MAX_CHARS:
        return value
    message = f"must be a whole number from {MIN_MAX_CHARS} to {MAX_MAX_CHARS}, not {value!r}"
    raise ConfigError(message, source="options", key="max_chars")


def _refuse_unknown(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in options:
        if key not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "this chunker has no options"
            raise ConfigError(f"unknown option; {allowed}", source="options", key=str(key))
