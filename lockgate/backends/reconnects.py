# SPDX-License-Identifier: Apache-2.0
"""Sends a request once more, on a new connection, if a reused connection ends before any byte of a response.

Many servers close a connection that was idle, or after each answer without announcing it. A request that is sent at
that moment is lost before the server reads it. Only connections of a ResendingConnector are watched; on others, and
after any other failure, nothing is sent again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler


class WatchedConnection(ResponseHandler):
    """A connection that knows whether a byte of a response has come since it was taken from the pool."""

    has_response = False

    def data_received(self, data: bytes) -> None:
        """Bytes of a response came; none where the library only goes on with what it has, as when a connection ends."""
        self.has_response = self.has_response or bool(data)
        super().data_received(data)


REUSED: ContextVar[WatchedConnection | None] = ContextVar("lockgate_reused_connection", default=None)
_needs_new: ContextVar[bool] = ContextVar("lockgate_needs_new_connection", default=False)


class ResendingConnector(aiohttp.TCPConnector):
    """A connection pool of watched connections; sets REUSED to one that is used again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(WatchedConnection, loop=self._loop))

    async def _get(self, key: Any, traces: Any) -> Any:
        reused = None if _needs_new.get() else await super()._get(key, traces)
        if reused is not None:
            connection = cast("WatchedConnection", reused.protocol)
            connection.has_response = False
            REUSED.set(connection)
        return reused


def was_lost_unread(error: Exception) -> bool:
    """Whether a request failed because REUSED ended before any byte of a response."""
    used = REUSED.get()
    is_lost = isinstance(error, aiohttp.ClientConnectionError) and not isinstance(error, TimeoutError)
    return is_lost and used is not None and not used.has_response


@contextmanager
def new_connection() -> Iterator[None]:
    """Requests in this block open a new connection, even if an idle one is there."""
    token = _needs_new.set(True)
    try:
        yield
    finally:
        _needs_new.reset(token)
