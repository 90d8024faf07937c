# SPDX-License-Identifier: Apache-2.0
"""Writes labels of questions to files, to train the next classifier; never fails a turn."""

import asyncio
import json
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from lockgate.telemetry import LogEvent, log_event

MAX_QUERY_CHARS = 4_096
MAX_KEPT_BATCHES = 4  # while writing fails; beyond it the oldest labels are dropped

Entry = dict[str, str | float | None]


class LabelExport:
    """Collects labels and writes them when there are enough. Belongs to one event loop."""

    def __init__(self, directory: Path, threshold: int) -> None:
        self._directory = directory
        self._threshold = max(1, threshold)
        self._entries: deque[Entry] = deque(maxlen=self._threshold * MAX_KEPT_BATCHES)
        self._noted = 0  # since `note` last started a batch
        self._task: asyncio.Task[None] | None = None
        self._has_warned = False

    def note(self, query: str, label: str, layer: str, confidence: float | None) -> None:
        """Adds a label. Never waits, never raises."""
        entry: Entry = {"query": query[:MAX_QUERY_CHARS], "label": label, "layer": layer, "confidence": confidence}
        self._entries.append(entry)
        self._noted += 1
        if self._noted >= self._threshold and (self._task is None or self._task.done()):
            self._noted = 0
            self._task = asyncio.get_running_loop().create_task(self._write_batch())

    async def flush(self) -> None:
        """Writes all labels; those that are added meanwhile may stay for the next time."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self._entries:
            await self._write_batch()

    async def _write_batch(self) -> None:
        """Writes all labels to one file; if that fails, keeps them for the next try."""
        batch = list(self._entries)
        self._entries.clear()
        try:
            await asyncio.to_thread(write_batch, self._directory, batch)
        except OSError as error:
            self._keep(batch)
            if not self._has_warned:
                reason = f"labels cannot be written to {self._directory}: {error.strerror or type(error).__name__}"
                log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
            self._has_warned = True
        else:
            self._has_warned = False

    def _keep(self, batch: Sequence[Entry]) -> None:
        newer = list(self._entries)
        self._entries.clear()
        self._entries.extend((*batch, *newer))  # the oldest fall out


def write_batch(directory: Path, batch: Sequence[Entry]) -> Path:
    """Writes the batch to a new file, whole or not at all, readable by its owner only; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"labels-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:12]}.jsonl"
    path, half = directory / name, directory / f".{name}.tmp"
    text = "".join(json.dumps(entry) + "\n" for entry in batch)  # ASCII: also a lone surrogate can be written
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    return path


@asynccontextmanager
async def open_label_export(directory: Path, threshold: int) -> AsyncIterator[LabelExport]:
    """Opens an export, which writes the remaining labels when it is closed."""
    export = LabelExport(directory, threshold)
    try:
        yield export
    finally:
        await export.flush()
