# SPDX-License-Identifier: Apache-2.0
"""The turns of a session, and the parts of them that a later prompt contains. A model's reasoning is not kept."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockgate.gate.values import Message

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
DEFAULT_SESSION = "default"  # of requests that name none
DEFAULT_AGENT = "default"  # of requests that name none, if there is an agent of this name
ANONYMOUS = "anonymous"  # the caller of requests without a known key
MAX_INTENTS = 6  # earlier turns whose topics the classifier sees
_MAX_TOPIC_CHARS = 120
_MORE = " [...]"
_BYTES_PER_TOKEN = 4  # a cautious guess: the model's own tokens are not known here
_REASONING = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_END_OF_REASONING = re.compile(r"\A.*?</(?:think|thinking)>", re.DOTALL | re.IGNORECASE)


class SessionKey(NamedTuple):
    """Identifies a session: the caller, the agent, and the id that the caller chose. Callers never share one."""

    caller: str
    agent: str
    id: str


PROBE_KEY = SessionKey("", "", "")  # the key that the health probe reads


class Turn(NamedTuple):
    """One complete turn. `layer` is the step that decided the label, `request_id` the id that the caller gave."""

    question: str
    answer: str
    label: str
    topic: str = ""
    layer: str = ""
    confidence: float | None = None
    request_id: str = ""


class AbortedTurn(NamedTuple):
    """One aborted turn: the part of the answer that was delivered, and why it ended. Never part of a prompt."""

    question: str
    delivered: str
    reason: str
    label: str = ""
    request_id: str = ""


class Past(NamedTuple):
    """The latest turns of a session, oldest first, and the one that has this request id."""

    turns: tuple[Turn, ...] = ()
    repeated: Turn | None = None


class StoredTurn(NamedTuple):
    """A turn as operators see it; `at` is in seconds since 1970, `aborted` is why it was aborted, or empty."""

    question: str
    answer: str
    label: str
    at: float
    layer: str = ""
    confidence: float | None = None
    request_id: str = ""
    aborted: str = ""


class SessionEntry(NamedTuple):
    """A session in a list: how many turns are kept and when the first and the last ended."""

    key: SessionKey
    turns: int
    first_at: float
    last_at: float


class StoreLimits(NamedTuple):
    """How much of a session is kept, in messages (a turn has two; its latest turn always is), and for how many days."""

    max_messages: int = 200
    retention_days: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "StoreLimits":
        """Reads the limits from the options of a session store."""
        return cls(**{name: options[name] for name in cls._fields if name in options})


@dataclass(slots=True, eq=False)
class RememberedAnswer:
    """Collects the beginning of an answer, up to a number of characters."""

    _left: int  # characters that may still be remembered
    _parts: list[str] = field(default_factory=list)
    has_begun: bool = False
    is_cut: bool = False

    def add(self, piece: str) -> None:
        """Adds a piece."""
        self.has_begun = True
        if self.is_cut:
            return
        if len(piece) > self._left:
            self.is_cut = True
            piece = piece[: self._left] + _MORE
        self._left -= len(piece)
        self._parts.append(piece)

    @property
    def text(self) -> str:
        """The collected text; ` [...]` marks a cut."""
        return "".join(self._parts)


class Intent(NamedTuple):
    """The label and topic of an earlier turn; the classifier sees nothing else of it."""

    label: str
    topic: str


def recall(turns: Sequence[Turn], max_messages: int, max_tokens: int) -> tuple[Message, ...]:
    """Returns the latest whole turns that fit, as messages, oldest first; cuts the last one if it alone is too long."""
    kept: list[Turn] = []
    left = max_tokens
    for turn in reversed(turns[-(max_messages // 2) :] if max_messages > 1 else ()):
        cost = count_tokens(turn.question) + count_tokens(turn.answer)
        if cost > left:
            if not kept:  # question and answer may each use half, and what the other does not need
                question = _cut(turn.question, max(left // 2, left - count_tokens(turn.answer)))
                kept.append(turn._replace(question=question, answer=_cut(turn.answer, left - count_tokens(question))))
            break
        left -= cost
        kept.append(turn)
    return tuple(
        message
        for turn in reversed(kept)
        for message in (Message(USER, turn.question), Message(ASSISTANT, turn.answer))
    )


def _cut(text: str, tokens: int) -> str:
    if count_tokens(text) <= tokens:
        return text
    room = max(tokens - 1 - count_tokens(_MORE), 0) * _BYTES_PER_TOKEN
    return text.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore") + _MORE


def recall_sent(messages: Sequence[Message], max_messages: int, max_tokens: int) -> tuple[Message, ...]:
    """The latest of a client's own messages that fit, oldest first and uncut."""
    kept: list[Message] = []
    left = max_tokens
    for message in reversed(messages[-max_messages:] if max_messages else ()):
        left -= count_tokens(message.text)
        if left < 0:
            break
        kept.append(message)
    return tuple(reversed(kept))


def count_tokens(text: str) -> int:
    """Estimates how many tokens a text has."""
    return len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN + 1


def list_intents(turns: Sequence[Turn]) -> tuple[Intent, ...]:
    """Labels and topics of the latest turns, oldest first."""
    return tuple(Intent(turn.label, turn.topic or name_topic(turn.question)) for turn in turns[-MAX_INTENTS:])


def name_topic(question: str) -> str:
    """The topic of a question: its beginning, on one line."""
    return " ".join(question.split())[:_MAX_TOPIC_CHARS]


def forget_reasoning(answer: str) -> str:
    """Removes the model's reasoning from an answer, also reasoning whose opening tag is missing."""
    kept = _REASONING.sub("", answer)
    kept = _END_OF_REASONING.sub("", kept)
    return answer if kept == answer else kept.strip()
