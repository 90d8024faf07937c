# SPDX-License-Identifier: Apache-2.0
"""The pid file, and the local socket over which `lockgate reload` asks this process for a reload."""

import asyncio
import fcntl
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from lockgate.errors import Unavailable
from lockgate.task_groups import run_group
from lockgate.telemetry import LogEvent, log_event

Answer = Callable[[], Awaitable[Mapping[str, Any]]]
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the other process
_ROOT = 0
_MAX_WAITING = 8
_ACCEPT_PAUSE_S = 0.1
_SEND_S = 5.0  # for a process that does not read its answer
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_RECEIVED_BYTES = 65_536


@contextmanager
def written_pid_file(path: Path | None) -> Iterator[None]:
    """Writes this process's id to a file, and removes the file at the end; logs a warning where it cannot."""
    if path is None:
        yield
        return
    with ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = stack.enter_context(open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            stack.callback(path.unlink, missing_ok=True)
        except BlockingIOError:
            reason = f"pid file {path}: another process has it; `lockgate reload --pid {os.getpid()}` finds this one"
            log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
        except OSError as error:
            log_event(LogEvent.WARNING, logging.WARNING, reason=f"pid file {path}: {error.strerror}")
        yield


def read_pid_file(path: Path) -> int | None:
    """The process id in a file; None without one."""
    try:
        word = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(word) if word.isdecimal() else None


@asynccontextmanager
async def control_socket(answer: Answer) -> AsyncIterator[None]:
    """Answers each process of the same user, or of root, that connects to this process's local socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(_find_address(os.getpid()))
            listening.listen(_MAX_WAITING)
        except OSError as error:
            reason = f"`lockgate reload` cannot reach this process ({error.strerror}); SIGHUP reloads the settings"
            log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
            yield
            return
        listening.setblocking(False)
        async with run_group() as group:
            group.create_task(_accept(listening, answer))
            yield


async def _accept(listening: socket.socket, answer: Answer) -> None:
    """Answers one connection after the other: reloads never run at once."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:  # this process has no file left, for example
            await asyncio.sleep(_ACCEPT_PAUSE_S)
            continue
        with connection, suppress(OSError):  # TimeoutError is one
            connection.setblocking(False)
            if _read_credentials(connection)[1] in (_ROOT, os.geteuid()):
                answered = json.dumps(await answer()).encode()
                async with asyncio.timeout(_SEND_S):
                    await loop.sock_sendall(connection, answered)


def ask_process(pid: int, timeout_s: float) -> Mapping[str, Any]:
    """Asks a process to reload its settings; returns its answer. Raises Unavailable."""
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(_find_address(pid))
            if _read_credentials(connection)[0] != pid:
                raise Unavailable("process", f"process {pid} is not a server of Lockgate")
            while (received := connection.recv(_RECEIVED_BYTES)) and len(answer) <= _MAX_ANSWER_BYTES:
                answer += received
        whole: Mapping[str, Any] = json.loads(answer)
    except TimeoutError as error:
        raise Unavailable("process", f"process {pid} has not answered within {timeout_s:.0f} s") from error
    except (OSError, ValueError) as error:
        raise Unavailable("process", f"no server of Lockgate with process id {pid} answers here") from error
    return whole


def _find_address(pid: int) -> bytes:
    """The socket's abstract address; process ids are unique in their namespace only."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"\0lockgate/{namespace}/{pid}".encode()


def _read_credentials(connection: socket.socket) -> tuple[int, ...]:
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
