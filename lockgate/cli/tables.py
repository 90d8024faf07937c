# SPDX-License-Identifier: Apache-2.0
"""Tables for people. Decides how columns stand; refuses to know what is in them."""

from collections.abc import Iterable, Sequence


def align(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns under each other, two spaces between them."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
