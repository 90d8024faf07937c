# SPDX-License-Identifier: Apache-2.0
"""Recall of the embedded index on a set of our own, and how long a search takes.

The set was written, and stored in the repository, before the index was tuned. Half of its questions use the words of
their passage, half share no content word with it. The search by words gets the question as it is, for no model is at
hand that would make keywords of it.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import Effort, Row, leave_out_of_collections
from lockgate.index.fts import FtsDataSource, open_index
from lockgate.index.fusion import Query
from lockgate.index.hybrid_search import name_model
from lockgate.index.passages import IndexedDocument, Passage, text_to_embed
from lockgate.interfaces import Embedder
from lockgate.models.minilm import DIMENSIONS, open_minilm
from lockgate.models.weights import find_weights
from lockgate.telemetry.log import SILENT, logger

BEST = 8  # how many passages an agent is given
MAY_BEHIND = 2  # questions, on each half
LEXICAL, VECTOR, HYBRID = "lexical", "vector", "hybrid"
KINDS = ("words", "paraphrase")
_NO_KEYWORDS = "-"  # the search by words finds nothing
_HERE = Path(__file__).parent
_SEARCHES = 200
_PASSAGE_WORDS, _TITLE_WORDS = 60, 3


class Question(NamedTuple):
    """A question and the passage that answers it."""

    id: str
    kind: str
    question: str
    passage: str


class Text(NamedTuple):
    """A passage of the set."""

    id: str
    title: str
    text: str


class Recall(NamedTuple):
    """How many questions of each kind had their passage among the best, and how many there were."""

    found: Mapping[str, int]
    asked: Mapping[str, int]

    @property
    def whole(self) -> int:
        """Found of all kinds."""
        return sum(self.found.values())


def measure_retrieval(effort: Effort) -> list[Row]:
    """Recall of each search and of both, then the time that a search takes."""
    weights = find_weights(Path(os.environ.get("LOCKGATE_DATA_DIR", _HERE.parents[1] / ".lockgate")), "minilm")
    if weights is None:
        return [Row("weights are missing: run `lockgate setup`", 0, "", 1, is_minimum=True)]
    logger.setLevel(SILENT)
    return asyncio.run(_measure(weights, effort))


async def _measure(weights: Path, effort: Effort) -> list[Row]:
    async with open_minilm(weights) as embedder:
        recalls = await measure_recalls(embedder, choose_questions(effort.questions))
        return [*build_rows(recalls), *await _measure_time(embedder, effort.indexed_passages)]


def load_passages() -> list[Text]:
    """The set's passages."""
    return [Text(**json.loads(line)) for line in (_HERE / "passages.jsonl").read_text("utf-8").splitlines()]


def load_questions() -> list[Question]:
    """The set's questions."""
    return [Question(**json.loads(line)) for line in (_HERE / "questions.jsonl").read_text("utf-8").splitlines()]


def choose_questions(count: int) -> list[Question]:
    """All questions, or so many, of all kinds alike."""
    questions = load_questions()
    return questions[:: max(1, len(questions) // count)]


async def measure_recalls(embedder: Embedder, questions: Sequence[Question]) -> dict[str, Recall]:
    """What each search finds alone, and both together; asked about fewer questions, their passages alone are there."""
    embedder = _Remembering(embedder)
    wanted = {one.passage for one in questions}
    texts = [text for text in load_passages() if len(questions) == len(load_questions()) or text.id in wanted]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.db"
        async with (
            open_index(file, embedder, "set", is_quiet=True) as both,
            open_index(file, None, "words", is_quiet=True) as words_alone,
        ):
            await _fill(both, embedder, texts)
            return {
                LEXICAL: await _ask(words_alone, questions),
                VECTOR: await _ask(both, questions, _NO_KEYWORDS),
                HYBRID: await _ask(both, questions),
            }


class _Remembering:
    """An embedder that is asked once about each text: here it counts what is found, not how fast."""

    def __init__(self, embedder: Embedder) -> None:
        self.model = name_model(embedder)
        self._embedder = embedder
        self._known: dict[str, Sequence[float]] = {}

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        new = [text for text in texts if text not in self._known]
        if new:
            self._known.update(zip(new, await self._embedder.embed(new), strict=True))
        return [self._known[text] for text in texts]


async def _fill(index: FtsDataSource, embedder: Embedder, texts: Sequence[Text]) -> None:
    passages = [Passage(1, text.title, text.text) for text in texts]
    vectors = await embedder.embed([text_to_embed(passage) for passage in passages])
    for text, passage, vector in zip(texts, passages, vectors, strict=True):
        document = IndexedDocument(text.id, "", text.id, text.title, name_model(embedder))
        await index.add_document(document, [passage], [vector])


async def _ask(index: FtsDataSource, questions: Sequence[Question], keywords: str | None = None) -> Recall:
    found, asked = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for one in questions:
        best = await index.search_both(Query(one.question, keywords or one.question), BEST)
        asked[one.kind] += 1
        found[one.kind] += any((document.metadata or {}).get("file") == one.passage for document in best)
    return Recall(found, asked)


def build_rows(recalls: Mapping[str, Recall]) -> list[Row]:
    """The figures; what both find together has a target: each search alone on the whole, nearly so on each half."""
    lexical, vector = recalls[LEXICAL], recalls[VECTOR]
    rows = []
    for name, recall in recalls.items():
        is_judged = name == HYBRID
        total = sum(recall.asked.values())
        least = float(max(lexical.whole, vector.whole)) if is_judged else None
        rows.append(Row(f"recall@{BEST}, {name}, all {total} questions", recall.whole, "", least, is_minimum=True))
        for kind in KINDS:
            target = float(max(lexical.found[kind], vector.found[kind]) - MAY_BEHIND) if is_judged else None
            label = f"recall@{BEST}, {name}, {recall.asked[kind]} of kind `{kind}`"
            rows.append(Row(label, recall.found[kind], "", target, is_minimum=True))
    return rows


async def _measure_time(embedder: Embedder, count: int) -> list[Row]:
    """A search over many passages of made-up words with made-up vectors; the question is embedded for real."""
    chance = random.Random(5)
    vocabulary = [word for text in load_passages() for word in text.text.split()]
    with tempfile.TemporaryDirectory() as folder:
        async with open_index(Path(folder) / "index.db", embedder, "many", is_quiet=True) as index:
            await _fill_many(index, name_model(embedder), vocabulary, count, chance)
            leave_out_of_collections()
            questions = [one.question for one in load_questions()]
            await index.search(questions[0], BEST)  # reads the vectors
            taken = [await _time(index, chance.choice(questions)) for _ in range(min(_SEARCHES, count))]
    return [
        Row(f"hybrid search over {count} passages, p50", statistics.median(taken) * 1000, "ms"),
        Row(f"hybrid search over {count} passages, p95", statistics.quantiles(taken, n=20)[-1] * 1000, "ms"),
    ]


async def _fill_many(
    index: FtsDataSource, model: str, vocabulary: Sequence[str], count: int, chance: random.Random
) -> None:
    for start in range(0, count, 100):
        passages = [
            Passage(
                number,
                " ".join(chance.choices(vocabulary, k=_TITLE_WORDS)),
                " ".join(chance.choices(vocabulary, k=_PASSAGE_WORDS)),
            )
            for number in range(1, min(100, count - start) + 1)
        ]
        vectors = [_make_vector(chance) for _ in passages]
        await index.add_document(IndexedDocument(f"{start}", "", f"{start}", "", model), passages, vectors)


def _make_vector(chance: random.Random) -> list[float]:
    numbers = [chance.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


async def _time(index: FtsDataSource, question: str) -> float:
    started = time.perf_counter()
    await index.search(question, BEST)
    return time.perf_counter() - started
