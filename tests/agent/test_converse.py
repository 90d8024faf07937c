# SPDX-License-Identifier: Apache-2.0
"""Turns: what is remembered, what is not, and what becomes of one that is left or fails."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from lockgate.agent import answer as speaking
from lockgate.agent.answer import AgentQuestion, Pace
from lockgate.agent.prompts import Guess
from lockgate.agent.routes import Editor, choose_routes
from lockgate.agent.turns import Memory
from lockgate.errors import HeldTooMuch, InvalidRequest, TurnFailed, Unavailable
from lockgate.gate.values import Document, Frame, Message
from lockgate.rag.sources import NamedSource, RetrievalScope
from lockgate.sessions.turns import Turn
from lockgate.testing import MemorySessionStore, ScriptedDataSource, ScriptedModel
from tests.agent.agents import KEY, PASSAGES, AskedModel, WaitingModel, build_agent, build_main, converse, turns_of
from tests.waits import LoopClock, is_pending, latency, linger

TALK = AgentQuestion("Thanks!", KEY, label="CONVERSATIONAL")


async def aborted_of(store: MemorySessionStore) -> list[tuple[str, str, str]]:
    return [(one.question, one.answer, one.aborted) for one in await store.read_session(KEY) if one.aborted]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_turn_is_stored_when_its_last_piece_has_been_heard(*, is_stream: bool) -> None:
    store = MemorySessionStore()
    agent = build_agent(memory=Memory(store))
    async with agent.open(TALK._replace(is_stream=is_stream)) as turn:
        pieces = []
        async for piece in turn.pieces:
            pieces.append(piece)
            assert await turns_of(store) == []
        assert await turns_of(store) == [("Thanks!", "You are welcome.")]
    assert pieces == (["You ", "are ", "welcome."] if is_stream else ["You are welcome."])


async def test_each_chunk_of_the_model_is_a_piece_before_the_next_is_made() -> None:
    model = WaitingModel()
    agent = build_agent(conversational=model)
    async with agent.open(TALK) as turn:
        pieces = turn.pieces
        for number in range(5):
            model.permits.release()
            assert await anext(pieces) == f"t{number} "


async def test_a_listener_that_leaves_stops_the_model_and_the_turn_is_forgotten() -> None:
    store, model = MemorySessionStore(), WaitingModel()
    agent = build_agent(conversational=model, memory=Memory(store))
    async with agent.open(TALK) as turn:
        pieces = turn.pieces
        for _ in range(3):
            model.permits.release()
            await anext(pieces)
    assert model.was_closed.is_set()
    assert await turns_of(store) == []
    assert await aborted_of(store) == [("Thanks!", "t0 t1 t2 ", "the client left")]


async def _cancel_after(agent: Any, ask: AgentQuestion, steps: int) -> bool:
    """Cancel a turn when it has given way so often; whether it was over before."""

    async def run() -> None:
        await converse(agent, ask)

    task = asyncio.ensure_future(run())
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            await task
            return True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return False


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_turn_cancelled_anywhere_is_whole_or_not_there(*, is_stream: bool) -> None:
    ask = AgentQuestion("What is the port?", KEY, is_stream=is_stream)
    for steps in count():
        store = MemorySessionStore()
        agent = build_agent(memory=Memory(store))
        is_over = await _cancel_after(agent, ask, steps)
        assert await turns_of(store) in ([], [("What is the port?", "It is 8033.")])
        async with store.hold(KEY):  # nobody holds it any more
            pass
        main = agent.main
        assert isinstance(main, AskedModel)
        assert main.closed == len(main.asked)
        if is_over:
            break


async def test_a_second_turn_of_a_session_waits_for_the_first() -> None:
    store, model = MemorySessionStore(), WaitingModel()
    first = build_agent(conversational=model, memory=Memory(store))
    talk = AskedModel(lambda _: ["second"])
    second = build_agent(conversational=talk, memory=Memory(store))
    async with first.open(TALK) as turn:
        pieces = turn.pieces
        model.permits.release()
        await anext(pieces)
        waiting = asyncio.ensure_future(converse(second, TALK._replace(question="And?")))
        await linger()
        assert talk.asked == []
        for _ in range(100):
            model.permits.release()
        assert len([piece async for piece in pieces]) == 99
    await waiting
    assert [question for question, _ in await turns_of(store)] == ["Thanks!", "And?"]
    assert Message("user", "Thanks!") in talk.asked[0]


async def test_a_model_that_fails_before_its_first_word_says_nothing() -> None:
    store = MemorySessionStore()
    agent = build_agent(conversational=ScriptedModel([], error=Unavailable("model", "secret")), memory=Memory(store))
    with pytest.raises(TurnFailed, match="the model is not available") as caught:
        await converse(agent, TALK)
    assert caught.value.status == 503
    assert await turns_of(store) == []


async def test_a_model_that_fails_later_leaves_what_it_said_and_no_turn() -> None:
    store = MemorySessionStore()
    broken = ScriptedModel(["one ", "two"], error=RuntimeError("boom"))
    agent = build_agent(conversational=broken, memory=Memory(store))
    heard = []
    with pytest.raises(TurnFailed):
        async with agent.open(TALK) as turn:
            async for piece in turn.pieces:
                heard += [piece]
    assert heard == ["one ", "two"]
    assert await turns_of(store) == []
    assert await aborted_of(store) == [("Thanks!", "one two", "the model is not available")]


class OverlongModel:
    """Says its pieces; then all time passes."""

    def __init__(self, *pieces: str) -> None:
        self._clock = LoopClock()
        self._pieces = pieces

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        for number, piece in enumerate(self._pieces):
            yield Frame(number, piece)
        await self._clock.run_out()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("label", "limits", "words"),
    [
        ("CONVERSATIONAL", {"pace": Pace(600, 1e6), "prepare_s": 1e6}, "the model did not answer in time"),
        ("", {"pace": Pace(1e6, 1e6), "prepare_s": 600}, "could not be prepared in time"),
    ],
)
async def test_what_takes_too_long_is_told_as_such(
    label: str, limits: dict[str, Any], words: str, *, is_stream: bool
) -> None:
    model = OverlongModel()
    agent = build_agent(main=model, conversational=model, **limits)
    with pytest.raises(TurnFailed, match=words) as caught:
        await converse(agent, TALK._replace(label=label, is_stream=is_stream))
    assert caught.value.status == 504


async def test_a_gap_between_tokens_has_its_own_limit() -> None:
    agent = build_agent(conversational=OverlongModel("t0 "), pace=Pace(1e6, 600), prepare_s=1e6)
    with pytest.raises(TurnFailed, match="in time") as caught:
        await converse(agent, TALK)
    assert caught.value.status == 503  # the answer had begun


async def test_an_unknown_label_is_refused_before_anything_is_asked() -> None:
    main = build_main()
    with pytest.raises(InvalidRequest, match="unknown query_type"):
        await converse(build_agent(main=main), AgentQuestion("q", KEY, label="PLATFORM"))
    assert main.asked == []


async def test_a_retry_gets_the_same_answer_and_makes_no_second_turn() -> None:
    store, talk = MemorySessionStore(), AskedModel(lambda _: ["<think>hm</think>Hello"])
    agent = build_agent(conversational=talk, memory=Memory(store))
    ask = TALK._replace(request_id="r1")
    assert (await converse(agent, ask))[0] == ["<think>hm</think>Hello"]
    pieces, facts = await converse(agent, ask._replace(is_stream=False))
    assert pieces == ["Hello"]
    assert (facts.label, facts.is_repeated, facts.outcome) == ("CONVERSATIONAL", True, "answered")
    assert len(talk.asked) == 1
    assert await turns_of(store) == [("Thanks!", "Hello")]
    with pytest.raises(InvalidRequest, match="used before"):
        await converse(agent, ask._replace(question="Something else"))


async def test_without_a_session_the_clients_own_messages_are_the_history() -> None:
    talk = AskedModel(lambda _: ["ok"])
    sent = (
        Message("system", "Be kind."),
        Message("user", "Hi"),
        Message("assistant", "Ho"),
        Message("user", "Thanks!"),
    )
    store = MemorySessionStore()
    agent = build_agent(conversational=talk, memory=Memory(store))
    await converse(agent, AgentQuestion("Thanks!", sent=sent, label="CONVERSATIONAL"))
    assert [one.text for one in talk.asked[0][1:]] == ["Hi", "Ho", "Thanks!"]
    assert talk.asked[0][0].text.endswith("Be kind.")
    assert await store.list_sessions() == []


async def test_with_a_session_the_stored_history_wins() -> None:
    talk, store = AskedModel(lambda _: ["ok"]), MemorySessionStore()
    async with store.hold(KEY):
        await store.append(KEY, Turn("stored", "answer", "CONVERSATIONAL"))
    agent = build_agent(conversational=talk, memory=Memory(store))
    sent = (Message("user", "sent"), Message("assistant", "too"), Message("user", "Thanks!"))
    await converse(agent, TALK._replace(sent=sent))
    assert [one.text for one in talk.asked[0][1:]] == ["stored", "answer", "Thanks!"]


class BrokenStore(MemorySessionStore):
    """Fails where it is told to."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    async def load(self, *args: Any, **named: Any) -> Any:
        if self._place == "load":
            raise Unavailable("sessions", "password in here")
        return await super().load(*args, **named)

    async def append(self, *args: Any) -> None:
        if self._place == "append":
            raise Unavailable("sessions", "password in here")
        await super().append(*args)


@pytest.mark.parametrize("place", ["load", "append"])
async def test_a_store_that_fails_fails_the_turn(place: str) -> None:
    agent = build_agent(memory=Memory(BrokenStore(place)))
    with pytest.raises(TurnFailed, match="the session store is not available") as caught:
        await converse(agent, TALK)
    assert "password" not in str(caught.value)


# Labels.


@pytest.mark.parametrize(
    ("question", "guess", "layer", "label"),
    [
        ("My quota is at 95 percent?", None, "rules", "PLATFORM"),
        ("Write a loop", Guess("CODE_GENERATION", 0.9), "embedding", "CODE_GENERATION"),
        ("Anything", None, "model", "RETRIEVAL"),
        ("Anything", Guess("NO_SUCH", 0.99), "model", "RETRIEVAL"),
    ],
)
async def test_the_first_layer_that_knows_decides(question: str, guess: Guess | None, layer: str, label: str) -> None:
    async def know(_: str) -> Guess | None:
        return guess

    agent = build_agent(choose_routes(has_platform=True), guess=know)
    _, facts = await converse(agent, AgentQuestion(question))
    assert (facts.layer, facts.label) == (layer, label)


async def test_what_was_decided_is_noted_for_the_export() -> None:
    noted: list[tuple[object, ...]] = []
    agent = build_agent(note_label=lambda *one: noted.append(one))
    await converse(agent, TALK)
    assert noted == [("Thanks!", "CONVERSATIONAL", "caller", None)]


async def test_editor_context_follows_the_declared_label() -> None:
    main = build_main()
    agent = build_agent(main=main)
    await converse(agent, AgentQuestion("Improve it", label="CODE_GENERATION", editor=Editor("the file", "", "")))
    assert "the file" in main.asked[-1][-1].text


# Documents.


class HybridSource(ScriptedDataSource):
    """Records which words it was given."""

    async def search_both(self, query: Any, limit: int) -> Sequence[Document]:
        self.questions.append(f"{query.keywords}|{query.question}")
        return await self.search(query.question, limit)


async def test_words_are_searched_by_keywords_and_meaning_by_the_question() -> None:
    source = HybridSource(PASSAGES)
    agent = build_agent(library=RetrievalScope([NamedSource("docs", source)]))
    _, facts = await converse(agent, AgentQuestion("What is the port?"))
    assert source.questions[0] == "port number|What is the port?"
    assert [one.source for one in facts.documents] == ["docs", "docs"]


async def test_several_sources_are_asked_at_once_and_one_may_fail() -> None:
    good, bad = ScriptedDataSource(PASSAGES), ScriptedDataSource([], error=Unavailable("x", "y"))
    other = ScriptedDataSource([Document("Other", "More.", 0.1)])
    sources = [NamedSource("a", good), NamedSource("b", bad), NamedSource("c", other)]
    library = RetrievalScope(sources, passages=2)
    _, facts = await converse(build_agent(library=library), AgentQuestion("What is the port?"))
    assert [one.title for one in facts.documents] == ["Ports", "Other"]


async def test_documents_below_the_floor_are_left_out() -> None:
    near = Document("Near", "a", 0.1, {"similarity": 0.8})
    far = Document("Far", "b", 0.2, {"similarity": 0.1})
    unknown = Document("Unknown", "c", 0.05)
    source = ScriptedDataSource([near, far, unknown])
    library = RetrievalScope([NamedSource("docs", source)], min_similarity=0.3)
    _, facts = await converse(build_agent(library=library), AgentQuestion("q"))
    assert [one.title for one in facts.documents] == ["Near", "Unknown"]


# Found by reading.


async def test_a_retry_of_a_question_that_stores_cannot_keep_is_a_retry() -> None:
    agent = build_agent()
    for _ in range(2):
        _, facts = await converse(agent, TALK._replace(question="a\0b", request_id="r"))
    assert facts.is_repeated


class SlowStore(MemorySessionStore):
    """Writes when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = asyncio.Event()
        self.may_write = asyncio.Event()

    async def append(self, *args: Any) -> None:
        self.is_writing.set()
        await self.may_write.wait()
        await super().append(*args)


async def test_a_turn_that_is_being_written_is_seen_through_however_often_it_is_cancelled() -> None:
    store = SlowStore()
    agent = build_agent(memory=Memory(store))
    task = asyncio.ensure_future(converse(agent, TALK))
    await store.is_writing.wait()
    for _ in range(3):
        task.cancel()
        assert await is_pending(task, 0.01)
    store.may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await turns_of(store) == [("Thanks!", "You are welcome.")]
    assert await aborted_of(store) == []


async def test_a_whole_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "MAX_WHOLE_CHARS", 100)
    endless = ScriptedModel(["word "] * 100)
    with pytest.raises(HeldTooMuch, match="ask for a stream"):
        await converse(build_agent(conversational=endless), TALK._replace(is_stream=False))
    assert len((await converse(build_agent(conversational=endless), TALK))[0]) == 100


async def test_of_a_very_long_answer_the_beginning_is_remembered() -> None:
    store = MemorySessionStore()
    agent = build_agent(conversational=ScriptedModel(["x" * 500_000] * 3), memory=Memory(store))
    await converse(agent, TALK)
    [(_, answer)] = await turns_of(store)
    assert answer == "x" * 1_048_576 + " [...]"


class CountingEmbedder:
    """Records what it embeds."""

    def __init__(self, error: Exception | None = None, delay_s: float = 0.01) -> None:
        self.texts: list[str] = []
        self.has_begun = asyncio.Event()
        self.cancelled = 0
        self._delay_s = delay_s
        self._error = error

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.texts += texts
        self.has_begun.set()
        try:
            await latency(self._delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return [[1.0, 0.0] for _ in texts]


class VectorSource(ScriptedDataSource):
    """Wants the question's vector."""

    async def search_both(self, query: Any, limit: int) -> Sequence[Document]:
        assert await query.vector == [1.0, 0.0]
        return await self.search(query.question, limit)


async def test_the_questions_vector_is_made_once_and_beside_the_rewrite() -> None:
    embedder = CountingEmbedder()
    sources = [NamedSource(name, VectorSource(PASSAGES)) for name in ("a", "b")]
    agent = build_agent(embedder=embedder, library=RetrievalScope(sources))
    _, facts = await converse(agent, AgentQuestion("What is the port?"))
    assert (embedder.texts, facts.passages) == (["What is the port?"], 4)
    await converse(agent, TALK)
    assert len(embedder.texts) == 1  # the conversation route looks nothing up


async def test_an_embedder_that_fails_fails_only_the_search_by_meaning() -> None:
    broken = CountingEmbedder(Unavailable("embedder", "gone"))
    good = ScriptedDataSource(PASSAGES)
    sources = [NamedSource("a", VectorSource(PASSAGES)), NamedSource("b", good)]
    _, facts = await converse(build_agent(embedder=broken, library=RetrievalScope(sources)), AgentQuestion("q"))
    assert {one.source for one in facts.documents} == {"b"}


async def test_whoever_leaves_takes_the_embedding_along() -> None:
    embedder = CountingEmbedder(delay_s=3600)
    agent = build_agent(embedder=embedder, main=WaitingModel())
    task = asyncio.ensure_future(converse(agent, AgentQuestion("q", label="RETRIEVAL")))
    await embedder.has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(embedder.texts), embedder.cancelled) == (1, 1)


async def test_without_a_floor_no_document_is_too_far() -> None:
    far = Document("Far", "b", 0.2, {"similarity": -0.4})
    source = ScriptedDataSource([far])
    _, facts = await converse(build_agent(library=RetrievalScope([NamedSource("docs", source)])), AgentQuestion("q"))
    assert [one.title for one in facts.documents] == ["Far"]
