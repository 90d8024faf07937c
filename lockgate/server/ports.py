# SPDX-License-Identifier: Apache-2.0
"""Serves listening sockets in this process, and stops within a deadline."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from uvicorn.server import ServerState

from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.gateway import Gateway
from lockgate.server.acceptors import Acceptor, TlsAcceptor, load_tls
from lockgate.server.app import App
from lockgate.server.callers import Callers
from lockgate.server.connection import Connection
from lockgate.server.cors import Cors
from lockgate.server.health import Readiness
from lockgate.server.routes import api_routes, health_routes
from lockgate.telemetry import LogEvent, log_event

if TYPE_CHECKING:
    from lockgate.api.grpc.agent import AgentPort
    from lockgate.server.gateways import LiveGateway

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KEEP_ALIVE_S = 60  # for the next request on a connection
_TICK_S = 1.0
# Thresholds of the garbage collector. There are few reference cycles, but many objects for each message: with the
# default of 700, collections take a third of the time of a thousand open streams, and cause pauses of a second.
_YOUNG, _OLDER = 20_000, (20, 50)
_IDLE_TICKS = 2
_POLL_S = 0.02  # while waiting for requests to end
_IDLE_CLOSE_S = 1.0  # how long connections without a request may take to close
_CLEAN_UP_S = 2.0  # for requests that are cut
_TLS_STOP_S, _HEALTH_STOP_S = 10.0, 2.0


@contextmanager
def stop_on_signals(stop: Callable[[], object], cut: Callable[[], object]) -> Iterator[None]:
    """In this context SIGINT and SIGTERM call `stop`; a SIGINT that is not the first signal also calls `cut`."""
    is_stopping = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal is_stopping
        if is_stopping and number is signal.SIGINT:
            cut()
        is_stopping = True
        stop()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def stop_timeout_s(settings: Settings) -> float | None:
    """How long requests may take to end once the server is stopping; None: no limit."""
    if settings.server.shutdown_timeout_s is not None:
        return settings.server.shutdown_timeout_s
    if settings.server.tls.cert_path is not None:
        return _TLS_STOP_S
    return find_rules(settings).stop_timeout_s


def configure(app: App) -> uvicorn.Config:
    """The uvicorn configuration of every port."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    config.load()
    return config


class PortServer:
    """Serves one listening socket."""

    def __init__(self, app: App, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._config = configure(app)
        self._encode_error = app.encode_error
        self._state = ServerState()
        self._acceptor: Acceptor | TlsAcceptor = TlsAcceptor(listening, tls) if tls else Acceptor(listening)
        self._stopping = asyncio.Event()
        self._is_cut = False
        self._idle: set[object] = set()  # connections without a request when `stop` was called
        self._trimmed_at = 0  # the request count when memory was last given back

    async def start(self) -> None:
        """Accept connections, unless `stop` was called already."""
        self._state.default_headers = _date()
        if not self._stopping.is_set():
            await self._acceptor.open(self._build_connection)

    async def serve(self, timeout_s: float | None) -> None:
        """Serve until `stop`, then until no request is under way, `timeout_s` has passed or `cut` is called."""
        try:
            await self._tick()
            await self._drain(math.inf if timeout_s is None else timeout_s)
            await self._cut_rest()
        finally:
            self._acceptor.close()
            await self._acceptor.wait_closed()

    def stop(self) -> None:
        """Stop accepting and close idle connections; requests under way go on."""
        if self._stopping.is_set():
            return
        self._acceptor.close()
        for connection in self._shut_connections():
            if connection.transport.is_closing():
                self._idle.add(connection)
        self._stopping.set()

    def cut(self) -> None:
        """Abort all requests and connections."""
        self.stop()
        self._is_cut = True

    def switch(self, app: App, tls: ssl.SSLContext | None = None) -> set["asyncio.Task[None]"]:
        """Give later requests to `app`, also those of open connections; returns the requests under way."""
        self._config = configure(app)
        self._encode_error = app.encode_error
        if isinstance(self._acceptor, TlsAcceptor) and tls is not None:
            self._acceptor.tls = tls
        for connection in self._connections():
            connection.app = self._config.loaded_app
            waiting = [(cycle, connection.app) for cycle, _ in connection.pipeline]
            connection.pipeline.clear()
            connection.pipeline.extend(waiting)
        return set(self._state.tasks)

    def _build_connection(self) -> Connection:
        return Connection(
            config=self._config,
            server_state=self._state,
            app_state={},
            _loop=asyncio.get_running_loop(),
            encode_error=self._encode_error,
        )

    def _shut_connections(self) -> list[Connection]:
        """Close every connection; one with a request closes when the request ends."""
        connections = self._connections()
        for connection in connections:
            connection.shutdown()
        return connections

    def _connections(self) -> list[Connection]:
        return [one for one in self._state.connections if isinstance(one, Connection)]

    async def _tick(self) -> None:
        counter = 0
        while not await is_set_within(self._stopping, _TICK_S):
            counter += 1
            self._state.default_headers = _date()
            state = self._state
            if counter % _IDLE_TICKS == 0 and not state.tasks and state.total_requests > self._trimmed_at:
                self._trimmed_at = state.total_requests
                give_memory_back()

    async def _drain(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if self._state.tasks:
            hint = "waiting for requests under way; a second Ctrl-C cuts them"
            log_event(LogEvent.STOPPING, requests=len(self._state.tasks), timeout_s=timeout_s, hint=hint)
        while (connections := self._shut_connections()) or self._state.tasks:
            is_busy = bool(self._state.tasks) or any(one not in self._idle for one in connections)
            limit_s = timeout_s if is_busy else min(timeout_s, _IDLE_CLOSE_S)
            if self._is_cut or loop.time() - started >= limit_s:
                return
            await asyncio.sleep(_POLL_S)

    async def _cut_rest(self) -> None:
        if tasks := set(self._state.tasks):
            reason = f"requests under way were cut: {len(tasks)}"
            log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)


class ServedPort(Protocol):
    """One port, HTTP or gRPC."""

    async def start(self) -> None:
        """Accept connections."""

    async def serve(self, timeout_s: float | None) -> None:
        """Serve until `stop`, then until nothing is under way or `timeout_s` has passed."""

    def stop(self) -> None:
        """Stop accepting."""

    def cut(self) -> None:
        """Abort all requests and connections."""


class Ports:
    """Several listening ports, served as one."""

    def __init__(self, servers: Sequence[ServedPort], timeout_s: float | None) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Accept connections."""
        for server in self._servers:
            await server.start()

    async def serve(self) -> None:
        """Serve until `stop`, then until all ports have stopped; also without any port."""
        async with asyncio.TaskGroup() as group:
            for server in self._servers:
                group.create_task(server.serve(self._timeout_s))
            await self._stopping.wait()

    def stop(self) -> None:
        """Stop accepting and let requests end."""
        self._stopping.set()
        for server in self._servers:
            server.stop()

    def cut(self) -> None:
        """Abort all requests and connections."""
        self._stopping.set()
        for server in self._servers:
            server.cut()


Tasks = set["asyncio.Task[Any]"]


class ApiPorts(Ports):
    """The ports of the API, which can be given another gateway while they serve."""

    def __init__(
        self, http: Sequence[PortServer], agent: "AgentPort | None", callers: Callers, timeout_s: float | None
    ) -> None:
        super().__init__([*http, *([agent] if agent is not None else [])], timeout_s)
        self._callers = callers
        self._http = http
        self._agent = agent
        self._switch: Callable[[], Tasks] = set

    async def prepare(self, live: "LiveGateway") -> None:
        """Build what the next `switch` needs; raises ConfigError. Requests are served as before."""
        gateway, readiness = live
        callers = Callers(gateway.settings.callers.values())
        app = build_api_app(gateway, readiness, callers)
        tls = load_tls(gateway.settings.server.tls)

        def switch() -> Tasks:
            under_way: Tasks = set()
            callers.go_on(self._callers)
            self._callers = callers
            for one in self._http:
                under_way |= one.switch(app, tls)
            if self._agent is not None:
                under_way |= self._agent.switch(gateway, readiness, callers)
            return under_way

        self._switch = switch

    async def switch(self) -> Tasks:
        """Give later requests to the prepared gateway; returns the requests under way, which keep the old one."""
        switch, self._switch = self._switch, set
        return switch()

    async def drop(self) -> None:
        """Forget what was prepared."""
        self._switch = set


def build_api(gateway: Gateway, readiness: Readiness, sockets: Iterable[socket.socket]) -> ApiPorts:
    """One API application on all these sockets, and the agent's gRPC port if it is configured."""
    settings = gateway.settings
    callers = Callers(settings.callers.values())
    app = build_api_app(gateway, readiness, callers)
    tls = load_tls(settings.server.tls)
    agent = None
    if settings.listeners.agent is not None:
        from lockgate.api.grpc.agent import build_agent_port

        agent = build_agent_port(gateway, readiness, settings.listeners.agent, callers)
    return ApiPorts([PortServer(app, one, tls) for one in sockets], agent, callers, stop_timeout_s(settings))


def build_api_app(gateway: Gateway, readiness: Readiness | None = None, callers: Callers | None = None) -> App:
    """The application of the API port."""
    settings = gateway.settings
    app = App(
        api_routes(gateway, readiness or Readiness({})),
        max_streams=settings.limits.max_streams,
        timeout_s=settings.limits.request_timeout_s,
        callers=callers or Callers(settings.callers.values()),
        required=settings.required_policies,
        names_failures=gateway.rules.names_failures,
        explains=gateway.rules.explains_paths,
    )
    app.cors = Cors(settings)
    app.is_correlated = True
    return app


class HealthPorts(Ports):
    """The health port, if it is open, without TLS and without keys."""

    def __init__(self, gateway: Gateway, sockets: Iterable[socket.socket]) -> None:
        self._http = [PortServer(_build_health_app(gateway), one) for one in sockets]
        super().__init__(self._http, _HEALTH_STOP_S)

    def switch(self, gateway: Gateway) -> Tasks:
        """Give later requests to the gateway; returns the requests under way."""
        app = _build_health_app(gateway)
        return {task for one in self._http for task in one.switch(app)}


def _build_health_app(gateway: Gateway) -> App:
    limits = gateway.settings.limits
    return App(
        health_routes(gateway),
        max_streams=limits.max_streams,
        timeout_s=limits.request_timeout_s,
        explains=gateway.rules.explains_paths,
    )


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each connection is one, and a request may open ten more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # not allowed: the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare_the_collector() -> None:
    """Exclude objects that were loaded at start from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *_OLDER)


def renew_collector() -> None:
    """Collect garbage that was excluded too, and exclude what is left; a closed gateway is then really gone."""
    gc.unfreeze()
    give_memory_back()
    gc.freeze()


def give_memory_back() -> None:
    """Collect garbage and return free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's factory if uvloop is installed, else None."""
    try:
        import uvloop
    except ImportError:  # not available on every platform; asyncio's own loop is slower
        return None
    return uvloop.new_event_loop


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, at most `seconds`; returns whether it is set."""
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


def _date() -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(usegmt=True).encode())]
