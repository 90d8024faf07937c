# SPDX-License-Identifier: Apache-2.0
"""What is said to a SyftAI-Space endpoint and what it says: questions to sources and models, documents and answers.

Decides what of a reply counts, and is lenient about the rest: it is somebody else's server. Refuses to know where an
endpoint is, and what a status means. How answers are streamed stands in lockgate.backends.spaces_stream.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lockgate.backends.replies import Usage, WholeAnswer, count_usage, decode_any, is_number, mend, refuse_dense
from lockgate.gate.values import Document, Message

MAX_DOCUMENTS = 10_000


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


_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(_Reply).decode
_NO_TITLES = _Titles()


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


def read_answer(body: bytes) -> WholeAnswer:
    """A model's whole answer; raises ValueError or RecursionError for what is none."""
    reply = decode_any(body)
    if not isinstance(reply, dict) or (text := find_summary(reply)) is None:
        raise ValueError("there is no text in it")
    return WholeAnswer(mend(text), find_usage(reply))


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
    return str(value) if is_number(value) else ""


def _to_score(value: object) -> float:
    return float(value) if is_number(value) else 0.0


def _with_token(body: dict[str, Any], transaction_token: str | None) -> dict[str, Any]:
    if transaction_token:
        body["transaction_token"] = transaction_token
    return body
