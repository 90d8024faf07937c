# SPDX-License-Identifier: Apache-2.0
"""Runs the child process of a local model, restarts it when it dies, and answers jobs in their order."""

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
SILENCE_S = 15.0  # a child that is silent for so long has stopped working, and is replaced
STOP_GRACE_S = 0.13  # a child that is not idle by then is killed: in sum it works on for less than 0.2 s
MAX_PAUSE_S = 30.0
FIRST_PAUSE_S = 0.5

BUSY = "the model is busy, try again later"
DIED = "the model stopped while it was answering"
CLOSED = "the model is closed"
NOT_RUNNING = "the model is not running, try again later"

_READ_BYTES = 65_536
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_PASSIVE = {"OMP_WAIT_POLICY": "passive"}  # threads that wait for each other sleep: others need the processors too


class GenerationEnd(NamedTuple):
    """How an answer ended. `is_cut`: it was not allowed to go on."""

    usage: Mapping[str, int] | None
    is_cut: bool


class LoadFailed(Exception):
    """The first child did not come up; the words are for the operator."""


class _Job:
    """One question, from its coming to the end of its answer."""

    def __init__(self, ask: Mapping[str, Any]) -> None:
        self.ask = ask
        self.number = 0  # until it is under way
        self.is_left = False  # the caller has left
        self.moved = asyncio.Event()
        self.end: GenerationEnd | None = None
        self.error: UpstreamError | None = None
        self._said: list[str] = []

    def hear(self, text: str) -> None:
        self._said.append(text)
        self.moved.set()

    def finish(self, end: GenerationEnd) -> None:
        self.end = end
        self.moved.set()

    def fail(self, error: UpstreamError) -> None:
        self.error = error
        self.moved.set()

    def take(self) -> list[str]:
        """What was said since the last time."""
        said, self._said = self._said, []
        return said


class _Child:
    """A process; its lines come as events."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None
        self.is_ready = False
        self.is_timed_out = False  # killed because it did not stop in time: no fault of the model
        self.fault = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # that it is gone is heard from its output
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What the child says, until it is gone."""
        assert self._process.stdout is not None
        rest = b""
        while packet := await self._process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + packet).split(b"\n")
            for line in lines:
                yield json.loads(line)
        await self._process.wait()

    def limit(self, seconds: float) -> None:
        """Kills the child then, unless it is released before."""
        self.release()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def kill(self) -> None:
        """Ends it at once: it has nothing to bring to an end."""
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
        self.is_ready = False  # gets no more jobs, though its last words may still come
        self.kill()


class LlamaProcess:
    """Answers questions with the help of a child, one at a time; made by `open_keeper`."""

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
        """The child's number, while there is one."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a question would be answered at once, or after others."""
        return self._child is not None and self._child.is_ready

    async def ask(self, ask: Mapping[str, Any]) -> AsyncGenerator[list[str] | GenerationEnd, None]:
        """The pieces of the answer, those that came at once together, and its end. Raises UpstreamError."""
        job = self._admit(ask)
        try:
            while True:
                if said := job.take():  # first of all: more may have come, and the end too, while the reader was busy
                    yield said
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
        """One child from its start to its end; how long to pause before the next one."""
        fault, is_ready = "", False
        try:
            async with _open_child() as child:
                self._child = child
                await self._hear_child(child)
            if child.is_timed_out:
                if self._job is not None and not self._job.is_left:
                    log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part=NAME, reason=f"silent for {SILENCE_S:g} s")
                self._drop_child()
                return 0.0
            fault, is_ready = child.describe_end(), child.is_ready
        except Exception as error:  # noqa: BLE001 - the next one may do better
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
        """Removes a job that waits, stops one that is under way."""
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

    async def _hear_child(self, child: _Child) -> None:
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
                self._hear(self._job, event)

    def _hear(self, job: _Job, event: Mapping[str, Any]) -> None:
        if "text" in event or "beat" in event:
            if not job.is_left and self._child is not None:
                self._child.limit(SILENCE_S)
            if "text" in event:
                job.hear(event["text"])
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
        """The child is gone, and with it the answer that was under way."""
        self._child, job, self._job = None, self._job, None
        if job is not None:
            job.fail(Unavailable(NAME, DIED))

    def _report_exit(self, fault: str, *, is_ready: bool) -> float:
        """Tells whom it concerns that a child died by itself; how long to pause before the next one."""
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

    def _refuse(self, words: str) -> None:
        """Fails all jobs, and refuses new ones until a child is ready."""
        self._refusal = words
        jobs, self._waiting = self._waiting, deque()
        if self._job is not None:
            jobs.append(self._job)
            self._job = None
        for job in jobs:
            job.fail(Unavailable(NAME, words))


@asynccontextmanager
async def open_keeper(plan: Mapping[str, Any], max_waiting: int) -> AsyncIterator[LlamaProcess]:
    """A keeper whose child has loaded the model, and which leaves no process behind. Raises LoadFailed."""
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
