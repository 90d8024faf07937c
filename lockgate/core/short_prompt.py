# SPDX-License-Identifier: Apache-2.0
"""build_short_prompt: a question and its best documents become a prompt that a very small model can follow.

Decides which passages such a model gets to see, how they are written down, and by which grammar its answer may be
bound. It learns what is wanted from two worked turns, not from rules. Nothing inside a passage can pass for the frame
around it: all of it stands on one line. Refuses to know how good a document is (its score says so) and which model it
is.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lockgate.core.prompt import Grounds, flatten_name, make_sendable
from lockgate.core.values import Document, Message

REFUSAL: Final = "The documents do not contain this information."
MAX_PASSAGES: Final = 2
MAX_PASSAGE_CHARS: Final = 600
MAX_QUESTION_CHARS: Final = 500
NOTHING: Final = "(none)"

_SYSTEM = (
    "You answer questions about the passages. Use the words of the passages. If the passages do not have the answer, "
    f"say: {REFUSAL}"
)
_WHITE = re.compile(r"\s+")
_QUESTION = "Question: "


def _ask(passages: Sequence[tuple[str, str]], question: str) -> Message:
    lines = [f"[{path}] {text}" for path, text in passages] or [NOTHING]
    return Message("user", "Passages:\n" + "\n".join(lines) + f"\n\n{_QUESTION}{question}")


OPENING: Final = (
    Message("system", _SYSTEM),
    _ask(
        [
            (
                "ferry",
                "The ferry leaves at seven in the morning and at noon. A ticket costs 6 euros. Dogs travel free.",
            ),
            ("harbour", "The harbour was built in 1820 by Anton Reuss. The light tower is red."),
        ],
        "How much is a ticket for the ferry?",
    ),
    Message("assistant", "A ticket costs 6 euros [ferry]."),
    _ask([("market", "The market is held every Friday. It sells fish and flowers.")], "Who is the mayor of the town?"),
    Message("assistant", REFUSAL),
)
"""What every prompt begins with, always the same, so that a model may keep it read."""


class ShortPrompt(NamedTuple):
    """The messages, and the paths of the passages in them."""

    messages: tuple[Message, ...]
    paths: tuple[str, ...]


def build_short_prompt(grounds: Grounds) -> ShortPrompt:
    """The opening and one more turn: the best passages, as short as need be, and the question."""
    passages = [_write(document) for document in _choose(grounds.documents)]
    question = _flatten(grounds.question)[:MAX_QUESTION_CHARS]
    paths = tuple(dict.fromkeys(path for path, _ in passages))
    return ShortPrompt((*OPENING, _ask(passages, question)), paths)


def build_citing_grammar(paths: Iterable[str]) -> str:
    """A grammar (GBNF): one or two sentences, each ending with one of the paths, or the refusal."""
    refusal = _quote(REFUSAL)
    marks = " | ".join(_quote(f" [{path}].") for path in paths)
    if not marks:
        return f"root ::= {refusal}"
    return "\n".join(
        (
            f'root ::= {refusal} | sentence (" " sentence)?',
            "sentence ::= [A-Z0-9] [^\\[\\]\\n]+ mark",
            f"mark ::= {marks}",
        )
    )


def _choose(documents: Sequence[Document]) -> list[Document]:
    return list(documents[:MAX_PASSAGES])


def _write(document: Document) -> tuple[str, str]:
    path = flatten_name(document.source).strip()
    text = _flatten(document.text)[:MAX_PASSAGE_CHARS]
    return path, text


def _flatten(text: str) -> str:
    return _WHITE.sub(" ", make_sendable(text)).strip()


def _quote(text: str) -> str:
    """The text as a literal of the grammar: every character that is not plain is written as its number."""
    return (
        '"'
        + "".join(one if one.isascii() and (one.isalnum() or one in " .,-_/") else _number(one) for one in text)
        + '"'
    )


def _number(character: str) -> str:
    return f"\\U{ord(character):08X}"
