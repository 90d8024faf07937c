# SPDX-License-Identifier: Apache-2.0
"""What is too old goes now and then, whatever happens meanwhile."""

import asyncio
from typing import Any

import pytest

from lockgate import store_tasks as holding
from lockgate.errors import Unavailable
from lockgate.store_tasks import pruning


async def test_pruning_goes_on_after_any_failure_and_tells_all_but_those_of_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "PRUNE_EVERY_S", 0.0)
    failures: list[Exception] = [ZeroDivisionError("a bug"), Unavailable("sessions", "gone"), ValueError("another")]
    told: list[Any] = []
    is_through = asyncio.Event()

    async def forget_old() -> None:
        if failures:
            raise failures.pop()
        is_through.set()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    async with pruning(forget_old):
        await is_through.wait()
    assert [str(error) for error in told] == ["another", "a bug"]
