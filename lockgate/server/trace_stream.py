# SPDX-License-Identifier: Apache-2.0
"""The trace of an answer on its way to whoever may see text that is held: its notes go out between the answer's events.

Decides who may: a request that shows the token of this start, to a host name that only this machine or the settings
know. Refuses to know what is noted.
"""

import asyncio
import hmac
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lockgate.api.aggregator.trace_format import encode_note
from lockgate.config.kinds import Secret
from lockgate.errors import NotAllowed
from lockgate.rag.trace import Note, Trace
from lockgate.server.addresses import is_loopback
from lockgate.server.exchange import Exchange
from lockgate.task_groups import run_group

TOKEN_HEADER = b"x-lockgate-trace"
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?")
_PAUSE_S = 0.02  # in which notes gather: a person sees no more than fifty steps a second
_WRONG_TOKEN = "the trace needs the token that this start printed, as X-Lockgate-Trace"  # noqa: S105 - words


class HostRule:
    """Which host names a request may be for: a page elsewhere must not reach us under a name of its own."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)

    def check(self, exchange: Exchange) -> None:
        """Raises NotAllowed."""
        hosts = [_cut_port(one.strip().lower()) for one in exchange.request.headers(b"host")]
        if not hosts or not all(is_loopback(one) or one in self._allowed for one in hosts):
            raise NotAllowed("this host name is not allowed here: add it to `server.allowed_hosts`")


def _cut_port(host: str) -> str:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]) if found else ""


def check_token(exchange: Exchange, token: Secret | None) -> None:
    """Raises NotAllowed unless the request shows the token."""
    shown = [one.strip() for one in exchange.request.headers(TOKEN_HEADER)]
    exchange.request.withheld |= {TOKEN_HEADER}
    if token is None or len(shown) != 1 or not hmac.compare_digest(shown[0].encode(), token.reveal().encode()):
        raise NotAllowed(_WRONG_TOKEN)


class Tracer:
    """Writes the notes of one answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._moved = asyncio.Event()
        self._waiting: deque[Note] = deque()
        self._turn = asyncio.Lock()  # notes stay in their order though two may write them
        self.trace = Trace(time.monotonic, self._moved.set)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Notes go out while the answer is made, and at its end those that are left."""
        try:
            async with run_group() as group:
                group.create_task(self._pump())
                yield
        except Exception:
            await self.flush()
            raise
        await self.flush()

    async def flush(self) -> None:
        """What is noted up to now goes out before anything else; a note waits until it is written."""
        async with self._turn:
            self._waiting += self.trace.take()
            while self._waiting:
                await self._exchange.reply.write(encode_note(self._waiting.popleft()))

    async def _pump(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            await self.flush()
            await asyncio.sleep(_PAUSE_S)
