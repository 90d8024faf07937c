# SPDX-License-Identifier: Apache-2.0
"""The detector that compares a text with documents."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lockgate.chunkers.machines import open_sentence_chunker
from lockgate.chunkers.sentences import load_stop_judge
from lockgate.detectors.groundedness import detector as groundedness
from lockgate.detectors.groundedness.detector import (
    BEST_CHARS,
    MAX_CLAIM_CHARS,
    MAX_DOCUMENTS_CHARS,
    MAX_SENTENCES,
    Book,
    GroundednessDetector,
    GroundednessReview,
    open_groundedness_detector,
)
from lockgate.detectors.groundedness.grounds import NO_NUMBER, OTHER_DAY, SourceFacts, Steps, run_through
from lockgate.errors import ConfigError, InvalidRequest, Unavailable
from lockgate.gate.values import TEXT_CONTEXT_DOC, Claim, Conversation, Detection, Excerpt
from lockgate.gate.verdicts import hide
from lockgate.guard.detectors import ActiveReview, Guard
from lockgate.guard.policy import Chunking, ground
from lockgate.interfaces import ContextFactory, Embedder, Model
from lockgate.models import onnx_session
from lockgate.models.minilm import open_minilm
from tests.embedders import BrokenEmbedder, TopicEmbedder
from tests.waits import bounded_work, latency, until

T = TypeVar("T")
LIBRARY = (
    "The city library opens at 9 am from Monday to Friday. On Sundays it stays closed. "
    "Members may borrow up to eight books for four weeks.",
    "Late books cost 20 cents per day.",
)


class TinyContext:
    """A PartContext with nothing but an embedder."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.data_dir = Path("here")
        self._embedder = embedder

    def find_model(self, name: str) -> Model:
        raise KeyError(name)

    async def share_embedder(self) -> Embedder | None:
        return self._embedder


class SlowEmbedder(TopicEmbedder):
    """Lets others have their turn while it works."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        found = await super().embed(texts)
        await latency(0.01)
        return found


def review(embedder: Embedder | None = None) -> GroundednessReview:
    return GroundednessDetector(embedder or TopicEmbedder()).accept({}, ())


async def compare(text: str, documents: Sequence[str] = LIBRARY) -> Sequence[Detection]:
    return await review().review(Claim(text, "docs", documents))


@pytest.fixture
async def real(weights_dir: Path) -> AsyncIterator[GroundednessDetector]:
    async with open_minilm(weights_dir) as embedder, open_groundedness_detector({}, TinyContext(embedder)) as detector:
        yield detector


async def test_with_the_real_embedder_what_is_said_passes_and_what_is_not_is_reported(
    real: GroundednessDetector,
) -> None:
    asked = real.accept({}, ())

    async def is_reported(text: str) -> bool:
        return bool(await asked.review(Claim(text, "docs", LIBRARY)))

    for said in (
        "On Sundays the library is closed.",
        "You can take out as many as 8 books for 28 days.",
        "A book that comes back late costs 20 cents for each day.",
        "On Wednesdays the library opens at 9:00 [city/library].",
        "The documents do not say whether there is a café.",
    ):
        assert not await is_reported(said), said
    for unsaid in (
        "On Mondays the library is closed.",
        "Members may borrow up to twelve books.",
        "Members may borrow books for four months.",
        "The library was designed by Laura Stone.",
        "Photosynthesis turns light into chemical energy.",
    ):
        assert await is_reported(unsaid), unsaid


async def test_a_finding_says_why_and_shows_the_nearest_sentence() -> None:
    (found,) = await compare("Members may borrow up to twelve books.")
    metadata = {
        "reasons": ["a number occurs in no document: twelve"],
        "best": "Members may borrow up to eight books for four weeks.",
    }
    assert found._replace(score=0.0) == Detection(0, 0, "", "Ungrounded", "groundedness", 0.0, metadata=metadata)
    assert 0.5 < found.score <= 1.0


async def test_a_finding_that_is_hidden_quotes_neither_the_text_nor_the_documents() -> None:
    text = "The secret code is 4711 and Zanzibar knows it."
    (found,) = await compare(text)
    hidden = hide(found._replace(start=0, end=len(text), text=text))
    for word in ("4711", "Zanzibar", "library"):
        assert word in str(found)
        assert word not in str(hidden)


async def test_of_several_sentences_the_weakest_counts_and_all_reasons_are_told() -> None:
    text = "Late books cost 20 cents per day. Members may borrow up to twelve books. It stays closed on Saturdays."
    (found,) = await compare(text)
    assert (found.metadata or {})["reasons"] == [f"{NO_NUMBER}: twelve", OTHER_DAY]
    assert await compare("Late books cost 20 cents per day. On Sundays it stays closed.") == ()


@pytest.mark.parametrize("text", ["", "  \n", "Which books?", "Sure!", "Here is the list:"])
async def test_what_claims_nothing_is_not_reported(text: str) -> None:
    embedder = TopicEmbedder()
    assert await review(embedder).review(Claim(text, "docs", LIBRARY)) == ()
    assert embedder.asked == []


async def test_without_documents_a_claim_is_reported() -> None:
    for documents in ((), ("",)):
        (found,) = await compare("The library opens at 9 am.", documents)
        assert found.score == 1.0
        assert (found.metadata or {})["reasons"] == ["there are no documents"]


async def test_a_long_nearest_sentence_is_cut() -> None:
    (found,) = await compare("The tea costs 7 euros.", ("tea " * 200 + "costs 8 euros.",))
    assert len((found.metadata or {})["best"]) == BEST_CHARS


# --- What is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (Claim("a b c", "url", ["https://example.org"]), "`context_type` must be `docs`: this detector follows no URL"),
        (Claim("a" * (MAX_CLAIM_CHARS + 1), "docs", LIBRARY), f"at most {MAX_CLAIM_CHARS} can be compared"),
        (Conversation([]), "groundedness needs a text and the documents that it is compared with"),
    ],
)
async def test_what_cannot_be_compared_is_refused(subject: Claim | Conversation, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await review().review(subject)
    assert words in refused.value.message


def test_there_are_no_parameters_and_no_options() -> None:
    with pytest.raises(InvalidRequest, match="unknown parameter `x`, this detector takes none"):
        GroundednessDetector(TopicEmbedder()).accept({"x": 1}, ())
    assert GroundednessDetector.types == (TEXT_CONTEXT_DOC,)


async def _open(house: TinyContext, **options: object) -> None:
    async with open_groundedness_detector(options, house):
        pass


async def test_without_weights_or_packages_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="run `lockgate setup`"):
        await _open(TinyContext(None))
    with pytest.raises(ConfigError, match="unknown parameter `x`"):
        await _open(TinyContext(TopicEmbedder()), x=1)
    monkeypatch.setattr(onnx_session, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lockgate\[detectors\]'"):
        await _open(TinyContext(TopicEmbedder()))


async def test_it_is_a_part_that_wants_to_know_the_house() -> None:
    assert isinstance(open_groundedness_detector, ContextFactory)
    await _open(TinyContext(TopicEmbedder()))


async def test_an_embedder_that_fails_fails_the_review() -> None:
    broken = BrokenEmbedder(Unavailable("embedder", "gone"))
    with pytest.raises(Unavailable):
        await review(broken).review(Claim("The library opens at 9 am.", "docs", LIBRARY))


# --- How much is done -----------------------------------------------------------------------------------------


async def test_documents_are_read_and_embedded_once_for_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    class Watched(SourceFacts):
        @classmethod
        def read(cls, documents: Sequence[Sequence[str]]) -> Steps[SourceFacts]:
            read.append(documents)
            return SourceFacts.read(documents)

    monkeypatch.setattr(groundedness, "SourceFacts", Watched)
    embedder = SlowEmbedder()
    asked = review(embedder)
    claims = [f"Members may borrow {count} books." for count in range(30, 36)]
    found = await asyncio.gather(*[asked.review(Claim(text, "docs", LIBRARY)) for text in claims])
    assert [len(one) for one in found] == [1] * 6
    assert len(read) == 1
    sentences = [one for text in LIBRARY for one in run_through(groundedness._split(text))]
    assert sorted(embedder.asked) == sorted([*claims, *sentences])


async def test_other_documents_are_other_documents_and_few_are_kept() -> None:
    asked = review()
    text = "Members may borrow up to eight books."
    assert await asked.review(Claim(text, "docs", LIBRARY)) == ()
    for count in range(5):
        assert await asked.review(Claim(text, "docs", (f"Members may borrow up to {count} cars.",))) != ()
    assert await asked.review(Claim(text, "docs", LIBRARY)) == ()
    assert len(asked._books) == groundedness._MAX_KEPT


async def test_a_review_that_is_given_up_does_not_stop_the_next() -> None:
    embedder = SlowEmbedder()
    asked = review(embedder)
    first = asyncio.create_task(asked.review(Claim("Members may borrow nine books.", "docs", LIBRARY)))
    await until(lambda: embedder.asked)
    first.cancel()
    assert await asked.review(Claim("Members may borrow up to eight books.", "docs", LIBRARY)) == ()


PROSE = " ".join([*LIBRARY, "The annual fee is about 30 euros, and Helen Marsh, not Paul Ivers, runs it; see A-17. "])
HOSTILE = {
    "prose": PROSE,
    "no end": PROSE.replace(". ", ", and ").replace(";", ","),
    "figures": "12 euros 3.50 dollars 1,000 km 8:30 pm about 4 weeks 12.12.2020 ",
    "clauses": "not on Mondays, except tea, ",
    "words": " ".join(f"{chr(97 + one % 26) * 2}{one:03}{chr(97 + one % 7)}word" for one in range(700)) + " ",
    "short": "Tea 5. A b. Dr. No? ",
}
MAX_CALLS = 100_000  # some milliseconds; all that is compared takes millions


def run_counted(steps: Steps[T], counts: list[int]) -> T:
    """The result of all steps; how many calls and returns of functions each took is added to `counts`."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    while True:
        count = 0
        sys.setprofile(note)
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            sys.setprofile(None)
            counts.append(count)


@pytest.mark.parametrize("kind", HOSTILE)
def test_every_step_is_a_small_part_of_the_work_whatever_is_compared(kind: str) -> None:
    text = (HOSTILE[kind] * (MAX_DOCUMENTS_CHARS // len(HOSTILE[kind]) + 1))[:MAX_DOCUMENTS_CHARS]
    load_stop_judge()
    counts: list[int] = []
    book = run_counted(Book.read([text]), counts)
    plans = run_counted(book.plan(text[333:2333]), counts)
    book.vectors.update(dict.fromkeys(range(len(book.grounds.sentences)), [1.0] * 384))
    run_counted(book.judge(plans, [[0.5 / 384] * 384 for _ in plans]), counts)
    assert max(counts) < MAX_CALLS < sum(counts)


def test_many_documents_are_cut_in_rows_without_counting_all() -> None:
    endless: Any = range(10**15)
    with bounded_work():
        chosen = groundedness._choose_sentences([endless, *[["b"]] * 255])
    assert [len(several) for several in chosen] == [MAX_SENTENCES - 255, *[1] * 255]


async def test_too_many_documents_are_cut_alike_and_the_finding_says_so() -> None:
    many = ["The tea costs 8 euros. " * 400, *(f"Shop {number} sells bread." for number in range(200))]
    book = run_through(Book.read(many))
    assert not book.is_whole
    assert len(book.grounds.sentences) == MAX_SENTENCES
    assert {one.document for one in book.grounds.sentences} == set(range(201))
    (found,) = await review().review(Claim("The tea costs 7.50 euros.", "docs", many))
    assert (found.metadata or {})["documents_cut"] is True
    assert run_through(Book.read(LIBRARY)).is_whole


def test_a_document_of_any_size_costs_no_more_than_the_room_there_is() -> None:
    book = run_through(Book.read(["x" * (4 * MAX_DOCUMENTS_CHARS)]))
    assert not book.is_whole
    assert sum(len(one.traits.text) for one in book.grounds.sentences) <= MAX_DOCUMENTS_CHARS


# --- In streams -----------------------------------------------------------------------------------------------


async def test_in_a_stream_each_sentence_is_a_claim_of_its_own() -> None:
    async with open_sentence_chunker({}) as chunker:
        detector = GroundednessDetector(TopicEmbedder())
        guard = Guard("facts", TEXT_CONTEXT_DOC, detector, "sentence", chunker, 0.5)
        active = ActiveReview(guard, detector.accept({}, ()), 0.5)
        (reader,) = ground([active], LIBRARY, Chunking("sentence", chunker), holds=True)
        wrong = "Members may borrow up to twelve books.  "
        found = await reader.reading.read([Excerpt("On Sundays it stays closed. "), Excerpt(wrong), Excerpt("\n")])
    assert [len(one) for one in found] == [0, 1, 0]
    (hit,) = found[1]
    assert (hit.start, hit.end, hit.text) == (0, len(wrong.strip()), wrong.strip())
