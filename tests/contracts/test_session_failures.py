# SPDX-License-Identifier: Apache-2.0
"""What session stores say and do when the disk, the database or the connection fails."""

import asyncio
import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.backends.postgres import open_postgres
from lockgate.errors import ConfigError, TimedOut, Unavailable, UpstreamError
from lockgate.sessions import sqlite as session_file
from lockgate.sessions.postgres import open_postgres_sessions
from lockgate.sessions.sqlite import open_sqlite_sessions
from lockgate.sessions.turns import AbortedTurn, SessionKey, StoreLimits, Turn
from tests.postgres import Server
from tests.waits import HANG_S, is_pending, until

KEY = SessionKey("ana", "default", "s")
LIMITS = StoreLimits()
TURN = Turn("q", "a", "RETRIEVAL")


async def add(store: Any, turn: Turn = TURN) -> None:
    async with store.hold(KEY):
        await store.append(KEY, turn)


async def note_statements(store: Any) -> list[str]:
    """What the thread that writes does from now on, as it begins."""
    statements: list[str] = []
    await store._file.run(lambda database: database.set_trace_callback(statements.append))
    return statements


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """As a process that writes to the file and does not come to an end."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS):
        pass
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(ConfigError, match=r"sessions\.db: holds sessions of a newer version .*tables 7"):
        async with open_sqlite_sessions(path, LIMITS):
            pass


@pytest.mark.parametrize("change", ["CREATE TABLE mine (x)", "PRAGMA application_id = 5", "PRAGMA user_version = 1"])
async def test_a_database_of_somebody_else_is_refused_and_stays_as_it_is(tmp_path: Path, change: str) -> None:
    path = tmp_path / "theirs.db"
    database = sqlite3.connect(path)
    database.execute(change)
    database.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"theirs\.db: is a database of something else"):
        async with open_sqlite_sessions(path, LIMITS):
            pass
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.db"]


async def test_a_file_whose_making_was_cut_short_is_used(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    cut = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN IMMEDIATE")
database.execute("CREATE TABLE x (y)")
database.executemany("INSERT INTO x VALUES (?)", [("y" * 5000,)] * 100)
os._exit(0)
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", cut, str(path)], check=True)
    assert path.with_name("sessions.db-journal").stat().st_size > 0
    async with open_sqlite_sessions(path, LIMITS) as store:
        await add(store)


async def test_a_file_that_many_make_at_once_is_theirs_all(tmp_path: Path) -> None:
    async def use(path: Path) -> None:
        async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=HANG_S) as store:
            await store.load(KEY, 1)

    for number in range(10):
        await asyncio.gather(*(use(tmp_path / f"{number}.db") for _ in range(8)))


async def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "sessions.db", tmp_path):
        with pytest.raises(ConfigError, match="cannot be opened"):
            async with open_sqlite_sessions(path, LIMITS):
                pass


async def test_sessions_are_readable_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "below" / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS) as store:
        await add(store)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert set(modes) == {"sessions.db", "sessions.db-wal", "sessions.db-shm", "sessions.db.locks"}


async def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"this is no database " * 100)
    with pytest.raises(Unavailable, match="is damaged"):
        async with open_sqlite_sessions(path, LIMITS):
            pass


async def test_a_file_that_gets_damaged_fails_one_call_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS) as store:
        for number in range(50):
            await add(store, Turn(f"q{number}", "a" * 4000, "RETRIEVAL"))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    async with open_sqlite_sessions(path, LIMITS) as store:
        for _ in range(2):
            with pytest.raises(Unavailable, match="is damaged"):
                await store.load(KEY, 10)
            with pytest.raises(Unavailable, match="is damaged"):
                await add(store)


async def test_a_full_disk_loses_nothing_and_the_store_recovers(tmp_path: Path) -> None:
    async with open_sqlite_sessions(tmp_path / "sessions.db", LIMITS) as store:
        await add(store)
        await store._file.run(lambda database: database.execute("PRAGMA max_page_count = 1").fetchall())
        with pytest.raises(Unavailable, match="is full") as caught:
            await add(store, Turn("q" * 100_000, "a", "RETRIEVAL"))
        assert caught.value.service == "sessions"
        assert (await store.load(KEY, 10)).turns == (TURN,)
        await store._file.run(lambda database: database.execute("PRAGMA max_page_count = 10000").fetchall())
        await add(store)
        assert (await store.load(KEY, 10)).turns == (TURN, TURN)


async def test_a_file_that_stays_locked_fails_in_bounded_time_and_readers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=0.1) as store:
        await add(store)
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked by another process"):
                await add(store)
            assert (await store.load(KEY, 10)).turns == (TURN,)
        finally:
            other.close()
        await add(store)


async def test_while_the_file_is_locked_limits_of_time_hold_and_readers_do_not_wait_for_writers(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=HANG_S) as store:
        await add(store)
        begun = await note_statements(store)
        with lock(path):
            notes = [
                asyncio.create_task(store.abort(KEY, AbortedTurn(f"q{number}", "", "late"))) for number in range(8)
            ]
            await until(lambda: "BEGIN IMMEDIATE" in begun, "the first write")
            assert (await store.load(KEY, 10)).turns == (TURN,)
            for one in notes:
                one.cancel()
            await asyncio.wait(notes[1:])
            assert await is_pending(notes[0])  # it has begun, so its end is awaited
        await asyncio.wait(notes)
        await add(store)
        stored = await store.read_session(KEY)
    assert {one.question for one in stored if one.aborted} == {"q0"}  # the others were never begun


async def test_those_who_wait_for_a_locked_file_give_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sessions.db"
    here = threading.get_ident()

    def tell_time() -> float:
        """All come at the same moment, and each write takes all the time that there is."""
        return 0.0 if threading.get_ident() == here else 0.4 * statements.count("BEGIN IMMEDIATE")

    async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=0.4) as store:
        statements = await note_statements(store)
        monkeypatch.setattr(session_file, "time", SimpleNamespace(monotonic=tell_time))
        with lock(path):
            writing = [store.abort(KEY, AbortedTurn("q", "", "late")) for _ in range(5)]
            ends = await asyncio.gather(*writing, return_exceptions=True)
        assert [type(end) for end in ends] == [Unavailable] * 5
        waits_ms = [int(one.split()[-1]) for one in statements if "busy_timeout" in one]
        assert waits_ms == [400, 100, 100, 100, 100]  # what they have waited for the first one counts
        await add(store)


async def test_a_store_whose_opening_is_left_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    async def use() -> None:
        async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=HANG_S):
            pytest.fail("it was left before")

    async with open_sqlite_sessions(path, LIMITS):
        pass
    with lock(path):
        task = asyncio.create_task(use())
        assert await is_pending(task)
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not path.with_name("sessions.db-wal").exists()


async def test_the_event_loop_goes_on_while_the_file_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with open_sqlite_sessions(path, LIMITS, busy_timeout_s=HANG_S) as store:
        begun = await note_statements(store)
        with lock(path):
            task = asyncio.create_task(add(store))
            await until(lambda: "BEGIN IMMEDIATE" in begun, "the write")
            assert await is_pending(task)
            task.cancel()
            assert await is_pending(task)  # the write is under way, so the session stays held
        await asyncio.wait([task])
        assert (await store.load(KEY, 10)).turns == (TURN,)
        async with store.hold(KEY):
            pass


async def end_connections(server: Server, dsn: str) -> None:
    """As when the database is restarted."""
    name = dsn.split("?")[0].rsplit("/", 1)[-1]
    words = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    await asyncio.to_thread(server.psql, words)


async def test_nothing_is_written_once_the_connection_that_holds_the_session_is_lost(
    postgres_server: Server, postgres_dsn: str
) -> None:
    async with open_postgres_sessions(postgres_dsn, LIMITS) as store:
        await add(store)
        async with store.hold(KEY):
            await end_connections(postgres_server, postgres_dsn)
            async with open_postgres_sessions(postgres_dsn, LIMITS) as other:
                await add(other, Turn("other", "a", "RETRIEVAL"))
            await until(store._writer._connection.is_closed, "the end of the connection")
            with pytest.raises(Unavailable, match="connection"):
                await store.append(KEY, TURN)
        await add(store)  # and all is well again
        await store.abort(KEY, AbortedTurn("q", "", "late"))
        assert [turn.question for turn in (await store.load(KEY, 10)).turns] == ["q", "other", "q"]


async def test_a_failed_connection_that_nobody_used_is_replaced(postgres_server: Server, postgres_dsn: str) -> None:
    async with open_postgres_sessions(postgres_dsn, LIMITS) as store:
        await add(store)
        await end_connections(postgres_server, postgres_dsn)
        await until(lambda: store._pool._pool.get_size() == 0 and store._writer._connection.is_closed())
        assert (await store.load(KEY, 10)).turns == (TURN,)
        await add(store)


async def test_a_database_that_is_not_there_is_unavailable_and_no_secret_is_told(tmp_path: Path) -> None:
    for dsn in (
        f"postgresql://ana:hunter2@/sessions?host={tmp_path}",
        "postgresql://ana:hunter2@127.0.0.1:1/sessions",
        "postgresql://ana:hunter2@127.0.0.1:1/sessions?sslmode=hunter2",
    ):
        async with open_postgres_sessions(dsn, StoreLimits(retention_days=1)) as store:
            for call in (
                store.load(KEY, 10),
                add(store),
                store.list_sessions(),
                store.abort(KEY, AbortedTurn("", "", "")),
            ):
                with pytest.raises(Unavailable) as caught:
                    await call
                assert caught.value.service == "sessions"
                assert "hunter2" not in repr(caught.value)
                assert "address" in caught.value.message or "reached" in caught.value.message


@pytest.mark.parametrize("dsn", ["hunter2", "mysql://a:hunter2@b/c", "postgresql://a:hunter2@b:port/c", ""])
async def test_an_address_that_is_none_is_refused_and_not_told(dsn: str) -> None:
    with pytest.raises(ConfigError, match="must look like postgresql://") as caught:
        async with open_postgres_sessions(dsn, LIMITS):
            pass
    assert "hunter2" not in str(caught.value)


async def test_a_database_of_a_newer_version_is_refused(postgres_dsn: str) -> None:
    async with open_postgres_sessions(postgres_dsn, LIMITS) as store, open_postgres(postgres_dsn) as pool:
        await store.load(KEY, 1)
        await pool.execute("UPDATE lockgate_versions SET version = 7")
        async with open_postgres_sessions(postgres_dsn, LIMITS) as other:
            with pytest.raises(Unavailable, match="newer version"):
                await other.load(KEY, 1)


async def test_who_may_not_make_tables_may_use_those_that_are_there(postgres_dsn: str) -> None:
    async with open_postgres_sessions(postgres_dsn, LIMITS) as store, open_postgres(postgres_dsn) as pool:
        await store.load(KEY, 1)
        await pool.execute(
            "DROP ROLE IF EXISTS lockgate_guest; CREATE ROLE lockgate_guest LOGIN;"
            "GRANT ALL ON lockgate_versions, lockgate_messages, lockgate_aborted TO lockgate_guest"
        )
        async with open_postgres_sessions(postgres_dsn.replace("postgres:@", "lockgate_guest:@"), LIMITS) as guest:
            await add(guest)
        await pool.execute("DROP OWNED BY lockgate_guest; DROP ROLE lockgate_guest")


async def test_a_statement_that_takes_too_long_is_ended_and_the_pool_goes_on(postgres_dsn: str) -> None:
    async with open_postgres(postgres_dsn, "passages", statement_timeout_s=0.03) as pool:
        for _ in range(12):
            with pytest.raises(TimedOut, match="did not answer in time") as caught:
                await pool.fetch("SELECT pg_sleep(600)")
        assert caught.value.service == "passages"
        rows: Sequence[Any] = ()
        while not rows:
            with contextlib.suppress(TimedOut):  # it has as little time
                rows = await pool.fetch("SELECT $1::int", 3)
        assert [tuple(row) for row in rows] == [(3,)]


async def test_a_transaction_is_undone_when_its_body_fails(postgres_dsn: str) -> None:
    async with open_postgres(postgres_dsn) as pool:
        await pool.execute("CREATE TABLE one (a INTEGER PRIMARY KEY)")
        with pytest.raises(UpstreamError, match="SQLSTATE 23505"):
            async with pool.transaction() as connection:
                await connection.execute("INSERT INTO one VALUES (1)")
                await connection.execute("INSERT INTO one VALUES (1)")
        assert list(await pool.fetch("SELECT * FROM one")) == []
        with pytest.raises(Unavailable, match="a table does not exist"):
            await pool.fetch("SELECT * FROM two")


async def test_more_tasks_than_connections_are_all_served(postgres_dsn: str) -> None:
    async with open_postgres(postgres_dsn, statement_timeout_s=HANG_S) as pool:
        answers = await asyncio.gather(*(pool.fetch("SELECT $1::int, pg_sleep(0.01)", number) for number in range(40)))
        assert [rows[0][0] for rows in answers] == list(range(40))
        (count,) = (await pool.fetch("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockgate'"))[0]
        assert count <= 10
