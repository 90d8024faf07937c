# SPDX-License-Identifier: Apache-2.0
"""Worker processes that serve the API port: the parent starts, watches, replaces and stops them."""

import asyncio
import copyreg
import json
import logging
import math
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError, ConfigFaults, LockgateError
from lockgate.server.gateways import LiveGateway, SettingsSwitch, hold_gateways
from lockgate.server.ports import (
    Ports,
    Tasks,
    build_api,
    is_set_within,
    loop_factory,
    spare_the_collector,
    stop_timeout_s,
)
from lockgate.server.reload import list_faults
from lockgate.telemetry import LogEvent, log_event, open_telemetry, set_up_logging
from lockgate.telemetry.names import SHARED_METRICS_VARIABLE

READY, STOP, CUT = b"r", b"s", b"c"
# Orders of a reload; each is answered: OK, or FAULTS, their length and text.
RELOAD, SWITCH, DROP, OK, FAULTS = b"n", b"w", b"d", b"o", b"f"
_LENGTH_BYTES = 8
_ENDED = "has ended"
_RELOAD_S = 25.0  # for a worker to open its new gateway
_SETTINGS_MODULES = frozenset({"builtins", "collections", "datetime", "lockgate", "pathlib"})
_STEADY_S = 10.0  # a worker that lived this long is replaced at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_GRACE_S = 5.0  # for a worker that should have ended by itself
_PRELUDE = (
    "import io, os, pickle, sys; whole = io.BytesIO(os.pread({payload}, os.fstat({payload}).st_size, 0)); "
    "os.close({payload}); sys.path[:] = pickle.load(whole); "
    "from lockgate.server.workers import work; work({arguments})"
)


@contextmanager
def shared_metrics(workers: int) -> Iterator[None]:
    """With several workers, make a directory for their metrics; remove it at the end."""
    if workers == 1:
        yield
        return
    try:
        directory = tempfile.mkdtemp(prefix="lockgate-metrics-")
    except OSError as error:
        words = f"cannot make a directory for the workers' metrics: {error.strerror}; TMPDIR chooses another place"
        raise LockgateError(words) from error
    os.environ[SHARED_METRICS_VARIABLE] = directory
    try:
        yield
    finally:
        remove_shared_metrics()


def remove_shared_metrics() -> None:
    """Remove the directory of the workers' metrics; the last process to end calls this."""
    if directory := os.environ.pop(SHARED_METRICS_VARIABLE, None):
        shutil.rmtree(directory, ignore_errors=True)


def forget_gauges(pid: int) -> None:
    """Remove a dead worker's gauges from the shared metrics; its counters stay."""
    if SHARED_METRICS_VARIABLE in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def pack(settings: Settings) -> bytes:
    """The settings as bytes for a worker. They contain secrets: do not put them on disk or a command line."""
    return pickle.dumps(settings)


def _write_payload(settings: Settings) -> int:
    """Writes what a worker reads at its start to a file in memory, because it contains secrets; returns the file."""
    payload = os.memfd_create("lockgate-worker")
    with os.fdopen(payload, "wb", closefd=False) as file:
        file.write(pickle.dumps(sys.path) + pack(settings))
    return payload


def unpack(whole: BinaryIO) -> Settings:
    """The settings that `pack` wrote."""
    settings = _SettingsReader(whole).load()
    if not isinstance(settings, Settings):
        raise TypeError(f"not settings but {type(settings).__name__}")
    return settings


class _SettingsReader(pickle.Unpickler):
    """Unpickles only classes of this package and of the modules in _SETTINGS_MODULES."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _SETTINGS_MODULES:
            raise pickle.UnpicklingError(f"no part of settings: {module}.{name}")
        return super().find_class(module, name)


def _freeze(plain: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(plain)


copyreg.pickle(MappingProxyType, lambda frozen: (_freeze, (dict(frozen),)))  # pickle does not support the type


def work(number: int, whole: BinaryIO, *fds: int) -> NoReturn:
    """Runs a worker process. `whole` is the output of `pack`; the first of `fds` is the socket to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; the parent decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
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
            log_event(LogEvent.FAILED, logging.ERROR, reason=str(error))
            sys.exit(1)
    sys.exit(0)


def _take_over(fd: int) -> socket.socket:
    """The inherited socket; child processes of this worker do not inherit it."""
    found = socket.socket(fileno=fd)
    found.set_inheritable(False)
    found.setblocking(False)
    return found


async def _work(settings: Settings, pair: socket.socket, sockets: Sequence[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    async with hold_gateways() as gateways:
        live = await gateways.open(settings)
        spare_the_collector()
        ports = build_api(live.gateway, live.readiness, sockets)
        await ports.start()
        loop.add_signal_handler(signal.SIGTERM, ports.stop)
        await loop.sock_sendall(pair, READY)
        async with asyncio.TaskGroup() as group:
            orders = group.create_task(_follow_orders(pair, ports, SettingsSwitch(gateways, live, ports)))
            await ports.serve()
            orders.cancel()


async def _follow_orders(pair: socket.socket, ports: Ports, switch: SettingsSwitch) -> None:
    loop = asyncio.get_running_loop()
    is_stopping = False
    while word := await loop.sock_recv(pair, 1):
        if word in (RELOAD, SWITCH, DROP):
            await loop.sock_sendall(pair, await _reload(word, pair, switch))
            continue
        is_stopping = True
        if word == CUT:
            ports.cut()
        ports.stop()
    ports.stop()
    if not is_stopping:
        log_event(LogEvent.WARNING, logging.WARNING, reason="the parent of this worker has died; it ends too")
        remove_shared_metrics()


async def _reload(order: bytes, pair: socket.socket, switch: SettingsSwitch) -> bytes:
    """Carries out one step of a reload; returns the answer to the parent."""
    if order == RELOAD:
        settings = unpack(BytesIO(await receive(pair)))
        [error] = await asyncio.gather(switch.prepare(settings), return_exceptions=True)
        if error is not None:
            faults = json.dumps(list_faults(error)).encode()
            return FAULTS + len(faults).to_bytes(_LENGTH_BYTES) + faults
    elif order == SWITCH:
        await switch.switch()
    else:
        await switch.drop()
    return OK


async def receive(pair: socket.socket) -> bytes:
    """Receives a length and as many bytes; raises ConnectionError if the other process ends before."""
    loop = asyncio.get_running_loop()

    async def read(size: int) -> bytes:
        whole = bytearray()
        while len(whole) < size:
            if not (received := await loop.sock_recv(pair, size - len(whole))):
                raise ConnectionResetError
            whole += received
        return bytes(whole)

    return await read(int.from_bytes(await read(_LENGTH_BYTES)))


def _mark_records(number: int) -> None:
    """Add the worker's number to every log record."""
    build = logging.getLogRecordFactory()

    def build_marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = build(*args, **kwargs)
        record.worker = number
        return record

    logging.setLogRecordFactory(build_marked)


class Workers:
    """The worker processes. They serve the API; the methods are those of `Ports`."""

    def __init__(self, settings: Settings, sockets: Sequence[socket.socket]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._payload = -1  # the file that every worker reads at its start; `start` opens it
        self._living: dict[int, _Worker] = {}
        self._prepared: Settings | None = None  # of a reload
        self._ready: list[_Worker] = []  # those that have opened them
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()

    async def start(self) -> None:
        """Start the workers and wait until all serve; raises LockgateError if one cannot."""
        try:
            self._payload = _write_payload(self._settings)
            workers = [self._spawn(number) for number in range(1, self._settings.server.workers + 1)]
            for worker in workers:
                if not await worker.is_ready() and not self._stopping.is_set():
                    status = _describe(await worker.end())
                    raise LockgateError(f"worker {worker.number} ended before it could serve: {status}")
        except BaseException:
            await self._kill_all()
            raise

    async def serve(self) -> None:
        """Replace workers that die until `stop`, then wait until all have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                limit = group.create_task(self._limit())
                keepers = [group.create_task(self._keep(worker)) for worker in list(self._living.values())]
                await asyncio.wait(keepers)
                limit.cancel()
        finally:
            await self._kill_all()

    async def prepare(self, live: LiveGateway) -> None:
        """Let each worker open a second gateway with the settings of this one; raises ConfigFaults."""
        self._prepared = self._adapt(live.gateway.settings)
        packed = pack(self._prepared)
        order = RELOAD + len(packed).to_bytes(_LENGTH_BYTES) + packed
        workers = list(self._living.values())
        answers = await asyncio.gather(*[worker.ask(order) for worker in workers])
        faults = [ConfigError(fault, source=f"worker {worker.number}")
                  for worker, answer in zip(workers, answers, strict=True) for fault in answer]  # fmt: skip
        if faults:
            raise ConfigFaults(tuple(faults))
        self._ready = workers

    async def switch(self) -> Tasks:
        """Let the workers switch to what they have opened; later workers start with these settings."""
        assert self._prepared is not None
        payload = _write_payload(self._prepared)
        os.close(self._payload)
        self._settings, self._payload = self._prepared, payload
        await asyncio.gather(*[worker.ask(SWITCH) for worker in self._ready])
        for worker in self._living.values():
            if worker not in self._ready:  # it has started with the old settings
                worker.kill()
        self._ready = []
        return set()

    async def drop(self) -> None:
        """Let the workers close what they have opened."""
        await asyncio.gather(*[worker.ask(DROP) for worker in self._living.values()])

    def _adapt(self, settings: Settings) -> Settings:
        """The settings for workers, which open the agent's port themselves, by its number."""
        return replace(settings, listeners=self._settings.listeners)

    def stop(self) -> None:
        """Stop all workers; each finishes its requests first."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._send(STOP)
            for one in self._sockets:  # else new connections would wait for ever
                one.close()

    def cut(self) -> None:
        """Abort all requests and connections."""
        self.stop()
        self._cut.set()
        self._send(CUT)

    def _send(self, order: bytes) -> None:
        for worker in self._living.values():
            worker.send(order)

    def _spawn(self, number: int) -> "_Worker":
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            fds = [theirs.fileno(), *[one.fileno() for one in self._sockets]]
            try:
                worker = _Worker(number, ours, _start_interpreter(number, self._payload, fds))
            except OSError:
                ours.close()
                raise
        self._living[number] = worker
        return worker

    async def _keep(self, worker: "_Worker") -> None:
        pause_s = 0.0
        while True:
            if await worker.is_ready():
                log_event(LogEvent.WORKER_STARTED, worker=worker.number, pid=worker.pid)
            status = await worker.end()
            forget_gauges(worker.pid)
            if self._stopping.is_set():
                return
            age_s = asyncio.get_running_loop().time() - worker.started_s
            pause_s = 0.0 if age_s > _STEADY_S else min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            fields = {"worker": worker.number, "pid": worker.pid, "status": _describe(status), "next_in_s": pause_s}
            log_event(LogEvent.WORKER_DIED, logging.WARNING, **fields)
            if await is_set_within(self._stopping, pause_s):
                return
            worker = self._spawn(worker.number)

    async def _limit(self) -> None:
        """Kill workers that have not ended in time; they normally end by themselves."""
        await self._stopping.wait()
        timeout_s = stop_timeout_s(self._settings)
        limit_s = math.inf if timeout_s is None else timeout_s + _GRACE_S
        if await is_set_within(self._cut, limit_s):
            await asyncio.sleep(_GRACE_S)
        for worker in self._living.values():
            worker.kill()

    async def _kill_all(self) -> None:
        for worker in self._living.values():
            worker.kill()
        for worker in self._living.values():
            await worker.end()
        if self._payload >= 0:
            os.close(self._payload)
            self._payload = -1


class _Worker:
    """One worker process, and the parent's end of the socket pair."""

    def __init__(self, number: int, pair: socket.socket, child: "subprocess.Popen[bytes]") -> None:
        self.number = number
        self.started_s = asyncio.get_running_loop().time()
        self._is_ready = False
        self._pair = pair
        self._child = child
        self._answers: deque[asyncio.Future[list[str]]] = deque()
        self._sending = asyncio.Lock()
        self._later = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    async def is_ready(self) -> bool:
        """Waits until the worker serves or has died; returns whether it serves."""
        self._is_ready = self._is_ready or await self._listen() == READY
        return self._is_ready

    async def end(self) -> int:
        """Waits until the worker has ended; returns the exit status, or the signal as a negative number."""
        if self._child.returncode is None:
            while await self._listen():
                pass
            await asyncio.to_thread(self._child.wait)  # it has closed its end, so this is short
            self._pair.close()
        return self._child.returncode

    def send(self, order: bytes) -> None:
        """Send STOP or CUT, after an order that is being sent; does nothing if the worker has died."""
        if self._sending.locked():
            self._later += order
            return
        try:
            self._pair.send(order)
        except OSError:
            return

    async def ask(self, order: bytes) -> list[str]:
        """Send an order of a reload; returns the faults that the worker answers with."""
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        try:
            async with asyncio.timeout(_RELOAD_S), self._sending:
                await asyncio.get_running_loop().sock_sendall(self._pair, order)
                later, self._later = self._later, b""
                if later:
                    self._pair.send(later)
            async with asyncio.timeout(_RELOAD_S):
                return await answer
        except TimeoutError:
            return ["has not answered in time"]
        except (OSError, ValueError):  # the second: the pair is closed
            return [_ENDED]

    def kill(self) -> None:
        """Kill the process."""
        self._child.kill()

    async def _listen(self) -> bytes:
        """The next word of the worker that is no answer to an order; empty once it has ended."""
        try:
            while (word := await asyncio.get_running_loop().sock_recv(self._pair, 1)) in (OK, FAULTS):
                faults = json.loads(await receive(self._pair)) if word == FAULTS else []
                self._settle(self._answers.popleft(), faults)
        except OSError:  # the worker died before it read an order
            word = b""
        if not word:
            while self._answers:
                self._settle(self._answers.popleft(), [_ENDED])
        return word

    def _settle(self, answer: "asyncio.Future[list[str]]", faults: list[str]) -> None:
        if not answer.done():
            answer.set_result(faults)


def _start_interpreter(number: int, payload: int, fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Start a worker with this process's import path; SIGINT is masked: Ctrl-C in a terminal must not end it."""
    code = _PRELUDE.format(payload=payload, arguments=", ".join(map(str, (number, "whole", *fds))))
    command = [sys.executable, "-P", "-c", code, f"lockgate-worker-{number}"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, pass_fds=[payload, *fds]
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
