# SPDX-License-Identifier: Apache-2.0
"""build_short_prompt: a question and a few sentences become a prompt that a very small model can follow.

It learns what is wanted from two worked turns, not from rules. Decides how the turns are written, and by which grammar
the answer may be bound: it says what a sentence says, in the words of that sentence, and ends with its source. Nothing
inside a passage can pass for the frame around it: each stands on one line, which ends with a mark of ours. Refuses to
know which sentences are shown (lockgate.models.short_passages) and which model it is.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lockgate.gate.prompt import Grounds
from lockgate.gate.values import Message
from lockgate.models.short_passages import FIGURES, Line, choose_lines, flatten

REFUSAL: Final = "The documents do not contain this information."
MAX_QUESTION_CHARS: Final = 400
_NOTHING = "(nothing found)"
_SYSTEM = (
    "Answer the question with one sentence. Copy the sentence that has the answer. If no sentence has the answer, say: "
    f"{REFUSAL}"
)
_PLAIN = frozenset(" ,-_/'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_CLAUSE_ENDS = ",;:"
_ENDS = ".,;:!?\"'()“”"
_TURNS = re.compile(
    r"no|not|nor|never|none|nobody|nothing|cannot|\w+n['’]t|without|except|unless|but|only|"
    r"nicht|keine?[mnrs]?|nie|ohne|außer|sondern|aber|ni|nunca|sin|excepto|pero|s[oó]lo|ne|pas|jamais|sans|sauf|mais",
    re.IGNORECASE,
)
_LIMITS = re.compile(
    r"first|second|third|last|all|every|each|both|until|before|after|since|under|over|more|less|most|least|than|if|when",
    re.IGNORECASE,
)


class ShortPrompt(NamedTuple):
    """The messages, and the sentences that they show, the best last."""

    messages: tuple[Message, ...]
    lines: tuple[Line, ...]


def cite(line: Line) -> str:
    """A sentence as the prompt shows it, and as the model is to say it."""
    return f"{line.text}{_mark(line.path)}"


def build_short_prompt(grounds: Grounds) -> ShortPrompt:
    """The opening and one more turn: the best sentences and the question."""
    lines = tuple(reversed(choose_lines(grounds.question, grounds.documents)))  # what stands last is copied best
    return ShortPrompt((*OPENING, _ask(lines, flatten(grounds.question)[:MAX_QUESTION_CHARS])), lines)


def build_citing_grammar(lines: Sequence[Line]) -> str:
    """A grammar (GBNF): what one of the lines says, with its path at the end; without lines, the refusal.

    A sentence begins as its line does, keeps the order of its words, may leave some out, though no name, figure,
    denial or limit, and ends where a clause of the line does. Where there are lines the refusal is not offered: very
    small models take it far too often.
    """
    if not lines:
        return f"root ::= {_quote(REFUSAL)}"
    rules = [f"root ::= {' | '.join(f'line{number}x0' for number in range(len(lines)))}"]
    for number, line in enumerate(lines):
        rules += _build_line(f"line{number}x", line)
    return "\n".join(rules)


def _build_line(name: str, line: Line) -> Iterator[str]:
    """Rule x0 is the first word; each other says the word with its number, or leaves it to the next rule."""
    words = line.text.split()
    mark = _quote(_mark(line.path))
    last_turn = max((place for place, word in enumerate(words) if _TURNS.fullmatch(word.strip(_ENDS))), default=0)
    for place, word in enumerate(words):
        bare = word.strip(_ENDS) or word
        is_last = place + 1 == len(words)
        follow = [] if is_last else [f"{_quote_any(word, bare)} {name}{place + 1}"]
        if is_last or (word[-1] in _CLAUSE_ENDS and place >= last_turn):
            follow.append(f"{_quote(bare)} {mark}")
        said = " | ".join(follow)
        if place == 0:
            yield f"{name}0 ::= {said}"
            continue
        can_skip = not is_last and not _is_fact(bare)
        yield f'{name}{place} ::= " " ({said})' + (f" | {name}{place + 1}" if can_skip else "")


def _is_fact(word: str) -> bool:
    """Whether a sentence says something else without the word: a name, a figure, a no, a limit."""
    return word[0].isupper() or bool(FIGURES.search(word) or _TURNS.fullmatch(word) or _LIMITS.fullmatch(word))


def _quote_any(*forms: str) -> str:
    quoted = [_quote(form) for form in dict.fromkeys(forms)]
    return quoted[0] if len(quoted) == 1 else f"({' | '.join(quoted)})"


def _ask(lines: Iterable[Line], question: str) -> Message:
    passages = "\n".join(map(cite, lines)) or _NOTHING
    return Message("user", f"Passages:\n{passages}\n\nQuestion: {question}\nAnswer with a sentence from the passages.")


def _mark(path: str) -> str:
    return f" [{path}]."


def _quote(text: str) -> str:
    """The text as a literal of the grammar: every character that is not plain is written as its number."""
    return '"' + "".join(one if one in _PLAIN else f"\\U{ord(one):08X}" for one in text) + '"'


_EXAMPLE = Line("ferry", "On Monday the ferry leaves at seven in the morning")
OPENING: Final = (
    Message("system", _SYSTEM),
    _ask((), "Who is the mayor of the town?"),
    Message("assistant", REFUSAL),
    _ask(
        (
            Line("harbour", "The harbour was built in 1820 by Anton Reuss"),
            Line("ferry", "A ticket for the ferry costs 6 euros"),
            _EXAMPLE,
        ),
        "When does the ferry leave on Mondays?",
    ),
    Message("assistant", cite(_EXAMPLE)),
)
"""What every prompt begins with, always the same, so that a model may keep it read."""
