# SPDX-License-Identifier: Apache-2.0
"""Connections, paths, headers and hidden tokens for services by URL and endpoints that a request names."""

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from unicodedata import category

from multidict import CIMultiDict
from yarl import URL

from lockgate._version import __version__
from lockgate.backends.http import READ_AHEAD_BYTES, JoinedCaller, open_connector, open_session

# Many servers close a connection that was idle for five seconds. A request sent at that moment is lost: so we close
# first.
KEEP_ALIVE_S = 4.0
# The system and the library each buffer about twice this of an unread stream; by default it would be megabytes.
STREAM_WINDOW_BYTES = 32 * 1024


@asynccontextmanager
async def open_caller(
    kind: str, name: str, timeout_s: float | None = None, window_bytes: int | None = None, *, resends: bool = True
) -> AsyncIterator[JoinedCaller]:
    """Opens a caller with a separate connection pool; the first call connects, and leaving closes the pool.

    `window_bytes` limits how much of an unread stream is buffered. `resends`: as in open_http.
    """

    def open_socket(address: Any) -> socket.socket:
        opened = socket.socket(*address[:3])
        if window_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        return opened

    options = {"ssl": True, "limit": 0, "keepalive_timeout": KEEP_ALIVE_S, "socket_factory": open_socket}
    connector = open_connector(resends=resends, **options)
    read_ahead = READ_AHEAD_BYTES if window_bytes is None else window_bytes
    async with open_session(connector, read_ahead_bytes=read_ahead) as pooled:
        yield JoinedCaller(pooled, kind, name, timeout_s, MAX_BODY_BYTES)


def find_path(base: str | URL, path: str) -> URL:
    """Returns the URL of a path of a service."""
    url = URL(base)
    return url.with_path(f"{url.raw_path.rstrip('/')}{path}", encoded=True)


def own_headers(token: str | None = None, scheme: str = "Bearer") -> CIMultiDict[str]:
    """Returns the headers for calls of a configured service, with its token."""
    headers = build_headers("", token)
    if token:
        headers["Authorization"] = f"{scheme} {token}"
    return headers


MAX_BODY_BYTES = 32 * 1024 * 1024
ANY = "*/*"
HIDDEN = "***"
NO_DETAIL = "no details given"  # for an error response without a message
_CONTROL = frozenset({"Cc", "Cs"})


class Endpoint(NamedTuple):
    """An endpoint that a request names, with the tokens that are for its owner alone."""

    url: str
    slug: str
    owner: str | None = None
    tenant: str | None = None
    token: str | None = None
    transaction_token: str | None = None

    @property
    def path(self) -> str:
        """The name under which the endpoint is cited."""
        return f"{self.owner}/{self.slug}" if self.owner else self.slug

    def __repr__(self) -> str:
        return f"Endpoint({self.path})"  # tokens are secret, and addresses may hold some


class UnfitHeader(ValueError):
    """A value that cannot be sent as a header; the message names the header, not the value."""


def build_headers(correlation_id: str, token: str | None, tenant: str | None = None) -> CIMultiDict[str]:
    """Returns all headers of a call; raises UnfitHeader."""
    headers = CIMultiDict(
        {
            "User-Agent": f"lockgate/{__version__}",
            "Accept": ANY,
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
    )
    if correlation_id:
        headers["X-Correlation-ID"] = _check("correlation id", correlation_id)
    if tenant:
        headers["X-Tenant-Name"] = _check("tenant name", tenant)
    if token:
        headers["Authorization"] = f"Bearer {_check('token', token)}"
    return headers


class Scrubber:
    """Hides tokens in the messages of upstream services."""

    __slots__ = ("_tokens",)

    def __init__(self, *tokens: str | None) -> None:
        self._tokens: Sequence[str] = [token for token in tokens if token]

    def __call__(self, words: str) -> str:
        """Returns the text with every token hidden, also in its JSON spelling."""
        for token in sorted(self._tokens, key=len, reverse=True):
            for spelling in (token, json.dumps(token, ensure_ascii=False)[1:-1], json.dumps(token)[1:-1]):
                words = words.replace(spelling, HIDDEN)
        return words


def _check(what: str, value: str) -> str:
    is_plain = value.isascii() and value.isprintable()
    if not is_plain and any(category(char) in _CONTROL for char in value):
        raise UnfitHeader(f"the {what} cannot be sent as a header")
    return value
