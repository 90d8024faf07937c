# SPDX-License-Identifier: Apache-2.0
"""Replaces wide and ornamental letters by plain ones, and has a bounded table for `str.translate`."""

import unicodedata
from collections.abc import Callable

MAX_KEPT_LETTERS = 20_000

# Each would become a whole sentence of Arabic, so that a short text could become a very long one.
_FORMULAS = str.maketrans(dict.fromkeys("\ufdfa\ufdfb", " \ufdfd "))


def make_plain(text: str) -> str:
    """Replaces wide, small and ornamental letters by plain ones; a letter becomes at most six."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text.translate(_FORMULAS))


class Letters(dict[int, str]):
    """Maps code points to their replacements, computed at first use; the table's size is bounded."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, code: int) -> str:
        found = self._spell(chr(code))
        if len(self) < MAX_KEPT_LETTERS:
            self[code] = found
        return found
