# SPDX-License-Identifier: Apache-2.0
"""The local socket over which a process is asked for a reload stays usable after any failure of one who asks."""

import asyncio
import json
import os
import resource
import socket
from collections.abc import Mapping
from typing import Any

from lockgate.server.control import ask_process, control_socket
from tests.waits import LoopClock, linger, until

LARGE = {"faults": ["x" * 4_000_000]}  # more than the system keeps of what is not read


def connect() -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(f"\0lockgate/{os.stat('/proc/self/ns/pid').st_ino}/{os.getpid()}")
    client.setblocking(False)
    return client


async def test_one_who_asks_while_no_file_is_left_is_answered_later() -> None:
    async def answer() -> Mapping[str, Any]:
        return {"faults": []}

    async with control_socket(answer):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            free = probe.fileno()  # all below it are in use
        with connect() as client:
            assert client.fileno() == free
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
            try:
                await linger()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert json.loads(await asyncio.get_running_loop().sock_recv(client, 4096)) == {"faults": []}


async def test_one_who_does_not_read_the_answer_does_not_keep_others_waiting() -> None:
    clock = LoopClock()
    answers: list[Mapping[str, Any]] = [LARGE, {"faults": []}]
    asked: list[object] = []

    async def answer() -> Mapping[str, Any]:
        asked.append(None)
        return answers[len(asked) - 1]

    async with control_socket(answer):
        with connect():
            await until(lambda: asked)
            await linger()
            clock.advance()
            assert await asyncio.to_thread(ask_process, os.getpid(), 60.0) == {"faults": []}
