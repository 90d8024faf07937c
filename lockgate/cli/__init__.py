# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: exit codes, and the settings that the options give."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

Command = Callable[[argparse.Namespace], int]

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1  # only `detect`, `verify`, `ask` and `parts test` return it
EXIT_USAGE: Final = 2  # or wrong settings
EXIT_FAILED: Final = 3


def read_flags(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line gives, by dotted path."""
    given = {name.removeprefix("set:"): value for name, value in vars(options).items() if name.startswith("set:")}
    return {path: value for path, value in given.items() if value is not None}


def with_settings(work: Callable[[Any, argparse.Namespace], Coroutine[Any, Any, int]]) -> Command:
    """Makes a command from a coroutine function that takes the settings and the options."""
    return lambda options: asyncio.run(work(options.load(options), options))
