# SPDX-License-Identifier: Apache-2.0
"""TLS towards gRPC services: credentials from files, and a way to a server whose certificate is not verified.

gRPC for Python cannot leave a certificate unverified. Where the settings ask for it, a relay on a private local socket
speaks TLS to the server and plain HTTP/2 to the channel; it takes any certificate, expired or of another name.
"""

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc

from lockgate.backends.tls import blaming, set_up_client
from lockgate.config.settings import TlsSettings
from lockgate.telemetry import Event, log_event

_RELAYED_BYTES = 65_536
_ACCEPT_PAUSE_S = 1.0

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def load_credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    """The files that the settings name, checked. The CA is added to those of the system."""
    build_context(tls)
    roots = _read_system_roots()
    if tls.client_ca_cert_path is not None:
        roots = tls.client_ca_cert_path.read_bytes() + b"\n" + roots
    chain = key = None
    if tls.cert_path is not None:
        chain = tls.cert_path.read_bytes()
        key = (tls.key_path or tls.cert_path).read_bytes()  # one file may hold both
    return grpc.ssl_channel_credentials(roots or None, key, chain)  # no roots at all: those that gRPC brings


def build_context(tls: TlsSettings) -> ssl.SSLContext:
    """The same settings for Python's own TLS, which says at start what is wrong with a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls.client_ca_cert_path is not None:
        with blaming("client_ca_cert_path", tls.client_ca_cert_path):
            context.load_verify_locations(tls.client_ca_cert_path)
    set_up_client(context, tls)
    return context


def _read_system_roots() -> bytes:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return Path(paths.cafile).read_bytes()
    found = sorted(Path(paths.capath).glob("*.[0-9]")) if paths.capath else []
    return b"\n".join(path.read_bytes() for path in found)


@asynccontextmanager
async def open_unverified_relay(hostname: str, port: int, tls: TlsSettings, timeout_s: float) -> AsyncIterator[str]:
    """A local address that leads to the server through TLS without verification; only this user can reach it."""
    connect = partial(asyncio.open_connection, hostname, port, ssl=build_context(tls))
    with tempfile.TemporaryDirectory(prefix="lockgate-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind(f"{folder}/relay")
        listener.listen()
        relay = _Relay(listener, connect, timeout_s, f"{hostname}:{port}")
        relay.listen()
        try:
            yield f"unix:{folder}/relay"
        finally:
            await relay.stop()


class _Relay:
    """One connection to the server for each that the channel makes.

    It accepts by itself: a connection that comes while one of asyncio's servers closes would be left open.
    """

    def __init__(self, listener: socket.socket, connect: Connect, timeout_s: float, place: str) -> None:
        self._listener = listener
        self._connect = connect
        self._timeout_s = timeout_s
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no more files may be opened
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_ACCEPT_PAUSE_S, self.listen)
            return
        near.setblocking(False)
        task = self._loop.create_task(self._carry(near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: near.close())  # also if it never began

    async def _carry(self, near: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                far, out = await self._connect()
        except OSError as error:  # a failed handshake and a passed time limit are OSErrors too
            reason = str(error) or "no connection in time"
            log_event(Event.UPSTREAM_FAILED, logging.WARNING, part=self._place, reason=reason)
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry_out(near, out))
                group.create_task(self._carry_back(far, near))
        finally:
            out.transport.abort()

    async def _carry_out(self, near: socket.socket, out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await self._loop.sock_recv(near, _RELAYED_BYTES):
                out.write(piece)
                await out.drain()
        out.close()

    async def _carry_back(self, far: asyncio.StreamReader, near: socket.socket) -> None:
        with suppress(OSError):
            while piece := await far.read(_RELAYED_BYTES):
                await self._loop.sock_sendall(near, piece)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)
