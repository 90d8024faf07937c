# SPDX-License-Identifier: Apache-2.0
"""After a failed write the health of a session store is whether it can be written, not only whether it can be read."""

from pathlib import Path
from typing import Any

import pytest

from lockgate.backends.postgres import open_postgres
from lockgate.errors import Unavailable
from lockgate.sessions.postgres import open_postgres_sessions
from lockgate.sessions.sqlite import open_sqlite_sessions
from lockgate.sessions.turns import AbortedTurn, SessionKey, StoreLimits, Turn

KEY = SessionKey("ana", "default", "s")
LIMITS = StoreLimits()


async def add(store: Any, answer: str = "a") -> None:
    async with store.hold(KEY):
        await store.append(KEY, Turn("q", answer, "RETRIEVAL"))


async def health(store: Any) -> tuple[str, str]:
    found = await store.probe(())
    return found.status, found.reason or ""


async def test_a_full_disk_is_ill_after_a_failed_write_until_it_has_room(tmp_path: Path) -> None:
    async with open_sqlite_sessions(tmp_path / "sessions.db", LIMITS) as store:
        await add(store)
        await store._file.run(lambda database: database.execute("PRAGMA max_page_count = 1").fetchall())
        with pytest.raises(Unavailable, match="is full"):
            await add(store, "a" * 100_000)
        assert await health(store) == ("UNHEALTHY", "the disk of the session store is full")
        await store._file.run(lambda database: database.execute("PRAGMA max_page_count = 10000").fetchall())
        assert await health(store) == ("HEALTHY", "")
        await add(store)


async def test_a_database_that_takes_no_writes_is_ill_after_a_failed_one(postgres_dsn: str) -> None:
    name = postgres_dsn.split("?")[0].rsplit("/", 1)[-1]
    async with open_postgres(postgres_dsn) as database:
        async with open_postgres_sessions(postgres_dsn, LIMITS) as store:
            await add(store)
        await database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        async with open_postgres_sessions(postgres_dsn, LIMITS) as store:
            assert await health(store) == ("HEALTHY", "")  # it can be read
            for _ in range(2):
                with pytest.raises(Unavailable, match="takes no writes"):
                    await add(store)
                assert await health(store) == ("UNHEALTHY", "the database takes no writes")
        async with open_postgres_sessions(postgres_dsn, LIMITS) as store:
            with pytest.raises(Unavailable, match="takes no writes"):
                await store.abort(KEY, AbortedTurn("q", "", "late"))
            await database.execute(
                f"BEGIN READ WRITE; ALTER DATABASE {name} SET default_transaction_read_only = off; COMMIT;"
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
            )
            while await health(store) != ("HEALTHY", ""):
                pass
            await add(store)
            assert [entry.key for entry in await store.list_sessions()] == [KEY]
