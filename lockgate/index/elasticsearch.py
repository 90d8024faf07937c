# SPDX-License-Identifier: Apache-2.0
"""ElasticsearchSource: an index of Elasticsearch or OpenSearch, searched by words and by meaning at once."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from lockgate.backends.endpoints import find_path, open_caller, own_headers
from lockgate.backends.http import HttpCaller, OutgoingRequest, decode, refuse, refuse_dense
from lockgate.config.agent_settings import ElasticsearchSettings
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.values import Document, Health
from lockgate.index.fusion import LEG_LIMIT, Query, fuse
from lockgate.index.hybrid_search import LEG_TIMEOUT_S, DoubleSearch, find_vector
from lockgate.interfaces import Embedder, Headers

# --- Bodies ---------------------------------------------------------------------------------------------------

VECTOR_FIELD = "embedding"
TEXT_FIELDS = ("content^2", "text^2")
CANDIDATES = 100  # of each shard, of which the nearest are taken

_OPENSEARCH = "opensearch"
_SOURCE = {"excludes": [VECTOR_FIELD]}  # large, and not read here
_ERROR_NAME = re.compile(r"[a-z_]{1,64}")


class ElasticsearchHit(NamedTuple):
    """One document that a search found. Keys sort by id; an id is unique in its index."""

    key: str
    title: str
    text: str
    score: float

    @property
    def cosine(self) -> float:
        """The cosine of its vector to the question's, if the index compares by cosine; both servers score this way."""
        return max(-1.0, min(1.0, 2 * self.score - 1))


class _Source(msgspec.Struct, gc=False):
    content: Any = None
    text: Any = None
    title: Any = None


class _SearchHit(msgspec.Struct, gc=False):
    id: str = msgspec.field(name="_id")
    index: str = msgspec.field(name="_index", default="")
    score: float | None = msgspec.field(name="_score", default=None)
    source: _Source | None = msgspec.field(name="_source", default=None)


class _Hits(msgspec.Struct, gc=False):
    hits: list[msgspec.Raw]


class _SearchReply(msgspec.Struct, gc=False):
    hits: _Hits


class _Version(msgspec.Struct, gc=False):
    distribution: str = ""


class _ServerInfo(msgspec.Struct, gc=False):
    version: _Version
    tagline: str = ""


class _Error(msgspec.Struct, gc=False):
    type: str


class _ElasticErrorBody(msgspec.Struct, gc=False):
    error: _Error


_encode = msgspec.json.Encoder().encode
_NO_SOURCE = _Source()
_decode_found = msgspec.json.Decoder(_SearchHit).decode
_decode_reply = msgspec.json.Decoder(_SearchReply).decode
_decode_greeting = msgspec.json.Decoder(_ServerInfo).decode
_decode_refusal = msgspec.json.Decoder(_ElasticErrorBody).decode


def encode_vector(vector: Sequence[float], *, is_opensearch: bool) -> bytes:
    """Encodes a search by meaning, the only request that differs between the servers."""
    body: dict[str, Any] = {"size": LEG_LIMIT, "_source": _SOURCE}
    numbers = [float(one) for one in vector]  # the encoder may not know number types such as NumPy's
    if is_opensearch:
        body["query"] = {"knn": {VECTOR_FIELD: {"vector": numbers, "k": LEG_LIMIT}}}
    else:
        near = {"query_vector": numbers, "k": LEG_LIMIT, "num_candidates": CANDIDATES}
        body["knn"] = {"field": VECTOR_FIELD, **near}
    return _encode(body)


def read_hits(body: bytes) -> list[ElasticsearchHit]:
    """Returns the hits that can be read, best first; raises ValueError or RecursionError for an invalid reply."""
    refuse_dense(body)
    found = [_read_hit(one) for one in _decode_reply(body).hits.hits[:LEG_LIMIT]]
    read = [one for one in found if one is not None]
    if found and not read:
        raise ValueError("no hit can be read")
    return read


def greets_as_opensearch(body: bytes) -> bool:
    """Returns whether a server's info is that of OpenSearch; in compatibility mode only the tagline shows it."""
    try:
        greeting = _decode_greeting(body)
    except (ValueError, RecursionError):
        return False
    return greeting.version.distribution == _OPENSEARCH or _OPENSEARCH in greeting.tagline.lower()


def read_error(body: bytes) -> str:
    """The type of an error, and nothing else of the server's message: it may quote the question."""
    try:
        name = _decode_refusal(body).error.type
    except (ValueError, RecursionError):
        return ""
    return name if _ERROR_NAME.fullmatch(name) else ""


def _read_hit(raw: msgspec.Raw) -> ElasticsearchHit | None:
    try:
        found = _decode_found(raw)
    except msgspec.ValidationError:
        return None
    source = found.source or _NO_SOURCE
    text = _read_text(source.content) or _read_text(source.text)
    return ElasticsearchHit(f"{found.id}\0{found.index}", _read_text(source.title), text, found.score or 0.0)


def _read_text(value: object) -> str:
    values = value if isinstance(value, list) else [value]
    text = "\n".join([one for one in values if isinstance(one, str)])
    return "" if text.isspace() else text


# --- The source -----------------------------------------------------------------------------------------------

_FAILED = "Search failed: "
_WELL_BELOW = 500  # a key that may only read an index gets a 4xx for the server's info


class ElasticsearchSource(DoubleSearch):
    """One index. Without an embedder it is searched by words only."""

    def __init__(
        self,
        caller: HttpCaller,
        settings: ElasticsearchSettings,
        embedder: Embedder | None,
        leg_timeout_s: float = LEG_TIMEOUT_S,
    ) -> None:
        super().__init__(caller.name, embedder, leg_timeout_s)
        self._caller = caller
        self._headers = own_headers(settings.api_key.reveal() if settings.api_key is not None else None, "ApiKey")
        self._greeting_url = find_path(settings.url, "/")
        self._search_url = find_path(settings.url, f"/{quote(settings.index, safe=',*')}/_search")
        self._is_opensearch: bool | None = None  # not asked yet

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """Returns the best documents of both searches; raises UpstreamError if both failed."""
        by_words = partial(self._search_words, query.keywords or query.question)
        by_meaning = partial(self._search_meaning, query, self._embedder) if self._embedder else None
        words, near = await self._ask_both(by_words, by_meaning)
        return self._fuse(words or [], near or [], limit)

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the server answers; never raises."""
        return await self._caller.probe_at(self._greeting_url, self._headers, _WELL_BELOW)

    def _fuse(self, words: Sequence[ElasticsearchHit], near: Sequence[ElasticsearchHit], limit: int) -> list[Document]:
        """The best hits that have a text. Hits without a text count in the ranks."""
        hits = {hit.key: hit for leg in (words, near) for hit in leg}
        similarity = {hit.key: {"similarity": hit.cosine} for hit in near}
        best = fuse([[hit.key for hit in leg] for leg in (words, near)], len(hits))
        ranked = [(hits[key], score) for key, score in best if hits[key].text]
        name = self._caller.name
        return [Document(hit.title, hit.text, score, similarity.get(hit.key), name) for hit, score in ranked[:limit]]

    async def _search_words(self, words: str) -> list[ElasticsearchHit]:
        try:
            query = {"multi_match": {"query": words, "fields": TEXT_FIELDS}}
            body = _encode({"query": query, "size": LEG_LIMIT, "_source": _SOURCE})
        except ValueError:
            raise BrokeProtocol(self._caller.name, f"{_FAILED}the question is no valid text") from None
        return await self._search(body)

    async def _search_meaning(self, query: Query, embedder: Embedder) -> list[ElasticsearchHit]:
        is_opensearch = await self._ask_kind()
        vector = await find_vector(query, embedder)
        return await self._search(encode_vector(vector, is_opensearch=is_opensearch))

    async def _search(self, body: bytes) -> list[ElasticsearchHit]:
        answer = await self._caller.post(OutgoingRequest(self._search_url, self._headers, body, _FAILED))
        if answer.status != 200:
            words = f"{_FAILED}HTTP {answer.status} {read_error(answer.body)}"
            raise refuse(self._caller.name, words.rstrip(), answer.status)
        try:
            return await decode(answer.body, read_hits)
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, f"{_FAILED}the answer is no list of hits") from None

    async def _ask_kind(self) -> bool:
        """Returns whether it is OpenSearch; without an answer it assumes Elasticsearch, and asks again next time."""
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
    settings: ElasticsearchSettings,
    embedder: Embedder | None,
    name: str,
    leg_timeout_s: float = LEG_TIMEOUT_S,
    *,
    resends: bool = True,
) -> AsyncIterator[ElasticsearchSource]:
    """Opens a source; its documents and errors have the name. Logs what is missing."""
    async with open_caller("source", name, leg_timeout_s, resends=resends) as caller:
        source = ElasticsearchSource(caller, settings, embedder, leg_timeout_s)
        source.log_state()
        yield source
