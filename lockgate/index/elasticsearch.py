# SPDX-License-Identifier: Apache-2.0
"""ElasticsearchSource: an index of Elasticsearch or OpenSearch, searched by words and by meaning at once.

Every hit of a search becomes a document, in the order of its rank. `elasticsearch_format` has the bodies,
`hybrid_search` joins the two searches, and `fusion` their ranks. A request is sent once.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote

from lockgate.backends.http import HttpCaller, Outgoing, decode, refuse
from lockgate.backends.services import find_path, open_caller, own_headers
from lockgate.config.settings import ElasticsearchSettings
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.values import Document, Health
from lockgate.index.elasticsearch_format import (
    Hit,
    encode_vector,
    encode_words,
    greets_as_opensearch,
    read_error,
    read_hits,
)
from lockgate.index.fusion import Query, fuse
from lockgate.index.hybrid_search import LEG_TIMEOUT_S, DoubleSearch, find_vector
from lockgate.interfaces import Embedder, Headers

_FAILED = "Search failed: "
_WELL_BELOW = 500  # a key that may only read an index is not shown the server's greeting


class ElasticsearchSource:
    """One index. Without an embedder it is searched by words only. Each of the two searches has its own limit of time.

    The caller's own limit of time is that of a search, too.
    """

    def __init__(
        self,
        caller: HttpCaller,
        settings: ElasticsearchSettings,
        embedder: Embedder | None,
        leg_timeout_s: float = LEG_TIMEOUT_S,
    ) -> None:
        self._caller = caller
        self._embedder = embedder
        self._double = DoubleSearch(caller.name, leg_timeout_s)
        self._headers = own_headers(settings.api_key.reveal() if settings.api_key is not None else None, "ApiKey")
        self._greeting_url = find_path(settings.url, "/")
        self._search_url = find_path(settings.url, f"/{quote(settings.index, safe=',*')}/_search")
        self._is_opensearch: bool | None = None  # nobody has asked it yet

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The best documents for a question whose words are its keywords."""
        return await self.search_both(Query(question, question), limit)

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """The best documents of both searches; raises UpstreamError if no search came to its end."""
        by_words = partial(self._search_words, query.keywords or query.question)
        by_meaning = partial(self._search_meaning, query, self._embedder) if self._embedder else None
        words, near = await self._double.ask_both(by_words, by_meaning)
        return self._put_together(words or [], near or [], limit)

    def tell_state(self) -> None:
        """Say in the log what is missing."""
        if self._embedder is None:
            self._double.tell_no_embedder()

    async def probe(self, headers: Headers) -> Health:
        """Whether the server is there; never raises."""
        return await self._caller.probe_at(self._greeting_url, self._headers, _WELL_BELOW)

    def _put_together(self, words: Sequence[Hit], near: Sequence[Hit], limit: int) -> list[Document]:
        """The best of all hits that have a text. Ranks are those of the searches, documents without a text included."""
        hits = {hit.key: hit for leg in (words, near) for hit in leg}
        similarity = {hit.key: {"similarity": hit.cosine} for hit in near}
        best = fuse([[hit.key for hit in leg] for leg in (words, near)], len(hits))
        ranked = [(hits[key], score) for key, score in best if hits[key].text]
        name = self._caller.name
        return [Document(hit.title, hit.text, score, similarity.get(hit.key), name) for hit, score in ranked[:limit]]

    async def _search_words(self, words: str) -> list[Hit]:
        try:
            body = encode_words(words)
        except ValueError:
            raise BrokeProtocol(self._caller.name, f"{_FAILED}the question is no valid text") from None
        return await self._search(body)

    async def _search_meaning(self, query: Query, embedder: Embedder) -> list[Hit]:
        is_opensearch = await self._ask_kind()
        vector = await find_vector(query, embedder)
        return await self._search(encode_vector(vector, is_opensearch=is_opensearch))

    async def _search(self, body: bytes) -> list[Hit]:
        answer = await self._caller.post(Outgoing(self._search_url, self._headers, body, _FAILED))
        if answer.status != 200:
            words = f"{_FAILED}HTTP {answer.status} {read_error(answer.body)}"
            raise refuse(self._caller.name, words.rstrip(), answer.status)
        try:
            return await decode(answer.body, read_hits)
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, f"{_FAILED}the answer is no list of hits") from None

    async def _ask_kind(self) -> bool:
        """Whether it is OpenSearch. One that does not answer now is taken for Elasticsearch, and asked again."""
        if self._is_opensearch is not None:
            return self._is_opensearch
        try:
            answer = await self._caller.fetch(self._greeting_url, self._headers)
        except UpstreamError:
            return False
        if answer.status < _WELL_BELOW:
            self._is_opensearch = greets_as_opensearch(answer.body)
        return bool(self._is_opensearch)


@asynccontextmanager
async def open_elasticsearch(
    settings: ElasticsearchSettings, embedder: Embedder | None, name: str, leg_timeout_s: float = LEG_TIMEOUT_S
) -> AsyncIterator[ElasticsearchSource]:
    """A source whose documents and errors carry the name. Says in the log what is missing."""
    async with open_caller("source", name, leg_timeout_s) as caller:
        source = ElasticsearchSource(caller, settings, embedder, leg_timeout_s)
        source.tell_state()
        yield source
