# SPDX-License-Identifier: Apache-2.0
"""Accepting with TLS: handshakes that are under way when it closes, and how many may be at once."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockgate.config.settings import ServerTlsSettings
from lockgate.server import acceptors as acceptors_module
from lockgate.server.acceptors import TlsAcceptor, load_tls
from tests.server.certificates import Authority
from tests.waits import HANG_S, is_pending, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@asynccontextmanager
async def open_acceptor(authority: Authority) -> AsyncIterator[tuple[TlsAcceptor, int]]:
    """An acceptor and its port."""
    own = authority.issue("server")
    tls = load_tls(ServerTlsSettings(Path(own.cert), Path(own.key)))
    assert tls is not None
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    acceptor = TlsAcceptor(listening, tls)
    await acceptor.open(asyncio.Protocol)
    try:
        yield acceptor, listening.getsockname()[1]
    finally:
        acceptor.close()
        await acceptor.wait_closed()


async def wait_for_handshakes(acceptor: TlsAcceptor, count: int) -> None:
    """Returns in the very turn of the loop that follows."""
    while len(acceptor._handshakes) != count:  # noqa: ASYNC110 - `until` would miss that turn
        await asyncio.sleep(0)


async def receive(client: socket.socket) -> bytes:
    client.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(client, 1)


async def test_a_guest_that_comes_while_the_door_closes_is_not_left_standing(authority: Authority) -> None:
    """Its task is cancelled before it begins; a socket left open would be a ResourceWarning, hence an error here."""
    async with open_acceptor(authority) as (acceptor, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            await wait_for_handshakes(acceptor, 1)
            assert len(acceptor._unstarted) == 1
            acceptor.close()
            await acceptor.wait_closed()
            assert (acceptor._handshakes, acceptor._unstarted) == (set(), set())
            assert await receive(client) == b""
    gc.collect()


async def test_a_handshake_that_is_under_way_ends_with_the_door(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptors_module, "_HANDSHAKE_S", 2 * HANG_S)
    async with open_acceptor(authority) as (acceptor, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            await wait_for_handshakes(acceptor, 1)
            await until(lambda: not acceptor._unstarted, "the beginning of the handshake")
            acceptor.close()
            await acceptor.wait_closed()
            assert await receive(client) == b""
    gc.collect()


async def test_few_handshakes_are_under_way_at_once_and_the_next_waits(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptors_module, "_MAX_HANDSHAKES", 2)
    context = ssl.create_default_context(cafile=authority.path)
    async with open_acceptor(authority) as (acceptor, port):
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            socket.create_connection(("127.0.0.1", port)),
        ):
            await wait_for_handshakes(acceptor, 2)
            third = asyncio.create_task(asyncio.open_connection("127.0.0.1", port, ssl=context))
            assert await is_pending(third)
            assert len(acceptor._handshakes) == 2
            silent.close()
            _, writer = await third
            writer.transport.abort()
