# SPDX-License-Identifier: Apache-2.0
"""What signals mean to whoever serves: the first lets requests finish, a second SIGINT does not."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_by_signals(stop: Callable[[], object], cut: Callable[[], object]) -> Iterator[None]:
    """While this lasts, SIGINT and SIGTERM call `stop`, and a SIGINT that is not the first signal calls `cut`."""
    is_told = False

    def tell(number: signal.Signals) -> None:
        nonlocal is_told
        if is_told and number is signal.SIGINT:
            cut()
        is_told = True
        stop()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, tell, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
