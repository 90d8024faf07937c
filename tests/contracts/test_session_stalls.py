# SPDX-License-Identifier: Apache-2.0
"""A database that is late: the turn that meets it fails, and every later turn that is acknowledged is committed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockgate.backends.postgres import open_postgres
from lockgate.errors import TimedOut
from lockgate.sessions.postgres import PostgresSessions
from lockgate.sessions.turns import SessionKey, StoreLimits, Turn
from tests.postgres import Server

# Expires once in the test, where the database stalls. Other statements take milliseconds.
STATEMENT_TIMEOUT_S = 3.0
KEY = SessionKey("ana", "default", "s")


class StallingProxy:
    """Passes bytes between clients and a database, and holds back what clients send while it stalls."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.is_open = asyncio.Event()
        self.is_open.set()

    @asynccontextmanager
    async def listen(self, path: Path) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:

            def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                group.create_task(self._serve(reader, writer))

            listener = await asyncio.start_unix_server(serve, path)
            yield
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._server)
        await asyncio.gather(self._pass_on(reader, to_server), self._pass_on(from_server, writer, is_held=False))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_held: bool = True
    ) -> None:
        try:
            while data := await reader.read(65536):
                if is_held:
                    await self.is_open.wait()
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def proxy(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[StallingProxy]:
    name = ".s.PGSQL.5432"
    one = StallingProxy(Path(postgres_dsn.partition("host=")[2]) / name)
    async with one.listen(tmp_path / name):
        yield one


async def add(store: PostgresSessions, proxy: StallingProxy, question: str, *, is_late: bool = False) -> None:
    async with store.hold(KEY):
        if is_late:
            proxy.is_open.clear()
        try:
            await store.append(KEY, Turn(question, "a", "RETRIEVAL"))
        finally:
            proxy.is_open.set()


async def test_turns_after_a_late_begin_are_committed(
    proxy: StallingProxy, postgres_server: Server, postgres_dsn: str, tmp_path: Path
) -> None:
    address, _, _ = postgres_dsn.partition("?host=")
    database = address.rpartition("/")[2]
    dsn = f"{address}?host={tmp_path}"
    async with open_postgres(dsn, "sessions", statement_timeout_s=STATEMENT_TIMEOUT_S) as pool:
        store = PostgresSessions(pool, StoreLimits(), lambda: 0.0)
        await add(store, proxy, "before")
        with pytest.raises(TimedOut):
            await add(store, proxy, "late", is_late=True)
        for number in range(3):
            await add(store, proxy, f"after {number}")
        # Another connection sees what is committed, while the store is still open.
        seen = postgres_server.psql(f"\\c {database}\nSELECT text FROM lockgate_messages ORDER BY 1")
        await store.close()
    assert [line.strip() for line in seen.splitlines() if "after" in line] == ["after 0", "after 1", "after 2"]
    assert "before" in seen
