# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a SyftAI-Space: data sources and models.

Decides how an endpoint is asked and in which words its failure is told. Refuses to know what the bodies look like
(lockgate.backends.spaces_format), who may be called, and how long it may take. One request per call, never repeated.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import NO_DETAIL, Scrubber
from lockgate.backends.http import HttpCaller, Outgoing, decode, refuse
from lockgate.backends.http_model import HttpModel
from lockgate.backends.replies import AnswerReader, WholeAnswer, read_detail
from lockgate.backends.spaces_format import encode_messages, encode_query, read_answer, read_documents
from lockgate.backends.spaces_stream import SpaceReader
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.values import Document, Endpoint, Message

NAME = "syftai_space"


class SpaceSource:
    """A data source. Its documents are cited by the endpoint's path."""

    __slots__ = ("_caller", "_endpoint", "_headers", "_threshold", "_url")

    def __init__(
        self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], endpoint: Endpoint, threshold: float
    ) -> None:
        self._caller = caller
        self._url = url
        self._headers = headers
        self._endpoint = endpoint
        self._threshold = threshold

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """All documents that the source gives."""
        answer = await self._caller.post(self._address(question, limit))
        if answer.status != 200:
            raise self._refuse(answer.status, await decode(answer.body, self._find_detail))
        try:
            return await decode(answer.body, partial(read_documents, source=self._endpoint.path))
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, "the answer is not the JSON of a data source") from None

    def _address(self, question: str, limit: int) -> Outgoing:
        try:
            body = encode_query(question, limit, self._threshold, self._endpoint.transaction_token)
        except ValueError:
            raise BrokeProtocol(self._caller.name, "the question is no valid text") from None
        return Outgoing(self._url, self._headers, body, "")

    def _find_detail(self, body: bytes) -> str:
        return read_detail(body, scrubber_of(self._endpoint)) or NO_DETAIL

    def _refuse(self, status: int, detail: str) -> UpstreamError:
        words = f"Access denied: {detail}" if status == 403 else f"HTTP {status}: {detail}"
        return refuse(self._caller.name, words, status)


class SpaceModel(HttpModel):
    """A model, streamed or not."""

    known_as = NAME

    def __init__(self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], endpoint: Endpoint) -> None:
        super().__init__(caller, url, headers, scrubber_of(endpoint))
        self._transaction_token = endpoint.transaction_token

    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        return encode_messages(messages, params, self._transaction_token)

    def _decode(self, body: bytes) -> WholeAnswer:
        return read_answer(body)

    def _find_detail(self, body: bytes) -> str:
        return read_detail(body, self._scrub) or NO_DETAIL

    def _open_reader(self) -> AnswerReader:
        return SpaceReader()


def scrubber_of(endpoint: Endpoint) -> Scrubber:
    """Hides the tokens that an endpoint was given."""
    return Scrubber(endpoint.token, endpoint.transaction_token)
