# SPDX-License-Identifier: Apache-2.0
"""The five protocols behind which everything replaceable stands.

Each part is made by a factory `(options) -> async context manager of the part`, found by entry point
(lockgate.plugins). `lockgate.testing` has public fakes of all of them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from lockgate.core.values import Chunk, Detection, Document, Excerpt, Frame, Message

Part = TypeVar("Part", covariant=True)
Factory = Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Part]]


class Chunker(Protocol):
    """Cuts text into what detectors read. Chunks come in order and do not overlap."""

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a text that is complete."""

    def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Chunks as soon as they are known, while the text still arrives; spans count from its first character."""


class Reading(Protocol):
    """A detector that has accepted one request's parameters."""

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The findings of each excerpt, spans relative to its `text`; one that begins in `before` starts below 0."""


class Detector(Protocol):
    """Reads chunks and reports findings."""

    @property
    def lookbehind_chars(self) -> int:
        """How far the detector wants to see back over a forced cut; 0 for never."""

    def accept(self, params: Mapping[str, Any], headers: Mapping[str, str]) -> Reading:
        """Check the parameters of one request, once; raises InvalidRequest with words for the caller."""


class DataSource(Protocol):
    """Finds documents for a question."""

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The best documents first, at most `limit`."""


class Model(Protocol):
    """Generates text."""

    def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """The answer's frames as they come; closing the iterator stops the model."""


class SessionStore(Protocol):
    """Keeps the turns of a conversation."""

    async def append(self, session: str, messages: Sequence[Message]) -> None:
        """Add one turn, whole or not at all."""

    async def load(self, session: str) -> Sequence[Message]:
        """All messages of the session, oldest first."""
