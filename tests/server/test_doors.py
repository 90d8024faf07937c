# SPDX-License-Identifier: Apache-2.0
"""The door with TLS by itself: who is on the threshold when it closes, and how many may be there at once."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockgate.config.settings import ServerTlsSettings
from lockgate.server import listening as doors
from lockgate.server.listening import TlsDoor, load_tls
from tests.server.certificates import Authority
from tests.waits import HANG_S, is_pending, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@asynccontextmanager
async def open_door(authority: Authority) -> AsyncIterator[tuple[TlsDoor, int]]:
    """A door and its port."""
    own = authority.issue("server")
    tls = load_tls(ServerTlsSettings(Path(own.cert), Path(own.key)))
    assert tls is not None
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    door = TlsDoor(listening, tls)
    await door.open(asyncio.Protocol)
    try:
        yield door, listening.getsockname()[1]
    finally:
        door.close()
        await door.wait_closed()


async def wait_for_guests(door: TlsDoor, count: int) -> None:
    """Returns in the very turn of the loop that follows."""
    while len(door._guests) != count:  # noqa: ASYNC110 - `until` would miss that turn
        await asyncio.sleep(0)


async def receive(client: socket.socket) -> bytes:
    client.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(client, 1)


async def test_a_guest_that_comes_while_the_door_closes_is_not_left_standing(authority: Authority) -> None:
    """Its task is cancelled before it begins; a socket left open would be a ResourceWarning, hence an error here."""
    async with open_door(authority) as (door, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            await wait_for_guests(door, 1)
            assert len(door._unmet) == 1
            door.close()
            await door.wait_closed()
            assert (door._guests, door._unmet) == (set(), set())
            assert await receive(client) == b""
    gc.collect()


async def test_a_handshake_that_is_under_way_ends_with_the_door(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_HANDSHAKE_S", 2 * HANG_S)
    async with open_door(authority) as (door, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            await wait_for_guests(door, 1)
            await until(lambda: not door._unmet, "the beginning of the handshake")
            door.close()
            await door.wait_closed()
            assert await receive(client) == b""
    gc.collect()


async def test_few_handshakes_are_under_way_at_once_and_the_next_waits(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_MAX_HANDSHAKES", 2)
    context = ssl.create_default_context(cafile=authority.path)
    async with open_door(authority) as (door, port):
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            socket.create_connection(("127.0.0.1", port)),
        ):
            await wait_for_guests(door, 2)
            third = asyncio.create_task(asyncio.open_connection("127.0.0.1", port, ssl=context))
            assert await is_pending(third)
            assert len(door._guests) == 2
            silent.close()
            _, writer = await third
            writer.transport.abort()
