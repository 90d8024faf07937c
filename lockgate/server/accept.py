# SPDX-License-Identifier: Apache-2.0
"""How connections come in: plain, or after a handshake of TLS. Decides who is let in; knows nothing of HTTP."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from lockgate.telemetry import Event, log_event

BACKLOG = 2048
_HANDSHAKE_S = 10.0
_MAX_HANDSHAKES = 1024  # under way at once; whoever comes then waits in the backlog
_NO_ROOM_S = 1.0

Build = Callable[[], asyncio.Protocol]


class Door:
    """Lets everybody in."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._server: asyncio.AbstractServer | None = None

    async def open(self, build: Build) -> None:
        """Accept connections; each gets a protocol of its own."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(build, sock=self._socket, backlog=BACKLOG)

    def close(self) -> None:
        """Accept nothing more."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def wait_closed(self) -> None:
        """Nothing is under way here: whoever was let in is a connection."""


class TlsDoor:
    """Lets in who completes the handshake in time.

    asyncio's own servers cannot end the handshakes that are under way, and do not tell why one failed.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        self._socket = listening
        self._tls = tls
        self._is_open = False
        self._guests: set[asyncio.Task[None]] = set()
        self._unmet: set[socket.socket] = set()  # of guests whose task has not begun

    async def open(self, build: Build) -> None:
        """Accept connections; each gets a protocol of its own."""
        self._is_open = True
        self._watch(build)

    def close(self) -> None:
        """Accept nothing more, and end the handshakes that are under way."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._socket)
            for guest in self._guests:
                guest.cancel()
        self._socket.close()

    async def wait_closed(self) -> None:
        """Until no handshake is under way; for after `close`."""
        if self._guests:
            await asyncio.wait(self._guests)

    def _watch(self, build: Build) -> None:
        if self._is_open and len(self._guests) < _MAX_HANDSHAKES:
            asyncio.get_running_loop().add_reader(self._socket, self._accept, build)

    def _accept(self, build: Build) -> None:
        """One at a time, for other workers listen at the same socket."""
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no file descriptor is left: the next one may be
            log_event(Event.WARNING, logging.WARNING, reason=f"cannot accept connections: {error.strerror}")
            loop.remove_reader(self._socket)
            loop.call_later(_NO_ROOM_S, self._watch, build)
            return
        connection.setblocking(False)
        guest = loop.create_task(self._shake_hands(build, connection))
        self._guests.add(guest)
        self._unmet.add(connection)
        guest.add_done_callback(partial(self._part_from, build, connection))
        if len(self._guests) >= _MAX_HANDSHAKES:
            loop.remove_reader(self._socket)

    def _part_from(self, build: Build, connection: socket.socket, guest: "asyncio.Task[None]") -> None:
        was_full = len(self._guests) >= _MAX_HANDSHAKES
        self._guests.discard(guest)
        if connection in self._unmet:  # cancelled before it began: nobody else will close it
            self._unmet.discard(connection)
            connection.close()
        if was_full:
            self._watch(build)

    async def _shake_hands(self, build: Build, connection: socket.socket) -> None:
        self._unmet.discard(connection)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(build, connection, ssl=self._tls, ssl_handshake_timeout=_HANDSHAKE_S)
        except ssl.SSLError as error:
            log_event(Event.TLS_REFUSED, reason=(error.reason or "unknown").replace("_", " ").lower())
        except OSError:
            return  # it left, or took too long
