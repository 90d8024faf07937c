# SPDX-License-Identifier: Apache-2.0
"""Runs the servers: binds the ports, serves until a signal, then lets requests finish."""

import asyncio
import errno
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from lockgate._version import __version__
from lockgate.api.endpoints import TRACED_CHAT_PATH
from lockgate.compat import find_rules
from lockgate.config.report import describe_policy, list_idle_settings, list_users
from lockgate.config.restart import find_pid_file
from lockgate.config.settings import Listener, Secret, Settings
from lockgate.errors import CannotListen
from lockgate.gateway import Gateway
from lockgate.server.acceptors import BACKLOG, describe_fault, is_loopback, join_address, load_tls
from lockgate.server.control import written_pid_file
from lockgate.server.cors import ANY
from lockgate.server.gateways import LiveGateway, SettingsSwitch, hold_gateways
from lockgate.server.ports import (
    ApiPorts,
    HealthPorts,
    Ports,
    build_api,
    loop_factory,
    raise_file_limit,
    spare_the_collector,
    stop_on_signals,
)
from lockgate.server.reload import Load, Reloader
from lockgate.server.workers import Workers, shared_metrics
from lockgate.telemetry import LogEvent, log_event, open_telemetry


class Bound(NamedTuple):
    """A listener, its socket, and its address as a URL."""

    listener: Listener
    socket: socket.socket
    address: str


# Limits unsent bytes in the kernel, which would else buffer megabytes for each client that does not read.
_UNSENT_BYTES = 128 * 1024

Then = Callable[[Sequence[Bound]], Coroutine[Any, Any, None]]


def serve(settings: Settings, then: Then | None = None, load: Load | None = None) -> None:
    """Serve until SIGINT or SIGTERM. `then` runs once all ports listen, and is cancelled when they have stopped.

    With `load`, which reads the settings again, SIGHUP and `lockgate reload` reload them.
    """
    raise_file_limit()
    if load is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the reloader runs
    if settings.server.trace:  # one token for this start; workers get the same one
        settings = replace(settings, trace_token=Secret(secrets.token_urlsafe(24)))
    with (
        shared_metrics(settings.server.workers),
        open_telemetry(settings.otlp, joins_traces=find_rules(settings).joins_traces),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve(settings, then, load))


async def _serve(settings: Settings, then: Then | None, load: Load | None) -> None:
    for warning in (*settings.warnings, *list_idle_settings(settings)):
        log_event(LogEvent.WARNING, logging.WARNING, reason=warning)
    load_tls(settings.server.tls)
    async with hold_gateways() as gateways:
        live = await gateways.open(settings)
        gateway = live.gateway
        if settings.start_up_health_check:
            await _check_health(gateway)
        spare_the_collector()
        with ExitStack() as stack:
            bound = bind_all(settings)
            for one in bound:
                stack.callback(one.socket.close)
            for warning in list_exposed_ports(settings, [one.listener for one in bound]):
                log_event(LogEvent.WARNING, logging.WARNING, reason=warning)
            _log_start(gateway)
            health = HealthPorts(gateway, [one.socket for one in bound if one.listener.name == "health"])
            front = _build_front(live, bound)
            aside = [then(bound)] if then is not None else []
            if load is not None:
                stack.enter_context(written_pid_file(find_pid_file(settings)))
                aside.append(Reloader(load, SettingsSwitch(gateways, live, front, health)).run())
            await _run(bound, front, health, aside)
    log_event(LogEvent.STOPPED)


def _log_start(gateway: Gateway) -> None:
    settings = gateway.settings
    fields: dict[str, Any] = {"settings": settings.source, "detectors": list(gateway.guards)}
    if gateway.agents:
        fields |= {"agents": list(gateway.agents), "data_dir": str(settings.data_dir)}
    log_event(LogEvent.STARTED, logging.INFO, version=__version__, **fields)
    if settings.trace_token is not None:  # logged on purpose: readers of this log may see held text
        log_event(LogEvent.TRACE_OPEN, path=TRACED_CHAT_PATH, token=settings.trace_token.reveal())
    for name, policy in settings.policies.items():
        users = ", ".join(list_users(settings, name)) or "none"
        log_event(LogEvent.POLICY, logging.INFO, policy=name, default_of=users, **describe_policy(policy))


async def _check_health(gateway: Gateway) -> None:
    """Probe every service once and log those that are unhealthy; the server starts in any case."""
    unhealthy = {name: health for name, health in (await gateway.probe()).items() if health.status != "HEALTHY"}
    for name, health in unhealthy.items():
        log_event(LogEvent.UNHEALTHY, logging.WARNING, part=name, status=health.status, code=health.code)
    if unhealthy:
        log_event(LogEvent.WARNING, logging.WARNING, reason="one or more clients is unhealthy")


def _build_front(live: LiveGateway, bound: Sequence[Bound]) -> ApiPorts | Workers:
    """Builds the API's ports in this process, or its workers. Both open the agent's port themselves, by its number."""
    sockets = [one.socket for one in bound if one.listener.name not in ("health", "agent")]
    agent = next((one.listener for one in bound if one.listener.name == "agent"), None)
    settings = live.gateway.settings
    settings = replace(settings, listeners=settings.listeners._replace(agent=agent))
    if settings.server.workers > 1:
        return Workers(settings, sockets)
    return build_api(replace(live.gateway, settings=settings), live.readiness, sockets)


async def _run(
    bound: Sequence[Bound], front: ApiPorts | Workers, health: Ports, aside: Sequence[Coroutine[Any, Any, None]]
) -> None:
    def cut() -> None:
        front.cut()
        health.cut()

    with stop_on_signals(front.stop, cut):
        await front.start()
        await health.start()
        for one in bound:
            log_event(LogEvent.LISTENING, port=one.listener.name, address=one.address)
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(one) for one in aside]
            health_task = group.create_task(health.serve())
            await front.serve()
            health.stop()
            await health_task
            for task in others:
                task.cancel()


def bind_all(settings: Settings) -> list[Bound]:
    """Bind the health port, then the others. A default port in use stays closed if another was set explicitly."""
    given = settings.listeners
    listeners = [one for one in (given.health, given.api, given.agent, given.aggregator) if one]
    is_any_explicit = any(one.is_explicit for one in listeners)
    bound: list[Bound] = []
    try:
        for listener in listeners:
            try:
                taken = _listen(listener)
                if listener.name == "agent":  # the gRPC library listens on its own sockets: only bind
                    taken.close()
                    taken = _bind(listener, (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1))
                place = listener._replace(port=taken.getsockname()[1])
                bound.append(Bound(place, taken, _build_address(settings, listener, taken)))
            except OSError as error:
                if listener.is_explicit or not is_any_explicit or error.errno != errno.EADDRINUSE:
                    raise CannotListen(f"failed to run server: io error: {_describe(error, listener)}") from error
                log_event(LogEvent.PORT_LEFT_CLOSED, logging.WARNING, listener=listener.name, port=listener.port)
    except CannotListen:
        for one in bound:
            one.socket.close()
        raise
    return bound


def _listen(listener: Listener) -> socket.socket:
    listening = _bind(listener, (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES))
    try:
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _bind(listener: Listener, option: tuple[int, int, int]) -> socket.socket:
    found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(*option)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _build_address(settings: Settings, listener: Listener, bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    scheme = "grpc" if listener.name == "agent" else "http"
    is_secure = bool(settings.server.tls.cert_path) and listener.name != "health"
    return f"{scheme}{'s' if is_secure else ''}://{join_address(host, port)}"


def _describe(error: OSError, listener: Listener) -> str:
    words = f"{describe_fault(error)} on {listener.host}:{listener.port}"
    flags = {
        "api": "--http-port or HTTP_PORT",
        "health": "--health-http-port or HEALTH_HTTP_PORT",
        "agent": "--grpc-port or LOCKGATE_SERVER__GRPC_PORT",
        "aggregator": "AGGREGATOR_PORT",
    }
    flag = flags.get(listener.name)
    return f"{words}; {flag} chooses another" if flag else words


def list_exposed_ports(settings: Settings, listeners: Sequence[Listener]) -> list[str]:
    """Warnings for ports that are open to other machines; none if callers need a key or certificate."""
    if settings.callers or settings.server.tls.client_ca_cert_path is not None:
        return []
    far = [one for one in listeners if not is_loopback(one.host)]
    hosts = ", ".join(sorted({one.host for one in far}))
    is_only_theirs = all(one.name == "aggregator" for one in far)
    closing = "`AGGREGATOR_HOST=127.0.0.1`" if is_only_theirs else "`server.host: 127.0.0.1`"
    words = [f"any client that reaches {hosts} may call; {closing} closes it"] if far else []
    if ANY in settings.aggregator.cors_origins and any(one.name != "health" for one in far):
        words.append("any web page may call `/api/v1/*` while `aggregator.cors_origins` is `*`; list those that may")
    return words
