# SPDX-License-Identifier: Apache-2.0
"""Plain letters in place of wide and ornamental ones, and tables for `str.translate` that are bounded."""

import unicodedata
from collections.abc import Callable

MAX_KEPT_LETTERS = 20_000

# Each stands for whole sentences of Arabic: a short text of them would be a very long one.
_FORMULAS = str.maketrans(dict.fromkeys("\ufdfa\ufdfb", " \ufdfd "))


def make_plain(text: str) -> str:
    """The text with plain letters for wide, small and ornamental ones; a letter becomes six at most."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text.translate(_FORMULAS))


class Letters(dict[int, str]):
    """What each code point becomes, found out when it is first met; a text cannot make the table grow for ever."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, code: int) -> str:
        found = self._spell(chr(code))
        if len(self) < MAX_KEPT_LETTERS:
            self[code] = found
        return found
