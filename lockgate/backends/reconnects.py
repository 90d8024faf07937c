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
    """A connection that knows how many requests it had, and whether a response to the last one has begun."""

    requests = 0
    has_response = False

    def set_response_params(self, **params: Any) -> None:
        """A request begins."""
        self.requests += 1
        self.has_response = False
        _last_used.set(self)
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Bytes of a response came."""
        self.has_response = True
        super().data_received(data)


class ResendingConnector(aiohttp.TCPConnector):
    """A connection pool of watched connections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(WatchedConnection, loop=self._loop))

    async def _get(self, key: Any, traces: Any) -> Any:
        return None if _needs_new.get() else await super()._get(key, traces)


_last_used: ContextVar[WatchedConnection | None] = ContextVar("lockgate_connection", default=None)
_needs_new: ContextVar[bool] = ContextVar("lockgate_needs_new_connection", default=False)


def forget_connection() -> None:
    """A request is about to be sent; call it before, so that `was_lost_unread` sees only its connection."""
    _last_used.set(None)


def was_lost_unread(error: Exception) -> bool:
    """Whether this task's last request failed on a reused connection that ended before any byte of a response."""
    used = _last_used.get()
    is_lost = isinstance(error, aiohttp.ClientConnectionError) and not isinstance(error, TimeoutError)
    return is_lost and used is not None and used.requests > 1 and not used.has_response


@contextmanager
def new_connection() -> Iterator[None]:
    """Requests in this block open a new connection, even if an idle one is there."""
    token = _needs_new.set(True)
    try:
        yield
    finally:
        _needs_new.reset(token)
