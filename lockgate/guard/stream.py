# SPDX-License-Identifier: Apache-2.0
"""Guarded stream: source -> chunkers -> detectors -> gate -> reader. The central module; read it first.

It carries out the decisions of the lanes (lockgate.gate.lanes). One task ("pump") reads the source. One per lane and
chunker feeds text and receives chunks; a chunker that never waits is called in place. Workers send requests to
detectors, and the reader takes releases. Every buffer is bounded: held text and waiting chunks by the lanes, releases
by a fixed number.

After an error of the source, text already cut is still read and released. An error of a trailing detector is raised
after the last release; any other ends the stream without the held text. When the reader leaves, all pumps end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Self, TypeVarTuple

from lockgate.errors import BrokeProtocol, LockgateError, RequestError
from lockgate.gate.batcher import DetectorRequest, DetectorSpec
from lockgate.gate.input_texts import Slice as Slice
from lockgate.gate.lanes import Lane, LanePlan, Lanes, Outcome
from lockgate.gate.release import Release
from lockgate.gate.values import Chunk, Detection, Frame
from lockgate.guard.detectors import ActiveGuard, FailureHandler, to_invalid_request
from lockgate.guard.hold_limits import HoldLimits
from lockgate.interfaces import ChunkMachine
from lockgate.task_groups import raise_first, run_together
from lockgate.telemetry import observe_held

Watch = Callable[[Lanes], object]
ErrorCallback = Callable[[LockgateError], object]
Source = AsyncGenerator[Frame | list[Frame], None]  # frames, or lists of frames that came at once
Args = TypeVarTuple("Args")

_MAX_WAITING = 64  # releases that the reader has not taken
_SILENCE_S = 0.2  # how long to wait for further chunks after the source has failed
_TURN_CHARS = 8192  # characters that one detector reads before other tasks run


def list_readers(guards: Sequence[ActiveGuard]) -> tuple[DetectorSpec, ...]:
    """Returns the specs of the guards, for the lanes of a stream."""
    return tuple(
        [
            DetectorSpec(one.guard.id, one.guard.chunker_id, one.threshold, one.guard.lookbehind_chars, one.holds)
            for one in guards
        ]
    )


@asynccontextmanager
async def open_guarded_stream(
    source: Source,
    guards: Sequence[ActiveGuard],
    plan: LanePlan,
    watch: Watch | None = None,
    on_source_error: ErrorCallback | None = None,
) -> AsyncIterator[AsyncIterator[Release]]:
    """Opens an iterator over the releases of the source's text; leaving the context stops all pumps and the source.

    `watch` is called after every step, `on_source_error` with an error of the source before it is raised.
    """
    if not plan.detectors and watch is None:
        async with aclosing(source), aclosing(_release_unread(source, on_source_error)) as releases:
            yield releases
        return
    failure: LockgateError | GeneratorExit | None = None
    try:
        async with aclosing(source), asyncio.TaskGroup() as group:
            stream = _GuardedStream(group, source, guards, plan, watch, on_source_error)
            try:
                yield stream
            except (LockgateError, GeneratorExit) as error:  # else the task group would wrap it
                failure = error
            finally:
                stream.stop()
    except ExceptionGroup as failures:
        raise_first(failures)
    if failure is not None:
        raise failure


async def _release_unread(source: Source, on_source_error: ErrorCallback | None) -> AsyncGenerator[Release, None]:
    """Yields releases of the text without any detector."""
    positions: dict[int, int] = {}
    try:
        async for burst in source:
            for frame in burst if isinstance(burst, list) else (burst,):
                number, text, choice = frame.number, frame.text, frame.choice
                start = positions.get(choice, 0)
                end = positions[choice] = start + len(text)
                yield Release(start, end, text, (), (frame,), choice, frame.is_last, (number, number))
    except LockgateError as error:
        if on_source_error is not None:
            on_source_error(error)
        raise


class _GuardedStream:
    """Runs one stream. Its asyncio events only wake tasks: each waiting task checks the lanes again."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        source: Source,
        guards: Sequence[ActiveGuard],
        plan: LanePlan,
        watch: Watch | None,
        on_source_error: ErrorCallback | None,
    ) -> None:
        self._group = group
        self._on_source_error = on_source_error
        self._watch = watch
        self._plan = plan
        self._lanes = Lanes(plan)
        self._readings = {active.guard.id: active.reading for active in guards}
        self._failure_handlers: dict[str, list[FailureHandler | None]] = {}
        for active in guards:
            self._failure_handlers.setdefault(active.guard.chunker_id, []).append(active.on_failure)
        self._chunkers = {
            active.guard.chunker_id: active.guard.chunker for active in guards if active.guard.chunker is not None
        }
        self._in_place = {} if plan.is_whole else {active.guard.chunker_id: active.guard.in_place for active in guards}
        self._requests: dict[str, deque[tuple[DetectorRequest, float]]] = {name: deque() for name in self._readings}
        self._workers = dict.fromkeys(self._readings, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._launched: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._outbox: deque[Release] = deque()
        self._failure: LockgateError | None = None
        self._late_failure: LockgateError | None = None
        self._trailing = frozenset() if plan.is_whole else {one.detector for one in plan.detectors if not one.holds}
        self._busy_chunkers = 0
        self._has_streamed = False
        self._in_place_chunkers: list[_InPlaceChunking] = []
        self._is_behind = False  # a chunker waits because a detector has too many waiting chunks
        # Each detector gets a whole text in one request, so permits are needed only if there are many detectors.
        limits_readings = plan.is_whole and len(plan.detectors) > plan.max_open
        self._permits = asyncio.Semaphore(plan.max_open) if limits_readings else None
        limited = [active for active in guards if active.max_hold_s is not None]
        self._limits = HoldLimits(limited, self._permits) if limited else None
        self._reader_wakes = asyncio.Event()
        self._progress = asyncio.Event()
        self._chunkers_wake = asyncio.Event()
        self._launch(self._read_source, source)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Release:
        await self._run_launched()
        while not self._outbox:
            if self._failure is not None:
                raise self._failure
            if self._lanes.is_finished:
                if self._late_failure is not None:
                    raise self._late_failure
                raise StopAsyncIteration
            self._reader_wakes.clear()
            await self._reader_wakes.wait()
        self._progress.set()
        return self._outbox.popleft()

    # The pumps. `_run_pump` handles a LockgateError; any other exception is a bug in Lockgate and ends the whole group.

    async def _read_source(self, source: Source) -> None:
        receive = self._lanes.receive
        while True:
            try:
                burst = await anext(source)
            except StopAsyncIteration:
                break
            except LockgateError as error:
                if self._on_source_error is not None:
                    self._on_source_error(error)
                if not self._plan.is_whole:
                    await self._drain()
                raise
            for frame in burst if isinstance(burst, list) else (burst,):
                outcomes = receive(frame)
                if outcomes or self._watch is not None:
                    self._apply(outcomes)
            await self._feed_chunkers()
            while len(self._outbox) >= _MAX_WAITING or not self._lanes.may_read():
                await self._wait_for_progress()
        self._apply(self._lanes.end())
        await self._feed_chunkers()
        self._reader_wakes.set()
        await self._run_launched()

    async def _drain(self) -> None:
        """Waits until the received text has been cut and read, as far as possible.

        A streaming chunker does not say whether another chunk will come, so the wait ends after a short silence.
        """
        while True:
            while self._busy_chunkers or self._lanes.can_progress():
                await self._wait_for_progress()
            if not self._has_streamed or not self._lanes.awaits_chunks():
                return
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._wait_for_progress()
            except TimeoutError:
                return

    async def _cut(self, lane: Lane, name: str) -> None:
        try:
            if self._plan.is_whole:
                self._apply(lane.place_all(name, await self._cut_whole(name, lane.aligners[name].feed())))
            else:
                await self._cut_stream(lane, name)
            outcomes = lane.end_chunker(name)
        except LockgateError as error:
            error.known_as = name
            handlers = [one for one in self._failure_handlers[name] if one is not None]
            if len(handlers) < len(self._failure_handlers[name]) or not all(handle(error) for handle in handlers):
                raise
            await self._skip_rest(lane, name)
            outcomes = lane.end_chunker(name)
        self._busy_chunkers -= 1
        self._apply(outcomes)
        await self._run_launched()

    async def _cut_stream(self, lane: Lane, name: str) -> None:
        frames = self._feed(lane, name)
        async with aclosing(frames), aclosing(self._chunkers[name].stream(frames)) as chunks:
            async for chunk in chunks:
                if self._limits is not None:
                    self._limits.note_chunk(name, lane.choice, chunk)
                self._apply(lane.place(name, chunk))
                while lane.batcher.has_backlog(name):
                    await self._wait_for_progress()
        if lane.is_source_open:
            raise BrokeProtocol(name, f"chunker `{name}`: ended before its text")

    async def _skip_rest(self, lane: Lane, name: str) -> None:
        """Handles a failed chunker whose detectors may all fail: the text of the lane stays unread."""
        while True:
            self._apply(lane.skip_rest(name))
            if not lane.is_source_open:
                return
            await self._await_text()

    async def _await_text(self) -> None:
        """Waits until more text comes for a chunker."""
        self._busy_chunkers -= 1
        self._progress.set()
        self._chunkers_wake.clear()
        try:
            await self._chunkers_wake.wait()
        finally:
            self._busy_chunkers += 1

    async def _cut_whole(self, name: str, frames: Sequence[Frame]) -> Sequence[Chunk]:
        """Returns the chunks of a whole text; each of several frames is cut separately."""
        cut = self._chunkers[name].cut
        if len(frames) == 1:
            return await cut(frames[0].text)
        parts = await run_together([partial(cut, frame.text) for frame in frames], self._plan.max_cuts)
        chunks: list[Chunk] = []
        start = 0
        for frame, found in zip(frames, parts, strict=True):
            chunks += [chunk._replace(start=chunk.start + start, end=chunk.end + start) for chunk in found]
            start += len(frame.text)
        return chunks

    async def _feed(self, lane: Lane, name: str) -> AsyncGenerator[Frame, None]:
        while True:
            frames = lane.aligners[name].feed()
            for frame in frames:
                yield frame
            if not frames and not lane.is_source_open:
                return
            if not frames:
                await self._await_text()

    async def _feed_chunkers(self) -> None:
        """Feeds the chunkers after new text, the end of the text, or progress of a detector."""
        if self._has_streamed:
            self._chunkers_wake.set()
        has_ended = False
        for chunking in self._in_place_chunkers:
            if not chunking.is_busy:
                chunking.is_busy = True
                await self._feed_in_place(chunking)
                chunking.is_busy = False
                has_ended |= chunking.is_done
        if has_ended:
            self._in_place_chunkers = [chunking for chunking in self._in_place_chunkers if not chunking.is_done]

    async def _feed_in_place(self, chunking: "_InPlaceChunking") -> None:
        lane, name, machine = chunking.lane, chunking.name, chunking.machine
        if lane.batcher.has_backlog(name):
            self._is_behind = True
            return
        frames = lane.aligners[name].feed()
        while frames:
            text = frames[0].text if len(frames) == 1 else "".join([frame.text for frame in frames])
            is_long = len(text) > _TURN_CHARS
            for start in range(0, len(text) or 1, _TURN_CHARS):
                for chunk in machine.feed(text[start : start + _TURN_CHARS]):
                    if self._limits is not None:
                        self._limits.note_chunk(name, lane.choice, chunk)
                    self._apply(lane.place(name, chunk))
                if is_long:
                    await asyncio.sleep(0)
            frames = lane.aligners[name].feed() if is_long else []
        if not lane.is_source_open:
            chunking.is_done = True
            for chunk in machine.finish():
                if self._limits is not None:
                    self._limits.note_chunk(name, lane.choice, chunk)
                self._apply(lane.place(name, chunk))
            self._apply(lane.end_chunker(name))

    async def _read(self, name: str) -> None:
        requests, read_chars = self._requests[name], 0
        while requests:
            if len(self._outbox) >= _MAX_WAITING and not self._plan.is_whole:
                await self._wait_for_progress()
                if self._limits is not None:
                    self._limits.restart()
                continue  # another worker may have taken the request
            request, since = requests.popleft()
            findings: Sequence[Sequence[Detection]] = ()
            try:
                if self._limits is not None and self._limits.holds(name):
                    findings = await self._limits.read(request)
                elif self._permits is None:
                    findings = await self._readings[name].read(request.excerpts)
                else:
                    async with self._permits:
                        findings = await self._readings[name].read(request.excerpts)
            except LockgateError as error:
                self._note_failure(name, to_invalid_request(name, error) if isinstance(error, RequestError) else error)
            observe_held(name, perf_counter() - since)
            self._apply(self._lanes.by_choice[request.choice].answer(request, findings))
            if self._is_behind:
                self._is_behind = False
                await self._feed_chunkers()
            read_chars += sum([len(excerpt.text) for excerpt in request.excerpts])
            if read_chars > _TURN_CHARS:  # a detector that never waits must not block other streams
                read_chars = 0
                await asyncio.sleep(0)
        self._workers[name] -= 1

    def _note_failure(self, name: str, failure: LockgateError) -> None:
        failure.known_as = name
        if name not in self._trailing:
            raise failure
        self._late_failure = self._late_failure or failure  # raised after the last release

    # The decisions of the lanes.

    def _apply(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Release):
                self._outbox.append(outcome)
                self._reader_wakes.set()
            elif isinstance(outcome, DetectorRequest):
                if self._limits is not None:
                    self._limits.note_request(outcome)
                self._requests[outcome.detector].append((outcome, perf_counter()))
                if self._workers[outcome.detector] < self._plan.max_open:
                    self._workers[outcome.detector] += 1
                    self._launch(self._read, outcome.detector)
            else:
                lane = self._lanes.by_choice[outcome.choice]
                for name in self._chunkers:
                    if name not in lane.aligners:
                        continue
                    chunker = self._in_place.get(name)
                    if chunker is not None:
                        self._in_place_chunkers.append(_InPlaceChunking(lane, name, chunker.build_machine()))
                    else:
                        self._has_streamed = True
                        self._busy_chunkers += 1
                        self._launch(self._cut, lane, name)
        self._progress.set()
        if self._watch is not None:
            self._watch(self._lanes)

    async def _wait_for_progress(self) -> None:
        """Waits for progress: a release was taken, a response or a chunk came, or a chunker took text."""
        self._progress.clear()
        await self._progress.wait()

    # A stream's pumps are tasks. Of a whole text nothing can leave before all is read, so the reader itself runs a pump
    # if it is the only one; several pumps are tasks. This needs fewer tasks.

    def _launch(self, pump: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        if self._plan.is_whole:
            self._launched.append(partial(self._run_pump, pump, *args))
        else:
            self._spawn(pump, *args)

    async def _run_launched(self) -> None:
        while self._launched and self._failure is None:
            launched, self._launched = self._launched, []
            if len(launched) == 1:
                await launched[0]()
            else:
                for one in launched:
                    self._spawn(one)

    def _spawn(self, pump: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        task = self._group.create_task(self._run_pump(pump, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_pump(self, pump: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        try:
            await pump(*args)
        except LockgateError as error:
            if self._failure is None:
                self._failure = error
                self._reader_wakes.set()
                self.stop()


@dataclass(slots=True)
class _InPlaceChunking:
    """The state of a chunker that never waits, for one lane."""

    lane: Lane
    name: str
    machine: ChunkMachine
    is_busy: bool = False
    is_done: bool = False


# A complete text takes the same path, as a stream with one frame per slice.


async def detect_contents(
    text: str, guards: Sequence[ActiveGuard], max_open: int = 5, *, trusts_chunks: bool = False
) -> list[Detection]:
    """Returns all findings, sorted by start; equal starts in the order of the detectors."""
    return await detect_slices([Slice(0, text)], guards, max_open, trusts_chunks=trusts_chunks)


async def detect_slices(
    slices: Sequence[Slice],
    guards: Sequence[ActiveGuard],
    max_open: int = 5,
    *,
    max_cuts: int = 5,
    trusts_chunks: bool = False,
) -> list[Detection]:
    """Returns the findings in slices of a text, with spans in that text, sorted by start."""
    plan = LanePlan(
        list_readers(guards),
        max_open=max_open,
        max_held_chars=None,
        is_whole=True,
        feeds_empty=True,
        trusts_chunks=trusts_chunks,
        max_cuts=max_cuts,
    )
    found: list[Detection] = []
    async with open_guarded_stream(_make_frames(slices), guards, plan) as stream:
        async for release in stream:
            found += release.detections
    if found:
        found = list(_restore_positions(found, slices))
        found.sort(key=lambda one: one.start)
    return found


async def _make_frames(slices: Iterable[Slice]) -> AsyncGenerator[Frame, None]:
    for number, piece in enumerate(slices):
        yield Frame(number, piece.text)


def _restore_positions(found: Iterable[Detection], slices: Sequence[Slice]) -> Iterable[Detection]:
    """Returns the findings with spans in the original text instead of the joined slices."""
    if len(slices) == 1:
        shift = slices[0].start
        return [one._replace(start=one.start + shift, end=one.end + shift) for one in found] if shift else found
    shifts: list[tuple[int, int]] = []
    joined = 0
    for piece in slices:
        shifts.append((joined, piece.start - joined))
        joined += len(piece.text)
    moved = []
    for one in found:
        shift = next(shift for begin, shift in reversed(shifts) if one.start >= begin or begin == 0)
        moved.append(one._replace(start=one.start + shift, end=one.end + shift))
    return moved
