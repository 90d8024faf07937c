# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a SyftAI-Space: data sources and models. Each call sends one request and never retries it.

Replies are read leniently: documents and answers, whole or as server-sent events with chunks in several formats.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import NO_DETAIL, Endpoint, Scrubber
from lockgate.backends.http import HttpCaller, OutgoingRequest, decode, refuse, refuse_dense
from lockgate.backends.http_model import DONE, AnswerReader, HttpModel, ModelAnswer, Usage, count_usage
from lockgate.backends.replies import decode_any, is_number, mend, read_detail
from lockgate.errors import BrokeProtocol
from lockgate.gate.sse import SseEvent
from lockgate.gate.values import Document, Message
from lockgate.index.hits import FoundDocuments

# --- Bodies ---------------------------------------------------------------------------------------------------


class _Titles(msgspec.Struct, gc=False):
    title: str | int | float | None = None
    document_title: str | int | float | None = None


class _Item(msgspec.Struct, gc=False):
    content: str | None = None
    metadata: _Titles | None = None
    similarity_score: float | None = None


class _References(msgspec.Struct, gc=False):
    documents: list[msgspec.Raw] | None = None


class _SpaceReply(msgspec.Struct, gc=False):
    references: _References | None = None


_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(_SpaceReply).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_NO_TITLES = _Titles()


def encode_query(question: str, limit: int, threshold: float, transaction_token: str | None) -> bytes:
    """Encodes a query of a data source."""
    body: dict[str, Any] = {"messages": question, "limit": limit, "similarity_threshold": threshold}
    body["include_metadata"] = True
    if transaction_token:
        body["transaction_token"] = transaction_token
    return _encode(body)


def encode_messages(messages: Sequence[Message], params: Mapping[str, Any], transaction_token: str | None) -> bytes:
    """Encodes a model's request."""
    body: dict[str, Any] = {"messages": [{"role": one.role, "content": one.text} for one in messages]}
    body |= {name: params[name] for name in ("max_tokens", "temperature") if name in params}
    body["stream"] = bool(params.get("stream"))
    body["stop_sequences"] = []
    if transaction_token:
        body["transaction_token"] = transaction_token
    return _encode(body)


def read_documents(body: bytes, source: str, limit: int) -> FoundDocuments:
    """Decodes the first documents of a source's reply; raises ValueError or RecursionError if it is none."""
    refuse_dense(body)
    try:
        reply = _decode_reply(body)
    except ValueError:
        return _read_leniently(body, source, limit)
    items = reply.references.documents or () if reply.references is not None else ()
    found = FoundDocuments()
    for place, raw in enumerate(items):
        if len(found) == limit:
            found.left_out = len(items) - place
            break
        try:
            item = _decode_item(raw)
        except ValueError:
            found += _read_item(decode_any(bytes(raw)), source)
            continue
        titles = item.metadata or _NO_TITLES
        title = _to_title(titles.title) or _to_title(titles.document_title)
        found.append(Document(title, item.content or "", item.similarity_score or 0.0, None, source))
    return found


def read_answer(body: bytes) -> ModelAnswer:
    """Decodes a model's whole answer; raises ValueError or RecursionError if it is none."""
    reply = decode_any(body)
    if not isinstance(reply, dict) or (text := find_summary(reply)) is None:
        raise ValueError("there is no text in it")
    return ModelAnswer(mend(text), find_usage(reply))


def find_summary(reply: Mapping[str, Any]) -> str | None:
    """Returns the text of a reply's summary, or None."""
    summary = reply.get("summary")
    message = summary.get("message") if isinstance(summary, dict) else None
    text = message.get("content") if isinstance(message, dict) else message
    return text if isinstance(text, str) else None


def find_usage(reply: Mapping[str, Any]) -> Usage | None:
    """Returns a reply's usage, from its summary or beside it."""
    summary = reply.get("summary")
    inside = summary.get("usage") if isinstance(summary, dict) else None
    return count_usage(inside) or count_usage(reply.get("usage"))


def _read_leniently(body: bytes, source: str, limit: int) -> FoundDocuments:
    references = _find(decode_any(body), "references")
    items = None if references is None else _find(references, "documents")
    if not isinstance(items, list | None):
        raise ValueError("there are no documents in it")
    found = FoundDocuments()
    for place, item in enumerate(items or ()):
        if len(found) == limit:
            found.left_out = len(items or ()) - place
            break
        found += _read_item(item, source)
    return found


def _find(value: object, key: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"there is no object around `{key}`")
    return value.get(key)


def _read_item(item: object, source: str) -> list[Document]:
    """Returns the document of an item, none if it is no object."""
    if not isinstance(item, dict):
        return []
    content, metadata = item.get("content"), item.get("metadata")
    titles = metadata if isinstance(metadata, dict) else {}
    title = _to_title(titles.get("title")) or _to_title(titles.get("document_title"))
    text = content if isinstance(content, str) else ""
    score = item.get("similarity_score")
    return [Document(mend(title), mend(text), float(score) if is_number(score) else 0.0, None, source)]


def _to_title(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if is_number(value) else ""


# --- Streams --------------------------------------------------------------------------------------------------

_NO_ERROR = (None, False, "")


class SpaceReader(AnswerReader):
    """Reads a streamed answer, whose chunks may differ in format."""

    def _read_event(self, event: SseEvent) -> Iterator[str]:
        for data in _split(event.data):
            if self.is_done or self.failure is not None:
                return
            if event.event == "error":
                self.failure = _describe(data)
            elif data.strip() == DONE:
                self.is_done = self.has_end = True
            elif piece := self._read_chunk(data):
                yield mend(piece)

    def _read_chunk(self, data: str) -> str:
        chunk = _read_object(data)
        if chunk is None:
            return data
        if chunk.get("error") not in _NO_ERROR:
            self.failure = _describe_error(chunk["error"])
            return ""
        self.usage = find_usage(chunk) or self.usage
        return _find_text(chunk)


def _find_text(chunk: Mapping[str, Any]) -> str:
    """Returns the text of a chunk in any of the formats."""
    for text in (find_summary(chunk), _find_delta(chunk.get("choices")), chunk.get("content"), chunk.get("text")):
        if isinstance(text, str):
            return text
    return ""


def _describe_error(error: object) -> str:
    """Returns an error's message, or the whole error as JSON if it has none."""
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return mend(message) if isinstance(message, str) else json.dumps(error, separators=(",", ":"))


def _find_delta(choices: object) -> str | None:
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    text = delta.get("content") if isinstance(delta, dict) else None
    return text if isinstance(text, str) else None


def _read_object(data: str) -> dict[str, Any] | None:
    """Returns a chunk that is a JSON object; None for anything else, which is text."""
    if not data.lstrip().startswith("{"):
        return None
    try:
        chunk = decode_any(data)
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def _split(data: str) -> list[str]:
    """Returns the chunks of an event: several if the sender left out the empty lines between them."""
    if "\n" not in data or _read_object(data) is not None:
        return [data]
    lines = data.split("\n")
    is_list = all(line.strip() == DONE or _read_object(line) is not None for line in lines)
    return lines if is_list else [data]


def _describe(data: str) -> str:
    chunk = _read_object(data)
    return data if chunk is None else _describe_error(chunk.get("error", chunk))


# --- Endpoints ------------------------------------------------------------------------------------------------

NAME = "syftai_space"


@dataclass(frozen=True, slots=True, repr=False)
class SpaceSource:
    """A data source; citations name its documents by the endpoint's path."""

    caller: HttpCaller
    url: URL
    headers: CIMultiDict[str]
    endpoint: Endpoint
    path: str  # the endpoint's
    threshold: float

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """Returns the first documents that the source sends; the others are not decoded."""
        try:
            body = encode_query(question, limit, self.threshold, self.endpoint.transaction_token)
        except ValueError:
            raise BrokeProtocol(self.caller.name, "the question is no valid text") from None
        is_once = bool(self.endpoint.transaction_token)
        answer = await self.caller.post(OutgoingRequest(self.url, self.headers, body, "", is_once))
        if answer.status != 200:
            detail = await decode(answer.body, self._find_detail)
            own = "Access denied" if answer.status == 403 else f"HTTP {answer.status}"
            raise refuse(self.caller.name, f"{own}: {detail}", answer.status, words=detail, own=own)
        try:
            return await decode(answer.body, partial(read_documents, source=self.path, limit=limit))
        except (ValueError, RecursionError):
            raise BrokeProtocol(self.caller.name, "the answer is not the JSON of a data source") from None

    def _find_detail(self, body: bytes) -> str:
        return read_detail(body, scrubber_of(self.endpoint)) or NO_DETAIL


class SpaceModel(HttpModel):
    """A model, streamed or not."""

    known_as = NAME
    reader = SpaceReader

    def __init__(self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], endpoint: Endpoint) -> None:
        super().__init__(caller, url, headers, scrubber_of(endpoint))
        self._transaction_token = endpoint.transaction_token
        self.is_once = bool(endpoint.transaction_token)

    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        return encode_messages(messages, params, self._transaction_token)

    def _decode(self, body: bytes) -> ModelAnswer:
        return read_answer(body)

    def _find_detail(self, body: bytes) -> str:
        return read_detail(body, self._scrub) or NO_DETAIL


def scrubber_of(endpoint: Endpoint) -> Scrubber:
    """Returns a Scrubber that hides an endpoint's tokens."""
    return Scrubber(endpoint.token, endpoint.transaction_token)
