# SPDX-License-Identifier: Apache-2.0
"""Reports texts that their documents do not support; runs in short slices on the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from operator import mul
from typing import Any, Final, NamedTuple, TypeVar

from lockgate.chunkers.sentences import SentenceMachine, load_stop_judge
from lockgate.detectors.groundedness.claims import Assertion, read_claim
from lockgate.detectors.groundedness.grounds import Judgement, SourceFacts, Steps
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import TEXT_CONTEXT_DOC, Chunk, Claim, Detection, Subject
from lockgate.interfaces import Embedder, Headers, PartContext, with_context
from lockgate.models.onnx_session import find_missing_package
from lockgate.params import Params

KNOWN = ()
NAME: Final = "groundedness"
MIN_SCORE: Final = 0.5
MAX_CLAIM_CHARS: Final = 32_768
MAX_DOCUMENTS: Final = 256
MAX_DOCUMENTS_CHARS: Final = 131_072
MAX_SENTENCES: Final = 512
MAX_SENTENCE_CHARS: Final = 1_000
BEST_CHARS: Final = 200
_MAX_REASONS = 8
_FED_CHARS = 1_000  # given to the sentence splitter in one step
_MAX_KEPT = 2  # sets of documents per request; mostly all claims are compared with the same

SLICE_S: Final = 0.002

T = TypeVar("T")
Vector = Sequence[float]


async def run_in_slices(steps: Steps[T], turn: asyncio.Lock) -> T:
    """Runs the steps in slices, alternating with callers that share `turn`; the event loop runs between."""
    with closing(steps):
        while True:
            async with turn:
                until = time.perf_counter() + SLICE_S
                try:
                    while time.perf_counter() < until:
                        next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    await asyncio.sleep(0)  # with the lock held, so that the loop runs before the next slice


class Book:
    """The facts in a request's documents; the vectors of their sentences are added when needed."""

    def __init__(self, documents: Sequence[str], grounds: SourceFacts, *, is_whole: bool) -> None:
        self.documents = documents  # kept, since it is found by identity
        self.grounds = grounds
        self.is_whole = is_whole
        self.vectors: dict[int, Vector] = {}

    @classmethod
    def read(cls, documents: Sequence[str]) -> "Steps[Book]":
        """Reads the documents up to the limits of characters and sentences."""
        texts, is_whole = _share_out(documents)
        sentences: list[list[str]] = []
        for text in texts:
            several = yield from _split(text)
            sentences.append(several)
        chosen = _choose_sentences(sentences)
        yield
        grounds = yield from SourceFacts.read(chosen)
        return cls(documents, grounds, is_whole=is_whole and sum(map(len, chosen)) == sum(map(len, sentences)))

    def plan(self, text: str) -> "Steps[list[Plan]]":
        """Finds the assertions of a text and the sentences to compare each with."""
        sentences = yield from _split(text)
        plans: list[Plan] = []
        for sentence in sentences:
            for one in read_claim(sentence, self.grounds.language):
                yield
                places = yield from self.grounds.find_candidates(one)
                plans.append(Plan(one, tuple(places)))
            yield
        return plans

    def judge(self, plans: "Sequence[Plan]", vectors: Sequence[Vector]) -> Steps[list[Judgement]]:
        """Judges how surely each assertion, given with its vector, is not supported."""
        judged: list[Judgement] = []
        for plan, vector in zip(plans, vectors, strict=True):
            nearness = {at: sum(map(mul, vector, self.vectors[at])) for at in plan.places}
            yield
            judged.append((yield from self.grounds.weigh(plan.assertion, nearness)))
        return judged


class Plan(NamedTuple):
    """An assertion and the places of the sentences that may support it."""

    assertion: Assertion
    places: tuple[int, ...]


class GroundednessReview:
    """Compares the claims of one request."""

    def __init__(self, embedder: Embedder, turn: asyncio.Lock) -> None:
        self._embedder = embedder
        self._turn = turn
        self._books: list[Book] = []
        self._lock = asyncio.Lock()

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """Returns one finding, about the weakest part, if any part of the text is not supported."""
        claim = _check(subject)
        if not claim.content.strip():
            return ()
        book = await self._open_book(claim.context)
        plans = await run_in_slices(book.plan(claim.content), self._turn)
        if not plans:
            return ()
        vectors = await self._embed(book, plans)
        judged = await run_in_slices(book.judge(plans, vectors), self._turn)
        worst = max(judged, key=lambda one: one.score)
        return [_build_finding(worst, judged, book)] if worst.score >= MIN_SCORE else ()

    async def _open_book(self, documents: Sequence[str]) -> Book:
        """Reads the documents once, also for claims that come at the same time."""
        async with self._lock:
            for known in self._books:
                if known.documents is documents:
                    return known
            book = await run_in_slices(Book.read(documents), self._turn)
            self._books = [*self._books[-_MAX_KEPT + 1 :], book]
            return book

    async def _embed(self, book: Book, plans: Sequence[Plan]) -> Sequence[Vector]:
        """Returns the vectors of the assertions; those of the sentences are kept in the book."""
        async with self._lock:
            missing = dict.fromkeys(at for plan in plans for at in plan.places if at not in book.vectors)
            sentences = [book.grounds.sentences[at].traits.text for at in missing]
            vectors = await self._embedder.embed([*(plan.assertion.text for plan in plans), *sentences])
            book.vectors.update(zip(missing, vectors[len(plans) :], strict=True))
        return vectors[: len(plans)]


class GroundednessDetector:
    """Reports texts that their documents do not support."""

    types = (TEXT_CONTEXT_DOC,)

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._turn = asyncio.Lock()  # shared by all requests

    def accept(self, params: Mapping[str, Any], headers: Headers) -> GroundednessReview:
        Params.of_request(params, KNOWN)
        return GroundednessReview(self._embedder, self._turn)


def _check(subject: Subject) -> Claim:
    if not isinstance(subject, Claim):
        raise InvalidRequest("groundedness needs a text and the documents that it is compared with")
    if subject.context_type != "docs":
        raise InvalidRequest("`context_type` must be `docs`: this detector follows no URL, send the documents")
    if len(subject.content) > MAX_CLAIM_CHARS:
        raise InvalidRequest(
            f"the text has {len(subject.content)} characters, at most {MAX_CLAIM_CHARS} can be compared"
        )
    return subject


def _share_out(documents: Sequence[str]) -> tuple[list[str], bool]:
    """Shortens documents to one length at the limit; returns whether they are complete."""
    taken = documents[:MAX_DOCUMENTS]
    if len(taken) == len(documents) and sum(map(len, taken)) <= MAX_DOCUMENTS_CHARS:
        return list(taken), True
    room = MAX_DOCUMENTS_CHARS // len(taken)
    return [text[:room] for text in taken], False


def _split(text: str) -> Steps[list[str]]:
    machine = SentenceMachine(MAX_SENTENCE_CHARS, load_stop_judge())
    chunks: list[Chunk] = []
    for start in range(0, len(text), _FED_CHARS):
        chunks += machine.feed(text[start : start + _FED_CHARS])
        yield
    chunks += machine.finish()
    return [plain for chunk in chunks if (plain := chunk.text.strip())]


def _choose_sentences(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """Takes the first sentences of each document, in turns up to the limit."""
    counts = [0] * len(sentences)
    room = MAX_SENTENCES
    longer = list(range(len(sentences)))
    while room and (longer := [at for at in longer if counts[at] < len(sentences[at])]):
        for at in longer[:room]:
            counts[at] += 1
        room -= min(room, len(longer))
    return [list(several[:count]) for several, count in zip(sentences, counts, strict=True)]


def _build_finding(worst: Judgement, judged: Sequence[Judgement], book: Book) -> Detection:
    """Builds the finding. `reasons` and `best` quote texts; they are removed where the text is hidden."""
    reported = [one for one in sorted(judged, key=lambda one: -one.score) if one.score >= MIN_SCORE]
    reasons = dict.fromkeys(str(reason) for one in reported for reason in one.reasons)
    metadata: dict[str, Any] = {"reasons": list(reasons)[:_MAX_REASONS]}
    if worst.nearest:
        metadata["best"] = worst.nearest[:BEST_CHARS]
    if not book.is_whole:
        metadata["documents_cut"] = True
    return Detection(0, 0, "", "Ungrounded", NAME, worst.score, metadata=metadata)


@with_context
@asynccontextmanager
async def open_groundedness_detector(
    options: Mapping[str, Any], context: PartContext
) -> AsyncIterator[GroundednessDetector]:
    """Reports texts that their documents do not support. No options."""
    Params.of_options(options, KNOWN)
    if missing := find_missing_package():
        message = f"the detector `{NAME}` needs {missing}: pip install 'lockgate[detectors]'"
        raise ConfigError(message, source="plugins", key=NAME)
    embedder = await context.share_embedder()
    if embedder is None:
        message = f"no weights of `minilm` in {context.data_dir}: run `lockgate setup`"
        raise ConfigError(message, source=str(context.data_dir))
    await asyncio.to_thread(load_stop_judge)
    yield GroundednessDetector(embedder)
