# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: addresses, TLS, and how connections are accepted."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from lockgate.config.settings import ServerTlsSettings
from lockgate.errors import ConfigError
from lockgate.telemetry import LogEvent, log_event

_PLACE = "server.tls"
BACKLOG = 2048
_HANDSHAKE_S = 10.0
_MAX_HANDSHAKES = 1024  # under way at once; further connections wait in the backlog
_NO_ROOM_S = 1.0
Build = Callable[[], asyncio.Protocol]


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the host is reachable from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe_fault(error: OSError) -> str:
    """Describes why the system refused an address."""
    number = error.errno or 0
    words = os.strerror(number) if number > 0 else "the host cannot be resolved"
    return f"{words} (os error {number})"


def load_tls(tls: ServerTlsSettings) -> ssl.SSLContext | None:
    """The server's TLS context, None without a certificate; raises ConfigError."""
    if tls.cert_path is None or tls.key_path is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_own(context, tls.cert_path, tls.key_path)
    if tls.client_ca_cert_path is not None:
        _load_bundle(context, tls.client_ca_cert_path, "client_ca_cert_path")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # every certificate of the bundle is trusted as a root
    return context


def _load_own(context: ssl.SSLContext, cert_path: Path, key_path: Path) -> None:
    _load_bundle(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_path, "cert_path")
    _check_readable(key_path, "key_path")
    try:
        context.load_cert_chain(cert_path, key_path, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"the key in `{key_path}` does not belong to the certificate in `{cert_path}`"
        else:
            words = f"`{key_path}` holds no usable private key (PEM, without passphrase){_detail(error)}"
        raise ConfigError(words, source=f"{_PLACE}.key_path") from error
    except _Encrypted as error:
        words = f"the key in `{key_path}` has a passphrase; one without is needed"
        raise ConfigError(words, source=f"{_PLACE}.key_path") from error


def _load_bundle(context: ssl.SSLContext, path: Path, key: str) -> None:
    _check_readable(path, key)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        words = f"`{path}` holds no usable certificate (PEM){_detail(error)}"
        raise ConfigError(words, source=f"{_PLACE}.{key}") from error


def _check_readable(path: Path, key: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        words = f"cannot read `{path}`: {error.strerror} (os error {error.errno})"
        raise ConfigError(words, source=f"{_PLACE}.{key}") from error


def _detail(error: ssl.SSLError) -> str:
    """The TLS library's reason, empty if it gives none."""
    return f": {error.reason.replace('_', ' ').lower()}" if error.reason else ""


class _Encrypted(Exception):
    """The key has a passphrase. Raised in place of OpenSSL's prompt on the terminal."""


def _refuse_password() -> str:
    raise _Encrypted


class Acceptor:
    """Accepts plain connections."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._server: asyncio.AbstractServer | None = None

    async def open(self, build: Build) -> None:
        """Accept connections; `build` makes the protocol of each."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(build, sock=self._socket, backlog=BACKLOG)

    def close(self) -> None:
        """Stop accepting."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def wait_closed(self) -> None:
        """Returns at once: plain connections have no handshakes."""


class TlsAcceptor:
    """Accepts connections that complete the TLS handshake in time. `close` also ends handshakes; asyncio's does not.

    `tls` is the context of later connections.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        self._socket = listening
        self.tls = tls
        self._is_open = False
        self._handshakes: set[asyncio.Task[None]] = set()
        self._unstarted: set[socket.socket] = set()  # connections whose handshake task has not begun

    async def open(self, build: Build) -> None:
        """Accept connections; `build` makes the protocol of each."""
        self._is_open = True
        self._watch(build)

    def close(self) -> None:
        """Stop accepting, and cancel the handshakes under way."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._socket)
            for handshake in self._handshakes:
                handshake.cancel()
        self._socket.close()

    async def wait_closed(self) -> None:
        """After `close`: wait until no handshake is under way."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _watch(self, build: Build) -> None:
        if self._is_open and len(self._handshakes) < _MAX_HANDSHAKES:
            asyncio.get_running_loop().add_reader(self._socket, self._accept, build)

    def _accept(self, build: Build) -> None:
        """Accept one connection at a time: other workers listen on the same socket."""
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no free file descriptor: try again later
            log_event(LogEvent.WARNING, logging.WARNING, reason=f"cannot accept connections: {error.strerror}")
            loop.remove_reader(self._socket)
            loop.call_later(_NO_ROOM_S, self._watch, build)
            return
        connection.setblocking(False)
        handshake = loop.create_task(self._do_handshake(build, connection))
        self._handshakes.add(handshake)
        self._unstarted.add(connection)
        handshake.add_done_callback(partial(self._end_handshake, build, connection))
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            loop.remove_reader(self._socket)

    def _end_handshake(self, build: Build, connection: socket.socket, handshake: "asyncio.Task[None]") -> None:
        was_full = len(self._handshakes) >= _MAX_HANDSHAKES
        self._handshakes.discard(handshake)
        if connection in self._unstarted:  # cancelled before its task could close it
            self._unstarted.discard(connection)
            connection.close()
        if was_full:
            self._watch(build)

    async def _do_handshake(self, build: Build, connection: socket.socket) -> None:
        self._unstarted.discard(connection)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(build, connection, ssl=self.tls, ssl_handshake_timeout=_HANDSHAKE_S)
        except ssl.SSLError as error:
            log_event(LogEvent.TLS_REFUSED, reason=(error.reason or "unknown").replace("_", " ").lower())
        except OSError:
            return  # the client left, or took too long
