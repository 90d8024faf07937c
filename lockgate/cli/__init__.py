# SPDX-License-Identifier: Apache-2.0
"""What commands share: how they are added to the parser, and what their exit codes mean."""

import argparse
from collections.abc import Callable
from typing import Any, Final, Protocol

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1  # of `detect`, `verify` and `ask` alone
EXIT_USAGE: Final = 2  # or wrong settings
EXIT_FAILED: Final = 3

AddSettings = Callable[[argparse.ArgumentParser], None]


def read_flags(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line gives, by dotted path."""
    given = {name.removeprefix("set:"): value for name, value in vars(options).items() if name.startswith("set:")}
    return {path: value for path, value in given.items() if value is not None}


class Commands(Protocol):
    """Where a command is added; argparse's own class for it is private."""

    def add_parser(self, name: str, **words: Any) -> argparse.ArgumentParser:
        """A parser for a command of this name."""
