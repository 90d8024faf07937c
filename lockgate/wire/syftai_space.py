# SPDX-License-Identifier: Apache-2.0
"""What is said to a SyftAI-Space endpoint and what it says: questions to sources and models, documents and answers.

Decides what of a reply counts, and is lenient about the rest: it is somebody else's server. Refuses to know where an
endpoint is, and what a status means. How answers are streamed stands in lockgate.wire.syftai_stream.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard
from unicodedata import category

import msgspec

from lockgate.core.values import Document, Message

MAX_BODY_CHARS = 200  # of an error's body that is no JSON, or says nothing
MAX_DETAIL_CHARS = 1000
MAX_DOCUMENTS = 10_000
LARGE_BYTES = 1024 * 1024
BYTES_PER_VALUE = 4  # a large body has at least so many, or is made to take many times its size in memory

_WINDOW_CHARS = 65_536  # of an error's words are looked at
_MAX_COUNT = 2**53
_MAX_BITS = 1024
_MAX_DIGITS = 18  # of an integer that is read as one
_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")
_RESERVED = re.compile(r"[/?#%]")

Usage = dict[str, int]
Scrub = Callable[[str], str]


class Told(NamedTuple):
    """A model's whole answer."""

    text: str
    usage: Usage | None = None


class _Titles(msgspec.Struct, gc=False):
    title: str | int | float | None = None
    document_title: str | int | float | None = None


class _Item(msgspec.Struct, gc=False):
    content: str | None = None
    metadata: _Titles | None = None
    similarity_score: float | None = None


class _References(msgspec.Struct, gc=False):
    documents: list[_Item] | None = None


class _Reply(msgspec.Struct, gc=False):
    references: _References | None = None


class _Refusal(msgspec.Struct):
    detail: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode
_NO_TITLES = _Titles()


def check_slug(url: str, slug: str) -> str | None:
    """Why a slug cannot be used with this address, if so. Behind `openai+` it is a model's name and may be anything."""
    if not slug:
        return "must not be empty"
    if any(category(char) in {"Cc", "Cs"} for char in slug):
        return "must not hold control characters"
    if url.lower().startswith(("openai+", "lockgate:")):
        return None
    if slug in {".", ".."} or _RESERVED.search(slug):
        return "must be one segment of a path, without any of / ? # %"
    return None


def encode_query(question: str, limit: int, threshold: float, transaction_token: str | None) -> bytes:
    """What a source is asked."""
    body: dict[str, Any] = {"messages": question, "limit": limit, "similarity_threshold": threshold}
    body["include_metadata"] = True
    return _encode(_with_token(body, transaction_token))


def encode_messages(messages: Sequence[Message], params: Mapping[str, Any], transaction_token: str | None) -> bytes:
    """What a model is asked."""
    body: dict[str, Any] = {"messages": [{"role": one.role, "content": one.text} for one in messages]}
    body |= {name: params[name] for name in ("max_tokens", "temperature") if name in params}
    body["stream"] = bool(params.get("stream"))
    body["stop_sequences"] = []
    return _encode(_with_token(body, transaction_token))


def read_documents(body: bytes, source: str) -> list[Document]:
    """The documents of a source's reply; raises ValueError or RecursionError for what is none."""
    refuse_dense(body)
    try:
        reply = _decode_reply(body)
    except ValueError:
        return _read_leniently(body, source)
    items = reply.references.documents or () if reply.references is not None else ()
    _refuse_many(items)
    documents: list[Document] = []
    for item in items:
        titles = item.metadata or _NO_TITLES
        title = _to_title(titles.title) or _to_title(titles.document_title)
        documents.append(Document(title, item.content or "", _to_score(item.similarity_score), None, source))
    return documents


def read_answer(body: bytes) -> Told:
    """A model's whole answer; raises ValueError or RecursionError for what is none."""
    refuse_dense(body)
    reply = decode_any(body)
    if not isinstance(reply, dict) or (text := find_summary(reply)) is None:
        raise ValueError("there is no text in it")
    return Told(mend(text), find_usage(reply))


def find_summary(reply: Mapping[str, Any]) -> str | None:
    """The text of a reply's summary."""
    summary = reply.get("summary")
    message = summary.get("message") if isinstance(summary, dict) else None
    text = message.get("content") if isinstance(message, dict) else message
    return text if isinstance(text, str) else None


def find_usage(reply: Mapping[str, Any]) -> Usage | None:
    """What a reply says was read and written: in its summary, or beside it."""
    summary = reply.get("summary")
    inside = summary.get("usage") if isinstance(summary, dict) else None
    return count_usage(inside) or count_usage(reply.get("usage"))


def count_usage(usage: object) -> Usage | None:
    """The three counters; one that is missing or no number is 0."""
    if not isinstance(usage, dict) or not usage:
        return None
    return {name: _to_count(usage.get(name)) for name in _COUNTERS}


def read_detail(body: bytes, scrub: Scrub) -> str:
    """What a refusal says: its `detail`, else how its body begins. `scrub` sees the words before they are cut."""
    try:
        detail = _to_words(_decode_refusal(body).detail)
    except (ValueError, RecursionError):
        detail = ""
    if detail:
        return scrub(detail[:_WINDOW_CHARS])[:MAX_DETAIL_CHARS]
    return scrub(body[:_WINDOW_CHARS].decode("utf-8", "replace")).strip()[:MAX_BODY_CHARS]


def decode_any(body: bytes | str) -> object:
    """JSON as lenient as most of these servers write it: with NaN, numbers out of range, and halves of characters."""
    try:
        value: object = _decode(body)
    except ValueError:
        value = json.loads(body, parse_int=_to_integer)
    return value


def mend(text: str) -> str:
    """The text without halves of characters, which nobody could be sent."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def refuse_dense(body: bytes) -> None:
    """Raises ValueError for a large body of tiny values: decoded they take up to thirty times the memory."""
    if len(body) > LARGE_BYTES and (body.count(b",") + body.count(b"{")) * BYTES_PER_VALUE > len(body):
        raise ValueError("it has too many values")


def _read_leniently(body: bytes, source: str) -> list[Document]:
    references = _find(decode_any(body), "references")
    items = None if references is None else _find(references, "documents")
    if items is None:
        return []
    if not isinstance(items, list):
        raise ValueError("there are no documents in it")
    _refuse_many(items)
    return [_read_item(item, source) for item in items if isinstance(item, dict)]


def _find(value: object, key: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"there is no object around `{key}`")
    return value.get(key)


def _refuse_many(items: Sequence[object]) -> None:
    if len(items) > MAX_DOCUMENTS:
        raise ValueError(f"it has more than {MAX_DOCUMENTS} documents")


def _read_item(item: Mapping[str, Any], source: str) -> Document:
    content, metadata = item.get("content"), item.get("metadata")
    titles = metadata if isinstance(metadata, dict) else {}
    title = _to_title(titles.get("title")) or _to_title(titles.get("document_title"))
    text = content if isinstance(content, str) else ""
    return Document(mend(title), mend(text), _to_score(item.get("similarity_score")), None, source)


def _to_title(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if _is_number(value) else ""


def _to_score(value: object) -> float:
    return float(value) if _is_number(value) else 0.0


def _to_count(value: object) -> int:
    return int(value) if _is_number(value) and 0 <= value < _MAX_COUNT else 0


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float can hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < _MAX_BITS


def _to_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _to_words(raw: msgspec.Raw) -> str:
    """The words of a `detail`: a text as it is, anything else as compact JSON."""
    value = bytes(raw)
    if value.startswith(b'"'):
        text: str = _decode(value)
        return text
    if value in {b"null", b"{}", b"[]"}:
        return ""
    compact = msgspec.json.format(value, indent=-1) if len(value) <= _WINDOW_CHARS else value[:_WINDOW_CHARS]
    return compact.decode("utf-8", "replace")


def _with_token(body: dict[str, Any], transaction_token: str | None) -> dict[str, Any]:
    if transaction_token:
        body["transaction_token"] = transaction_token
    return body
