# SPDX-License-Identifier: Apache-2.0
"""Detectors behind the detector API.

Chooses the address and the headers of a call, and the text of its failure. `detector_format` has the bodies,
`detector_batches` shares a request between streams. A failed call is not repeated; a shared request that the detector
refuses is sent again for each caller alone.
"""

from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from multidict import CIMultiDict

from lockgate.backends.detector_batches import Findings, Part, SharedCalls
from lockgate.backends.detector_format import (
    PATHS,
    encode_contents,
    encode_params,
    encode_subject,
    read_contents,
    read_refusal,
    read_results,
    read_shared_contents,
)
from lockgate.backends.http import Answer, HttpService, Outgoing, open_with_health, refuse
from lockgate.config.settings import DetectorSettings
from lockgate.errors import BrokeProtocol
from lockgate.gate.values import (
    TEXT_CHAT,
    TEXT_CONTENTS,
    TEXT_CONTEXT_DOC,
    TEXT_GENERATION,
    Claim,
    Conversation,
    Detection,
    Excerpt,
    Generated,
    Health,
    Subject,
)
from lockgate.interfaces import Headers

_SUBJECTS: Mapping[str, type[Subject]] = {
    TEXT_GENERATION: Generated,
    TEXT_CHAT: Conversation,
    TEXT_CONTEXT_DOC: Claim,
}


class _Remote:
    """A detector server: where it is, how it is asked, how it is."""

    def __init__(self, detector_id: str, settings: DetectorSettings, http: HttpService, health: HttpService) -> None:
        self._id = detector_id
        self._http = http
        self._health = health
        self._url = http.url(settings.path or PATHS[settings.type])
        self._fixed = {"detector-id": detector_id, "x-model-name": detector_id}
        self._failure = f"detector request failed for `{detector_id}`: "

    async def probe(self, headers: Headers) -> Health:
        """How the server is now; never raises."""
        return await self._health.probe(headers)

    def _headers(self, passed: Headers) -> CIMultiDict[str]:
        return self._http.headers(passed, self._fixed)

    async def _post(self, headers: CIMultiDict[str], body: bytes) -> Answer:
        return await self._http.post(Outgoing(self._url, headers, body, self._failure))

    async def _ask(self, headers: CIMultiDict[str], body: bytes) -> bytes:
        answer = await self._post(headers, body)
        if answer.status != 200:
            status, message = read_refusal(answer.status, answer.body)
            raise refuse(self._id, self._failure + message, status)
        return answer.body

    def _misfit(self, error: Exception) -> BrokeProtocol:
        return BrokeProtocol(self._id, f"{self._failure}the answer does not fit: {error}")


class DetectorClient(_Remote):
    """A remote detector that reads chunks; those of several streams may share a request."""

    lookbehind_chars = 0

    def __init__(self, detector_id: str, settings: DetectorSettings, http: HttpService, health: HttpService) -> None:
        super().__init__(detector_id, settings, http, health)
        self._shared: SharedCalls | None = None
        if settings.batch_contents > 1:
            self._shared = SharedCalls(detector_id, settings.batch_contents, settings.batch_wait_ms / 1000)

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "_RemoteReading":
        """Takes any parameters: only the server knows which are right."""
        return _RemoteReading(self, dict(params), self._headers(headers))

    async def ask(self, reading: "_RemoteReading", texts: list[str]) -> list[Findings]:
        """The findings of each text, by a request of its own or a shared one."""
        if self._shared is None:
            return await reading.find(texts)
        return await self._shared.find(reading.words, reading, texts, reading)

    async def find(self, texts: list[str], params: dict[str, Any], headers: CIMultiDict[str]) -> list[Findings]:
        """The findings of each text, by one request."""
        body = await self._ask(headers, encode_contents(texts, params))
        try:
            return read_contents(body, texts)
        except (ValueError, RecursionError) as error:
            raise self._misfit(error) from None

    async def find_shared(
        self, parts: Sequence[list[str]], params: dict[str, Any], headers: CIMultiDict[str]
    ) -> Sequence[Part] | None:
        """The findings of several callers' texts, by one request; nothing if each has to ask for itself."""
        try:
            answer = await self._post(headers, encode_contents([text for part in parts for text in part], params))
        except (BrokeProtocol, UnicodeError):
            return None
        if answer.status != 200:
            return None
        try:
            read = read_shared_contents(answer.body, parts)
        except (ValueError, RecursionError):
            return None
        return [self._misfit(part) if isinstance(part, Exception) else part for part in read]

    async def close(self) -> None:
        """Ends the requests that are still open."""
        if self._shared is not None:
            await self._shared.close()


class ReviewerClient(_Remote):
    """A remote detector that reads a chat, a prompt with its answer, or a text with its context, by its type."""

    def __init__(self, detector_id: str, settings: DetectorSettings, http: HttpService, health: HttpService) -> None:
        super().__init__(detector_id, settings, http, health)
        self._subject = _SUBJECTS[settings.type]

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "_RemoteReview":
        """Takes any parameters: only the server knows which are right."""
        return _RemoteReview(self, dict(params), self._headers(headers))

    async def find(self, subject: Subject, params: dict[str, Any], headers: CIMultiDict[str]) -> list[Detection]:
        """The findings about the subject, by one request."""
        if not isinstance(subject, self._subject):
            raise RuntimeError(f"detector `{self._id}` reads {self._subject.__name__}, not {type(subject).__name__}")
        body = await self._ask(headers, encode_subject(subject, params))
        try:
            return read_results(body)
        except (ValueError, RecursionError) as error:
            raise self._misfit(error) from None


class _RemoteReading:
    """One request's parameters and headers, made once."""

    __slots__ = ("_client", "_headers", "_params", "_words")

    def __init__(self, client: DetectorClient, params: dict[str, Any], headers: CIMultiDict[str]) -> None:
        self._client = client
        self._params = params
        self._headers = headers
        self._words: Hashable = None

    @property
    def words(self) -> Hashable:
        """All that is said besides the texts; only where it is equal to the letter a request is shared."""
        if self._words is None:
            self._words = encode_params(self._params), tuple(self._headers.items())
        return self._words

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The findings of each excerpt; nothing is asked about no excerpts."""
        if not excerpts:
            return []
        return await self._client.ask(self, [excerpt.text for excerpt in excerpts])

    async def find(self, texts: list[str]) -> list[Findings]:
        """The findings of each text, by one request."""
        return await self._client.find(texts, self._params, self._headers)

    async def find_shared(self, parts: Sequence[list[str]]) -> Sequence[Part] | None:
        """The findings of several callers' texts, by one request; nothing if each has to ask for itself."""
        return await self._client.find_shared(parts, self._params, self._headers)


class _RemoteReview:
    """One request's parameters and headers, made once."""

    __slots__ = ("_client", "_headers", "_params")

    def __init__(self, client: ReviewerClient, params: dict[str, Any], headers: CIMultiDict[str]) -> None:
        self._client = client
        self._params = params
        self._headers = headers

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """The findings."""
        return await self._client.find(subject, self._params, self._headers)


@asynccontextmanager
async def open_detector_client(
    detector_id: str, settings: DetectorSettings
) -> AsyncIterator[DetectorClient | ReviewerClient]:
    """The client of a remote detector, by its type."""
    if settings.service is None:
        raise RuntimeError(f"detector `{detector_id}` is not remote")
    async with open_with_health(settings.service, settings.health_service, "detector", detector_id) as (http, health):
        if settings.type != TEXT_CONTENTS:
            yield ReviewerClient(detector_id, settings, http, health)
            return
        client = DetectorClient(detector_id, settings, http, health)
        try:
            yield client
        finally:
            await client.close()
