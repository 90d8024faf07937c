# SPDX-License-Identifier: Apache-2.0
"""A small table of routes on our own connections, in this process, over a real socket."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from lockgate.server.app import App, Handler
from lockgate.server.callers import Callers
from lockgate.server.connection import Connection

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def build_app(
    routes: Mapping[str, Handler], *, max_streams: int = 100, timeout_s: float = 600.0, callers: Callers | None = None
) -> App:
    """Every route answers GET and POST."""
    table = {path: {"GET": endpoint, "POST": endpoint} for path, endpoint in routes.items()}
    return App(table, max_streams=max_streams, timeout_s=timeout_s, callers=callers)


@asynccontextmanager
async def served(app: Asgi, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port on which the application listens; at the end everything that is still open is cut."""
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_config=None, server_header=False)
    config.load()
    state = ServerState()
    listening = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), sock=listening, ssl=tls)
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks)
        await asyncio.sleep(0)
