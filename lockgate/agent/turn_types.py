# SPDX-License-Identifier: Apache-2.0
"""What an agent is asked, and how its answer is read."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lockgate.agent.answer import Facts
from lockgate.agent.routes import Editor
from lockgate.gate.values import Message
from lockgate.sessions.turns import SessionKey


class Ask(NamedTuple):
    """What is asked, by whom, in which session; without a session nothing is remembered.

    `sent` are the messages that the client sent itself, the question the last of its user's: without a session they are
    the history. `params` are those of the request, all of them among those that the speaker takes.
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


class Speech(Protocol):
    """A turn at work. Its pieces end when it is complete and, if it has a session, stored; then the facts are too."""

    facts: Facts

    def __aiter__(self) -> AsyncIterator[str]:
        """The answer's pieces as they come: of a stream each chunk of the model, else the whole answer as one."""


class Speaker(Protocol):
    """Answers questions: an agent."""

    @property
    def takes(self) -> frozenset[str]:
        """The parameters that a request may have, in OpenAI's words."""

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Speech]:
        """A turn. Leaving the context ends it and everything behind it; errors are LockgateError.

        Nothing has been asked of anybody before the first piece is awaited; an error before it means that nothing was
        said.
        """


class Spoken(Protocol):
    """An answer that nobody listens to yet."""

    facts: Facts

    def run(self) -> AsyncGenerator[str, None]:
        """Its pieces."""


class _Heard:
    """A speech that somebody listens to."""

    __slots__ = ("_pieces", "facts")

    def __init__(self, facts: Facts, pieces: AsyncGenerator[str, None]) -> None:
        self.facts = facts
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces


@asynccontextmanager
async def attend(spoken: Spoken) -> AsyncIterator[Speech]:
    """Listen to it; leaving ends it."""
    async with aclosing(spoken.run()) as pieces:
        yield _Heard(spoken.facts, pieces)
