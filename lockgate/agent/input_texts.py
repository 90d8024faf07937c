# SPDX-License-Identifier: Apache-2.0
"""Several texts of a request read as one input, and taken apart again when they have been read."""

from collections.abc import Sequence
from operator import itemgetter

from lockgate.gate.values import Detection
from lockgate.gate.verdicts import mask_part
from lockgate.guard.detect import Slice
from lockgate.guard.request import CheckedInput, Input

_BETWEEN = "\n\n"


class InputTexts:
    """The texts of a request; equal ones are read once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        unique = [text for text in dict.fromkeys(texts) if text]
        self._starts: dict[str, int] = {}
        start = 0
        for text in unique:
            self._starts[text] = start
            start += len(text) + len(_BETWEEN)
        slices = [Slice(start, text) for text, start in self._starts.items()]
        self.input = Input(_BETWEEN.join(unique), slices)

    def locate(self, found: Sequence[Detection]) -> list[tuple[int, Detection]]:
        """Each finding with the number of its text, and its place in that text; of equal texts the last one counts."""
        places = {text: at for at, text in enumerate(self._texts)}
        located = []
        for one in found:
            text, start = max(
                [(text, start) for text, start in self._starts.items() if start <= one.start], key=itemgetter(1)
            )
            located.append((places[text], one._replace(start=one.start - start, end=one.end - start)))
        return located

    def split(self, checked: CheckedInput) -> list[str]:
        """The texts as they may go on."""
        masks = checked.masks
        return [mask_part(self._starts[text], text, masks) if text else text for text in self._texts]
