# SPDX-License-Identifier: Apache-2.0
"""The open gateways of a process: one takes later requests, others are closed when their last request has ended."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from lockgate.config.settings import Settings
from lockgate.gateway import Gateway, open_gateway
from lockgate.part_pool import PartPool
from lockgate.server.health import Readiness
from lockgate.server.ports import HealthPorts, Tasks, renew_collector
from lockgate.task_groups import HeldContext, raise_first
from lockgate.telemetry import LogEvent, describe_exception, log_event


class LiveGateway(NamedTuple):
    """An open gateway and its readiness."""

    gateway: Gateway
    readiness: Readiness


class Gateways:
    """The open gateways of a process: one takes the later requests, others wait for the end of theirs."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._pool = PartPool(group)
        self._open: dict[int, HeldContext[LiveGateway]] = {}

    async def open(self, settings: Settings, before: LiveGateway | None = None) -> LiveGateway:
        """Opens a gateway, with the parts of others that did not change; raises ConfigError."""
        held = HeldContext(self._open_live(settings, before))
        live = await held.open(self._group)
        self._open[id(live)] = held
        return live

    def retire(self, live: LiveGateway, requests: Tasks) -> None:
        """Closes a gateway when these requests have ended."""
        self._group.create_task(self._retire(live, requests))

    async def close(self, live: LiveGateway) -> None:
        """Closes a gateway now."""
        await self._open.pop(id(live)).close()

    async def close_all(self) -> None:
        """Closes every gateway."""
        for held in reversed(list(self._open.values())):
            await held.close()

    async def _retire(self, live: LiveGateway, requests: Tasks) -> None:
        if requests:
            await asyncio.wait(requests)
            requests.clear()
        if id(live) in self._open:
            [error] = await asyncio.gather(self.close(live), return_exceptions=True)
            if error is not None:
                reason = f"a part of the settings before failed as it was closed: {describe_exception(error)}"
                log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
        renew_collector()

    @asynccontextmanager
    async def _open_live(self, settings: Settings, before: LiveGateway | None) -> AsyncIterator[LiveGateway]:
        async with open_gateway(settings, self._pool) as gateway:
            readiness = Readiness(gateway.opened.needed, before.readiness if before is not None else None)
            if before is not None:
                await readiness.ask_missing()
            async with readiness.watch():
                yield LiveGateway(gateway, readiness)


@asynccontextmanager
async def hold_gateways() -> AsyncIterator[Gateways]:
    """Yields the gateways of this process; closes all of them at the end."""
    try:
        async with asyncio.TaskGroup() as group:
            gateways = Gateways(group)
            try:
                yield gateways
            finally:
                await gateways.close_all()
    except ExceptionGroup as failures:
        raise_first(failures)


class Front(Protocol):
    """What serves the API: ports of this process, or its workers."""

    async def prepare(self, live: LiveGateway) -> None:
        """Get ready to serve with another gateway; raises ConfigError."""

    async def switch(self) -> Tasks:
        """Serve later requests with the prepared gateway; returns those under way in this process."""

    async def drop(self) -> None:
        """Forget what was prepared."""


class SettingsSwitch:
    """Opens a second gateway beside the live one, and switches to it or closes it."""

    def __init__(self, gateways: Gateways, live: LiveGateway, front: Front, health: HealthPorts | None = None) -> None:
        self.live = live
        self._gateways = gateways
        self._front = front
        self._health = health
        self._next: LiveGateway | None = None

    async def prepare(self, settings: Settings) -> None:
        """Opens a second gateway; raises ConfigError. Requests are served as before."""
        self._next = await self._gateways.open(settings, before=self.live)
        try:
            await self._front.prepare(self._next)
        except BaseException:
            await self.drop()
            raise

    async def switch(self) -> None:
        """Serves later requests with the second gateway; closes the first when its requests have ended."""
        if self._next is None:
            return
        try:
            under_way = await self._front.switch()
        except BaseException:
            await self.drop()
            raise
        old, self.live, self._next = self.live, self._next, None
        if self._health is not None:
            under_way |= self._health.switch(self.live.gateway)
        self._gateways.retire(old, under_way)

    async def drop(self) -> None:
        """Closes the second gateway."""
        await self._front.drop()
        if self._next is not None:
            dropped, self._next = self._next, None
            await self._gateways.close(dropped)
