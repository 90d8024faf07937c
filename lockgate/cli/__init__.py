# SPDX-License-Identifier: Apache-2.0
"""The commands about an agent's belongings: each module adds its own to the parser and carries them out.

Here is what they share with the command line itself: how they are added, and what their exit codes mean.
"""

import argparse
from collections.abc import Callable
from typing import Any, Final, Protocol

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1  # of `detect`, `verify` and `ask` alone
EXIT_USAGE: Final = 2  # or wrong settings
EXIT_FAILED: Final = 3

AddSettings = Callable[[argparse.ArgumentParser], None]


class Commands(Protocol):
    """Where a command is added; argparse's own class for it is private."""

    def add_parser(self, name: str, **words: Any) -> argparse.ArgumentParser:
        """A parser for a command of this name."""
