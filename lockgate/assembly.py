# SPDX-License-Identifier: Apache-2.0
"""open_gateway(settings): the one place where parts are chosen, opened and closed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from lockgate.config.settings import DetectorSettings, Settings
from lockgate.core.release import Strategy
from lockgate.core.values import WHOLE_TEXT_CHUNKER
from lockgate.errors import ConfigError, ConfigFaults
from lockgate.interfaces import Chunker, Detector
from lockgate.pipelines.guards import Guard
from lockgate.plugins import find_factory


@dataclass(frozen=True, slots=True)
class Gateway:
    """The open parts of a process."""

    settings: Settings
    guards: Mapping[str, Guard]

    @property
    def is_fms(self) -> bool:
        """Whether we follow the existing orchestrator to the letter."""
        return self.settings.compat == "fms"

    def strategy(self, default: Strategy) -> Strategy:
        """Where releases end: the one setting for all, else the endpoint's own."""
        if self.is_fms:
            return Strategy.MAX_PROCESSED_INDEX
        chosen = self.settings.release_strategy
        return default if chosen is None else Strategy(chosen)


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Opens every part that runs here and that the settings name; closes them in reverse order."""
    async with AsyncExitStack() as stack:
        opener = _Opener(settings, stack)
        guards = [await opener.open_guard(name, detector) for name, detector in settings.detectors.items()]
        if opener.faults:
            raise ConfigFaults(tuple(opener.faults))
        yield Gateway(settings, {guard.id: guard for guard in guards if guard is not None})


class _Opener:
    """Opens parts one by one and collects what is wrong with their options."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._chunkers: dict[str, Chunker | None] = {}
        self.faults: list[ConfigError] = []

    async def open_guard(self, name: str, detector: DetectorSettings) -> Guard | None:
        chunker = await self._open_chunker(detector.chunker_id)
        if detector.embedded is None:
            return None
        opened: Detector | None = await self._open(
            "lockgate.detectors", detector.embedded, detector.options, f"detectors.{name}"
        )
        if opened is None or chunker is None:
            return None
        return Guard(name, detector.type, opened, detector.chunker_id, chunker, detector.default_threshold)

    async def _open_chunker(self, name: str) -> Chunker | None:
        if name not in self._chunkers:
            chosen = None if name == WHOLE_TEXT_CHUNKER else self._settings.chunkers.get(name)
            embedded = name if chosen is None else chosen.embedded
            options = {} if chosen is None else chosen.options
            self._chunkers[name] = (
                None
                if embedded is None
                else await self._open("lockgate.chunkers", embedded, options, f"chunkers.{name}")
            )
        return self._chunkers[name]

    async def _open(self, group: str, name: str, options: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401
        try:
            return await self._stack.enter_async_context(_build(group, name, options))
        except ConfigError as error:
            self.faults.append(_move(error, self._settings, key))
            return None


@asynccontextmanager
async def _build(group: str, name: str, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    """A part, opened; whatever goes wrong in somebody else's factory is a fault of the settings that name it."""
    async with AsyncExitStack() as stack:
        try:
            part = await stack.enter_async_context(find_factory(group, name)(options))
        except ConfigError:
            raise
        except Exception as error:
            message = f"`{name}` cannot be opened: {type(error).__name__}: {error}"
            raise ConfigError(message, source="plugins", key=name) from error
        yield part


def try_part(group: str, name: str, options: Mapping[str, Any]) -> ConfigError | None:
    """Open a part and close it again: what is wrong with it, if anything."""

    async def open_once() -> None:
        async with _build(group, name, options):
            pass

    try:
        asyncio.run(open_once())
    except ConfigError as error:
        return error
    return None


def _move(error: ConfigError, settings: Settings, key: str) -> ConfigError:
    """The fault of a part, at its place in the settings."""
    place = f"{key}.options.{error.key}" if error.source == "options" else f"{key}.embedded"
    return ConfigError(error.message, source=settings.source, key=place)
