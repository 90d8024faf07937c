# SPDX-License-Identifier: Apache-2.0
"""Runs the servers of our parts: detectors over HTTP, chunkers over gRPC, until told to stop.

Both stop together. The answers are in `server/parts_routes.py` and `api/grpc/chunkers.py`.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from lockgate._version import __version__
from lockgate.api.grpc.calls import Calls
from lockgate.api.grpc.chunkers import CUT, SERVICE, STREAM, ChunkerMethods
from lockgate.api.grpc.port import GrpcPort, Kind, Line, Method
from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.errors import CannotListen
from lockgate.gateway import Parts, open_parts
from lockgate.protos.caikit_runtime_chunkers_pb2 import (
    BidiStreamingChunkerTokenizationTaskRequest,
    ChunkerTokenizationTaskRequest,
)
from lockgate.server.accept import BACKLOG
from lockgate.server.addresses import describe_fault, is_loopback, join_address
from lockgate.server.parts_routes import build_parts_app
from lockgate.server.serving import PortServer, loop_factory, spare_the_collector, stop_timeout_s
from lockgate.server.signals import told_by_signals
from lockgate.telemetry import Event, log_event, open_telemetry

T = TypeVar("T")
_ROOM_BYTES = 1024  # for what a message holds besides its text
_ABOUT_PORTS = frozenset({errno.EADDRINUSE, errno.EACCES})


class PartsPlace(NamedTuple):
    """Where the parts are offered; port 0 is any free one."""

    host: str = "127.0.0.1"
    detectors_port: int = 8080
    chunkers_port: int = 8085


def serve_parts(settings: Settings, place: PartsPlace) -> None:
    """Serve until SIGINT or SIGTERM."""
    with (
        open_telemetry(settings.otlp, joins_traces=find_rules(settings).joins_traces),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve(settings, place))


async def _serve(settings: Settings, place: PartsPlace) -> None:
    for warning in (*settings.warnings, *_without_effect(settings), *_open_doors(place)):
        log_event(Event.WARNING, logging.WARNING, reason=warning)
    async with open_parts(settings) as parts:
        spare_the_collector()
        chunking = _build_chunking(parts)
        chunkers_port = _bind("--chunkers-port", partial(_bind_chunking, chunking, place))
        with _bind("--detectors-port", partial(_listen, place.host, place.detectors_port)) as listening:
            _log_start(parts)
            detecting = PortServer(build_parts_app(parts), listening)
            detectors_port = listening.getsockname()[1]
            addresses = {
                "detectors": f"http://{join_address(place.host, detectors_port)}",
                "chunkers": f"grpc://{join_address(place.host, chunkers_port)}",
            }
            await _run(detecting, chunking, stop_timeout_s(settings), addresses)
    log_event(Event.STOPPED)


def _log_start(parts: Parts) -> None:
    names = {"detectors": list(parts.guards), "chunkers": list(parts.chunkers)}
    log_event(Event.STARTED, logging.INFO, version=__version__, settings=parts.settings.source, **names)


def _build_chunking(parts: Parts) -> GrpcPort:
    limits = parts.settings.limits
    calls = Calls(limits)
    methods = ChunkerMethods(parts.chunkers, calls, max_held_chars=limits.max_held_chars)
    service = {
        CUT: Method(ChunkerTokenizationTaskRequest, methods.cut),
        STREAM: Method(BidiStreamingChunkerTokenizationTaskRequest, methods.stream, Kind.BOTH),
    }
    return GrpcPort({SERVICE: service}, calls, Line(limits.body_bytes + _ROOM_BYTES))


async def _run(detecting: PortServer, chunking: GrpcPort, timeout_s: float | None, addresses: dict[str, str]) -> None:
    def stop() -> None:
        detecting.stop()
        chunking.stop()

    def cut() -> None:
        detecting.cut()
        chunking.cut()

    with told_by_signals(stop, cut):
        await detecting.start()
        await chunking.start()
        for name, address in addresses.items():
            log_event(Event.LISTENING, port=name, address=address)
        async with asyncio.TaskGroup() as group:
            group.create_task(detecting.serve(timeout_s))
            group.create_task(chunking.serve(timeout_s))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening


def _bind_chunking(chunking: GrpcPort, place: PartsPlace) -> int:
    _listen(place.host, place.chunkers_port).close()  # our own error tells the reason, that of grpc does not
    return chunking.bind(join_address(place.host, place.chunkers_port))


def _bind(flag: str, bind: Callable[[], T]) -> T:
    try:
        return bind()
    except OSError as error:
        hint = f"{flag} chooses another port" if error.errno in _ABOUT_PORTS else "--host chooses another address"
        raise CannotListen(f"failed to run server: io error: {describe_fault(error)}; {hint}") from error


def _without_effect(settings: Settings) -> list[str]:
    """What guards the API port and does not guard these: nobody must think that it does."""
    given = {"callers": bool(settings.callers), "server.tls": settings.server.tls.cert_path is not None}
    return [f"`{name}` has no effect on parts" for name, is_given in given.items() if is_given]


def _open_doors(place: PartsPlace) -> list[str]:
    if is_loopback(place.host):
        return []
    return [f"everybody who reaches {place.host} may call; `--host 127.0.0.1` closes it"]
