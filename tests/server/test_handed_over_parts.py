# SPDX-License-Identifier: Apache-2.0
"""Which parts a second gateway takes from the first, and when they are closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockgate.config.load import load_settings
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError, UpstreamError
from lockgate.part_pool import PartPool, stamp_files
from lockgate.server.gateways import LiveGateway, SettingsSwitch, hold_gateways
from lockgate.task_groups import HeldContext

PARTS = """
detectors:
  words: {embedded: keywords, options: {keywords: [alpha]}}
  pii: {embedded: pii}
  judged: {embedded: llm_judge, type: text_contents, options: {model: main, criteria: be kind}}
models:
  main: {openai: {url: "http://127.0.0.1:9/v1", model: m}}
sources: {docs: {embedded: index}}
agents: {default: {main: main, conversational: main, sources: [docs]}}
"""


def load(directory: Path, *changes: tuple[str, str]) -> Settings:
    text = PARTS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = directory / "config.yaml"
    file.write_text(text)
    return load_settings(config_path=file, flags={"data_dir": str(directory)}, environ={})


async def test_only_what_has_changed_is_opened_again(tmp_path: Path) -> None:
    async with hold_gateways() as gateways:
        first = await gateways.open(load(tmp_path))
        second = await gateways.open(load(tmp_path, ("[alpha]", "[beta]"), ("9/v1", "8/v1")), before=first)
        one, two = first.gateway, second.gateway
        assert one.guards["pii"].detector is two.guards["pii"].detector
        assert one.guards["words"].detector is not two.guards["words"].detector
        assert one.opened.models["main"] is not two.opened.models["main"]
        assert one.opened.sources["docs"].source is two.opened.sources["docs"].source
        assert one.opened.needed["sessions"] is two.opened.needed["sessions"]
        await gateways.close(first)
        assert (await two.opened.needed["sessions"].probe(())).status == "HEALTHY"  # still open
        third = await gateways.open(load(tmp_path, ("[alpha]", "[beta]")), before=second)
        assert third.gateway.guards["words"].detector is two.guards["words"].detector


async def test_a_part_that_was_handed_over_finds_the_models_of_the_newer_gateway(tmp_path: Path) -> None:
    async with hold_gateways() as gateways:
        first = await gateways.open(load(tmp_path))
        second = await gateways.open(load(tmp_path, ("9/v1", "8/v1")), before=first)
        judged: Any = second.gateway.guards["judged"].detector
        assert id(judged) == id(first.gateway.guards["judged"].detector)
        await gateways.close(first)
        with pytest.raises(UpstreamError):  # nothing listens there
            await judged.rule("be kind", "text")
        third = await gateways.open(load(tmp_path, ("9/v1", "7/v1")), before=second)
        assert third.gateway.guards["judged"].detector is not judged


class Counted:
    """Counts how often it is opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.tasks: list[object] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.opened += 1
        self.tasks.append(asyncio.current_task())
        yield "part"
        self.closed += 1
        assert self.tasks.pop() is asyncio.current_task()


async def test_a_shared_part_is_closed_in_its_own_task_when_its_last_user_has_left() -> None:
    counted = Counted()
    async with asyncio.TaskGroup() as group:
        pool = PartPool(group)
        first, second = (pool.lease(("part", 1), counted.open()) for _ in range(2))
        assert (await first.__aenter__()).part == (await second.__aenter__()).part == "part"
        assert counted.opened == 1
        await first.__aexit__(None, None, None)
        assert counted.closed == 0
        async with pool.lease(("part", 2), counted.open()):
            assert counted.opened == 2
        await second.__aexit__(None, None, None)
        assert counted.closed == 2
        async with pool.lease(("part", 1), counted.open()):
            assert counted.opened == 3


async def test_a_part_that_cannot_be_opened_fails_its_own_gateway_only() -> None:
    options = ["no"]

    @asynccontextmanager
    async def fail() -> AsyncIterator[str]:
        for word in options:
            raise ConfigError(word, source="x")
        yield ""

    async with asyncio.TaskGroup() as group:
        pool = PartPool(group)
        for _ in range(2):
            with pytest.raises(ConfigError):
                await pool.lease(("part",), fail()).__aenter__()


async def test_a_part_whose_opening_is_given_up_as_it_ends_is_closed() -> None:
    counted = Counted()
    async with asyncio.TaskGroup() as group:
        opening: list[asyncio.Task[str]] = []

        @asynccontextmanager
        async def open_late() -> AsyncIterator[str]:
            async with counted.open() as part:
                asyncio.get_running_loop().call_soon(opening[0].cancel)  # before the task hears of the part
                yield part

        opening.append(asyncio.create_task(HeldContext(open_late()).open(group)))
        with pytest.raises(asyncio.CancelledError):
            await opening[0]
    assert (counted.opened, counted.closed) == (1, 1)


async def test_a_part_that_fails_as_it_is_closed_ends_nothing_else() -> None:
    @asynccontextmanager
    async def open_without_end() -> AsyncIterator[str]:
        yield "part"
        raise ValueError("it does not close")

    async with asyncio.TaskGroup() as group:
        pool = PartPool(group)
        with pytest.raises(ValueError, match="does not close"):
            async with pool.lease(("part", 1), open_without_end()):
                pass
        async with pool.lease(("part", 2), Counted().open()) as lease:
            assert lease.part == "part"


class FailingFront:
    """Cannot switch."""

    def __init__(self) -> None:
        self.dropped = 0

    async def prepare(self, live: LiveGateway) -> None:
        assert live.gateway.guards

    async def switch(self) -> set["asyncio.Task[Any]"]:
        raise OSError("no file is left")

    async def drop(self) -> None:
        self.dropped += 1


async def test_after_a_switch_that_fails_the_old_settings_are_in_force(tmp_path: Path) -> None:
    async with hold_gateways() as gateways:
        first, front = await gateways.open(load(tmp_path)), FailingFront()
        switch = SettingsSwitch(gateways, first, front)
        await switch.prepare(load(tmp_path, ("[alpha]", "[beta]")))
        with pytest.raises(OSError, match="no file"):
            await switch.switch()
        assert (switch.live is first, front.dropped) == (True, 1)
        await switch.switch()  # nothing is prepared
        assert (await first.gateway.opened.needed["sessions"].probe(())).status == "HEALTHY"


def test_a_replaced_file_changes_the_stamps(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    options = {"files": [{"file": str(file)}, "x" * 5000, "nul\0", 3, file]}
    assert stamp_files(options) == []
    file.write_text("one")
    before = stamp_files(options)
    assert [name for name, *_ in before] == [str(file)] * 2
    file.write_text("three")
    assert stamp_files(options) != before
