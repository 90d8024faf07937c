# SPDX-License-Identifier: Apache-2.0
"""What is said to Elasticsearch and OpenSearch and what they say: a search by words, one by a vector, and their hits.

Decides which fields are searched and which of a hit count. Refuses to know where the server is, and how hits are put
together.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from lockgate.backends.replies import refuse_dense
from lockgate.index.fusion import LEG_LIMIT

VECTOR_FIELD = "embedding"
TEXT_FIELDS = ("content^2", "text^2")
CANDIDATES = 100  # of each shard, of which the nearest are taken

_OPENSEARCH = "opensearch"
_SOURCE = {"excludes": [VECTOR_FIELD]}  # large, and nobody reads it
_ERROR_NAME = re.compile(r"[a-z_]{1,64}")


class Hit(NamedTuple):
    """One document as a search found it. Keys are in the order of ids; an id is unique in its index."""

    key: str
    title: str
    text: str
    score: float

    @property
    def cosine(self) -> float:
        """How near its vector is, where the index compares by cosine: both servers make a score of it that way."""
        return max(-1.0, min(1.0, 2 * self.score - 1))


class _Source(msgspec.Struct, gc=False):
    content: Any = None
    text: Any = None
    title: Any = None


class _Found(msgspec.Struct, gc=False):
    id: str = msgspec.field(name="_id")
    index: str = msgspec.field(name="_index", default="")
    score: float | None = msgspec.field(name="_score", default=None)
    source: _Source | None = msgspec.field(name="_source", default=None)


class _Hits(msgspec.Struct, gc=False):
    hits: list[msgspec.Raw]


class _Reply(msgspec.Struct, gc=False):
    hits: _Hits


class _Version(msgspec.Struct, gc=False):
    distribution: str = ""


class _Greeting(msgspec.Struct, gc=False):
    version: _Version
    tagline: str = ""


class _Error(msgspec.Struct, gc=False):
    type: str


class _Refusal(msgspec.Struct, gc=False):
    error: _Error


_encode = msgspec.json.Encoder().encode
_NO_SOURCE = _Source()
_decode_found = msgspec.json.Decoder(_Found).decode
_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_greeting = msgspec.json.Decoder(_Greeting).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def encode_words(words: str) -> bytes:
    """A search by words; raises ValueError for what is no valid text."""
    query = {"multi_match": {"query": words, "fields": TEXT_FIELDS}}
    return _encode({"query": query, "size": LEG_LIMIT, "_source": _SOURCE})


def encode_vector(vector: Sequence[float], *, is_opensearch: bool) -> bytes:
    """A search by the nearest vectors, which is the one thing that the two servers are asked in different words."""
    body: dict[str, Any] = {"size": LEG_LIMIT, "_source": _SOURCE}
    numbers = [float(one) for one in vector]  # those of some libraries are no numbers to others
    if is_opensearch:
        body["query"] = {"knn": {VECTOR_FIELD: {"vector": numbers, "k": LEG_LIMIT}}}
    else:
        near = {"query_vector": numbers, "k": LEG_LIMIT, "num_candidates": CANDIDATES}
        body["knn"] = {"field": VECTOR_FIELD, **near}
    return _encode(body)


def read_hits(body: bytes) -> list[Hit]:
    """The hits, best first, no more than were asked for; raises ValueError or RecursionError for what is no reply.

    One that cannot be read takes none of the others with it.
    """
    refuse_dense(body)
    found = [_read_hit(one) for one in _decode_reply(body).hits.hits[:LEG_LIMIT]]
    read = [one for one in found if one is not None]
    if found and not read:
        raise ValueError("no hit can be read")
    return read


def greets_as_opensearch(body: bytes) -> bool:
    """Whether it is OpenSearch that greets so; in its mode of compatibility only the last line says it."""
    try:
        greeting = _decode_greeting(body)
    except (ValueError, RecursionError):
        return False
    return greeting.version.distribution == _OPENSEARCH or _OPENSEARCH in greeting.tagline.lower()


def read_error(body: bytes) -> str:
    """What kind of error it is, in the server's one word for it: the rest of its words may quote the question."""
    try:
        name = _decode_refusal(body).error.type
    except (ValueError, RecursionError):
        return ""
    return name if _ERROR_NAME.fullmatch(name) else ""


def _read_hit(raw: msgspec.Raw) -> Hit | None:
    try:
        found = _decode_found(raw)
    except msgspec.ValidationError:
        return None
    source = found.source or _NO_SOURCE
    text = _read_text(source.content) or _read_text(source.text)
    return Hit(f"{found.id}\0{found.index}", _read_text(source.title), text, found.score or 0.0)


def _read_text(value: object) -> str:
    """The text of a field, which may have several values."""
    values = value if isinstance(value, list) else [value]
    text = "\n".join([one for one in values if isinstance(one, str)])
    return "" if text.isspace() else text
