# SPDX-License-Identifier: Apache-2.0
"""Sources and models of plugins for tests that raise or answer in a wrong shape, as their option `how` says."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from lockgate.gate.values import Document, Frame
from tests.server.odd_plugins import SECRET


def _raise(_: Any = None) -> Any:
    raise KeyError(SECRET)


DOCUMENT: Any = Document("Tea", "The kettle boils.", 0.9)
SEARCHES: Mapping[str, Any] = {
    "raises": _raise,
    "finds nothing at all": lambda: None,
    "finds strings": lambda: ["The kettle boils."],
    "finds a generator": lambda: (one for one in [DOCUMENT]),
    "finds a document without text": lambda: [DOCUMENT._replace(text=None)],
    "finds a document without title": lambda: [DOCUMENT._replace(title=None)],
    "finds a document with a score in words": lambda: [DOCUMENT._replace(score="high")],
    "finds a document from nowhere": lambda: [DOCUMENT._replace(source=5)],
}


class OddSource:
    """Finds one document, or does what `how` says."""

    def __init__(self, how: str) -> None:
        self._search = SEARCHES.get(how, lambda: [DOCUMENT])

    async def search(self, question: str, limit: int) -> Any:
        return self._search()


@asynccontextmanager
async def open_odd_source(options: Mapping[str, Any]) -> AsyncIterator[OddSource]:
    yield OddSource(options.get("how", ""))


FRAMES: Mapping[str, Any] = {
    "raises": _raise,
    "says strings": lambda: "Tea.",
    "says a list of strings": lambda: ["Tea."],
    "says no text": lambda: Frame(0, None),  # type: ignore[arg-type]
    "says bytes": lambda: Frame(0, b"Tea."),  # type: ignore[arg-type]
    "says nothing": lambda: None,
}


class OddModel:
    """Says one word, or does what `how` says."""

    def __init__(self, how: str) -> None:
        self._how = how

    async def generate(self, messages: Any, params: Any) -> AsyncGenerator[Any, None]:
        yield FRAMES[self._how]() if self._how in FRAMES else Frame(0, "Tea.")


@asynccontextmanager
async def open_odd_model(options: Mapping[str, Any]) -> AsyncIterator[OddModel]:
    yield OddModel(options.get("how", ""))
