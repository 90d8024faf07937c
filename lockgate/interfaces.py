# SPDX-License-Identifier: Apache-2.0
"""The protocols of replaceable parts. Factories open them (lockgate.plugins); `lockgate.testing` has fakes of them."""

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
    """The shared objects that a part in this process may use."""

    @property
    def data_dir(self) -> Path:
        """The folder with the weights."""

    def find_model(self, name: str) -> "Model":
        """A configured model; call it at a request, because at start not all are open. Raises KeyError."""

    async def share_embedder(self) -> "Embedder | None":
        """The embedder that all parts of this process share; None if its weights have not been fetched."""


@runtime_checkable
class ContextFactory(Protocol):
    """A factory that takes a PartContext besides the options."""

    @property
    def takes_context(self) -> bool:
        """Always true; `with_context` sets it."""

    def __call__(self, options: Mapping[str, Any], context: PartContext) -> AbstractAsyncContextManager[Any]:
        """An async context manager of the part."""


def with_context(factory: AnyFactory) -> AnyFactory:
    """Marks a factory, a function or a class, as a ContextFactory."""
    factory.takes_context = True  # type: ignore[attr-defined]
    return factory


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Objects by their names in 0.6, for one release."""
        moved = {"House": "PartContext", "in_house": "with_context"}
        if name not in moved:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"{__name__}.{name} is now {moved[name]}", DeprecationWarning, stacklevel=2)
        return globals()[moved[name]]


class ChunkMachine(Protocol):
    """Cuts one text as it arrives, without waiting; any cut of the text gives the same chunks."""

    def feed(self, text: str) -> Sequence[Chunk]:
        """The chunks that are certain now."""

    def finish(self) -> Sequence[Chunk]:
        """The remaining chunks; no text follows."""


class Chunker(Protocol):
    """Cuts text into chunks for detectors. Chunks come in order and do not overlap."""

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a complete text."""

    def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Yields chunks as soon as they are known, while the text arrives; spans count from its first character."""


@runtime_checkable
class InPlaceChunker(Protocol):
    """A Chunker that never waits: streamed text is fed to a machine in place, without a task."""

    def build_machine(self) -> ChunkMachine:
        """A machine for one text."""


class Reading(Protocol):
    """A detector that has accepted one request's parameters."""

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The findings of each excerpt, spans relative to its `text`; those from `before` start below 0."""


@runtime_checkable
class SourceReading(Protocol):
    """A Reading that uses the names of the sources behind an answer."""

    def with_sources(self, paths: Collection[str]) -> Reading:
        """The reading of an answer that uses documents of these sources."""


class Detector(Protocol):
    """Reads chunks and reports findings.

    One that is no TypedDetector reads contents; it can replace a reviewer, and then reads the last message.
    """

    def accept(self, params: Mapping[str, Any], headers: Headers) -> Reading:
        """Checks the parameters of one request, once; raises InvalidRequest with a message for the caller."""


@runtime_checkable
class LookbehindDetector(Protocol):
    """A Detector that reads some text before a forced cut again."""

    @property
    def lookbehind_chars(self) -> int:
        """How many characters before the cut; 0 for none."""


@runtime_checkable
class SharingDetector(Protocol):
    """A Detector whose readings have no state and forward no headers. Others are asked to `accept` for each request."""

    @property
    def shares_readings(self) -> bool:
        """Whether one reading may serve several requests."""


@runtime_checkable
class TypedDetector(Protocol):
    """A Detector or Reviewer in this process that lists the types it supports."""

    @property
    def types(self) -> Sequence[str]:
        """The types that settings may give it, for example `text_contents`."""


class Review(Protocol):
    """A reviewer that has accepted one request's parameters."""

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """The findings; their spans and text have no meaning."""


class Reviewer(Protocol):
    """A detector that reads a whole chat, a prompt with its answer, or a text with its context, and no chunks."""

    def accept(self, params: Mapping[str, Any], headers: Headers) -> Review:
        """Checks the parameters of one request, once; raises InvalidRequest with a message for the caller."""


class Backend(Protocol):
    """A generation server. Messages have the server's format; errors are UpstreamError with words for the caller."""

    async def generate(self, request: Generation) -> dict[str, Any]:
        """The whole answer as one message."""

    def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """Yields the messages of the answer as they arrive, grouped by arrival; closing it stops the server."""

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """How many tokens the text has."""


@runtime_checkable
class RelayBackend(Protocol):
    """A Backend that can pass its messages on as bytes, unchanged."""

    def relay(self, request: Generation) -> AsyncGenerator[Sequence[bytes], None]:
        """Yields the events of a streamed answer, grouped by arrival.

        Each is a message of the answer; the event that ends it is left out. Closing the iterator stops the server.
        """


@runtime_checkable
class ModelLister(Protocol):
    """A Backend that can list its models."""

    async def list_models(self) -> Sequence[Any]:
        """The models as the server describes them; raises UpstreamError."""


@runtime_checkable
class Probe(Protocol):
    """A service whose health can be checked."""

    async def probe(self, headers: Headers) -> Health:
        """The health now; never raises."""


class DataSource(Protocol):
    """Finds documents for a question."""

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """At most `limit` documents, the best first."""


@runtime_checkable
class HybridSource(Protocol):
    """A DataSource that searches by words and by meaning; `search_both` is called if keywords are known."""

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """Searches the keywords by words and the question by meaning; returns the best documents first."""


class Model(Protocol):
    """Generates text."""

    def generate(
        self, messages: Sequence[Message], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        """Yields the answer's frames as they arrive, those that arrive together as a list; closing it stops the model.

        `params`: `stream` (without it one frame), `max_tokens`, `temperature`, and those of a TunableModel. A frame's
        fields may have `usage`, `reasoning` (text of the model's reasoning, in a frame without text), and `is_cut` if
        the answer was cut short. Errors are UpstreamError.
        """


@runtime_checkable
class GroundedModel(Protocol):
    """A Model that writes its own prompt for an answer from documents, as small models need.

    `answer` is not called if a request has a system message.
    """

    def answer(self, grounds: AnswerGrounds, params: Mapping[str, Any]) -> AsyncGenerator[Frame | list[Frame], None]:
        """Answers a question from its documents; otherwise like `Model.generate`."""


@runtime_checkable
class ChatModel(Protocol):
    """A Model whose server has OpenAI's API: completions are sent to it unchanged."""

    @property
    def chat(self) -> Backend:
        """The chat completions of the model."""


@runtime_checkable
class TunableModel(Protocol):
    """A Model that lists its parameters, named as in OpenAI's API; others take `max_tokens` and `temperature`."""

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
    """A Model with a description for the playground."""

    @property
    def note(self) -> str:
        """One line."""


class Embedder(Protocol):
    """Turns texts into vectors; texts of similar meaning have near vectors."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, each of length 1; raises UpstreamError."""


@runtime_checkable
class NamedEmbedder(Protocol):
    """An Embedder that names its model: vectors of different models are never compared."""

    @property
    def model(self) -> str:
        """The model that makes the vectors; without this the name of the embedder's class is used."""


class SessionStore(Protocol):
    """Stores the turns of sessions. Several processes may use one store. Errors are UpstreamError.

    The options of its factory have `max_messages` and `retention_days` (None: no limit) besides its own:
    `StoreLimits.read(options)` of `lockgate.sessions.turns` reads them.
    """

    def hold(self, key: SessionKey) -> AbstractAsyncContextManager[None]:
        """Locks a session in all processes that use the store; waits for others. The lock ends with its process."""

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """At most `limit` of the latest turns and, if a request id is given, the turn stored under it."""

    async def append(self, key: SessionKey, turn: Turn) -> None:
        """Adds a turn, whole or not at all, on disk when this returns; the caller must hold the session."""

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Stores an aborted turn, which `load` never returns."""


@runtime_checkable
class SessionArchive(Protocol):
    """Lists, reads and deletes a store's sessions for operators. Without it `lockgate sessions` cannot use a store."""

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """All stored turns of a session, oldest first, the aborted ones too."""

    async def delete_session(self, key: SessionKey) -> bool:
        """Removes a session; returns whether there was one."""


class PassageIndex(Protocol):
    """Changes and lists the documents of an index. Errors are UpstreamError."""

    async def knows(self, document: IndexedDocument) -> bool:
        """Whether it has this version of the document, with vectors of its model, if any."""

    async def add_document(
        self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[Sequence[float]] = ()
    ) -> None:
        """Adds a document, whole or not at all; replaces the one of the same source."""

    async def list_documents(self) -> Sequence[DocumentEntry]:
        """All documents, sorted by source."""

    async def remove_documents(self, sources: Sequence[str]) -> int:
        """Removes documents; returns how many there were."""
