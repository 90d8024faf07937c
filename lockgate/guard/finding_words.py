# SPDX-License-Identifier: Apache-2.0
"""FindingWords: reads what a remote detector says about its findings, as a text of the answer is read.

A detector's kinds, evidence and metadata reach the client beside the text, and may quote it. Under a policy that
changes text they leave only if the policy's detectors find nothing in them. Numbers pass; texts that were clean once
are not read again. The places and the `text` of findings are checked elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.errors import LockgateError
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Excerpt
from lockgate.guard.detectors import ActiveGuard
from lockgate.task_groups import run_together

UNREAD_KIND = "Finding"  # in place of a kind with a finding; label masks show it
_MAX_CHARS = 8192  # of all texts of a field; more are left out unread
_MAX_DEPTH = 32
_MAX_CLEAN = 1024
_KINDS = ("detection", "detection_type")

Lists = Sequence[Sequence[Detection]]


class FindingWords:
    """The detectors that read the words of findings, and the texts in which they found nothing."""

    def __init__(self, readers: Sequence[ActiveGuard], clean: dict[str, None], max_open: int) -> None:
        self._readers = readers
        self._clean = clean
        self._max_open = max_open

    async def read(self, lists: Lists, receipt: Receipt) -> Lists:
        """Returns the findings without the words that no detector read or in which one found something."""
        return [[await self._clear(one, receipt) for one in of_text] if of_text else of_text for of_text in lists]

    async def _clear(self, found: Detection, receipt: Receipt) -> Detection:
        unclean = [name for name in found._fields[3:] if not await self._is_clean(name, getattr(found, name))]
        for name in unclean:
            receipt.note_left_out(f"detections.{name}")
        cleared: dict[str, Any] = {
            name: UNREAD_KIND if name in _KINDS else () if name == "evidence" else None for name in unclean
        }
        return found._replace(**cleared) if cleared else found

    async def _is_clean(self, name: str, value: Any) -> bool:
        if name in ("score", "detector_id") or not value:
            return True
        try:
            texts = list(dict.fromkeys(list_texts(value)))
        except RecursionError:
            return False
        unread = [text for text in texts if text.strip() and text not in self._clean]
        if not unread:
            return True
        if sum(map(len, unread)) > _MAX_CHARS:
            return False
        try:
            are_clean = all(
                await run_together([partial(_finds_nothing, one, unread) for one in self._readers], self._max_open)
            )
        except LockgateError:  # a detector has failed: the texts are unread
            return False
        if are_clean:
            self._remember(unread)
        return are_clean

    def _remember(self, texts: Sequence[str]) -> None:
        if len(self._clean) + len(texts) > _MAX_CLEAN:
            self._clean.clear()
        self._clean.update(dict.fromkeys(texts))


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


async def _finds_nothing(reader: ActiveGuard, texts: Sequence[str]) -> bool:
    found = await reader.reading.read([Excerpt(text) for text in texts])
    return len(found) == len(texts) and not any(one.score >= reader.threshold for of_text in found for one in of_text)
