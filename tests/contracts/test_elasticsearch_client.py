# SPDX-License-Identifier: Apache-2.0
"""An index of Elasticsearch or OpenSearch: what it is asked, in which order documents come, what a failure takes away.

The servers are scripted: they check the bodies of the searches (B-37, B-38, B-39).
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.backends.ollama import open_ollama_embedder
from lockgate.config.agent_settings import ElasticsearchSettings, OllamaModelSettings
from lockgate.config.settings import Secret
from lockgate.errors import BrokeOff, BrokeProtocol, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Document, Health
from lockgate.index.elasticsearch import ElasticsearchSource, open_elasticsearch
from lockgate.index.fusion import Query
from tests.contracts.http_peers import (
    Exchange,
    Peer,
    Received,
    Script,
    break_off,
    let_time_pass,
    open_peer,
    reply,
    reply_json,
    stay_silent,
)
from tests.waits import HANG_S, LoopClock, forever, until

KEY = "es-key.1=="
QUERY = Query("How long does tea take?", "tea time")
VECTOR = [0.6, 0.8]
NO_VECTOR = {"excludes": ["embedding"]}
GREETING = {"name": "n", "version": {"number": "8.15.0", "build_flavor": "default"}, "tagline": "You Know, for Search"}
OPENSEARCH = {"version": {"distribution": "opensearch", "number": "2.11.0"}, "tagline": "The OpenSearch Project: x"}
COMPATIBLE = {"version": {"number": "7.10.2"}, "tagline": "The OpenSearch Project: https://opensearch.org/"}


def hit(name: str, score: float = 1.0, **source: Any) -> dict[str, Any]:
    return {"_index": "docs", "_id": name, "_score": score, "_source": source or {"content": f"text {name}"}}


def found(*hits: Any) -> Script:
    return reply_json({"took": 1, "timed_out": False, "hits": {"total": {"value": 1}, "hits": list(hits)}})


def is_vector(received: Received) -> bool:
    body = received.json
    return "knn" in body or "knn" in body["query"]


class Index:
    """A scripted server: its greeting, and what each search gets."""

    def __init__(self) -> None:
        self.greeting: Script = reply_json(GREETING)
        self.words: Script = found()
        self.vectors: Script = found()
        self.peer = Peer()

    async def __call__(self, exchange: Exchange) -> None:
        received = exchange.received
        if received.method == "GET":
            await self.greeting(exchange)
        else:
            await (self.vectors if is_vector(received) else self.words)(exchange)

    def bodies(self) -> tuple[list[Any], list[Any]]:
        """Of the searches by words, and of those by vectors."""
        posted = [received for received in self.peer.received if received.method == "POST"]
        return [one.json for one in posted if not is_vector(one)], [one.json for one in posted if is_vector(one)]


class Embedder:
    """Gives the same vector; `fault` is what it does instead. It may also hang."""

    def __init__(self, fault: Exception | None = None, *, hangs: bool = False) -> None:
        self.texts: list[str] = []
        self.hangs = hangs
        self._fault = fault

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.texts += texts
        if self.hangs:
            await forever()
        if self._fault is not None:
            raise self._fault
        return [VECTOR for _ in texts]


@asynccontextmanager
async def open_index(
    embedder: Any = None, prefix: str = "", key: str | None = None
) -> AsyncIterator[tuple[Index, ElasticsearchSource]]:
    index = Index()
    async with open_peer(index) as index.peer:
        secret = Secret(key) if key is not None else None
        settings = ElasticsearchSettings(f"http://127.0.0.1:{index.peer.port}{prefix}", "docs", "ES_KEY", secret)
        async with open_elasticsearch(settings, embedder, "docs-source", HANG_S) as source:
            yield index, source


def titles(documents: Sequence[Document]) -> list[str]:
    return [document.text.removeprefix("text ") for document in documents]


async def test_both_searches_are_asked_in_the_words_of_the_api() -> None:
    embedder = Embedder()
    async with open_index(embedder, prefix="/es/", key=KEY) as (index, source):
        assert await source.search_both(QUERY, 8) == []
    words = {"multi_match": {"query": "tea time", "fields": ["content^2", "text^2"]}}
    near = {"field": "embedding", "query_vector": VECTOR, "k": 24, "num_candidates": 100}
    lexical, vector = index.bodies()
    assert lexical == [{"query": words, "size": 24, "_source": NO_VECTOR}]
    assert vector == [{"knn": near, "size": 24, "_source": NO_VECTOR}]
    assert embedder.texts == [QUERY.question]
    assert {(one.method, one.path) for one in index.peer.received} == {("GET", "/es/"), ("POST", "/es/docs/_search")}
    assert {one.all("authorization")[0] for one in index.peer.received} == {f"ApiKey {KEY}"}


@pytest.mark.parametrize("greeting", [OPENSEARCH, COMPATIBLE])
async def test_opensearch_is_asked_in_its_own_words(greeting: Any) -> None:
    async with open_index(Embedder()) as (index, source):
        index.greeting = reply_json(greeting)
        for _ in range(2):
            await source.search_both(QUERY, 8)
    near = {"knn": {"embedding": {"vector": VECTOR, "k": 24}}}
    assert index.bodies()[1] == [{"query": near, "size": 24, "_source": NO_VECTOR}] * 2
    assert [one.path for one in index.peer.received if one.method == "GET"] == ["/"]  # asked once


@pytest.mark.parametrize(
    ("greeting", "is_asked_again"),
    [(reply_json({}, 403), False), (reply(b"<html>"), False), (reply_json({}, 502), True), (break_off, True)],
)
async def test_a_server_that_does_not_say_what_it_is_is_elasticsearch(greeting: Script, is_asked_again: bool) -> None:
    async with open_index(Embedder()) as (index, source):
        index.greeting = greeting
        index.vectors = found(hit("a"))
        assert titles(await source.search_both(QUERY, 8)) == ["a"]
        index.greeting = reply_json(OPENSEARCH)
        await source.search_both(QUERY, 8)
    first, second = index.bodies()[1]
    assert ("knn" in first, "knn" in second) == (True, not is_asked_again)


async def test_ranks_of_both_searches_become_one_order() -> None:
    async with open_index(Embedder()) as (index, source):
        index.words = found(*[hit(name, 9.0 - at) for at, name in enumerate("ed")])
        index.vectors = found(*[hit(name, 0.9 - at / 100) for at, name in enumerate(["v1", "v2", "v3", "v4", "d"])])
        documents = await source.search_both(QUERY, 4)
    assert titles(documents) == ["d", "e", "v1", "v2"]
    assert documents[0].score == pytest.approx(1 / 62 + 1 / 65)
    assert documents[1].score == pytest.approx(1 / 61)
    assert {document.source for document in documents} == {"docs-source"}


async def test_the_nearness_of_a_document_is_told_as_its_cosine() -> None:
    async with open_index(Embedder()) as (index, source):
        index.words = found(hit("a", 17.5), hit("b", 9.0))
        index.vectors = found(hit("a", 0.9), hit("c", 0.5), hit("d", 1.2))
        metadata = {one.text: one.metadata for one in await source.search_both(QUERY, 8)}
    assert metadata == {
        "text a": {"similarity": pytest.approx(0.8)},
        "text b": None,
        "text c": {"similarity": 0.0},
        "text d": {"similarity": 1.0},
    }


async def test_the_text_of_a_document_is_its_content_or_else_its_text() -> None:
    hits = [
        hit("a", content="one", text="two", title="T"),
        hit("b", content="", text="two"),
        hit("c", text="three", title=None),
        hit("d", content=["x", 5, "y"], title=["A", "B"]),
        hit("empty", content=" \n", title="E"),
        hit("odd", content={"a": 1}, text=7),
        {"_index": "docs", "_id": "bare"},
        hit("last", text="ü😀"),
    ]
    async with open_index() as (index, source):
        index.words = found(*hits)
        documents = await source.search("tea", 5)
    assert [(one.title, one.text) for one in documents] == [
        ("T", "one"), ("", "two"), ("", "three"), ("A\nB", "x\ny"), ("", "ü😀"),
    ]  # fmt: skip
    assert documents[-1].score == pytest.approx(1 / 68)  # ranks are the server's


async def test_the_same_id_in_two_indices_is_two_documents_and_in_one_it_is_one() -> None:
    other = {**hit("a"), "_index": "other", "_source": {"content": "text other"}}
    async with open_index(Embedder()) as (index, source):
        index.words = found(hit("a"), other)
        index.vectors = found(hit("a"))
        assert titles(await source.search_both(QUERY, 8)) == ["a", "other"]


async def test_a_question_alone_is_searched_both_ways_and_without_keywords_it_stands_for_them() -> None:
    embedder = Embedder()
    async with open_index(embedder) as (index, source):
        await source.search("why ü?", 3)
        await source.search_both(Query("what?", ""), 3)
    asked = [body["query"]["multi_match"]["query"] for body in index.bodies()[0]]
    assert (asked, embedder.texts) == (["why ü?", "what?"], ["why ü?", "what?"])


async def test_without_an_embedder_only_words_are_searched() -> None:
    async with open_index() as (index, source):
        index.words = found(hit("a"), hit("b"))
        assert titles(await source.search_both(QUERY, 1)) == ["a"]
    assert [one.method for one in index.peer.received] == ["POST"]


async def test_both_searches_run_at_once() -> None:
    both = asyncio.Barrier(2)

    async def meet(exchange: Exchange) -> None:
        await both.wait()
        await found(hit("a"))(exchange)

    async with open_index(Embedder()) as (index, source):
        index.words = index.vectors = meet
        assert titles(await source.search_both(QUERY, 8)) == ["a"]


# ---------------------------------------------------------------- failures
FAULTS: list[tuple[Script, str]] = [
    (
        reply_json({"error": {"type": "search_phase_execution_exception", "reason": "secret words"}}, 500),
        "UpstreamError",
    ),
    (reply_json({}, 404), "Rejected"),
    (reply_json({}, 503), "Unavailable"),
    (reply(b"<html>"), "BrokeProtocol < DecodeError"),
    (reply_json({"hits": {"hits": [{"no": "id"}]}}), "BrokeProtocol < ValueError"),
    (reply(b"[" * 100_000), "BrokeProtocol < "),
    (break_off, "BrokeOff < "),
    (stay_silent, "TimedOut"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
@pytest.mark.parametrize("leg", ["lexical", "vector"])
async def test_a_search_that_fails_leaves_the_other(
    leg: str, fault: Script, reason: str, caplog: pytest.LogCaptureFixture, ended: list[str]
) -> None:
    async with open_index(Embedder()) as (index, source):
        index.words, index.vectors = found(hit("l1"), hit("l2")), found(hit("v1"), hit("v2"))
        setattr(index, "words" if leg == "lexical" else "vectors", fault)
        searching = asyncio.create_task(source.search_both(QUERY, 8))
        if fault is stay_silent:
            await until(lambda: ended, "the end of the other search")
            LoopClock().advance()
        kept = titles(await searching)
    assert kept == (["v1", "v2"] if leg == "lexical" else ["l1", "l2"])
    [record] = [one for one in caplog.records if one.name == "lockgate"]
    told = vars(record)
    assert (record.message, record.levelno) == ("retrieval.degraded", logging.WARNING)
    assert (told["source"], told["leg"]) == ("docs-source", leg)
    assert told["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("embedder", "reason"),
    [
        (Embedder(Unavailable("ollama", "down")), "Unavailable"),
        (Embedder(RuntimeError("secret words")), "Unavailable < RuntimeError"),
        (Embedder(hangs=True), "TimedOut"),
    ],
    ids=["down", "broken", "hanging"],
)
async def test_an_embedder_that_fails_leaves_the_search_by_words(
    embedder: Embedder, reason: str, caplog: pytest.LogCaptureFixture, ended: list[str]
) -> None:
    async with open_index(embedder) as (index, source):
        index.words = found(hit("l1"))
        searching = asyncio.create_task(source.search_both(QUERY, 8))
        if embedder.hangs:
            await until(lambda: ended, "the end of the other search")
            LoopClock().advance()
        assert titles(await searching) == ["l1"]
    [record] = [one for one in caplog.records if one.name == "lockgate"]
    assert (vars(record)["leg"], vars(record)["reason"]) == ("vector", reason)


async def test_a_search_that_keeps_failing_is_told_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    async with open_index(Embedder()) as (index, source):
        index.words = found(hit("l1"))
        for index.vectors in (break_off, break_off, found(), break_off):
            assert titles(await source.search_both(QUERY, 8)) == ["l1"]
    assert [vars(one)["leg"] for one in caplog.records if one.name == "lockgate"] == ["vector", "vector"]


async def test_that_there_is_no_embedder_is_told_at_start(caplog: pytest.LogCaptureFixture) -> None:
    async with open_index() as (_, source):
        assert [vars(one)["leg"] for one in caplog.records if one.name == "lockgate"] == ["vector"]
        await source.search_both(QUERY, 8)
    assert len([one for one in caplog.records if one.name == "lockgate"]) == 1


async def test_an_embedding_server_that_fails_leaves_the_search_by_words() -> None:
    async with open_peer(reply_json({"error": "no"}, 500)) as server:
        settings = OllamaModelSettings(f"http://127.0.0.1:{server.port}", "e")
        async with open_ollama_embedder(settings) as embedder, open_index(embedder) as (index, source):
            index.words = found(hit("l1"))
            assert titles(await source.search_both(QUERY, 8)) == ["l1"]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (reply_json({"error": {"type": "index_not_found_exception", "reason": f"no {KEY}"}}, 404), Rejected,
         "Search failed: HTTP 404 index_not_found_exception"),
        (reply_json({"error": f"bad {KEY}"}, 401), Rejected, "Search failed: HTTP 401"),
        (reply_json({"error": {"type": f"Odd {KEY}"}}, 500), UpstreamError, "Search failed: HTTP 500"),
        (reply(b"x" * 200), BrokeProtocol, "Search failed: the answer is no list of hits"),
        (let_time_pass, TimedOut, "Search failed: no answer in time"),
        (break_off, BrokeOff, "Search failed: "),
    ],
)  # fmt: skip
async def test_if_no_search_ends_well_it_is_an_error_without_secrets(
    fault: Script, kind: type, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_index(Embedder(), key=KEY) as (index, source):
        index.words = index.vectors = fault
        with pytest.raises(UpstreamError) as caught:
            await source.search_both(QUERY, 8)
    assert type(caught.value) is kind
    assert caught.value.message.startswith(words)
    assert (caught.value.service, KEY in caught.value.message) == ("docs-source", False)
    assert not [one for one in caplog.records if one.name == "lockgate"]  # whoever asked tells it


async def test_a_question_that_is_no_text_is_an_upstream_error() -> None:
    async with open_index() as (index, source):
        with pytest.raises(BrokeProtocol, match="no valid text"):
            await source.search("\ud83d", 3)
    assert index.peer.received == []


async def test_leaving_a_search_closes_both_connections_at_once() -> None:
    gone = 0
    begun, left = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        nonlocal gone
        if len([one for one in index.peer.received if one.method == "POST"]) == 2:
            begun.set()
        await exchange.wait_until_left()
        gone += 1
        if gone == 2:
            left.set()

    async with open_index(Embedder()) as (index, source):
        index.words = index.vectors = script
        task = asyncio.create_task(source.search_both(QUERY, 8))
        await begun.wait()
        task.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_body_that_is_too_large_is_refused() -> None:
    body = json.dumps({"hits": {"hits": [hit("a")]}, "x": [0] * 600_000}).encode()
    async with open_index() as (index, source):
        index.words = reply(body.replace(b" ", b""))
        with pytest.raises(BrokeProtocol, match="no list of hits"):
            await source.search("tea", 3)
        source._caller.max_bytes = 100
        with pytest.raises(BrokeProtocol, match="longer than 100 bytes"):
            await source.search("tea", 3)


async def test_no_more_hits_are_read_than_were_asked_for() -> None:
    async with open_index() as (index, source):
        index.words = found(*[hit(f"{number:03}") for number in range(100)])
        assert len(await source.search("tea", 50)) == 24


# ---------------------------------------------------------------- probes
async def test_a_server_that_answers_is_there() -> None:
    async with open_index() as (index, source):
        assert await source.probe([("x-secret", "1")]) == Health("HEALTHY")
        index.greeting = reply_json({}, 403)  # a key that may only search
        assert await source.probe(()) == Health("HEALTHY")
        index.greeting = reply_json({}, 503)
        assert await source.probe(()) == Health("UNHEALTHY", 503, "Service Unavailable")
        greetings: list[Callable[[Exchange], Any]] = [break_off, let_time_pass]
        for index.greeting in greetings:
            assert (await source.probe(())).status == "UNKNOWN"
    assert not any(one.all("x-secret") for one in index.peer.received)
