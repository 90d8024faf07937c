# SPDX-License-Identifier: Apache-2.0
"""InputCache: the findings of texts that requests send again, such as the history of a conversation.

A text is known by a digest with a secret of this process; the cache holds no text, and no finding that repeats one.
"""

import os
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from lockgate.gate.values import Detection

_MAX_TEXTS = 8192
_MAX_FOUND = 64  # findings in a text; one with more is not kept
_DIGEST_BYTES = 16
_Found = tuple[Detection, ...]


class InputCache:
    """The findings of the texts that were read last, in one process."""

    def __init__(self, max_texts: int = _MAX_TEXTS) -> None:
        self._secret = os.urandom(32)
        self._max_texts = max_texts
        self.kept: dict[bytes, _Found] = {}  # in the order of their last use
        self._numbers = count()

    def open(self) -> "CachedReads":
        """Returns the cached reads of one set of detectors with their parameters."""
        return CachedReads(self, next(self._numbers))

    def digest(self, name: str, text: str) -> bytes:
        """Returns the key of a text; `name` says who reads it."""
        body = f"{name}\0{text}".encode("utf-8", "surrogatepass")
        return blake2b(body, digest_size=_DIGEST_BYTES, key=self._secret).digest()

    def keep(self, key: bytes, found: _Found) -> None:
        """Keeps findings; the text that was not used for longest makes room."""
        if len(self.kept) >= self._max_texts:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = found


class CachedReads(NamedTuple):
    """The cached reads of one set of detectors. `readers` names those among them that read a text."""

    cache: InputCache
    number: int

    def find(self, readers: str, text: str) -> Sequence[Detection] | None:
        """Returns the findings in a text, with spans in it; None if it is not known."""
        kept, key = self.cache.kept, self.cache.digest(f"{self.number} {readers}", text)
        found = kept.pop(key, None)
        if found is None:
            return None
        kept[key] = found  # it was used last
        return [one._replace(text=text[one.start : one.end]) for one in found] if found else found

    def keep(self, readers: str, text: str, found: Sequence[Detection]) -> None:
        """Keeps the findings in a text, unless one would keep a part of the text."""
        if len(found) <= _MAX_FOUND and (not found or all(_is_bare(one, text) for one in found)):
            bare = tuple([one._replace(text="") for one in found])
            self.cache.keep(self.cache.digest(f"{self.number} {readers}", text), bare)


def _is_bare(found: Detection, text: str) -> bool:
    """Whether the finding is complete without its text, and repeats nothing of it."""
    quoted = found.text.casefold()
    is_quoted = quoted in found.detection.casefold() or quoted in found.detection_type.casefold()
    return found.text == text[found.start : found.end] and not is_quoted and not (found.evidence or found.metadata)
