# SPDX-License-Identifier: Apache-2.0
"""PartPool: parts that the gateways of a process share, each opened once and closed when its last user has left."""

import asyncio
import dataclasses
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.task_groups import HeldContext

_MAX_PATH_CHARS = 1024
Stamp = tuple[str, int, int, int]


class PooledPart(NamedTuple):
    """An open part, and the note of the lease that opened it."""

    part: Any
    note: Any


class _SharedPart:
    """One open part, and how many leases it has."""

    def __init__(self, key: tuple[Any, ...], lease: PooledPart, held: HeldContext[Any]) -> None:
        self.key = key
        self.lease = lease
        self.held = held
        self.users = 0


class PartPool:
    """Opens each part in a separate task: the gateway that opened a part may be closed before others that use it."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._parts: list[_SharedPart] = []

    @asynccontextmanager
    async def lease(
        self,
        key: tuple[Any, ...],
        opening: AbstractAsyncContextManager[Any],
        note: Any = None,
        fits: Callable[[Any], bool] = lambda _: True,
    ) -> AsyncIterator[PooledPart]:
        """The open part with an equal key, if its note fits; else enters `opening`. None is never shared."""
        found = next((one for one in self._parts if one.key == key and fits(one.lease.note)), None)
        shared = found or await self._open(key, opening, note)
        shared.users += 1
        try:
            yield shared.lease
        finally:
            shared.users -= 1
            if not shared.users:
                self._parts = [one for one in self._parts if one is not shared]
                await shared.held.close()

    async def _open(self, key: tuple[Any, ...], opening: AbstractAsyncContextManager[Any], note: Any) -> _SharedPart:
        held = HeldContext(opening)
        part = await held.open(self._group)
        shared = _SharedPart(key, PooledPart(part, note), held)
        if part is not None:
            self._parts.append(shared)
        return shared


def stamp_files(value: object) -> list[Stamp]:
    """The state of each file that these settings name, so that a part is opened again when a file was replaced."""
    stamps = []
    for name in _list_texts(value):
        try:
            found = os.stat(name)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(found.st_mode):
            stamps.append((name, found.st_mtime_ns, found.st_size, found.st_ino))
    return stamps


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str | Path):
        if len(str(value)) <= _MAX_PATH_CHARS:
            yield str(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _list_texts(one)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in value:
            yield from _list_texts(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _list_texts(getattr(value, field.name))
