# SPDX-License-Identifier: Apache-2.0
"""A client of one stream under a policy: asks in the plan's way, and for the made-up names where the plan says so."""

import asyncio
import time
from typing import Protocol, cast

from tests.soak.streams.client import PATIENCE_S, Door, Heard, Listener
from tests.soak.streams.client import Played as Asking

_ID_HEADER = "x-soak-stream"


class Played(Asking, Protocol):
    """What a client must know of its plan."""

    @property
    def path(self) -> str: ...
    @property
    def wants_names(self) -> bool: ...


class _PolicyListener(Listener):
    def __init__(self, plan: Played) -> None:
        super().__init__(plan, Door(plan.path, _ID_HEADER))
        self._asking = plan

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        plan, body = self._asking, self._asking.request()
        lines = [f"POST {plan.path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"{_ID_HEADER}: {plan.id}", f"content-length: {len(body)}"]
        lines += ["x-lockgate-mapping: true"] * plan.wants_names
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)


async def listen_to(plan: Played, port: int, patience_s: float = PATIENCE_S) -> Heard:
    """Play the client's part of a plan."""
    loop = asyncio.get_running_loop()
    _, listener = await loop.create_connection(lambda: _PolicyListener(plan), "127.0.0.1", port)
    try:
        await asyncio.wait_for(listener.over.wait(), patience_s)
    except TimeoutError:
        listener.heard.ended_at = time.monotonic()
    finally:
        listener.close()
    return listener.heard
