# SPDX-License-Identifier: Apache-2.0
"""`lockgate detect`: runs detectors over a stream and shows findings and progress on the terminal."""

import asyncio
import codecs
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from lockgate.api.guardrails.format import encode_line
from lockgate.cli.answer_view import DIM, OFF, RED
from lockgate.cli.text import printable
from lockgate.config.service_sections import embedded_defaults
from lockgate.config.settings import DetectorSettings, Settings
from lockgate.errors import ConfigError
from lockgate.gate.lanes import LanePlan
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import Frame
from lockgate.gateway import open_gateway
from lockgate.guard.detectors import Rules, choose
from lockgate.guard.stream import list_readers, open_guarded_stream
from lockgate.plugins import is_known

_PIECE_BYTES = 65_536


async def detect(
    settings: Settings,
    requested: Mapping[str, Mapping[str, Any]],
    *,
    text: str | None,
    file: Path | None,
    as_json: bool,
) -> bool:
    """Print what the requested detectors (configured or installed) find; returns whether they found anything."""
    has_found = False
    missing = [name for name in requested if name not in settings.detectors and is_known("lockgate.detectors", name)]
    added = {name: DetectorSettings(**embedded_defaults(name), embedded=name) for name in missing}
    settings = replace(settings, detectors={**settings.detectors, **added})
    async with open_gateway(settings) as gateway:
        guards = choose(gateway.guards, requested, Rules()).contents
        plan = LanePlan(list_readers(guards), strategy=Strategy.FRONTIER, max_held_chars=settings.limits.max_held_chars)
        show = _show_json if as_json else _Marker().show
        async with open_guarded_stream(_read_input(text, file), guards, plan) as releases:
            async for release in releases:
                has_found = has_found or bool(release.detections)
                show(release)
    return has_found


def _show_json(release: Release) -> None:
    if release.text or release.detections:
        sys.stdout.buffer.write(encode_line(release))
        sys.stdout.buffer.flush()


class _Marker:
    """Prints the text with coloured findings on a terminal, else one line for each finding."""

    def __init__(self) -> None:
        self._is_painting = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._marked_upto = 0

    def show(self, release: Release) -> None:
        if not self._is_painting:
            for found in sorted(release.detections, key=lambda one: one.start):
                print(f"{found.start}-{found.end}\t{found.detector_id}\t{printable(found.detection)}\t{found.score:.2f}\t"
                      f"{printable(found.text)}", flush=True)  # fmt: skip
            return
        print(self._mark(release), end="\n" if release.is_final else "", flush=True)

    def _mark(self, release: Release) -> str:
        parts, position = [], release.start
        found = [(one.start, one.end, f"[{printable(one.detection)}]") for one in release.detections]
        spans = sorted([(release.start, self._marked_upto, ""), *found])
        for start, end, label in spans:
            low, high = max(start, position), min(end, release.end)
            if low < high:
                parts.append(printable(release.text[position - release.start : low - release.start]))
                parts.append(f"{RED}{printable(release.text[low - release.start : high - release.start])}{OFF}")
                parts.append(f"{DIM}{label}{OFF}" if label else "")
                position = high
            self._marked_upto = max(self._marked_upto, end)
        parts.append(printable(release.text[position - release.start :]))
        return "".join(parts)


async def _read_input(text: str | None, file: Path | None) -> AsyncGenerator[Frame, None]:
    if text is not None:
        yield Frame(0, text)
        return
    try:
        with await asyncio.to_thread(_open_input, file) as source:
            async for frame in _read_pieces(source, _ReadingProgress(file)):
                yield frame
    except OSError as error:
        raise ConfigError(str(error.strerror), source=str(file or "standard input")) from error


def _open_input(file: Path | None) -> BinaryIO:
    """The file, or standard input, unbuffered."""
    return open(file, "rb") if file else os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)


async def _read_pieces(source: BinaryIO, progress: "_ReadingProgress") -> AsyncGenerator[Frame, None]:
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


class _ReadingProgress:
    """Shows on standard error how much of a long file has been read."""

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
