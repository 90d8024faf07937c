# SPDX-License-Identifier: Apache-2.0
"""Several processes that serve the API port, as their parent sees them: started, watched, replaced, stopped.

The parent binds the ports and starts each worker as a fresh interpreter, never by a bare fork. A pair of sockets joins
them: the worker tells when it serves, the parent when to stop, and when the pair ends the other side has died.
Knows no route. What a worker does is in `worker.py`.
"""

import asyncio
import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from lockgate.config.settings import Settings
from lockgate.errors import LockgateError
from lockgate.server.serving import is_set_within, stop_timeout_s
from lockgate.server.shared_metrics import forget_gauges
from lockgate.server.worker import CUT, READY, STOP, pack
from lockgate.telemetry import Event, log_event

_STEADY_S = 10.0  # a worker that lived this long is replaced at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_GRACE_S = 5.0  # for a worker that should have ended by itself
_REAP_S = 0.005
_PRELUDE = (
    "import io, os, pickle, sys; whole = io.BytesIO(os.pread({baggage}, os.fstat({baggage}).st_size, 0)); "
    "os.close({baggage}); sys.path[:] = pickle.load(whole); "
    "from lockgate.server.worker import work; work({arguments})"
)


class Workers:
    """The workers of one start. Serves the API as `Ports` does, by others."""

    def __init__(self, settings: Settings, sockets: Sequence[socket.socket]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._baggage = -1  # what every worker reads at its start, from `start` on
        self._living: dict[int, _Worker] = {}
        self._told = asyncio.Event()
        self._cut = asyncio.Event()

    async def start(self) -> None:
        """Until every worker serves; raises LockgateError if one cannot."""
        try:
            self._baggage = _keep_in_memory(pickle.dumps(sys.path) + pack(self._settings))
            workers = [self._spawn(number) for number in range(1, self._settings.server.workers + 1)]
            for worker in workers:
                if not await worker.is_ready() and not self._told.is_set():
                    status = _describe(await worker.end())
                    raise LockgateError(f"worker {worker.number} ended before it could serve: {status}")
        except BaseException:
            await self._kill_all()
            raise

    async def serve(self) -> None:
        """Replace workers that die, until `stop`; then until all have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                limit = group.create_task(self._limit())
                keepers = [group.create_task(self._keep(worker)) for worker in list(self._living.values())]
                await asyncio.wait(keepers)
                limit.cancel()
        finally:
            await self._kill_all()

    def stop(self) -> None:
        """Let all workers end their requests and then themselves."""
        if not self._told.is_set():
            self._told.set()
            self._tell(STOP)
            for one in self._sockets:  # or new connections would wait for nobody
                one.close()

    def cut(self) -> None:
        """End everything, now."""
        self.stop()
        self._cut.set()
        self._tell(CUT)

    def _tell(self, word: bytes) -> None:
        for worker in self._living.values():
            worker.tell(word)

    def _spawn(self, number: int) -> "_Worker":
        worker = _start_worker(number, self._baggage, [one.fileno() for one in self._sockets])
        self._living[number] = worker
        return worker

    async def _keep(self, worker: "_Worker") -> None:
        pause_s = 0.0
        while True:
            if await worker.is_ready():
                log_event(Event.WORKER_STARTED, worker=worker.number, pid=worker.pid)
            status = await worker.end()
            forget_gauges(worker.pid)
            if self._told.is_set():
                return
            pause_s = 0.0 if worker.age_s > _STEADY_S else min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            fields = {"worker": worker.number, "pid": worker.pid, "status": _describe(status), "next_in_s": pause_s}
            log_event(Event.WORKER_DIED, logging.WARNING, **fields)
            if await is_set_within(self._told, pause_s):
                return
            worker = self._spawn(worker.number)

    async def _limit(self) -> None:
        """The workers keep the time themselves; those that fail to are killed."""
        await self._told.wait()
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
        if self._baggage >= 0:
            os.close(self._baggage)
            self._baggage = -1


class _Worker:
    """One worker that was started just now: our side of the pair, and its process."""

    def __init__(self, number: int, pair: socket.socket, child: "subprocess.Popen[bytes]") -> None:
        self.number = number
        self._started = asyncio.get_running_loop().time()
        self._is_ready = False
        self._pair = pair
        self._child = child

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._child.pid

    @property
    def age_s(self) -> float:
        """How long ago it was started."""
        return asyncio.get_running_loop().time() - self._started

    async def is_ready(self) -> bool:
        """Waits until it serves, or has died."""
        self._is_ready = self._is_ready or await self._listen() == READY
        return self._is_ready

    async def end(self) -> int:
        """Waits until it has died; the exit status, or the signal as a negative number."""
        if self._child.returncode is None:
            while await self._listen():
                pass
            while self._child.poll() is None:  # noqa: ASYNC110 - it has closed its side, so this is a matter of moments
                await asyncio.sleep(_REAP_S)
            self._pair.close()
        return self._child.returncode

    def tell(self, word: bytes) -> None:
        """Give an order; one that has died need not hear it."""
        try:
            self._pair.send(word)
        except OSError:
            return

    def kill(self) -> None:
        """The last resort."""
        self._child.kill()

    async def _listen(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._pair, 1)
        except OSError:  # it died with our words unread
            return b""


def _start_worker(number: int, baggage: int, sockets: Sequence[int]) -> _Worker:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        try:
            return _Worker(number, ours, _start_interpreter(number, baggage, [theirs.fileno(), *sockets]))
        except OSError:
            ours.close()
            raise


def _start_interpreter(number: int, baggage: int, fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    """A worker that imports what we import. Ctrl-C in a terminal reaches it too and must not end it: hence the mask."""
    code = _PRELUDE.format(baggage=baggage, arguments=", ".join(map(str, (number, "whole", *fds))))
    command = [sys.executable, "-P", "-c", code, f"lockgate-worker-{number}"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, pass_fds=[baggage, *fds]
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_in_memory(whole: bytes) -> int:
    """A file that workers inherit and that has no name: it holds secrets."""
    fd = os.memfd_create("lockgate-worker")
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(whole)
    return fd


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
