# SPDX-License-Identifier: Apache-2.0
"""A process that uses one session of a store, until it is killed or its standard input ends.

`python -m tests.soak.sessions.writer hold ADDRESS` takes the session, says `held` and keeps it.
`python -m tests.soak.sessions.writer write ADDRESS NAME` adds turns, and says the number of each once it is stored.
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from lockgate.sessions.turns import SessionKey, StoreLimits, Turn

KEY = SessionKey("anonymous", "default", "fought over")
LIMITS = StoreLimits(max_messages=1_000_000)


def open_store(address: str, limits: StoreLimits = LIMITS) -> AbstractAsyncContextManager[Any]:
    """The store at an address: a path, or that of a PostgreSQL database."""
    if address.startswith("postgresql:"):
        from lockgate.sessions.postgres import open_postgres_sessions

        return open_postgres_sessions(address, limits)
    from lockgate.sessions.sqlite import open_sqlite_sessions

    return open_sqlite_sessions(Path(address), limits)


async def _hold(address: str) -> None:
    async with open_store(address) as store, store.hold(KEY):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _write(address: str, name: str) -> None:
    async with open_store(address) as store:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        number = 0
        while True:
            async with store.hold(KEY):
                await store.load(KEY, 10)
                await store.append(KEY, Turn(f"{name} {number}", f"{name} {number}", "RETRIEVAL"))
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[2]) if sys.argv[1] == "hold" else _write(*sys.argv[2:4]))
