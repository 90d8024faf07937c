# SPDX-License-Identifier: Apache-2.0
"""Plugins for tests that raise or answer in a wrong shape, as their option `how` says."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockgate.gate.values import Chunk, Detection, Excerpt, Frame
from lockgate.interfaces import Headers

SECRET = "words of the implementation"
FINE: Any = Detection(0, 3, "One", "Number", "test", 1.0)


def _raise(_: Any) -> Any:
    raise KeyError(SECRET)


READINGS: Mapping[str, Any] = {
    "raises": _raise,
    "answers nothing": lambda _: None,
    "answers a string": lambda _: "none",
    "answers a list too few": lambda texts: [[] for _ in texts[1:]],
    "answers a list too many": lambda texts: [*[[] for _ in texts], []],
    "gives no list": lambda texts: [FINE for _ in texts],
    "gives dicts": lambda texts: [[FINE._asdict()] for _ in texts],
    "gives a place outside": lambda texts: [[FINE._replace(end=99)] for _ in texts],
    "gives a place before": lambda texts: [[FINE._replace(start=-3, end=0)] for _ in texts],
    "gives an empty place": lambda texts: [[FINE._replace(end=0, text="")] for _ in texts],
    "gives another text": lambda texts: [[FINE._replace(text="Ten")] for _ in texts],
    "gives a score in words": lambda texts: [[FINE._replace(score="high")] for _ in texts],
    "gives a score that is no number": lambda texts: [[FINE._replace(score=float("nan"))] for _ in texts],
    "gives no kind": lambda texts: [[FINE._replace(detection=None)] for _ in texts],
    "gives an object": lambda texts: [[FINE._replace(metadata={"its": object()})] for _ in texts],
}


class OddDetector:
    """Finds `One`, or does what `how` says."""

    types = ("text_contents", "text_chat")

    def __init__(self, how: str) -> None:
        self._how = how

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "OddDetector":
        if self._how == "refuses to begin":
            raise ZeroDivisionError(SECRET)
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Any:
        texts = [excerpt.text for excerpt in excerpts]
        if self._how in READINGS:
            return READINGS[self._how](texts)
        return [[FINE] if text.startswith("One") else [] for text in texts]

    async def review(self, subject: object) -> Any:
        return READINGS[self._how]([""])


@asynccontextmanager
async def open_odd_detector(options: Mapping[str, Any]) -> AsyncIterator[OddDetector]:
    yield OddDetector(options.get("how", ""))


CUTS: Mapping[str, Any] = {
    "raises": _raise,
    "cuts strings": lambda text: [text],
    "cuts at no integers": lambda text: [Chunk("0", len(text), text)],  # type: ignore[arg-type]
    "cuts bytes": lambda text: [Chunk(0, len(text), text.encode())],
    "leaves out text": lambda text: [Chunk(0, 3, text[:3])],
}


class OddChunker:
    """Cuts after the whole text, or as `how` says."""

    def __init__(self, how: str) -> None:
        self._cut = CUTS.get(how, lambda text: [Chunk(0, len(text), text)])

    async def cut(self, text: str) -> Any:
        return self._cut(text)

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Any, None]:
        text = "".join([frame.text async for frame in frames])
        for chunk in self._cut(text):
            yield chunk


@asynccontextmanager
async def open_odd_chunker(options: Mapping[str, Any]) -> AsyncIterator[OddChunker]:
    yield OddChunker(options.get("how", ""))
