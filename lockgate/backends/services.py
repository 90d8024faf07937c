# SPDX-License-Identifier: Apache-2.0
"""Services whose address the settings give as a URL: connections of their own, paths behind the address, headers.

Decides how connections to them are kept. Refuses to know any service's paths and bodies.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import MAX_BODY_BYTES, build_headers
from lockgate.backends.http import READ_AHEAD_BYTES, JoinedCaller, open_session

# Many servers close a connection that was idle for five seconds. One that they close while we send is lost with what
# we sent, and nothing is sent twice: so we close first.
KEEP_ALIVE_S = 4.0
# Of a stream that nobody reads, the system and the library keep about twice this each; else it would be megabytes.
STREAM_WINDOW_BYTES = 32 * 1024


@asynccontextmanager
async def open_caller(
    kind: str, name: str, timeout_s: float | None = None, window_bytes: int | None = None
) -> AsyncIterator[JoinedCaller]:
    """Calls over a pool of their own, closed at the end; nothing is connected before the first call.

    `window_bytes` is for streams: how little of one that nobody reads is kept.
    """

    def open_socket(address: Any) -> socket.socket:
        opened = socket.socket(*address[:3])
        if window_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        return opened

    connector = aiohttp.TCPConnector(ssl=True, limit=0, keepalive_timeout=KEEP_ALIVE_S, socket_factory=open_socket)
    read_ahead = READ_AHEAD_BYTES if window_bytes is None else window_bytes
    async with open_session(connector, read_ahead_bytes=read_ahead) as pooled:
        yield JoinedCaller(pooled, kind, name, timeout_s, MAX_BODY_BYTES)


def find_path(base: str, path: str) -> URL:
    """The address of a path of a service."""
    url = URL(base)
    return url.with_path(f"{url.raw_path.rstrip('/')}{path}", encoded=True)


def own_headers(token: str | None = None, scheme: str = "Bearer") -> CIMultiDict[str]:
    """The headers of calls of a service, with the token that is for it."""
    headers = build_headers("", token)
    if token:
        headers["Authorization"] = f"{scheme} {token}"
    return headers
