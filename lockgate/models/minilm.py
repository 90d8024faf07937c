# SPDX-License-Identifier: Apache-2.0
"""The local embedder: all-MiniLM-L6-v2 on onnxruntime in one thread; calls take turns batch by batch."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.errors import ConfigError, Unavailable
from lockgate.models.onnx_session import find_missing_package, open_session, read_graph
from lockgate.models.wordpiece import WordPieces, load_vocabulary

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

DIMENSIONS = 384
MAX_TOKENS = 256
MAX_TEXT_CHARS = 16_384  # far more than MAX_TOKENS; the rest is not read
WINDOW_TEXTS = 256  # tokenized and sorted by length at once
BATCH_TEXTS, BATCH_TOKENS = 32, 256  # about 0.1 s on one core; larger batches are not faster per text
MAX_CALLS = 256  # waiting or running
RECENT, RECENT_CHARS = 64, 4096  # cached vectors of questions: a turn often embeds its question twice

SERVICE = "embedder"
WEIGHTS_NAME, VOCABULARY_NAME = "model.safetensors", "vocab.txt"
HEADER_BYTES, HEADER_SHA256 = 11_416, "2291ac9b8d5083595cd6a1787e01d694a893af92bc706faf1511231affe822e8"
"""The weight file's header has each tensor's place. The graph contains these places."""

Numbers = list[int]
Vector = list[float]


class Minilm:
    """An Embedder. Vectors have 384 numbers; of a long text the first 256 tokens count."""

    model = "all-MiniLM-L6-v2"

    def __init__(self, pieces: WordPieces, session: "InferenceSession", thread: ThreadPoolExecutor) -> None:
        self._pieces = pieces
        self._session = session
        self._thread = thread
        self._calls = 0
        self._recent: dict[str, Vector] = {}

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """Returns one vector of length 1 per text; raises Unavailable while too many calls wait."""
        known = self._recent.get(texts[0]) if len(texts) == 1 else None
        if known is not None:
            return [known]
        if self._calls >= MAX_CALLS:
            raise Unavailable(SERVICE, f"the embedder is busy: {MAX_CALLS} calls wait for it")
        vectors: list[Vector] = []
        self._calls += 1
        try:
            for start in range(0, len(texts), WINDOW_TEXTS):
                vectors.extend(await self._embed_window(texts[start : start + WINDOW_TEXTS]))
        finally:
            self._calls -= 1
        if len(texts) == 1 and len(texts[0]) <= RECENT_CHARS:
            self._recent[texts[0]] = vectors[0]
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
        return vectors

    async def _embed_window(self, texts: Sequence[str]) -> list[Vector]:
        """Takes a turn per batch; the first turn also tokenizes the texts, so one question takes one turn."""
        loop = asyncio.get_running_loop()
        rows, (batch, *batches), several = await loop.run_in_executor(self._thread, self._begin, texts)
        found = dict(zip(batch, several, strict=True))
        for batch in batches:
            several = await loop.run_in_executor(self._thread, self._run, [rows[at] for at in batch])
            found.update(zip(batch, several, strict=True))
        return [found[at] for at in range(len(texts))]

    def _begin(self, texts: Sequence[str]) -> tuple[list[Numbers], list[list[int]], list[Vector]]:
        rows = [self._pieces.encode(text[:MAX_TEXT_CHARS], MAX_TOKENS) for text in texts]
        batches = list(cut_batches([len(row) for row in rows]))
        return rows, batches, self._run([rows[at] for at in batches[0]])

    def _run(self, rows: Sequence[Numbers]) -> list[Vector]:
        import numpy as np

        ids = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
        mask = np.zeros(ids.shape, np.float32)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1.0
        try:
            (vectors,) = self._session.run(["vectors"], {"ids": ids, "mask": mask})
        except Exception as error:  # onnxruntime's errors have no other common parent
            raise Unavailable(SERVICE, "the embedder failed") from error
        found: list[Vector] = vectors.tolist()
        return found


def cut_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields the places of texts for each batch: of similar length, longest first, few enough to be quick."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        is_full = batch and (len(batch) == BATCH_TEXTS or (len(batch) + 1) * lengths[batch[0]] > BATCH_TOKENS)
        if is_full:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


@asynccontextmanager
async def open_minilm(weights: Path, threads: int = 1) -> AsyncIterator[Minilm]:
    """Loads the weight files of a folder; raises ConfigError if they or a package are unusable."""
    thread = ThreadPoolExecutor(1, "lockgate-embedder")
    try:
        pieces, session = await asyncio.get_running_loop().run_in_executor(thread, _load, weights, threads)
        yield Minilm(pieces, session, thread)
    finally:
        await asyncio.to_thread(thread.shutdown, cancel_futures=True)


def _load(weights: Path, threads: int) -> "tuple[WordPieces, InferenceSession]":
    if missing := find_missing_package():
        raise ConfigError(f"the embedder needs {missing}: pip install 'lockgate[agent]'", source="embeddings")
    try:
        with (weights / WEIGHTS_NAME).open("rb") as file:
            if hashlib.sha256(file.read(HEADER_BYTES)).hexdigest() != HEADER_SHA256:
                raise ValueError(f"{WEIGHTS_NAME} is not the weight file that the graph belongs to")
        return load_vocabulary(weights / VOCABULARY_NAME), open_session(read_graph("minilm.onnx"), weights, threads)
    except Exception as error:  # onnxruntime's errors have no other common parent
        message = f"the weights of the embedder cannot be used ({error}): run `lockgate setup`"
        raise ConfigError(message, source=str(weights)) from error
