# SPDX-License-Identifier: Apache-2.0
"""Reads the package's data files: TOML files of words and patterns beside the modules that use them.

Lists of words are literal strings, split at white space. A pattern may have several lines: line breaks and
indentation do not count. `{name}` in a pattern is replaced by the part of that name.
See docs/decisions/0061-tables-and-graphs-are-files.md.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

_PART = re.compile(r"\{([a-z]\w*)\}")  # a repetition such as {2,3} begins with a digit


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a TOML file, or of a part of one."""


def read_table(path: Path, shape: type[T]) -> T:
    """The content of a TOML file; raises msgspec.ValidationError if it has another shape."""
    return msgspec.toml.decode(path.read_bytes(), type=shape)


def split_words(*lists: str) -> frozenset[str]:
    """The words of several lists."""
    return frozenset(word for words in lists for word in words.split())


def join_lines(pattern: str) -> str:
    """The pattern on one line."""
    return "".join(line.lstrip() for line in pattern.split("\n"))


def fill_pattern(pattern: str, parts: Mapping[str, str]) -> str:
    """Returns the pattern on one line, the named parts filled in; raises KeyError for an unknown part."""
    return _PART.sub(lambda match: parts[match[1]], join_lines(pattern))


def fill_parts(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Fills named parts of patterns; each may use those before it."""
    filled: dict[str, str] = {}
    for name, pattern in parts:
        filled[name] = fill_pattern(pattern, filled)
    return filled
