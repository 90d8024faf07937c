# SPDX-License-Identifier: Apache-2.0
"""Clients of the detector API; calls of several streams may share a request.

A failed call is not retried; a shared request that the detector refuses is sent again for each caller alone.
`detector_format` encodes and decodes the bodies.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, NamedTuple, Protocol

from lockgate.backends.detector_format import (
    PATHS,
    encode_contents,
    encode_params,
    encode_subject,
    read_contents,
    read_contents_as_sent,
    read_refusal,
    read_results,
    read_shared_contents,
)
from lockgate.backends.http import HttpResponse, HttpService, OutgoingRequest, open_with_health, refuse
from lockgate.config.settings import DetectorSettings
from lockgate.errors import BrokeProtocol, Unavailable, UpstreamError
from lockgate.gate.fair_queue import BatchShare, FairQueue, QueuedCall
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

# --- Shared requests ------------------------------------------------------------------------------------------

ALONE_CALLS = 8  # with fewer open in its lane, a call is sent at once
MAX_CHARS = 65_536  # per shared request, unless one text alone has more
MAX_WAITING = 4096  # texts per lane; further calls are sent at once and alone
MAX_LANES = 256

Findings = list[Detection]
Part = list[Findings] | UpstreamError
_Call = QueuedCall[str, Findings]
_Share = BatchShare[str, Findings]


class Asker(Protocol):
    """Calls a detector, always with the same parameters and headers."""

    async def find(self, texts: list[str]) -> list[Findings]:
        """Sends one request and returns the findings of each text."""

    async def find_shared(self, parts: Sequence[list[str]]) -> Sequence[Part] | None:
        """Sends the texts of several callers in one request; returns each caller's findings, or the error of its part.

        Returns None if the request was refused or the findings cannot be assigned to callers. Raises UpstreamError.
        """


class _Caller(NamedTuple):
    """A waiting caller; the result of `end` is None, or the error that ended the call."""

    end: "asyncio.Future[Exception | None]"
    context: Context


def closed(service: str) -> Unavailable:
    """Returns the error for calls that wait at closing or come after it."""
    return Unavailable(service, "closed")


class SharedCalls:
    """The calls of one detector, in lanes: calls of one lane may share a request. Empty lanes are removed."""

    def __init__(self, service: str, max_texts: int, max_wait_s: float) -> None:
        self.service = service
        self.max_texts = max_texts
        self.max_wait_s = max_wait_s
        self.is_closed = False
        self._lanes: dict[Hashable, _BatchQueue] = {}

    async def find(self, key: Hashable, stream: Hashable, texts: list[str], asker: Asker) -> list[Findings]:
        """Returns the findings of each text. `key` covers all else in the request: equal keys share a lane."""
        if self.is_closed:
            raise closed(self.service)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                return await asker.find(texts)
            lane = self._lanes[key] = _BatchQueue(self, asker, lambda: self._lanes.pop(key, None))
        return await lane.find(stream, texts)

    async def close(self) -> None:
        """Cancels open requests and fails waiting calls; later calls raise Unavailable."""
        self.is_closed = True
        tasks = [task for lane in self._lanes.values() for task in lane.requests]
        for lane in self._lanes.values():
            lane.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _BatchQueue:
    """Calls that may share a request."""

    def __init__(self, shared: SharedCalls, asker: Asker, forget: Callable[[], object]) -> None:
        self._shared = shared
        self._asker = asker
        self._forget = forget
        self._queue: FairQueue[str, Findings] = FairQueue(MAX_WAITING, len)
        self._callers: dict[_Call, _Caller] = {}
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None
        self.requests: dict[asyncio.Task[None], list[_Share]] = {}

    async def find(self, stream: Hashable, texts: list[str]) -> list[Findings]:
        call = self._queue.add(stream, texts) if self._open >= ALONE_CALLS else None
        if call is not None:
            return await self._wait(call)
        self._open += 1
        try:
            return await self._asker.find(texts)
        finally:
            self._close_one()

    def close(self) -> None:
        """Fails waiting calls and empties the queue, so that nothing more is sent."""
        for call in self._callers:
            self._queue.cancel(call)
            self._end(call, closed(self._shared.service))
        self._stop_timer()

    async def _wait(self, call: _Call) -> list[Findings]:
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._callers[call] = _Caller(end, copy_context())
        if self._queue.waiting >= self._shared.max_texts:
            self._send()
        else:
            self._set_timer()
        try:
            error = await end
        finally:
            del self._callers[call]
            self._leave(call)
        if error is not None:
            raise error
        return call.results

    def _leave(self, call: _Call) -> None:
        """Removes the call from the queue and cancels requests that no caller waits for."""
        self._queue.cancel(call)
        self._set_timer()
        for task, shares in self.requests.items():
            if not any(share.call in self._callers for share in shares):
                task.cancel()

    def _send(self, streams: int = 1) -> None:
        """Sends requests until they hold as many texts as there are `streams`: the queue serves them in turn."""
        self._stop_timer()
        while streams > 0:
            shares = self._queue.take(self._shared.max_texts, MAX_CHARS)
            self._launch(shares)
            streams -= sum(len(share.items) for share in shares)
        self._set_timer()

    def _set_timer(self) -> None:
        """Starts the timer that limits how long calls wait; stops it when none waits."""
        if not self._queue.waiting:
            self._stop_timer()
        elif self._timer is None:
            loop, wait_s = asyncio.get_running_loop(), self._shared.max_wait_s
            self._timer = loop.call_later(wait_s, lambda: self._send(self._queue.streams))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _launch(self, shares: list[_Share]) -> None:
        """Sends in a task that outlives a cancelled caller, in the first caller's context."""
        self._open += 1
        context = self._callers[shares[0].call].context
        task = asyncio.get_running_loop().create_task(self._ask(shares), context=context)
        self.requests[task] = shares
        task.add_done_callback(self._close_request)

    async def _ask(self, shares: list[_Share]) -> None:
        parts: Sequence[Part] | None
        try:
            if len(shares) == 1:
                parts = [await self._asker.find(shares[0].items)]
            else:
                parts = await self._asker.find_shared([share.items for share in shares])
        except UpstreamError as error:
            parts = [error] * len(shares)
        if parts is None:
            for share in shares:
                if share.call in self._callers and not self._shared.is_closed:
                    self._launch([share])
            return
        for share, part in zip(shares, parts, strict=True):
            if isinstance(part, UpstreamError):
                self._end(share.call, part)
            elif self._queue.add_results(share, part):
                self._end(share.call)

    def _close_request(self, task: "asyncio.Task[None]") -> None:
        shares = self.requests.pop(task)
        error = closed(self._shared.service) if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            for share in shares:
                self._end(share.call, error)
        self._close_one()

    def _end(self, call: _Call, error: Exception | None = None) -> None:
        caller = self._callers.get(call)
        if caller is not None and not caller.end.done():
            caller.end.set_result(error)

    def _close_one(self) -> None:
        self._open -= 1
        while self._queue.waiting and self._open < ALONE_CALLS:
            self._send()
        if not self._open:
            self._forget()


# --- Clients --------------------------------------------------------------------------------------------------

_SUBJECTS: Mapping[str, type[Subject]] = {TEXT_GENERATION: Generated, TEXT_CHAT: Conversation, TEXT_CONTEXT_DOC: Claim}


class _Remote:
    """A detector server: its address, its fixed headers and its health."""

    def __init__(self, detector_id: str, settings: DetectorSettings, http: HttpService, health: HttpService) -> None:
        self.id = detector_id
        self.http = http
        self._health = health
        self.url = http.url(settings.path or PATHS[settings.type])
        self.fixed_headers = {"detector-id": detector_id, "x-model-name": detector_id}
        self.subject: type[Any] = _SUBJECTS.get(settings.type, object)
        self.failure = f"detector request failed for `{detector_id}`: "

    async def probe(self, headers: Headers) -> Health:
        """Returns the server's health; never raises."""
        return await self._health.probe(headers)


class _RemoteRequest:
    """The parameters and headers for the calls of one request. Only the server checks the parameters."""

    def __init__(self, client: _Remote, params: Mapping[str, Any], headers: Headers) -> None:
        self._client = client
        self._params = dict(params)
        self._headers = client.http.headers(headers, client.fixed_headers)

    async def _post(self, body: bytes) -> HttpResponse:
        client = self._client
        return await client.http.post(OutgoingRequest(client.url, self._headers, body, client.failure))

    async def _ask(self, body: bytes) -> bytes:
        answer = await self._post(body)
        if answer.status != 200:
            status, message = read_refusal(answer.status, answer.body)
            raise refuse(self._client.id, self._client.failure + message, status, words=message)
        return answer.body

    def _misfit(self, error: Exception) -> BrokeProtocol:
        return BrokeProtocol(self._client.id, f"{self._client.failure}the answer does not fit: {error}")


class RemoteReading(_RemoteRequest):
    """Reads the texts of one request, by separate or shared calls."""

    def __init__(self, client: "DetectorClient", params: Mapping[str, Any], headers: Headers) -> None:
        super().__init__(client, params, headers)
        self._shared = client.shared
        self._read = read_contents_as_sent if client.trusts_findings else read_contents
        self._key: Hashable = None  # parameters and headers: calls share a request only where these are equal

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """Returns the findings of each excerpt; without excerpts the detector is not called."""
        if not excerpts:
            return []
        texts = [excerpt.text for excerpt in excerpts]
        if self._shared is None:
            return await self.find(texts)
        if self._key is None:
            self._key = encode_params(self._params), tuple(self._headers.items())
        return await self._shared.find(self._key, self, texts, self)

    async def find(self, texts: list[str]) -> list[Findings]:
        """Sends one request and returns the findings of each text."""
        body = await self._ask(encode_contents(texts, self._params))
        try:
            return self._read(body, texts)
        except (ValueError, RecursionError) as error:
            raise self._misfit(error) from None

    async def find_shared(self, parts: Sequence[list[str]]) -> Sequence[Part] | None:
        """Sends several callers' texts in one request; returns None if each needs a separate one."""
        try:
            answer = await self._post(encode_contents([text for part in parts for text in part], self._params))
        except (BrokeProtocol, UnicodeError):
            return None
        if answer.status != 200:
            return None
        try:
            read = read_shared_contents(answer.body, parts)
        except (ValueError, RecursionError):
            return None
        return [self._misfit(part) if isinstance(part, Exception) else part for part in read]


class _RemoteReview(_RemoteRequest):
    """Reads one subject."""

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """Sends one request and returns the findings about the subject."""
        kind = self._client.subject
        if not isinstance(subject, kind):
            raise RuntimeError(f"detector `{self._client.id}` reads {kind.__name__}, not {type(subject).__name__}")
        body = await self._ask(encode_subject(subject, self._params))
        try:
            return read_results(body)
        except (ValueError, RecursionError) as error:
            raise self._misfit(error) from None


class DetectorClient(_Remote):
    """A remote detector that reads chunks; those of several streams may share a request."""

    lookbehind_chars = 0

    def __init__(
        self,
        detector_id: str,
        settings: DetectorSettings,
        http: HttpService,
        health: HttpService,
        *,
        trusts_findings: bool = False,
    ) -> None:
        super().__init__(detector_id, settings, http, health)
        self.trusts_findings = trusts_findings
        self.shared: SharedCalls | None = None
        if settings.batch_contents > 1:
            self.shared = SharedCalls(detector_id, settings.batch_contents, settings.batch_wait_ms / 1000)

    def accept(self, params: Mapping[str, Any], headers: Headers) -> RemoteReading:
        """Returns the reader for one request's texts."""
        return RemoteReading(self, params, headers)


class ReviewerClient(_Remote):
    """A remote detector that reads a chat, a prompt with its answer, or a text with its context."""

    def accept(self, params: Mapping[str, Any], headers: Headers) -> _RemoteReview:
        """Returns the reviewer for one request's subject."""
        return _RemoteReview(self, params, headers)


@asynccontextmanager
async def open_detector_client(
    detector_id: str, settings: DetectorSettings, *, trusts_findings: bool = False, resends: bool = True
) -> AsyncIterator[DetectorClient | ReviewerClient]:
    """Opens the client of a remote detector; its type decides which.

    `trusts_findings`: the number of lists and the places of findings are used without a check. `resends`: as in
    open_http.
    """
    if settings.service is None:
        raise RuntimeError(f"detector `{detector_id}` is not remote")
    service, health_service = settings.service, settings.health_service
    async with open_with_health(service, health_service, "detector", detector_id, resends=resends) as (http, health):
        if settings.type != TEXT_CONTENTS:
            yield ReviewerClient(detector_id, settings, http, health)
            return
        client = DetectorClient(detector_id, settings, http, health, trusts_findings=trusts_findings)
        try:
            yield client
        finally:
            if client.shared is not None:
                await client.shared.close()
