# SPDX-License-Identifier: Apache-2.0
"""What a session is made of: turns, and what of them a later prompt may see. A model's reasoning is not remembered."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockgate.gate.values import Message

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
DEFAULT_SESSION = "default"  # of everybody who names none
DEFAULT_AGENT = "default"  # whom those mean who name none, where there is one of this name
ANONYMOUS = "anonymous"  # the caller who is not known
MAX_INTENTS = 6  # of the past that the classifier is shown
_MAX_TOPIC_CHARS = 120
_MORE = " [...]"
_BYTES_PER_TOKEN = 4  # a cautious guess: the model's own tokens are not known here
_REASONING = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_END_OF_REASONING = re.compile(r"\A.*?</(?:think|thinking)>", re.DOTALL | re.IGNORECASE)


class SessionKey(NamedTuple):
    """A session: the caller's, with one agent, under the id that the caller chose. No two callers share one."""

    caller: str
    agent: str
    id: str


NOBODY = SessionKey("", "", "")  # the key that the probe reads


class Turn(NamedTuple):
    """One exchange that came to its end. `layer` is what decided the label, `request_id` the caller's name for it."""

    question: str
    answer: str
    label: str
    topic: str = ""
    layer: str = ""
    confidence: float | None = None
    request_id: str = ""


class AbortedTurn(NamedTuple):
    """One exchange that did not: what had been delivered of its answer, and why no more. Never part of a prompt."""

    question: str
    delivered: str
    reason: str
    label: str = ""
    request_id: str = ""


class Past(NamedTuple):
    """What a store knows of a session: its latest turns, oldest first, and the one that had this request id before."""

    turns: tuple[Turn, ...] = ()
    repeated: Turn | None = None


class StoredTurn(NamedTuple):
    """A turn as a store shows it to operators; `at` is in seconds since 1970, `aborted` the reason if it was."""

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
        """The limits among the options of a session store."""
        return cls(**{name: options[name] for name in cls._fields if name in options})


@dataclass(slots=True, eq=False)
class RememberedAnswer:
    """What has been said of an answer, as far as it is to be remembered: its beginning."""

    _left: int  # characters that may still be remembered
    _parts: list[str] = field(default_factory=list)
    has_begun: bool = False
    is_cut: bool = False

    def add(self, piece: str) -> None:
        """One more piece."""
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
        """What is remembered; one can see that it was more."""
        return "".join(self._parts)


class Intent(NamedTuple):
    """What an earlier turn was about: all that the classifier sees of it."""

    label: str
    topic: str


def recall(turns: Sequence[Turn], max_messages: int, max_tokens: int) -> tuple[Message, ...]:
    """The messages of the latest turns that fit, oldest first, whole turns only; the last one is cut if it must be."""
    kept: list[Turn] = []
    left = max_tokens
    for turn in reversed(turns[-(max_messages // 2) :] if max_messages > 1 else ()):
        cost = count_tokens(turn.question) + count_tokens(turn.answer)
        if cost > left and not kept:
            kept.append(_cut_turn(turn, left))
        if cost > left:
            break
        left -= cost
        kept.append(turn)
    return tuple(
        message
        for turn in reversed(kept)
        for message in (Message(USER, turn.question), Message(ASSISTANT, turn.answer))
    )


def _cut_turn(turn: Turn, tokens: int) -> Turn:
    """The turn with the beginnings of its question and answer, each of which has half the room if it needs that."""
    question = _cut(turn.question, max(tokens // 2, tokens - count_tokens(turn.answer)))
    return turn._replace(question=question, answer=_cut(turn.answer, tokens - count_tokens(question)))


def _cut(text: str, tokens: int) -> str:
    if count_tokens(text) <= tokens:
        return text
    room = max(tokens - 1 - count_tokens(_MORE), 0) * _BYTES_PER_TOKEN
    return text.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore") + _MORE


def recall_sent(messages: Sequence[Message], max_messages: int, max_tokens: int) -> tuple[Message, ...]:
    """The same of messages that a client sent itself: its latest that fit, as they are."""
    kept: list[Message] = []
    left = max_tokens
    for message in reversed(messages[-max_messages:] if max_messages else ()):
        left -= count_tokens(message.text)
        if left < 0:
            break
        kept.append(message)
    return tuple(reversed(kept))


def count_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN + 1


def list_intents(turns: Sequence[Turn]) -> tuple[Intent, ...]:
    """What the latest turns were about, oldest first."""
    return tuple(Intent(turn.label, turn.topic or name_topic(turn.question)) for turn in turns[-MAX_INTENTS:])


def name_topic(question: str) -> str:
    """What a question is about, as far as its own words tell: its beginning, in one line."""
    return " ".join(question.split())[:_MAX_TOPIC_CHARS]


def forget_reasoning(answer: str) -> str:
    """The answer without what the model thought aloud, also where it began to think before its first word."""
    kept = _REASONING.sub("", answer)
    kept = _END_OF_REASONING.sub("", kept)
    return answer if kept == answer else kept.strip()
