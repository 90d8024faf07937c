# SPDX-License-Identifier: Apache-2.0
"""One of several processes that serve the API port: takes over the settings and the sockets, serves, obeys its parent.

Serves what a process alone would serve, says nothing at start, and puts its number on every line of its log.
"""

import asyncio
import io
import logging
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.errors import LockgateError
from lockgate.gateway import open_gateway
from lockgate.server.readiness import Readiness
from lockgate.server.serving import Ports, build_api, loop_factory, spare_the_collector
from lockgate.server.shared_metrics import remove_shared_metrics
from lockgate.telemetry import Event, log_event, open_telemetry, set_up_logging

READY, STOP, CUT = b"r", b"s", b"c"


def pack(settings: Settings) -> bytes:
    """The settings for the way to a worker. They hold secrets: not for a file or a command line."""
    whole = io.BytesIO()
    _Packer(whole).dump(settings)
    return whole.getvalue()


def unpack(whole: BinaryIO) -> Settings:
    """The settings as they were."""
    settings = pickle.load(whole)  # noqa: S301 - written by our parent, into memory that only we inherit
    if not isinstance(settings, Settings):
        raise TypeError(f"not settings but {type(settings).__name__}")
    return settings


class _Packer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (freeze, (dict(obj),)) if isinstance(obj, MappingProxyType) else NotImplemented


def freeze(plain: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """The map as it was: pickle knows no frozen ones."""
    return MappingProxyType(plain)


def work(number: int, whole: BinaryIO, *fds: int) -> NoReturn:
    """The whole life of a worker. `whole` is what `pack` gave; the first number is the way to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all of us; the parent tells what it means
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    settings = unpack(whole)
    set_up_logging(style=settings.log.format, level=settings.log.level, is_quiet=settings.quiet)
    _mark_records(number)
    with ExitStack() as stack:
        pair, *sockets = [stack.enter_context(_take_over(fd)) for fd in fds]
        stack.enter_context(open_telemetry(settings.otlp, joins_traces=find_rules(settings).joins_traces))
        runner = stack.enter_context(asyncio.Runner(loop_factory=loop_factory()))
        try:
            runner.run(_work(settings, pair, sockets))
        except LockgateError as error:
            log_event(Event.FAILED, logging.ERROR, reason=str(error))
            sys.exit(1)
    sys.exit(0)


def _take_over(fd: int) -> socket.socket:
    """A socket that we inherited, and that nobody inherits from us."""
    found = socket.socket(fileno=fd)
    found.set_inheritable(False)
    found.setblocking(False)
    return found


async def _work(settings: Settings, pair: socket.socket, sockets: Sequence[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    async with open_gateway(settings) as gateway:
        spare_the_collector()
        readiness = Readiness(gateway.opened.needed)
        ports = build_api(gateway, readiness, sockets)
        await ports.start()
        loop.add_signal_handler(signal.SIGTERM, ports.stop)
        await loop.sock_sendall(pair, READY)
        async with readiness.watch(), asyncio.TaskGroup() as group:
            obeying = group.create_task(_obey(pair, ports))
            await ports.serve()
            obeying.cancel()


async def _obey(pair: socket.socket, ports: Ports) -> None:
    loop = asyncio.get_running_loop()
    is_told = False
    while word := await loop.sock_recv(pair, 1):
        is_told = True
        if word == CUT:
            ports.cut()
        ports.stop()
    ports.stop()
    if not is_told:
        log_event(Event.WARNING, logging.WARNING, reason="the parent of this worker has died; it ends too")
        remove_shared_metrics()


def _mark_records(number: int) -> None:
    """Every line of the log tells which worker wrote it."""
    build = logging.getLogRecordFactory()

    def build_marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = build(*args, **kwargs)
        record.worker = number
        return record

    logging.setLogRecordFactory(build_marked)
