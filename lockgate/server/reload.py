# SPDX-License-Identifier: Apache-2.0
"""Reloads the settings: opens a second gateway, gives it later requests, closes the first after its last request."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.config.report import hash_settings, list_idle_settings
from lockgate.config.restart import keep_fixed, list_fixed
from lockgate.config.settings import Settings
from lockgate.errors import ConfigFaults, LockgateError
from lockgate.server.control import control_socket
from lockgate.server.gateways import SettingsSwitch
from lockgate.telemetry import LogEvent, count_reload, describe_exception, log_event

Load = Callable[[], Settings]
_LOOK_S = 1.0  # between two looks at a watched file


class ReloadOutcome(NamedTuple):
    """The end of a reload: its faults (none: the new settings are in force), warnings, and the hash in force."""

    faults: Sequence[str]
    warnings: Sequence[str]
    hash: str


class Reloader:
    """Reloads the settings of a running process, one reload after the other."""

    def __init__(self, load: Load, switch: SettingsSwitch) -> None:
        self._load = load
        self._switch = switch
        self._waiting: list[asyncio.Future[ReloadOutcome]] = []
        self._asked = asyncio.Event()
        self._seen = self._look()

    @property
    def _settings(self) -> Settings:
        """The settings in force."""
        return self._switch.live.gateway.settings

    def ask(self) -> "asyncio.Future[ReloadOutcome]":
        """Asks for a reload; returns its outcome."""
        waiting: asyncio.Future[ReloadOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._asked.set()
        return waiting

    async def run(self) -> None:
        """Reloads at SIGHUP, at `lockgate reload`, and when a watched file has changed; until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.ask)
        try:
            async with control_socket(self._answer):
                while True:
                    await self._wait()
                    await self._attend()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def _attend(self) -> None:
        """Reloads once for all who have asked so far."""
        waiting, self._waiting = self._waiting, []
        self._asked.clear()
        outcome = await self.reload()
        for one in waiting:
            if not one.done():
                one.set_result(outcome)

    async def _answer(self) -> Mapping[str, Any]:
        return (await self.ask())._asdict()

    async def reload(self) -> ReloadOutcome:
        """Reads, checks, opens and switches; after a fault the old settings stay in force."""
        self._seen = self._look()
        [done] = await asyncio.gather(self._reload(), return_exceptions=True)
        if isinstance(done, ReloadOutcome):
            count_reload("ok")
            for warning in done.warnings:
                log_event(LogEvent.WARNING, logging.WARNING, reason=warning)
            log_event(LogEvent.SETTINGS_RELOADED, logging.INFO, hash=done.hash)
            return done
        if not isinstance(done, Exception):
            raise done
        count_reload("failed")
        faults = list_faults(done)
        for fault in faults:
            log_event(LogEvent.RELOAD_FAILED, logging.ERROR, reason=fault)
        return ReloadOutcome(faults, (), hash_settings(self._settings))

    async def _reload(self) -> ReloadOutcome:
        running = self._settings
        given = await asyncio.to_thread(self._load)
        settings = replace(keep_fixed(running, given), trace_token=running.trace_token)
        await self._switch.prepare(settings)
        await self._switch.switch()
        warnings = [*given.warnings, *list_fixed(running, given), *list_idle_settings(settings)]
        return ReloadOutcome((), warnings, hash_settings(settings))

    async def _wait(self) -> None:
        """Waits until a reload is asked for, or until a watched file has changed and is not being written any more."""
        before = self._seen
        while not self._asked.is_set():
            try:
                async with asyncio.timeout(_LOOK_S if self._settings.watch else None):
                    await self._asked.wait()
            except TimeoutError:
                found = self._look()
                if found is not None and found == before != self._seen:
                    return
                before = found

    def _look(self) -> tuple[int, int, int] | None:
        """The state of the config file."""
        try:
            found = os.stat(Path(self._settings.source))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def list_faults(error: BaseException) -> list[str]:
    """Each fault of a reload in a line."""
    if isinstance(error, ConfigFaults):
        return [str(one) for one in error.faults]
    return [str(error) if isinstance(error, LockgateError) else describe_exception(error)]
