# SPDX-License-Identifier: Apache-2.0
"""Runs the servers of a process: binds the ports, serves until told to stop, lets requests finish."""

import asyncio
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, NamedTuple

import uvicorn

from lockgate._version import __version__
from lockgate.assembly import Gateway, open_gateway
from lockgate.config.report import without_effect
from lockgate.config.settings import Listener, Settings
from lockgate.errors import CannotListen
from lockgate.server.http.app import App, Routes
from lockgate.server.http.connection import Connection
from lockgate.server.http.routes import api_routes, health_routes
from lockgate.telemetry import Event, log_event

_BACKLOG = 2048
_IDLE_TICKS = 20  # of a tenth of a second


class Bound(NamedTuple):
    """A listener and its socket."""

    listener: Listener
    socket: socket.socket

    @property
    def address(self) -> str:
        """The address as one would type it."""
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


Then = Callable[[Sequence[Bound]], Coroutine[Any, Any, None]]


def serve(settings: Settings, then: Then | None = None) -> None:
    """Serve until SIGINT or SIGTERM. `then` runs once everything listens, and is cancelled when nothing does."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, then))


async def _serve(settings: Settings, then: Then | None) -> None:
    for warning in (*settings.warnings, *without_effect(settings)):
        log_event(Event.WARNING, logging.WARNING, reason=warning)
    async with open_gateway(settings) as gateway:
        spare_the_collector()
        bound = bind_all(settings)
        _warn_if_open(bound)
        log_event(Event.STARTED, version=__version__, settings=settings.source, detectors=list(gateway.guards))
        api, health = _build_app(gateway, api_routes(gateway)), _build_app(gateway, health_routes(gateway))
        servers = [_Server(configure(health if one.listener.name == "health" else api)) for one in bound]
        async with asyncio.TaskGroup() as group:
            with _stopping(servers):
                for server, one in zip(servers, bound, strict=True):
                    group.create_task(server.serve(sockets=[one.socket]))
                    log_event(Event.LISTENING, port=one.listener.name, address=one.address)
                companion = group.create_task(then(bound)) if then else None
                for server in servers:
                    await server.stopped.wait()
                if companion:
                    companion.cancel()
    log_event(Event.STOPPED)


def spare_the_collector() -> None:
    """What is loaded at start stays: it need not be searched for garbage again and again."""
    gc.collect()
    gc.freeze()


def bind_all(settings: Settings) -> list[Bound]:
    """The health port first, then the others. A default port that is taken may stay closed if another was asked for."""
    listeners = [
        one for one in (settings.listeners.health, settings.listeners.api, settings.listeners.aggregator) if one
    ]
    is_any_asked_for = any(one.is_asked_for for one in listeners)
    bound: list[Bound] = []
    try:
        for listener in listeners:
            try:
                bound.append(Bound(listener, _bind(listener)))
            except OSError as error:
                if listener.is_asked_for or not is_any_asked_for or error.errno != errno.EADDRINUSE:
                    raise CannotListen(f"failed to run server: io error: {_describe(error, listener)}") from error
                log_event(Event.PORT_LEFT_CLOSED, logging.WARNING, listener=listener.name, port=listener.port)
    except CannotListen:
        for one in bound:
            one.socket.close()
        raise
    return bound


def _bind(listener: Listener) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _describe(error: OSError, listener: Listener) -> str:
    number = error.errno or 0
    words = f"{os.strerror(number) if number > 0 else error} (os error {number}) on {listener.host}:{listener.port}"
    flag = {"api": "--http-port or HTTP_PORT", "health": "--health-http-port or HEALTH_HTTP_PORT"}.get(listener.name)
    return f"{words}; {flag} chooses another" if flag else words


def _build_app(gateway: Gateway, routes: Routes) -> App:
    limits = gateway.settings.limits
    return App(routes, max_streams=limits.max_streams, timeout_s=limits.request_timeout_s)


def configure(app: App) -> uvicorn.Config:
    """How every server of ours is set up."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=60,
    )


def give_memory_back() -> None:
    """What a busy time has left behind goes back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # where the C library is glibc
    if trim is not None:
        trim(0)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.servers = []
        self.stopped = asyncio.Event()
        self._tidied_at = 0  # requests served when memory was last given back

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # one place listens to signals: _stopping
        yield

    async def on_tick(self, counter: int) -> bool:
        state = self.server_state
        if counter % _IDLE_TICKS == 0 and not state.tasks and state.total_requests > self._tidied_at:
            self._tidied_at = state.total_requests
            give_memory_back()
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            for listening in self.servers:  # still open when we are cancelled
                listening.close()
            self.stopped.set()


@contextmanager
def _stopping(servers: Sequence[_Server]) -> Iterator[None]:
    """The first signal lets requests finish, a second SIGINT does not."""

    def stop(number: signal.Signals) -> None:
        for server in servers:
            server.force_exit = server.should_exit and number is signal.SIGINT
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _warn_if_open(bound: Sequence[Bound]) -> None:
    hosts = {one.listener.host for one in bound if not _is_loopback(one.listener.host)}
    if hosts:
        reason = f"everybody who reaches {', '.join(sorted(hosts))} may call; `server.host: 127.0.0.1` closes it"
        log_event(Event.WARNING, logging.WARNING, reason=reason)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not available everywhere; asyncio's own loop does the same, slower
        return None
    return uvloop.new_event_loop
