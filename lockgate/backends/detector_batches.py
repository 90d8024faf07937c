# SPDX-License-Identifier: Apache-2.0
"""Chunks of different streams in one request, where a detector is busy anyway.

Decides when calls are put together and who fails with whom. While few calls with the same words are open each is sent
at once and alone, as if this were not here. Beyond that chunks wait for a moment, and those that wait share a request,
fair between streams (lockgate.gate.sharing). A shared request that is refused is asked again for each caller alone,
once; one that finds nobody or takes too long fails all that shared it. Refuses to know what requests and answers look
like; whoever asks says which calls may share at all.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context, copy_context
from typing import NamedTuple, Protocol

from lockgate.errors import Unavailable, UpstreamError
from lockgate.gate.sharing import Call, FairQueue, Share
from lockgate.gate.values import Detection

ALONE_CALLS = 8  # so many open calls with the same words, and nobody waits
MAX_CHARS = 65_536  # of a shared request, unless one text alone has more
MAX_WAITING = 4096  # texts per lane; what comes then is sent at once and alone
MAX_LANES = 256

Findings = list[Detection]
Part = list[Findings] | UpstreamError
_Call = Call[str, Findings]
_Share = Share[str, Findings]


class Asker(Protocol):
    """Asks a detector, always with the same parameters and headers."""

    async def find(self, texts: list[str]) -> list[Findings]:
        """The findings of each text, by one request."""

    async def find_shared(self, parts: Sequence[list[str]]) -> Sequence[Part] | None:
        """The findings of texts of several callers, by one request: for each what is wrong with its part alone.

        Nothing if the request was refused, or if it is not certain whose the findings are. Raises UpstreamError.
        """


class _Caller(NamedTuple):
    """Somebody who waits for a call; what it comes to is no error, or the one that ended it."""

    end: "asyncio.Future[Exception | None]"
    context: Context


def closed(service: str) -> Unavailable:
    """What they are told who ask when nobody is asked any more."""
    return Unavailable(service, "closed")


class SharedCalls:
    """The calls of one detector, in lanes: what is in one lane may share a request. Empty lanes are forgotten."""

    def __init__(self, service: str, max_texts: int, max_wait_s: float) -> None:
        self.service = service
        self.max_texts = max_texts
        self.max_wait_s = max_wait_s
        self.is_closed = False
        self._lanes: dict[Hashable, _Lane] = {}

    async def find(self, words: Hashable, whose: Hashable, texts: list[str], asker: Asker) -> list[Findings]:
        """The findings of each text. `words` are all that is said besides the texts, `whose` stands for the stream."""
        if self.is_closed:
            raise closed(self.service)
        lane = self._lanes.get(words)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                return await asker.find(texts)
            lane = self._lanes[words] = _Lane(self, asker, lambda: self._lanes.pop(words, None))
        return await lane.find(whose, texts)

    async def close(self) -> None:
        """Ends what is still open and whoever waits; nobody is asked any more."""
        self.is_closed = True
        tasks = [task for lane in self._lanes.values() for task in lane.requests]
        for lane in self._lanes.values():
            lane.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Lane:
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

    async def find(self, whose: Hashable, texts: list[str]) -> list[Findings]:
        call = self._queue.add(whose, texts) if self._open >= ALONE_CALLS else None
        if call is not None:
            return await self._wait(call)
        self._open += 1
        try:
            return await self._asker.find(texts)
        finally:
            self._close_one()

    def close(self) -> None:
        """Whoever waits is told, and nothing is left that a timer or the end of a request could send."""
        for call in self._callers:
            self._queue.leave(call)
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
        """What of a call waits is taken out; requests that nobody waits for any more are ended."""
        self._queue.leave(call)
        self._set_timer()
        for task, shares in self.requests.items():
            if not any(share.call in self._callers for share in shares):
                task.cancel()

    def _send(self, streams: int = 1) -> None:
        """One request, or as many as it takes to have a text of each of so many streams in them.

        What remains, of streams that ask much at once, waits again.
        """
        self._stop_timer()
        while streams > 0:
            shares = self._queue.take(self._shared.max_texts, MAX_CHARS)
            self._launch(shares)
            streams -= sum(len(share.items) for share in shares)
        self._set_timer()

    def _send_late(self) -> None:
        self._send(self._queue.streams)

    def _set_timer(self) -> None:
        """Nothing waits for longer than it may, and the timer runs only while something waits."""
        if not self._queue.waiting:
            self._stop_timer()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._shared.max_wait_s, self._send_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _launch(self, shares: list[_Share]) -> None:
        """A request in a task of its own, for nobody's leaving may end it; it counts as one of the first caller's."""
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
            elif self._queue.give(share, part):
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
