# SPDX-License-Identifier: Apache-2.0
"""The protocols of replaceable parts. Factories make them (lockgate.plugins), `lockgate.testing` has fakes of them."""

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from lockgate.gate.prompt import AnswerGrounds
from lockgate.gate.values import (
    Chunk,
    Detection,
    Document,
    Excerpt,
    Frame,
    Generation,
    Health,
    Message,
    Subject,
)
from lockgate.index.fusion import Query
from lockgate.index.passages import DocumentEntry, IndexedDocument, Passage
from lockgate.sessions.turns import AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, Turn

Headers = Sequence[tuple[str, str]]
Part = TypeVar("Part", covariant=True)
Factory = Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Part]]
AnyFactory = TypeVar("AnyFactory", bound=Callable[..., Any])


class PartContext(Protocol):
    """What a part that runs here may use of the process around it."""

    @property
    def data_dir(self) -> Path:
        """Where weights lie."""

    def find_model(self, name: str) -> "Model":
        """A configured model; to be asked when a request comes, for at start not all are open. Raises KeyError."""

    async def share_embedder(self) -> "Embedder | None":
        """The embedder that all parts of this process share; None if its weights have not been fetched."""


@runtime_checkable
class ContextFactory(Protocol):
    """A factory that is called with a PartContext beside the options."""

    @property
    def takes_context(self) -> bool:
        """Always true; `with_context` sets it."""

    def __call__(self, options: Mapping[str, Any], context: PartContext) -> AbstractAsyncContextManager[Any]:
        """An async context manager of the part."""


def with_context(factory: AnyFactory) -> AnyFactory:
    """Mark a factory, a function or a class, as a ContextFactory."""
    factory.takes_context = True  # type: ignore[attr-defined]
    return factory


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The names of 0.6, for one release."""
        moved = {"House": "PartContext", "in_house": "with_context"}
        if name not in moved:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"{__name__}.{name} is now {moved[name]}", DeprecationWarning, stacklevel=2)
        return globals()[moved[name]]


class ChunkMachine(Protocol):
    """Cuts one text as it comes, without waiting; any cut of the text gives the same chunks."""

    def feed(self, text: str) -> Sequence[Chunk]:
        """The chunks that are certain now."""

    def finish(self) -> Sequence[Chunk]:
        """The rest; no text follows."""


class Chunker(Protocol):
    """Cuts text into what detectors read. Chunks come in order and do not overlap."""

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a text that is complete."""

    def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Chunks as soon as they are known, while the text still arrives; spans count from its first character."""


@runtime_checkable
class InPlaceChunker(Protocol):
    """A Chunker that never waits: streamed text is fed to a machine in place, without a task."""

    def build_machine(self) -> ChunkMachine:
        """A machine for one text."""


class Reading(Protocol):
    """A detector that has accepted one request's parameters."""

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The findings of each excerpt, spans relative to its `text`; one that begins in `before` starts below 0."""


@runtime_checkable
class SourceReading(Protocol):
    """A Reading that uses the names of the sources behind an answer."""

    def with_sources(self, paths: Collection[str]) -> Reading:
        """The reading of an answer that rests on documents of these sources."""


class Detector(Protocol):
    """Reads chunks and reports findings.

    One that is no TypedDetector reads contents, and stands in for reviewers by reading what was said last.
    """

    def accept(self, params: Mapping[str, Any], headers: Headers) -> Reading:
        """Check the parameters of one request, once; raises InvalidRequest with words for the caller."""


@runtime_checkable
class LookbehindDetector(Protocol):
    """A Detector that reads some text before a forced cut once more."""

    @property
    def lookbehind_chars(self) -> int:
        """How many characters before the cut; 0 for none."""


@runtime_checkable
class SharingDetector(Protocol):
    """A Detector whose readings have no state and pass no headers on. Others accept anew for each request."""

    @property
    def shares_readings(self) -> bool:
        """Whether one reading may serve several requests."""


@runtime_checkable
class TypedDetector(Protocol):
    """A Detector or Reviewer that runs here and says of which types it can be."""

    @property
    def types(self) -> Sequence[str]:
        """The types that settings may give it, for example `text_contents`."""


class Review(Protocol):
    """A reviewer that has accepted one request's parameters."""

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """The findings; their spans and text mean nothing."""


class Reviewer(Protocol):
    """A detector that reads no chunks but a whole chat, a prompt with its answer, or a text with its context."""

    def accept(self, params: Mapping[str, Any], headers: Headers) -> Review:
        """Check the parameters of one request, once; raises InvalidRequest with words for the caller."""


class Backend(Protocol):
    """A generation server. Messages are in its own words; errors are UpstreamError with words for the caller."""

    async def generate(self, request: Generation) -> dict[str, Any]:
        """The whole answer as one message."""

    def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """The messages of the answer as they come, those that came at once together; closing it stops the server."""

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """How many tokens the text has."""


@runtime_checkable
class RelayBackend(Protocol):
    """A Backend whose messages can pass as the bytes that they were."""

    def relay(self, request: Generation) -> AsyncGenerator[Sequence[bytes], None]:
        """The events of a streamed answer as they come, those that came at once together; closing it stops the server.

        Each is a message of the answer; its end is not among them.
        """


@runtime_checkable
class ModelLister(Protocol):
    """A Backend that can list its models."""

    async def list_models(self) -> Sequence[Any]:
        """The models as the server describes them; raises UpstreamError."""


@runtime_checkable
class Probe(Protocol):
    """A service whose health can be asked."""

    async def probe(self, headers: Headers) -> Health:
        """How it is now; never raises."""


class DataSource(Protocol):
    """Finds documents for a question."""

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The best documents first, at most `limit`."""


@runtime_checkable
class HybridSource(Protocol):
    """A DataSource that searches by words and by meaning. It is asked this way where keywords are known."""

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """The best documents first: by words for the query's keywords, by meaning for its question."""


class Model(Protocol):
    """Generates text."""

    def generate(
        self, messages: Sequence[Message], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        """The answer's frames as they come, those that came at once in a list; closing the iterator stops the model.

        `params`: `stream` (without it one frame), `max_tokens`, `temperature`, and what a TunableModel takes. A frame's
        fields may have `usage`, and `is_cut` where the answer was cut short. Errors are UpstreamError.
        """


@runtime_checkable
class GroundedModel(Protocol):
    """A Model that writes its own prompt for an answer from documents, as small models need.

    It is not asked this way where a request has its own system message.
    """

    def answer(self, grounds: AnswerGrounds, params: Mapping[str, Any]) -> AsyncGenerator[Frame | list[Frame], None]:
        """The answer to a question from its documents; otherwise like `Model.generate`."""


@runtime_checkable
class ChatModel(Protocol):
    """A Model whose server speaks OpenAI: completions go to it as they are."""

    @property
    def chat(self) -> Backend:
        """The chat completions of the model."""


@runtime_checkable
class TunableModel(Protocol):
    """A Model that says which parameters it takes, in OpenAI's words; others take `max_tokens` and `temperature`."""

    @property
    def takes(self) -> frozenset[str]:
        """The names of the parameters."""


@runtime_checkable
class NamedModel(Protocol):
    """A Model that has a name for logs and for the playground."""

    @property
    def known_as(self) -> str:
        """Its name."""


@runtime_checkable
class DescribedModel(Protocol):
    """A Model that says something about itself in the playground."""

    @property
    def note(self) -> str:
        """One line."""


class Embedder(Protocol):
    """Turns texts into vectors whose nearness is nearness in meaning."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, each of length 1; raises UpstreamError."""


@runtime_checkable
class NamedEmbedder(Protocol):
    """An Embedder that names its model: vectors of different models are never compared."""

    @property
    def model(self) -> str:
        """The model that makes the vectors; without this the name of the embedder's class is taken."""


class SessionStore(Protocol):
    """Keeps the turns of sessions. Several processes may use one store. Errors are UpstreamError.

    The options of its factory have `max_messages` and `retention_days` (None: without end) besides its own:
    `StoreLimits.read(options)` of `lockgate.sessions.turns` reads them.
    """

    def hold(self, key: SessionKey) -> AbstractAsyncContextManager[None]:
        """Lock a session in all processes that use the store; waits its turn. The lock ends with its process."""

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """The latest turns, at most `limit`, and, if a request id is given, the turn that was stored under it."""

    async def append(self, key: SessionKey, turn: Turn) -> None:
        """Add a turn, whole or not at all, on disk when this returns; only while one holds the session."""

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Note a turn that did not come to its end, where no prompt will find it."""


@runtime_checkable
class SessionArchive(Protocol):
    """What operators do with a store's sessions. A SessionStore without it is used, but not by `lockgate sessions`."""

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """All turns of a session that are kept, oldest first, the aborted ones too."""

    async def delete_session(self, key: SessionKey) -> bool:
        """Remove everything about a session; whether there was any."""


class PassageIndex(Protocol):
    """What fills an index that a DataSource searches. Errors are UpstreamError."""

    async def knows(self, document: IndexedDocument) -> bool:
        """Whether the document is there as it is, with vectors of its model if it has one."""

    async def add_document(
        self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[Sequence[float]] = ()
    ) -> None:
        """Put a document in, whole or not at all, in place of what came from the same source before."""

    async def list_documents(self) -> Sequence[DocumentEntry]:
        """All documents, by source."""

    async def remove_documents(self, sources: Sequence[str]) -> int:
        """Take documents out; how many were there."""
