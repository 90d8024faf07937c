# SPDX-License-Identifier: Apache-2.0
"""build_short_prompt: makes a prompt that a very small model can follow from a question and a few sentences."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.data_files import Table, fill_pattern, join_lines, read_table
from lockgate.gate.prompt import AnswerGrounds, flatten_name, make_sendable
from lockgate.gate.values import Document, Message
from lockgate.index.search_words import find_search_words

# --- Sentences ------------------------------------------------------------------------------------------------

MAX_DOCUMENTS: Final = 3
MAX_DOCUMENT_CHARS: Final = 4_000
MAX_LINES: Final = 3
MAX_LINE_WORDS: Final = 48
MAX_LINE_CHARS: Final = 320
MIN_SHARE: Final = 0.3  # of the question's words in a document; below, a document needs SURE_SCORE
SURE_SCORE: Final = 0.5
MARGIN: Final = 0.5  # a line whose worth is lower than the best one's by more than this is left out

_TITLE_WORTH, _SCORE_WORTH, _PLACE_WORTH, _KIND_WORTH = 0.5, 10.0, 0.2, 1.0
_SENTENCES = re.compile(r"[\r\n]+|(?<=[.!?])\s+(?=[^a-z\s])")
_BRACKETS = str.maketrans("[]", "()")
_ENDINGS = (("ings", "ing", "ies", "ied", "es", "ed", "s"), ("e", "y"))


class ShortPromptFile(Table, frozen=True):
    """The instruction and the patterns of `short_prompt.toml`."""

    system: str
    figures: str
    turns: str
    limits: str
    kinds: tuple[tuple[str, str], ...]


_FILE = read_table(Path(__file__).with_name("short_prompt.toml"), ShortPromptFile)


def _compile(pattern: str) -> re.Pattern[str]:
    parts = {"figures": join_lines(_FILE.figures)}
    return re.compile(fill_pattern(pattern, parts), re.IGNORECASE)


FIGURES: Final = _compile(_FILE.figures)
_TURNS = _compile(_FILE.turns)
_LIMITS = _compile(_FILE.limits)
_KINDS: Final = tuple((_compile(question), _compile(answer)) for question, answer in _FILE.kinds)
_WHO = re.compile(r"^who\b", re.IGNORECASE)
_PERSON = re.compile(r"[A-Z][\w'’-]+ [A-Z][\w'’-]+")


class SourceSentence(NamedTuple):
    """A sentence without its full stop, and the path of its source."""

    path: str
    text: str


class _SentenceCandidate(NamedTuple):
    document: Document
    place: int
    text: str
    words: frozenset[str]


def choose_lines(question: str, documents: Sequence[Document]) -> list[SourceSentence]:
    """Returns the sentences that most likely contain the answer, the best first; none if nothing fits."""
    known = [one for one in documents[:MAX_DOCUMENTS] if one.text]
    candidates = [one for document in known for one in _cut(document)]
    stems = _stems(question)
    if not candidates or not stems:
        return []
    weights = _weigh(stems, candidates)
    best = max(one.score for one in known)
    if best < SURE_SCORE and _share(weights, known) < MIN_SHARE:
        return []
    worths = [(_worth(one, question, weights) + (one.document.score - best) * _SCORE_WORTH, one) for one in candidates]
    worths.sort(key=lambda pair: -pair[0])
    return [
        SourceSentence(flatten_name(one.document.source).strip(), one.text)
        for worth, one in worths[:MAX_LINES]
        if worth >= worths[0][0] - MARGIN
    ]


def flatten(text: str) -> str:
    """Returns the text on one line, without square brackets, which would look like a citation."""
    return " ".join(make_sendable(text).translate(_BRACKETS).split())


def _cut(document: Document) -> Iterator[_SentenceCandidate]:
    sentences = _SENTENCES.split(document.text[:MAX_DOCUMENT_CHARS])
    for place, sentence in enumerate(sentences):
        words = flatten(sentence).rstrip(".!?:; ").split()[:MAX_LINE_WORDS]
        while sum(map(len, words)) + len(words) > MAX_LINE_CHARS:
            words.pop()
        if words:
            text = " ".join(words)
            yield _SentenceCandidate(document, place, text, _stems(text))


def _weigh(stems: frozenset[str], candidates: Sequence[_SentenceCandidate]) -> dict[str, float]:
    """Weighs each word of the question: the fewer sentences have it, the more."""
    counts = {word: sum(word in one.words for one in candidates) for word in stems}
    return {word: math.log(1 + len(candidates) / max(count, 0.5)) for word, count in counts.items()}


def _share(weights: Mapping[str, float], documents: Sequence[Document]) -> float:
    """Returns the highest share of the question's weight that one document contains."""
    whole = sum(weights.values())
    texts = [_stems(f"{one.title} {one.text[:MAX_DOCUMENT_CHARS]}", is_question=False) for one in documents]
    return max(sum(weight for word, weight in weights.items() if word in text) for text in texts) / whole


def _worth(one: _SentenceCandidate, question: str, weights: Mapping[str, float]) -> float:
    title = _stems(one.document.title)
    worth = -_PLACE_WORTH * one.place
    for word, weight in weights.items():
        worth += weight if word in one.words else weight * _TITLE_WORTH if word in title else 0.0
    if _WHO.search(question) and _PERSON.search(one.text):
        worth += _KIND_WORTH
    return worth + _KIND_WORTH * sum(bool(kind.search(question) and form.search(one.text)) for kind, form in _KINDS)


def _stems(text: str, *, is_question: bool = True) -> frozenset[str]:
    words = find_search_words(text) if is_question else re.findall(r"[^\W_]+", text.casefold())
    return frozenset(map(_stem, words))


def _stem(word: str) -> str:
    """Removes the word's ending: `fees` and `fee`, `closes` and `closing` are the same."""
    for endings in _ENDINGS:
        ending = next((one for one in endings if word.endswith(one) and len(word) - len(one) >= 3), "")
        word = word.removesuffix(ending)
    return word


# --- The prompt -----------------------------------------------------------------------------------------------

REFUSAL: Final = "The documents do not contain this information."
MAX_QUESTION_CHARS: Final = 400
_NOTHING = "(nothing found)"
_PLAIN = frozenset(" ,-_/'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_CLAUSE_ENDS = ",;:"
_ENDS = ".,;:!?\"'()“”"


class ShortPrompt(NamedTuple):
    """The messages, and the sentences in them, the best last."""

    messages: tuple[Message, ...]
    lines: tuple[SourceSentence, ...]


def cite(line: SourceSentence) -> str:
    """Returns a sentence with its citation, as in the prompt and in the expected answer."""
    return f"{line.text}{_mark(line.path)}"


def build_short_prompt(grounds: AnswerGrounds) -> ShortPrompt:
    """Builds a prompt of OPENING and one more turn with the best sentences and the question."""
    lines = tuple(reversed(choose_lines(grounds.question, grounds.documents)))  # models copy the last one best
    return ShortPrompt((*OPENING, _ask(lines, flatten(grounds.question)[:MAX_QUESTION_CHARS])), lines)


def build_citing_grammar(lines: Sequence[SourceSentence]) -> str:
    """Builds a grammar (GBNF) that allows one of the lines with its path at the end; without lines, the refusal.

    A sentence begins with its line's first word, keeps the order of the words, may leave out words except names,
    figures, denials and limits, and ends at the end of a clause. With lines the refusal is not allowed: very small
    models choose it far too often.
    """
    if not lines:
        return f"root ::= {_quote(REFUSAL)}"
    rules = [f"root ::= {' | '.join(f'line{number}x0' for number in range(len(lines)))}"]
    for number, line in enumerate(lines):
        rules += _build_line(f"line{number}x", line)
    return "\n".join(rules)


def _build_line(name: str, line: SourceSentence) -> Iterator[str]:
    """Yields a rule per word, x0 for the first; each allows its word or, if it may be left out, the next."""
    words = line.text.split()
    mark = _quote(_mark(line.path))
    last_turn = max((place for place, word in enumerate(words) if _TURNS.fullmatch(word.strip(_ENDS))), default=0)
    for place, word in enumerate(words):
        bare = word.strip(_ENDS) or word
        is_last = place + 1 == len(words)
        follow = [] if is_last else [f"{_quote_any(word, bare)} {name}{place + 1}"]
        if is_last or (word[-1] in _CLAUSE_ENDS and place >= last_turn):
            follow.append(f"{_quote(bare)} {mark}")
        choices = " | ".join(follow)
        if place == 0:
            yield f"{name}0 ::= {choices}"
            continue
        can_skip = not is_last and not _is_fact(bare)
        yield f'{name}{place} ::= " " ({choices})' + (f" | {name}{place + 1}" if can_skip else "")


def _is_fact(word: str) -> bool:
    """Returns whether leaving the word out changes the meaning: a name, a figure, a denial or a limit."""
    return word[0].isupper() or bool(FIGURES.search(word) or _TURNS.fullmatch(word) or _LIMITS.fullmatch(word))


def _quote_any(*forms: str) -> str:
    quoted = [_quote(form) for form in dict.fromkeys(forms)]
    return quoted[0] if len(quoted) == 1 else f"({' | '.join(quoted)})"


def _ask(lines: Iterable[SourceSentence], question: str) -> Message:
    passages = "\n".join(map(cite, lines)) or _NOTHING
    return Message("user", f"Passages:\n{passages}\n\nQuestion: {question}\nAnswer with a sentence from the passages.")


def _mark(path: str) -> str:
    return f" [{path}]."


def _quote(text: str) -> str:
    """Returns the text as a literal of the grammar; unusual characters are written as their code points."""
    return '"' + "".join(one if one in _PLAIN else f"\\U{ord(one):08X}" for one in text) + '"'


_EXAMPLE = SourceSentence("ferry", "On Monday the ferry leaves at seven in the morning")
OPENING: Final = (
    Message("system", _FILE.system.format(refusal=REFUSAL)),
    _ask((), "Who is the mayor of the town?"),
    Message("assistant", REFUSAL),
    _ask(
        (
            SourceSentence("harbour", "The harbour was built in 1820 by Anton Reuss"),
            SourceSentence("ferry", "A ticket for the ferry costs 6 euros"),
            _EXAMPLE,
        ),
        "When does the ferry leave on Mondays?",
    ),
    Message("assistant", cite(_EXAMPLE)),
)
"""The beginning of every prompt, always the same, so that a model can cache it."""
