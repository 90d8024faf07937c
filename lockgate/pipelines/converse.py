# SPDX-License-Identifier: Apache-2.0
"""One turn of a conversation: prepared by a graph, then spoken by the model straight to whoever listens.

Decides the order of things: hold the session, check what was asked, prepare, speak, remember. A turn is remembered
after its last word and before the listener hears that it is complete; one that ends in any other way is noted apart and
forgotten. Refuses to know any wire shape, and how a model, a source or a store is reached.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lockgate.core.routes import Editor
from lockgate.core.turns import SessionKey
from lockgate.core.values import Message

ANSWERED, PROMPT_BLOCKED, ANSWER_BLOCKED = "answered", "prompt_blocked", "answer_blocked"


class Ask(NamedTuple):
    """What is asked, by whom, in which session; without a session nothing is remembered.

    `sent` are the messages that the client sent itself, the question the last of its user's: without a session they are
    the history. `params` are `max_tokens` and `temperature`, where the client chose them.
    """

    question: str
    session: SessionKey | None = None
    sent: tuple[Message, ...] = ()
    label: str = ""
    editor: Editor = Editor()
    account: str = ""
    request_id: str = ""
    params: Mapping[str, Any] = MappingProxyType({})
    is_stream: bool = True


@dataclass(slots=True)
class Facts:
    """What is known of a turn; complete when its last piece has been heard."""

    label: str = ""
    layer: str = ""
    confidence: float | None = None
    topic: str = ""
    prepare_ms: int = 0
    first_token_ms: int = 0
    tokens: int = 0
    passages: int = 0
    outcome: str = ANSWERED
    usage: Mapping[str, int] | None = None
    documents: tuple[Any, ...] = field(default=())


class Speech(Protocol):
    """A turn at work. Its pieces end when it is complete and, if it has a session, stored; then the facts are too."""

    facts: Facts

    def __aiter__(self) -> AsyncIterator[str]:
        """The answer's pieces as they come: of a stream each chunk of the model, else the whole answer as one."""


class Speaker(Protocol):
    """Whoever answers: an agent, or a model alone."""

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Speech]:
        """A turn. Leaving the context ends it and everything behind it; errors are LockgateError.

        Nothing has been asked of anybody before the first piece is awaited; an error before it means that nothing was
        said.
        """
