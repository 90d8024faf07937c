# SPDX-License-Identifier: Apache-2.0
"""FindingWords: reads what a remote detector says about its findings, as a text of the answer is read.

A detector's kinds, evidence and metadata reach the client beside the text, and may quote it. Under a policy that
changes text they leave only if the policy's detectors find nothing in them. Numbers pass; texts that were clean once
are not read again. The places and the `text` of findings are checked elsewhere.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.errors import LockgateError
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Excerpt
from lockgate.guard.detectors import ActiveGuard
from lockgate.task_groups import run_together

UNREAD_KIND = "Finding"  # in place of a kind with a finding; label masks show it
_FIELDS = ("detection", "detection_type", "evidence", "metadata")
_MAX_CHARS = 8192  # of all texts of a field; more are left out unread
_MAX_ALL_CHARS = 65_536  # of all texts that are read at once
_MAX_DEPTH = 32
_MAX_CLEAN = 1024

Lists = Sequence[Sequence[Detection]]


class FindingWords:
    """The detectors that read the words of findings, and the texts in which they found nothing."""

    def __init__(self, readers: Sequence[ActiveGuard], clean: dict[str, None], max_open: int) -> None:
        self._readers = readers
        self._clean = clean
        self._max_open = max_open

    async def read(self, lists: Lists, receipt: Receipt) -> Lists:
        """Returns the findings without words that are too long, that a detector failed to read or found something in.

        Without detectors nothing is read, and only words that are too long are left out.
        """
        unread: dict[str, int] = {}
        fields = {(id(one), name): self._take(getattr(one, name), unread) for one in _join(lists) for name in _FIELDS}
        unclean = await self._find_unclean(list(unread))
        left_out = {key for key, texts in fields.items() if texts is None or not unclean.isdisjoint(texts)}
        if not left_out:
            return lists
        return [[_clear(one, left_out, receipt) for one in of_text] for of_text in lists]

    def _take(self, value: Any, unread: dict[str, int]) -> list[str] | None:
        """Adds the texts of a field to `unread`, each with the characters up to its end.

        Returns the texts, or None if they are too long or too deep.
        """
        try:
            texts = [text for text in list_texts(value) if text.strip() and text not in self._clean]
        except RecursionError:
            return None
        new = [text for text in dict.fromkeys(texts) if text not in unread]
        size, before = sum(map(len, new)), next(reversed(unread.values()), 0)
        if size > _MAX_CHARS or before + size > _MAX_ALL_CHARS:
            return None
        for text in new:
            before = unread[text] = before + len(text)
        return texts

    async def _find_unclean(self, texts: list[str]) -> set[str]:
        """Returns the texts with a finding; all of them if a detector fails."""
        if not (texts and self._readers):
            return set()
        try:
            found = await run_together([partial(_find_in, one, texts) for one in self._readers], self._max_open)
        except (LockgateError, TimeoutError):
            return set(texts)
        unclean = set().union(*found)
        clean = [text for text in texts if text not in unclean]
        if len(self._clean) + len(clean) > _MAX_CLEAN:
            self._clean.clear()
        self._clean.update(dict.fromkeys(clean[:_MAX_CLEAN]))
        return unclean


def _join(lists: Lists) -> Iterator[Detection]:
    for of_text in lists:
        yield from of_text


def _clear(found: Detection, left_out: set[tuple[int, str]], receipt: Receipt) -> Detection:
    """Returns the finding without the fields that are left out."""
    cleared: dict[str, Any] = {}
    for name in _FIELDS:
        if (id(found), name) in left_out:
            receipt.note_left_out(f"detections.{name}")
            cleared[name] = {"evidence": (), "metadata": None}.get(name, UNREAD_KIND)
    return found._replace(**cleared) if cleared else found


def list_texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yields every string of a value, keys included; raises RecursionError if it is nested too deeply."""
    if depth > _MAX_DEPTH:
        raise RecursionError("nested too deeply")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from list_texts(key, depth + 1)
            yield from list_texts(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from list_texts(item, depth + 1)


async def _find_in(reader: ActiveGuard, texts: list[str]) -> set[str]:
    async with asyncio.timeout(reader.max_hold_s):
        found = await reader.reading.read([Excerpt(text) for text in texts])
    if len(found) != len(texts):  # a reading that tolerates failures has none
        return set(texts)
    pairs = zip(texts, found, strict=True)
    return {text for text, of_text in pairs if any(one.score >= reader.threshold for one in of_text)}
