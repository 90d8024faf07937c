# SPDX-License-Identifier: Apache-2.0
"""What the command line shows of a guarded stream: findings in colour, progress, and the demo."""

import asyncio
import codecs
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from lockgate.assembly import Gateway, open_gateway
from lockgate.config.orchestrator_yaml import embedded_defaults
from lockgate.config.settings import DetectorSettings, Settings
from lockgate.core.lanes import Lanes
from lockgate.core.release import Release, Strategy
from lockgate.core.values import TEXT_CONTENTS, Detection, Frame
from lockgate.errors import ConfigError
from lockgate.pipelines.guarded_stream import open_guarded_stream, plan_lanes
from lockgate.pipelines.guards import ActiveGuard, Guard, Rules, choose_guards
from lockgate.plugins import find_factory, is_known
from lockgate.server.http.guardrails import CONTENT_PATH
from lockgate.server.run import Bound
from lockgate.wire.guardrails import encode_line

_PIECE_BYTES = 65_536
_RED, _GREEN, _DIM, _BOLD, _OFF = "\033[1;31m", "\033[32m", "\033[2m", "\033[1m", "\033[0m"


class Paint:
    """Colours where a person looks, plain text elsewhere."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - anything with isatty
        self.is_on = stream.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_OFF}" if self.is_on and text else text


def printable(text: str) -> str:
    """The text without characters that could command a terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


async def detect(
    settings: Settings,
    requested: Mapping[str, Mapping[str, Any]],
    *,
    text: str | None,
    file: Path | None,
    as_json: bool,
) -> bool:
    """Print what the detectors find; whether there was anything."""
    has_found = False
    settings = _add_embedded(settings, requested)
    async with open_gateway(settings) as gateway:
        _check_local(settings, gateway, requested)
        guards = choose_guards(gateway.guards, requested, Rules())
        plan = plan_lanes(guards, strategy=Strategy.FRONTIER, max_held_chars=settings.limits.max_held_chars)
        show = _show_json if as_json else _Marker().show
        async with open_guarded_stream(_read_input(text, file), guards, plan) as releases:
            async for release in releases:
                has_found = has_found or bool(release.detections)
                show(release)
    return has_found


def _add_embedded(settings: Settings, requested: Iterable[str]) -> Settings:
    """The settings with detectors that run here and are asked for by their own names, as they are by default."""
    missing = [name for name in requested if name not in settings.detectors and is_known("lockgate.detectors", name)]
    added = {name: DetectorSettings(**embedded_defaults(name), embedded=name) for name in missing}
    return replace(settings, detectors={**settings.detectors, **added}) if added else settings


def _check_local(settings: Settings, gateway: Gateway, requested: Iterable[str]) -> None:
    for name in requested:
        if name in settings.detectors and name not in gateway.guards:
            raise ConfigError("runs elsewhere, and this version cannot call it yet", source=settings.source, key=name)


def _show_json(release: Release) -> None:
    if release.text or release.detections:
        sys.stdout.buffer.write(encode_line(release, is_relative=False))
        sys.stdout.buffer.flush()


class _Marker:
    """On a terminal the text itself with findings in colour, elsewhere one line per finding."""

    def __init__(self) -> None:
        self._paint = Paint(sys.stdout)
        self._marked_upto = 0

    def show(self, release: Release) -> None:
        if not self._paint.is_on:
            for found in sorted(release.detections, key=lambda one: one.start):
                print(f"{found.start}-{found.end}\t{found.detector_id}\t{printable(found.detection)}\t{found.score:.2f}\t"
                      f"{printable(found.text)}", flush=True)  # fmt: skip
            return
        print(self._mark(release), end="\n" if release.is_final else "", flush=True)

    def _mark(self, release: Release) -> str:
        parts, position = [], release.start
        spans = sorted([(release.start, self._marked_upto, ""), *map(_label, release.detections)])
        for start, end, label in spans:
            low, high = max(start, position), min(end, release.end)
            if low < high:
                parts.append(printable(release.text[position - release.start : low - release.start]))
                parts.append(self._paint(_RED, printable(release.text[low - release.start : high - release.start])))
                parts.append(self._paint(_DIM, label))
                position = high
            self._marked_upto = max(self._marked_upto, end)
        parts.append(printable(release.text[position - release.start :]))
        return "".join(parts)


def _label(found: Detection) -> tuple[int, int, str]:
    return found.start, found.end, f"[{printable(found.detection)}]"


async def _read_input(text: str | None, file: Path | None) -> AsyncGenerator[Frame, None]:
    if text is not None:
        yield Frame(0, text)
        return
    try:
        with open(file, "rb") if file else os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0) as source:  # noqa: ASYNC230
            async for frame in _read_pieces(source, _Progress(file)):
                yield frame
    except OSError as error:
        raise ConfigError(str(error.strerror), source=str(file or "standard input")) from error


async def _read_pieces(source: BinaryIO, progress: "_Progress") -> AsyncGenerator[Frame, None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    number = 0
    while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
        if text := decoder.decode(piece):
            yield Frame(number, text)
            number += 1
        progress.add(len(piece))
    if text := decoder.decode(b"", final=True):
        yield Frame(number, text)
    progress.end()


class _Progress:
    """How far a long file has been read, on standard error."""

    def __init__(self, file: Path | None) -> None:
        size = file.stat().st_size if file and file.is_file() else 0
        self._size = size if size > 2_000_000 else 0
        self._done = 0
        self._started = time.monotonic()
        self._last = 0.0
        self._is_terminal = sys.stderr.isatty()

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._size and now - self._last >= (0.2 if self._is_terminal else 5.0):
            self._last = now
            self._print("\r" if self._is_terminal else "", "" if self._is_terminal else "\n")

    def end(self) -> None:
        if self._size:
            self._print("\r" if self._is_terminal else "", "\n")

    def _print(self, start: str, end: str) -> None:
        seconds = max(time.monotonic() - self._started, 0.001)
        words = f"{100 * self._done // self._size:3d} %  {self._done / 1e6:.1f} of {self._size / 1e6:.1f} MB  "
        print(f"{start}{words}{self._done / seconds / 1e6:.1f} MB/s", end=end, file=sys.stderr, flush=True)


_SAMPLE = (
    "Dear Ms. Ruiz, your parcel is at the depot. Write to ana.ruiz@example.org or call +1 415 555 2671. "
    "It is strictly confidential!\n\n"
    "The fee was charged to card 4111 1111 1111 1111. We wish you a pleasant day.\n"
)
_POSTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("keywords", "word", {"keywords": ["confidential"]}),
    ("pii", "sentence", {}),
    ("secrets", "paragraph", {}),
)


class Demo:
    """Streams a sample through the gate, frame by frame, and tells how to go on."""

    def __init__(self, *, pace_s: float, is_once: bool) -> None:
        self._pace_s = pace_s
        self._is_once = is_once
        self._paint = Paint(sys.stdout)
        self._frontiers: dict[str, int] = {}

    async def show(self, bound: Sequence[Bound]) -> None:
        print("A model streams its answer. Three detectors read it, each in chunks of its own size:")
        for name, chunker, _ in _POSTS:
            print(f"  {self._paint(_BOLD, f'{name:<9}')} reads each {chunker}")
        print("Text leaves only when all three have read it.\n")
        async with AsyncExitStack() as stack:
            guards = [await _open_post(stack, *post) for post in _POSTS]
            await self._stream(guards)
        if not self._is_once:
            self._say_how_to_go_on(bound)
        else:
            print("\nThat was the sample. `lockgate demo` without --once goes on serving the API.", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _stream(self, guards: Sequence[ActiveGuard]) -> None:
        plan = plan_lanes(guards, strategy=Strategy.FRONTIER)
        async with open_guarded_stream(self._frames(), guards, plan, self._watch) as releases:
            async for release in releases:
                self._print_release(release)

    async def _frames(self) -> AsyncGenerator[Frame, None]:
        for number, word in enumerate(_SAMPLE.split(" ")):
            text = word if number == 0 else f" {word}"
            print(f"{self._paint(_DIM, 'in   ')} {self._paint(_DIM, _shown(text))}", flush=True)
            yield Frame(number, text)
            await asyncio.sleep(self._pace_s)

    def _watch(self, lanes: Lanes) -> None:
        lane = lanes[0]
        frontiers = lane.frontiers()
        if frontiers != self._frontiers and lane.held_chars:
            read = ", ".join(f"{name} {upto}" for name, upto in frontiers.items())
            print(self._paint(_DIM, f"held  {lane.held_chars} characters; cleared up to: {read}"), flush=True)
        self._frontiers = frontiers

    def _print_release(self, release: Release) -> None:
        if release.text:
            place = self._paint(_DIM, f"[{release.start}..{release.end}]")
            print(f"{self._paint(_GREEN, 'out  ')} {self._paint(_GREEN, _shown(release.text))} {place}", flush=True)
        for found in release.detections:
            words = f"{printable(found.detection)} {_shown(found.text)} by {found.detector_id}, score {found.score:.2f}"
            print(f"{self._paint(_RED, 'found')} {self._paint(_RED, words)}", flush=True)

    def _say_how_to_go_on(self, bound: Sequence[Bound]) -> None:
        addresses = {one.listener.name: one.address for one in bound}
        api = addresses.get("api", "")
        print(
            f"\nLockgate is serving at {self._paint(_BOLD, api)} (health: {addresses.get('health', 'closed')}). Try:\n"
        )
        print(f"  curl -s {api}{CONTENT_PATH} -H 'content-type: application/json' \\")
        print("""    -d '{"content":"Mail ana@example.org","detectors":{"pii":{}}}'\n""")
        print("Answers from documents: docs/answers.md. An agent: docs/agent.md. Ctrl-C stops it.", flush=True)


def _shown(text: str) -> str:
    return '"' + printable(text).replace("\n", "\\n") + '"'


async def _open_post(stack: AsyncExitStack, name: str, chunker: str, params: Mapping[str, Any]) -> ActiveGuard:
    detector = await stack.enter_async_context(find_factory("lockgate.detectors", name)({}))
    cutter = await stack.enter_async_context(find_factory("lockgate.chunkers", chunker)({}))
    guard = Guard(name, TEXT_CONTENTS, detector, chunker, cutter, 0.5)
    return choose_guards({name: guard}, {name: params}, Rules())[0]
