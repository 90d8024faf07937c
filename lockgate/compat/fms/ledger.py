# SPDX-License-Identifier: Apache-2.0
"""Ledger: the messages of a stream by number, until no later event is made of them.

The existing orchestrator makes an event of the messages that a chunker names for its chunk (G-145), whole or not.
Knows nothing of what they hold.
"""

from collections import deque
from typing import Any

from lockgate.errors import HeldTooMuch

Message = dict[str, Any]
MAX_MESSAGES = 65_536


class Ledger:
    """Messages in the order of their numbers."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Message]] = deque()

    def add(self, number: int, message: Message) -> None:
        """Take in a message."""
        self._messages.append((number, message))
        if len(self._messages) > MAX_MESSAGES:
            raise HeldTooMuch(f"more than {MAX_MESSAGES} messages wait for a chunk")

    def take(self, first: int, last: int) -> list[Message]:
        """The messages from `first` to `last`; what came before them is forgotten."""
        messages = self._messages
        while messages and messages[0][0] < first:
            messages.popleft()
        return [message for number, message in messages if first <= number <= last]
