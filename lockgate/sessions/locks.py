# SPDX-License-Identifier: Apache-2.0
"""Locks on single bytes of a file: who has one has it alone among all processes, until it ends or the process does.

Decides how one waits for a byte. Refuses to know what a byte stands for. The file stays empty.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from lockgate.errors import ConfigError, Unavailable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


class SessionLocks:
    """The locks of one open file. Whoever waits asks again and again, ever less often."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @contextlib.asynccontextmanager
    async def hold(self, number: int) -> AsyncIterator[None]:
        """The byte of this number for oneself; not for two tasks of one process at once."""
        pause_s = _FIRST_PAUSE_S
        while not self._take(number):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        try:
            yield
        finally:
            self._set(fcntl.F_UNLCK, number)

    def _take(self, number: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):  # either may mean that somebody else has it
            return False
        except OSError as error:
            raise Unavailable("sessions", f"the session store cannot lock: {error.strerror}") from None
        return True

    def _set(self, kind: int, number: int) -> None:
        if sys.platform == "linux":
            # Such a lock belongs to the open file: it excludes another store of this process too, and nobody loses it
            # because something else in the process closed the same file.
            wanted = struct.pack("hhqqi", kind, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, wanted + b"\0" * (-len(wanted) % 8))
        else:
            command = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.lockf(self._descriptor, command, 1, number, os.SEEK_SET)


@contextlib.contextmanager
def open_session_locks(path: Path) -> Iterator[SessionLocks]:
    """The locks of a file, made if there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot be opened: {error.strerror}", source=str(path)) from None
    try:
        yield SessionLocks(descriptor)
    finally:
        os.close(descriptor)
