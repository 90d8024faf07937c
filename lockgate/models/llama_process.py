# SPDX-License-Identifier: Apache-2.0
"""Runs the child process of a local model, restarts it when it dies, and runs jobs in order."""

import asyncio
import json
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from lockgate.errors import Rejected, Unavailable, UpstreamError
from lockgate.telemetry import LogEvent, log_event

NAME = "llamacpp"
PROGRAM = "lockgate.models.llama_child"
LOAD_LIMIT_S = 120.0
SILENCE_S = 15.0  # a child that sends nothing for so long is killed and replaced
STOP_GRACE_S = 0.13  # a child that is not idle by then is killed: it works on for less than 0.2 s
MAX_PAUSE_S = 30.0
FIRST_PAUSE_S = 0.5

BUSY = "the model is busy, try again later"
DIED = "the model stopped while it was answering"
CLOSED = "the model is closed"
NOT_RUNNING = "the model is not running, try again later"

_READ_BYTES = 65_536
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_PASSIVE = {"OMP_WAIT_POLICY": "passive"}  # waiting threads sleep instead of using the processors


class GenerationEnd(NamedTuple):
    """How an answer ended. `is_cut`: it reached its limit of tokens."""

    usage: Mapping[str, int] | None
    is_cut: bool


class LoadFailed(Exception):
    """The first child did not load the model; the message is for the operator."""


class _Job:
    """One request, until its answer has ended."""

    def __init__(self, ask: Mapping[str, Any]) -> None:
        self.ask = ask
        self.number = 0  # until it is sent
        self.is_left = False  # the caller has gone
        self.moved = asyncio.Event()
        self.end: GenerationEnd | None = None
        self.error: UpstreamError | None = None
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.moved.set()

    def finish(self, end: GenerationEnd) -> None:
        self.end = end
        self.moved.set()

    def fail(self, error: UpstreamError) -> None:
        self.error = error
        self.moved.set()

    def take(self) -> list[str]:
        """Returns the pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces


class _Child:
    """A child process; `events` yields the lines that it writes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None
        self.is_ready = False
        self.is_timed_out = False  # killed because it did not stop in time: no fault of the model
        self.fault = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # if the process is gone, its output ends
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the child's messages until it ends."""
        assert self._process.stdout is not None
        rest = b""
        while packet := await self._process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + packet).split(b"\n")
            for line in lines:
                yield json.loads(line)
        await self._process.wait()

    def limit(self, seconds: float) -> None:
        """Kills the child after these seconds, unless it is released before."""
        self.release()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def kill(self) -> None:
        """Ends the child at once: it has nothing to clean up."""
        self.release()
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        self.kill()
        await self._process.wait()

    def describe_end(self) -> str:
        code = self._process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"code {code}"
        return self.fault or f"the process of the model ended with {how}"

    def _time_out(self) -> None:
        self.is_timed_out = self.is_ready
        if not self.is_ready:
            self.fault = f"it was not loaded within {LOAD_LIMIT_S:g} seconds"
        self.is_ready = False  # no more jobs, though its last lines may still come
        self.kill()


class LlamaProcess:
    """Runs jobs in a child process, one at a time; made by `open_keeper`."""

    def __init__(self, plan: Mapping[str, Any], max_waiting: int) -> None:
        self._plan = plan
        self._max_waiting = max_waiting
        self._waiting: deque[_Job] = deque()
        self._job: _Job | None = None
        self._child: _Child | None = None
        self._refusal = ""  # why jobs are refused now
        self._asked = 0
        self._failures = 0
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """The child's process id, or None while there is no child."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether the child has loaded the model and takes jobs."""
        return self._child is not None and self._child.is_ready

    async def ask(self, ask: Mapping[str, Any]) -> AsyncGenerator[list[str] | GenerationEnd, None]:
        """Yields the pieces of the answer, then its end; raises UpstreamError."""
        job = self._admit(ask)
        try:
            while True:
                if pieces := job.take():  # first: while the reader was busy, pieces and the end may have come
                    yield pieces
                elif job.error is not None:
                    raise job.error
                elif job.end is not None:
                    yield job.end
                    return
                else:
                    await job.moved.wait()
                    job.moved.clear()
        finally:
            self._leave(job)

    async def work(self) -> None:
        """Runs child after child until this is cancelled; then refuses all jobs."""
        try:
            while True:
                await asyncio.sleep(await self._live_once())
                self._refusal = ""
        finally:
            self._child = None
            self._refuse(CLOSED)

    async def _live_once(self) -> float:
        """Runs one child to its end; returns the seconds to pause before the next one."""
        fault, is_ready = "", False
        try:
            async with _open_child() as child:
                self._child = child
                await self._read_events(child)
            if child.is_timed_out:
                if self._job is not None and not self._job.is_left:
                    log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part=NAME, reason=f"silent for {SILENCE_S:g} s")
                self._drop_child()
                return 0.0
            fault, is_ready = child.describe_end(), child.is_ready
        except Exception as error:  # noqa: BLE001 - the next child may work
            fault = f"the process of the model cannot be run: {type(error).__name__}: {error}"
        return self._report_exit(fault, is_ready=is_ready)

    def _admit(self, ask: Mapping[str, Any]) -> _Job:
        if self._refusal:
            raise Unavailable(NAME, self._refusal)
        is_idle = self._job is None and not self._waiting and self.is_ready
        if not is_idle and len(self._waiting) >= self._max_waiting:
            raise Unavailable(NAME, BUSY)
        job = _Job(ask)
        self._waiting.append(job)
        self._send_next()
        return job

    def _leave(self, job: _Job) -> None:
        """Removes a waiting job or stops the running one."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job is self._job and self._child is not None:
            job.is_left = True
            self._child.send({"stop": job.number})
            self._child.limit(STOP_GRACE_S)

    def _send_next(self) -> None:
        child = self._child
        if self._job is not None or not self._waiting or child is None or not child.is_ready:
            return
        job = self._job = self._waiting.popleft()
        self._asked += 1
        job.number = self._asked
        child.send({"ask": job.number, **job.ask})
        child.limit(SILENCE_S)

    async def _read_events(self, child: _Child) -> None:
        child.limit(LOAD_LIMIT_S)
        child.send(self._plan)
        async for event in child.events():
            if "ready" in event:
                child.release()
                child.is_ready = True
                if not self.loaded.done():
                    self.loaded.set_result(None)
                self._send_next()
            elif "failed" in event:
                child.fault = event["failed"]
            elif self._job is not None and event["id"] == self._job.number:
                self._handle(self._job, event)

    def _handle(self, job: _Job, event: Mapping[str, Any]) -> None:
        if "text" in event or "beat" in event:
            if not job.is_left and self._child is not None:
                self._child.limit(SILENCE_S)
            if "text" in event:
                job.add(event["text"])
            return
        if "refused" in event:
            job.fail(Rejected(NAME, _explain(event["refused"], self._plan["context_tokens"])))
        else:
            job.finish(GenerationEnd(event.get("usage"), event["end"] == "length"))
        self._failures = 0
        self._job = None
        if self._child is not None:
            self._child.release()
        self._send_next()

    def _drop_child(self) -> None:
        self._child, job, self._job = None, self._job, None
        if job is not None:
            job.fail(Unavailable(NAME, DIED))

    def _report_exit(self, fault: str, *, is_ready: bool) -> float:
        """Reports that a child has died; returns the seconds to pause before the next one."""
        self._drop_child()
        self._failures += 1
        if not self.loaded.done():
            self.loaded.set_exception(LoadFailed(fault))
        else:
            log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part=NAME, reason=fault)
        if is_ready and self._failures == 1:
            return 0.0
        self._refuse(NOT_RUNNING)
        return float(min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 16), MAX_PAUSE_S))

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        jobs, self._waiting = self._waiting, deque()
        if self._job is not None:
            jobs.append(self._job)
            self._job = None
        for job in jobs:
            job.fail(Unavailable(NAME, reason))


@asynccontextmanager
async def open_keeper(plan: Mapping[str, Any], max_waiting: int) -> AsyncIterator[LlamaProcess]:
    """Starts a child and waits until it has loaded the model; leaving ends the child. Raises LoadFailed."""
    keeper = LlamaProcess(plan, max_waiting)
    task = asyncio.create_task(keeper.work())
    try:
        await keeper.loaded
        yield keeper
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def _open_child() -> AsyncIterator[_Child]:
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}  # no secrets among them
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=variables | _PASSIVE,
    )
    child = _Child(process)
    try:
        yield child
    finally:
        await child.close()


def _explain(refusal: str, context_tokens: int) -> str:
    if "context size" in refusal:
        return f"the prompt is too long for the model, which reads {context_tokens} tokens"
    return f"the model refused the prompt: {refusal}"
