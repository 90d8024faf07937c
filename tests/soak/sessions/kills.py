# SPDX-License-Identifier: Apache-2.0
"""Kills writers of one session at random moments, and looks whether a turn that was acknowledged is lost or halved."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from lockgate.backends.postgres import open_postgres
from tests.server.processes import ROOT, clean_environment
from tests.soak.sessions.writer import KEY, open_store

_AT_ONCE = 5
_LONGEST_LIFE_S = 0.15
_FREE_AGAIN_S = 1.0
_MESSAGES = "SELECT seq, role, text FROM lockgate_messages ORDER BY seq"

Message = tuple[int, str, str]


class Tally(NamedTuple):
    """What happened: turns that writers were told to be stored, turns that are, and what is wrong with them."""

    acknowledged: int
    stored: int
    faults: tuple[str, ...]


class Child:
    """A writer in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.sessions.writer", *arguments],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def read_line(self) -> str:
        """The next thing that it says."""
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).decode().strip()

    def start(self) -> None:
        """Tell it to begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> list[str]:
        """End it without any warning; what it had said since, whole lines only."""
        self._process.kill()
        said, _ = self._process.communicate()
        return said.decode().split("\n")[:-1]


async def kill_writers(address: str, kills: int, seed: int) -> Tally:
    """Several writers at once, killed one after the other, again and again; one session for all of them."""
    moments = random.Random(seed)
    acknowledged: list[str] = []
    faults: list[str] = []
    for wave in range(0, kills, _AT_ONCE):
        names = [f"w{number}" for number in range(wave, min(wave + _AT_ONCE, kills))]
        acknowledged += await _play_wave(address, names, moments)
        faults += await _check_free(address)
    messages = await read_messages(address)
    return Tally(len(acknowledged), len(messages) // 2, (*faults, *find_faults(messages, acknowledged)))


async def _play_wave(address: str, names: Sequence[str], moments: random.Random) -> list[str]:
    children = [Child("write", address, name) for name in names]
    said = []
    try:
        for child in children:
            assert await child.read_line() == "ready"
        for child in children:
            child.start()
    finally:
        for name, child in zip(names, children, strict=True):
            await asyncio.sleep(moments.uniform(0.0, _LONGEST_LIFE_S))
            said += [f"{name} {number}" for number in child.kill()]
    return said


async def _check_free(address: str) -> list[str]:
    """Nobody lives, so nobody holds the session."""
    started = time.monotonic()
    async with open_store(address) as store:
        try:
            async with asyncio.timeout(_FREE_AGAIN_S), store.hold(KEY):
                pass
        except TimeoutError:
            return [f"the session was still held after {time.monotonic() - started:.1f} s"]
    return []


async def read_messages(address: str) -> list[Message]:
    """The rows as they lie in the table."""
    async with AsyncExitStack() as stack:
        if address.startswith("postgresql:"):
            pool = await stack.enter_async_context(open_postgres(address))
            return [tuple(row) for row in await pool.fetch(_MESSAGES)]
    database = sqlite3.connect(address)
    try:
        return database.execute(_MESSAGES).fetchall()
    finally:
        database.close()


def find_faults(messages: Sequence[Message], acknowledged: Sequence[str]) -> list[str]:
    """What is wrong with the rows, in words."""
    faults = []
    if [seq for seq, _, _ in messages] != list(range(len(messages))):
        faults.append("the numbers have gaps")
    if [role for _, role, _ in messages] != ["user", "assistant"] * (len(messages) // 2):
        faults.append("questions and answers do not alternate")
    questions = [text for _, role, text in messages if role == "user"]
    if questions != [text for _, role, text in messages if role == "assistant"]:
        faults.append("an answer belongs to another question")
    if len(set(questions)) != len(questions):
        faults.append("a turn was stored twice")
    faults += [f"the acknowledged turn {text} is lost" for text in sorted(set(acknowledged) - set(questions))]
    return faults + _find_disorder(questions)


def _find_disorder(questions: Sequence[str]) -> list[str]:
    """Each writer's turns come in its own order."""
    last: dict[str, int] = {}
    faults = []
    for name, number in (text.split() for text in questions):
        if int(number) != last.get(name, -1) + 1:
            faults.append(f"turn {number} of {name} is out of order")
        last[name] = int(number)
    return faults
