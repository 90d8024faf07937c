# SPDX-License-Identifier: Apache-2.0
"""AnswerFields: which strings of an answer besides its texts every detector has read, and in which one was found.

An id, the name of a model or of a tool is a string that the model chose, so it may hold what a policy hides. Each value
is read once in an answer, wherever it stands. It may leave when all detectors have read it and found nothing.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from lockgate.gate.verdicts import Action

MAX_VALUES = 1024  # of one answer
MAX_CHARS = 256  # of one value; a longer one is never read


class AnswerFields:
    """The values of one answer. `actions`: of each detector that reads them. `waits`: text waits until they are read.

    `waiting` has the values that were not yet given to a detector, by its id, and `alone` those that it is to be given
    without a text; `unread` counts those without an answer.
    """

    __slots__ = ("_found", "_known", "_open", "actions", "alone", "unread", "waiting", "waits")

    def __init__(self, actions: Mapping[str, Action] = MappingProxyType({}), *, waits: bool = True) -> None:
        self.actions = actions
        self.waits = waits
        self.unread = 0
        self.waiting: dict[str, list[str]] = {}
        self.alone: dict[str, list[str]] = {}
        self._known: set[str] = set()
        self._open: dict[str, dict[str, None]] = {name: {} for name in actions}  # given or not, without an answer
        self._found: dict[str, Action] = {}  # the strictest action by value

    def add(self, value: str) -> bool:
        """Adds a value to be read; returns False if it is too long or one too many, so that it is never read."""
        if value in self._known or not value:
            return True
        if len(value) > MAX_CHARS or len(self._known) >= MAX_VALUES:
            return False
        self._known.add(value)
        for name, values in self._open.items():
            values[value] = None
            self.unread += 1
            self.waiting.setdefault(name, []).append(value)
        return True

    def give_again(self) -> list[str]:
        """Lets the detectors be given, alone, all values that they have not answered for; returns these detectors."""
        self.waiting = {}
        self.alone = {name: list(values) for name, values in self._open.items() if values}
        return list(self.alone)

    def note(self, detector_id: str, values: Iterable[str], found: Iterable[str] = ()) -> None:
        """Records that the detector has read these values, and which have a finding."""
        left = self._open[detector_id]
        self.unread -= len(left)
        for value in values:
            left.pop(value, None)
        self.unread += len(left)
        action = self.actions[detector_id]
        for value in found if action is not Action.ANNOTATE else ():
            self._found[value] = max(action, self._found.get(value, action))

    def find_action(self, value: str) -> Action:
        """Returns ANNOTATE for a value that may leave: it is empty, or all detectors have read it and found nothing.

        Else the strictest action for what was found, MASK for a value that was not read.
        """
        if value in self._found:
            return self._found[value]
        is_read = not value or (value in self._known and not any(value in values for values in self._open.values()))
        return Action.ANNOTATE if is_read else Action.MASK
