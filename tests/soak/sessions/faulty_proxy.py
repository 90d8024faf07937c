# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy before PostgreSQL that fails at one message of a client, in one of several ways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

FAULTS = (
    "cut before",  # the connection is cut, the message is lost
    "cut after",  # the message arrives, its answer is lost
    "swallow",  # this message and all later ones of the connection are lost, and both ends stay open
    "stall",  # from now on all connections stand still, until the proxy is healed; then everything goes on
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FaultyProxy:
    """Passes bytes between clients and a database. `messages` counts what clients sent since the plan was made."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._fault, self._at = "", 0
        self.messages = 0
        self.has_failed = False
        self.on_message: Callable[[int], Awaitable[None]] | None = None
        self.dsn = ""

    def plan(self, fault: str, at: int) -> None:
        """From now on the message of this number, from 1, meets the fault."""
        self._fault, self._at, self.messages, self.has_failed = fault, at, 0, False

    def heal(self) -> None:
        """Lets everything through, also what stood still."""
        self._fault = ""
        self._goes_on.set()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[None]:
        """Listens on a free port, which `dsn` names."""
        connections: set[asyncio.Task[None]] = set()

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        parts = urlsplit(self._dsn)
        port = server.sockets[0].getsockname()[1]
        self.dsn = f"postgresql://{parts.username or 'postgres'}@127.0.0.1:{port}{parts.path}"
        try:
            yield
        finally:
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _connect(self) -> Streams:
        parts = urlsplit(self._dsn)
        if parts.hostname:
            return await asyncio.open_connection(parts.hostname, parts.port)
        folder = parse_qs(parts.query)["host"][0]
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            database = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(self._pass_up(reader, database[1], writer), self._pass_down(database[0], writer))
        finally:
            for one in (writer, database[1]):
                one.transport.abort()

    async def _pass_up(
        self, reader: asyncio.StreamReader, database: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        is_swallowing = False
        try:
            while data := await reader.read(65536):
                self.messages += 1
                if self.on_message is not None:
                    await self.on_message(self.messages)
                fault = self._fault if self.messages == self._at else ""
                self.has_failed = self.has_failed or bool(fault)
                if fault == "stall":
                    self._goes_on.clear()
                await self._goes_on.wait()
                is_swallowing = is_swallowing or fault == "swallow"
                if not is_swallowing and fault != "cut before":
                    database.write(data)
                if fault.startswith("cut"):
                    client.transport.abort()
                    break
        except ConnectionError:
            pass
        finally:
            database.close()

    async def _pass_down(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._goes_on.wait()
                client.write(data)
        except ConnectionError:
            pass
        finally:
            client.close()
