# SPDX-License-Identifier: Apache-2.0
"""Source -> chunkers -> detectors -> gate -> reader. The heart; read it first.

Moves what the lanes (lockgate.gate.lanes) decide: a pump reads the source, one pump per lane and chunker feeds text
and brings chunks back (a chunker that never waits is fed in place), workers carry requests to detectors, and the
reader takes releases. Every buffer is bounded: held text and waiting chunks by the lanes, releases by a fixed number.

An error of the source lets everything already cut be answered for and leave first; any other error ends the stream
behind what has already left. When the reader goes, all pumps are cancelled, and each closes what it holds.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Self, TypeVarTuple

from lockgate.errors import BrokeProtocol, LockgateError, RequestError
from lockgate.gate.batcher import DetectorRequest, DetectorSpec
from lockgate.gate.lanes import Lane, LanePlan, Lanes, Outcome
from lockgate.gate.release import Release
from lockgate.gate.values import Chunk, Detection, Frame
from lockgate.guard.detectors import ActiveGuard, Excuse, refuse
from lockgate.interfaces import ChunkMachine
from lockgate.task_groups import raise_first, run_together
from lockgate.telemetry import observe_held

Watch = Callable[[Lanes], object]
Blame = Callable[[LockgateError], object]
Source = AsyncGenerator[Frame | list[Frame], None]  # frames, or lists of frames that came at once
Args = TypeVarTuple("Args")

_MAX_WAITING = 64  # releases that the reader has not taken
_SILENCE_S = 0.2  # after which nothing more is expected of a chunker whose source has failed
_TURN_CHARS = 8192  # what one detector reads before it lets others have a turn


def list_readers(guards: Sequence[ActiveGuard]) -> tuple[DetectorSpec, ...]:
    """The guards as the lanes of a stream see them."""
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
    blame_source: Blame | None = None,
) -> AsyncIterator[AsyncIterator[Release]]:
    """The releases of the source's text. Leaving the context stops everything behind it.

    `watch` sees every step, `blame_source` an error of the source before it is raised.
    """
    if not plan.detectors and watch is None:
        async with aclosing(source), aclosing(_pass_on(source, blame_source)) as releases:
            yield releases
        return
    failure: LockgateError | GeneratorExit | None = None
    try:
        async with aclosing(source), asyncio.TaskGroup() as group:
            stream = _GuardedStream(group, source, guards, plan, watch, blame_source)
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


async def _pass_on(source: Source, blame_source: Blame | None) -> AsyncGenerator[Release, None]:
    """Releases unread text as it comes."""
    positions: dict[int, int] = {}
    try:
        async for burst in source:
            for frame in burst if isinstance(burst, list) else (burst,):
                number, text, choice = frame.number, frame.text, frame.choice
                start = positions.get(choice, 0)
                end = positions[choice] = start + len(text)
                yield Release(start, end, text, (), (frame,), choice, frame.is_last, (number, number))
    except LockgateError as error:
        if blame_source is not None:
            blame_source(error)
        raise


class _GuardedStream:
    """One stream at work. Its events are wake-ups: each waiting task checks the lanes again."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        source: Source,
        guards: Sequence[ActiveGuard],
        plan: LanePlan,
        watch: Watch | None,
        blame_source: Blame | None,
    ) -> None:
        self._group = group
        self._blame_source = blame_source
        self._watch = watch
        self._plan = plan
        self._lanes = Lanes(plan)
        self._readings = {active.guard.id: active.reading for active in guards}
        self._excuses: dict[str, list[Excuse | None]] = {}
        for active in guards:
            self._excuses.setdefault(active.guard.chunker_id, []).append(active.excuse)
        self._chunkers = {
            active.guard.chunker_id: active.guard.chunker for active in guards if active.guard.chunker is not None
        }
        self._in_place = {} if plan.is_whole else {active.guard.chunker_id: active.guard.in_place for active in guards}
        self._asks: dict[str, deque[tuple[DetectorRequest, float]]] = {name: deque() for name in self._readings}
        self._workers = dict.fromkeys(self._readings, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._launched: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._outbox: deque[Release] = deque()
        self._failure: LockgateError | None = None
        self._late_failure: LockgateError | None = None
        self._trailing = frozenset() if plan.is_whole else {one.detector for one in plan.detectors if not one.holds}
        self._busy_chunkers = 0
        self._has_streamed = False
        self._cutters: list[_InPlaceChunking] = []
        self._is_behind = False  # a chunker waits until detectors have caught up
        # Of a whole text each detector is asked once: only many detectors have to take turns.
        is_many = plan.is_whole and len(plan.detectors) > plan.max_open
        self._permits = asyncio.Semaphore(plan.max_open) if is_many else None
        self._reader_wakes = asyncio.Event()
        self._moved = asyncio.Event()
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
        self._moved.set()
        return self._outbox.popleft()

    # The pumps. Each reports a LockgateError; anything else is a bug of ours and ends the whole group.

    async def _read_source(self, source: Source) -> None:
        receive = self._lanes.receive
        while True:
            try:
                burst = await anext(source)
            except StopAsyncIteration:
                break
            except LockgateError as error:
                if self._blame_source is not None:
                    self._blame_source(error)
                if not self._plan.is_whole:
                    await self._settle()
                raise
            for frame in burst if isinstance(burst, list) else (burst,):
                outcomes = receive(frame)
                if outcomes or self._watch is not None:
                    self._carry_out(outcomes)
            await self._cut_on()
            while len(self._outbox) >= _MAX_WAITING or not self._lanes.may_read():
                await self._wait()
        self._carry_out(self._lanes.end())
        await self._cut_on()
        self._reader_wakes.set()
        await self._run_launched()

    async def _settle(self) -> None:
        """Let what has come be cut and read, as far as it goes.

        A chunker that is streamed does not say whether a chunk is on its way: it is given a moment of silence.
        """
        while True:
            while self._busy_chunkers or self._lanes.can_progress():
                await self._wait()
            if not self._has_streamed or not self._lanes.awaits_chunks():
                return
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._wait()
            except TimeoutError:
                return

    async def _cut(self, lane: Lane, name: str) -> None:
        try:
            if self._plan.is_whole:
                self._carry_out(lane.place_all(name, await self._cut_whole(name, lane.aligners[name].feed())))
            else:
                await self._cut_stream(lane, name)
        except LockgateError as error:
            excuses = [one for one in self._excuses[name] if one is not None]
            if len(excuses) < len(self._excuses[name]) or not all(excuse(error) for excuse in excuses):
                raise
            await self._pass_over(lane, name)
        self._busy_chunkers -= 1
        self._carry_out(lane.end_chunker(name))
        await self._run_launched()

    async def _cut_stream(self, lane: Lane, name: str) -> None:
        frames = self._feed(lane, name)
        async with aclosing(frames), aclosing(self._chunkers[name].stream(frames)) as chunks:
            async for chunk in chunks:
                self._carry_out(lane.place(name, chunk))
                while lane.batcher.has_backlog(name):
                    await self._wait()
        if lane.is_source_open:
            raise BrokeProtocol(name, f"chunker `{name}`: ended before its text")

    async def _pass_over(self, lane: Lane, name: str) -> None:
        """The chunker has failed and its detectors are excused: text goes on unread."""
        while True:
            self._carry_out(lane.skip_rest(name))
            if not lane.is_source_open:
                return
            await self._await_text()

    async def _await_text(self) -> None:
        """A chunker has nothing to do until text comes."""
        self._busy_chunkers -= 1
        self._moved.set()
        self._chunkers_wake.clear()
        try:
            await self._chunkers_wake.wait()
        finally:
            self._busy_chunkers += 1

    async def _cut_whole(self, name: str, frames: Sequence[Frame]) -> Sequence[Chunk]:
        """The chunks of a whole text; if it has several frames, each is cut on its own."""
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

    async def _cut_on(self) -> None:
        """Text has come, or its end, or a detector has caught up: chunkers take it."""
        if self._has_streamed:
            self._chunkers_wake.set()
        has_ended = False
        for cutter in self._cutters:
            if not cutter.is_busy:
                cutter.is_busy = True
                await self._feed_in_place(cutter)
                cutter.is_busy = False
                has_ended |= cutter.is_done
        if has_ended:
            self._cutters = [cutter for cutter in self._cutters if not cutter.is_done]

    async def _feed_in_place(self, cutter: "_InPlaceChunking") -> None:
        lane, name, machine = cutter.lane, cutter.name, cutter.machine
        if lane.batcher.has_backlog(name):
            self._is_behind = True
            return
        frames = lane.aligners[name].feed()
        while frames:
            text = frames[0].text if len(frames) == 1 else "".join([frame.text for frame in frames])
            is_long = len(text) > _TURN_CHARS
            for start in range(0, len(text) or 1, _TURN_CHARS):
                for chunk in machine.feed(text[start : start + _TURN_CHARS]):
                    self._carry_out(lane.place(name, chunk))
                if is_long:
                    await asyncio.sleep(0)
            frames = lane.aligners[name].feed() if is_long else []
        if not lane.is_source_open:
            cutter.is_done = True
            for chunk in machine.finish():
                self._carry_out(lane.place(name, chunk))
            self._carry_out(lane.end_chunker(name))

    async def _read(self, name: str) -> None:
        asks, read_chars = self._asks[name], 0
        while asks:
            if len(self._outbox) >= _MAX_WAITING and not self._plan.is_whole:
                await self._wait()
                continue  # another worker may have taken the request
            ask, since = asks.popleft()
            findings: Sequence[Sequence[Detection]] = ()
            try:
                if self._permits is None:
                    findings = await self._readings[name].read(ask.excerpts)
                else:
                    async with self._permits:
                        findings = await self._readings[name].read(ask.excerpts)
            except LockgateError as error:
                self._note_failure(name, refuse(name, error) if isinstance(error, RequestError) else error)
            observe_held(name, perf_counter() - since)
            self._carry_out(self._lanes.by_choice[ask.choice].answer(ask, findings))
            if self._is_behind:
                self._is_behind = False
                await self._cut_on()
            read_chars += sum([len(excerpt.text) for excerpt in ask.excerpts])
            if read_chars > _TURN_CHARS:  # a detector that never waits must not keep the loop from other streams
                read_chars = 0
                await asyncio.sleep(0)
        self._workers[name] -= 1

    def _note_failure(self, name: str, failure: LockgateError) -> None:
        if name not in self._trailing:
            raise failure
        self._late_failure = self._late_failure or failure  # what others have cleared leaves first

    # What the lanes decided, carried out.

    def _carry_out(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Release):
                self._outbox.append(outcome)
                self._reader_wakes.set()
            elif isinstance(outcome, DetectorRequest):
                self._asks[outcome.detector].append((outcome, perf_counter()))
                if self._workers[outcome.detector] < self._plan.max_open:
                    self._workers[outcome.detector] += 1
                    self._launch(self._read, outcome.detector)
            else:
                lane = self._lanes.by_choice[outcome.choice]
                for name in self._chunkers:
                    chunker = self._in_place.get(name)
                    if chunker is not None:
                        self._cutters.append(_InPlaceChunking(lane, name, chunker.build_machine()))
                    else:
                        self._has_streamed = True
                        self._busy_chunkers += 1
                        self._launch(self._cut, lane, name)
        self._moved.set()
        if self._watch is not None:
            self._watch(self._lanes)

    async def _wait(self) -> None:
        """Until something has moved: a release was taken, an answer or a chunk came, a chunker took text."""
        self._moved.clear()
        await self._moved.wait()

    # A stream's pumps are tasks. Of a whole text nothing can leave before all is read, so there the reader itself runs
    # a pump where there is only one to run; several are tasks again. The same pumps, fewer tasks.

    def _launch(self, pump: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        if self._plan.is_whole:
            self._launched.append(partial(self._report, pump, *args))
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
        task = self._group.create_task(self._report(pump, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, pump: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        try:
            await pump(*args)
        except LockgateError as error:
            if self._failure is None:
                self._failure = error
                self._reader_wakes.set()
                self.stop()


@dataclass(slots=True)
class _InPlaceChunking:
    """A chunker that never waits, at work on one lane."""

    lane: Lane
    name: str
    machine: ChunkMachine
    is_busy: bool = False
    is_done: bool = False


# A text that is complete goes the same way, as a stream of one frame for each slice.


class Slice(NamedTuple):
    """A piece of a text that is read on its own, and where it starts."""

    start: int
    text: str


async def detect_contents(
    text: str, guards: Sequence[ActiveGuard], max_open: int = 5, *, trusts_chunks: bool = False
) -> list[Detection]:
    """All findings, by where they start; of equal starts in the order of the detectors."""
    return await detect_slices([Slice(0, text)], guards, max_open, trusts_chunks=trusts_chunks)


async def detect_slices(
    slices: Sequence[Slice],
    guards: Sequence[ActiveGuard],
    max_open: int = 5,
    *,
    max_cuts: int = 5,
    trusts_chunks: bool = False,
) -> list[Detection]:
    """The findings in slices of a text, with their place in that text."""
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
    async with open_guarded_stream(_one_frame_each(slices), guards, plan) as stream:
        async for release in stream:
            found += release.detections
    if found:
        found = list(_move_back(found, slices))
        found.sort(key=lambda one: one.start)
    return found


async def _one_frame_each(slices: Iterable[Slice]) -> AsyncGenerator[Frame, None]:
    for number, piece in enumerate(slices):
        yield Frame(number, piece.text)


def _move_back(found: Iterable[Detection], slices: Sequence[Slice]) -> Iterable[Detection]:
    """The findings with spans in the text that the slices come from, not in the slices joined."""
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
