# SPDX-License-Identifier: Apache-2.0
"""Detectors behind the detector API.

Decides which address and headers a detector is asked with, and whose words its failure carries. Refuses to know what
the bodies look like (lockgate.wire.detectors) and what is made of the findings. One request per call, never repeated
for a failure of the detector.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from multidict import CIMultiDict

from lockgate.clients.http import HttpService, Outgoing, open_with_health, refuse
from lockgate.config.settings import DetectorSettings
from lockgate.core.values import (
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
from lockgate.errors import BrokeProtocol
from lockgate.interfaces import Headers
from lockgate.wire.detectors import (
    PATHS,
    encode_contents,
    encode_subject,
    read_contents,
    read_refusal,
    read_results,
)

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

    async def _ask(self, headers: CIMultiDict[str], body: bytes) -> bytes:
        answer = await self._http.post(Outgoing(self._url, headers, body, self._failure))
        if answer.status != 200:
            status, message = read_refusal(answer.status, answer.body)
            raise refuse(self._id, self._failure + message, status)
        return answer.body

    def _misfit(self, error: Exception) -> BrokeProtocol:
        return BrokeProtocol(self._id, f"{self._failure}the answer does not fit: {error}")


class DetectorClient(_Remote):
    """A remote detector that reads chunks."""

    lookbehind_chars = 0

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "_RemoteReading":
        """Takes any parameters: only the server knows which are right."""
        return _RemoteReading(self, dict(params), self._headers(headers))

    async def find(self, texts: list[str], params: dict[str, Any], headers: CIMultiDict[str]) -> list[list[Detection]]:
        """The findings of each text, by one request."""
        body = await self._ask(headers, encode_contents(texts, params))
        try:
            return read_contents(body, texts)
        except (ValueError, RecursionError) as error:
            raise self._misfit(error) from None


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

    __slots__ = ("_client", "_headers", "_params")

    def __init__(self, client: DetectorClient, params: dict[str, Any], headers: CIMultiDict[str]) -> None:
        self._client = client
        self._params = params
        self._headers = headers

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The findings of each excerpt; nothing is asked about no excerpts."""
        if not excerpts:
            return []
        return await self._client.find([excerpt.text for excerpt in excerpts], self._params, self._headers)


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
    kind = DetectorClient if settings.type == TEXT_CONTENTS else ReviewerClient
    async with open_with_health(settings.service, settings.health_service, "detector", detector_id) as (http, health):
        yield kind(detector_id, settings, http, health)
