# SPDX-License-Identifier: Apache-2.0
"""Reports insults, threats, obscenity and hatred.

For each label the higher of two scores counts: of a small English classifier, which gets only texts with enough English
words, and of a table of phrases, most of them Spanish and German.
"""

import asyncio
import re
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.data_files import read_table
from lockgate.detectors.letters import make_plain
from lockgate.detectors.plain_text import Rule, RuleFile, RuleTable
from lockgate.detectors.windows import BuildFinding, TokenCutter, Window, WindowDetector, open_pool
from lockgate.gate.values import Detection
from lockgate.interfaces import PartContext, with_context
from lockgate.models.onnx_session import load_model, open_session, read_graph
from lockgate.models.weights import TOXICITY
from lockgate.params import Params

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

KNOWN = ("labels", "patterns")
LABELS = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
FILE_NAME, SIGNATURE = "model.weights.h5", b"\x89HDF\r\n\x1a\n"
WORDS = 20_000
NAME, TOXIC = "toxicity", "toxic"
MODEL_WORDS = 100  # the model always reads so many; a shorter text is padded in front
WINDOW_WORDS, OVERLAP_WORDS = 60, 15
BATCH_WINDOWS = 32
MIN_SCORE = 0.5
"""A lower score is not reported."""

Scores = Mapping[str, float]
NO_SCORES: Scores = dict.fromkeys(LABELS, 0.0)

UNKNOWN = 0
MIN_KNOWN = 0.75
"""The share of known words from which a text is readable; half are enough if it has small English words."""
MIN_KNOWN_AMONG_ENGLISH, MIN_ENGLISH = 0.5, 0.2

# Letters, digits and apostrophes inside a word: nearly the words of the tokenizer used in training.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_LONG_RUN = re.compile(r"(.)\1{2,}")
_APOSTROPHES = str.maketrans(dict.fromkeys("‘’‛´`ʼ", "'"))
_DIGITS_AS_LETTERS = str.maketrans("013457", "oieast")
_MARKS_AS_LETTERS = str.maketrans("@$!", "asi")
_MARKS = re.compile("[@$!]")
_MASKED = re.compile(r"[^\W_]+[@$!][^\W_]+")
_HIDDEN = {"a": "[4@*#]", "e": "[3*#]", "i": "[1!*#]", "o": "[0*#]", "u": "[*#]"}


class ToxicityFile(RuleFile, frozen=True):
    """The word lists and rules of the detector."""

    masked: str
    english: str
    foreign: str


def _build_masked(words: str) -> Rule:
    """Builds a rule for words with a vowel replaced by a sign or a digit, or with separated letters."""
    forms = []
    for word in words.split():
        at = [place for place, letter in enumerate(word) if letter in _HIDDEN]
        loose = [f"(?:{letter}|{_HIDDEN[letter]})" if letter in _HIDDEN else letter for letter in word]
        forms += ["".join([*loose[:place], _HIDDEN[word[place]], *loose[place + 1 :]]) for place in at]
        forms += [re.escape(mark).join(word) for mark in " .-_*"]
    return Rule("masked", "obscene", 0.8, rf"(?:^|\W)(?:{'|'.join(forms)})(?:$|\W|s\b|e[rns]?\b)")


_FILE = read_table(Path(__file__).with_name("toxicity.toml"), ToxicityFile)
RULES = (_build_masked(_FILE.masked), *_FILE.build())


class KnownWords:
    """The vocabulary of the classifier."""

    def __init__(self, words: Iterable[str]) -> None:
        self._ids = {word: number for number, word in enumerate(words, 1)}
        self._english = self._numbers(_FILE.english)
        self._foreign = self._numbers(_FILE.foreign)

    def __len__(self) -> int:
        return len(self._ids)

    def tokenize(self, text: str) -> list[int]:
        """Returns a number per word; 0 for an unknown one."""
        if not text.isascii():
            text = make_plain(text.translate(_APOSTROPHES)).translate(_APOSTROPHES)
            text = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
        if _MARKS.search(text):
            text = _MASKED.sub(lambda match: self._unmask(match[0]), text)
        return [self._find(match[0]) for match in _WORD.finditer(text.lower())]

    def is_readable(self, tokens: Sequence[int]) -> bool:
        """Returns whether enough words are known and English for the classifier."""
        known = sum(1 for token in tokens if token != UNKNOWN and token not in self._foreign)
        if not known:
            return False
        if known >= MIN_KNOWN * len(tokens):
            return True
        english = sum(1 for token in tokens if token in self._english)
        return known >= MIN_KNOWN_AMONG_ENGLISH * len(tokens) and english >= MIN_ENGLISH * len(tokens)

    def _numbers(self, words: str) -> frozenset[int]:
        return frozenset(self._ids[word] for word in words.split() if word in self._ids)

    def _unmask(self, word: str) -> str:
        plain = word.lower().translate(_MARKS_AS_LETTERS)
        return plain if plain in self._ids else word

    def _find(self, word: str) -> int:
        number = self._ids.get(word)
        if number is not None:
            return number
        return next((self._ids[one] for one in _respell(word) if one in self._ids), UNKNOWN)


def _respell(word: str) -> Iterator[str]:
    """Yields likely spellings of an unknown word: `stuuupid`, `1diot`, `moron's`."""
    if _LONG_RUN.search(word):
        yield _LONG_RUN.sub(r"\1\1", word)
        yield _LONG_RUN.sub(r"\1", word)
    if not word.isalpha() and not word.isdigit():
        yield word.translate(_DIGITS_AS_LETTERS)
        yield word.partition("'")[0]


def load_words(path: Path) -> KnownWords:
    """Reads a file with one word per line; raises OSError or ValueError."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        return KnownWords([line.rstrip("\n") for line in lines])


class ToxicityScores(NamedTuple):
    """The classifier's scores of one window, and the rules that matched."""

    model: Scores
    rules: Sequence[Rule]


class ToxicityModel:
    """The classifier and the table, for one thread at a time."""

    def __init__(self, words: KnownWords, session: "InferenceSession") -> None:
        self._words = words
        self._session = session
        self._rules = RuleTable(RULES)
        self.cutter = TokenCutter(words.tokenize, WINDOW_WORDS, OVERLAP_WORDS)

    def run(self, windows: Sequence[Window]) -> list[ToxicityScores]:
        """Scores each window."""
        rows = [self._read(window) for window in windows]
        scores = iter(self._classify([row for row in rows if row]))
        return [
            ToxicityScores(next(scores) if row else NO_SCORES, self._rules.meet(window.text))
            for window, row in zip(windows, rows, strict=True)
        ]

    def _read(self, window: Window) -> list[int]:
        return [token for token in window.tokens if token] if self._words.is_readable(window.tokens) else []

    def _classify(self, rows: Sequence[Sequence[int]]) -> list[Scores]:
        import numpy as np

        if not rows:
            return []
        ids = np.zeros((MODEL_WORDS, len(rows)), np.int64)
        for at, row in enumerate(rows):
            ids[MODEL_WORDS - len(row) :, at] = row
        (scores,) = self._session.run(["scores"], {"ids": ids})
        return [dict(zip(LABELS, row, strict=True)) for row in scores.tolist()]


def load_toxicity_model(weights: Path) -> ToxicityModel:
    """Reads the weight files of a folder."""
    with (weights / FILE_NAME).open("rb") as file:
        if file.read(len(SIGNATURE)) != SIGNATURE:
            raise ValueError(f"{FILE_NAME} is no HDF5 file")
    words = load_words(weights / "words.txt")
    if len(words) != WORDS - 1:
        raise ValueError(f"{len(words)} words, expected {WORDS - 1}")
    return ToxicityModel(words, open_session(read_graph("toxicity.onnx"), weights))


class ToxicityRequest(NamedTuple):
    """The labels to report for a request, and whether the rules are used."""

    labels: tuple[str, ...]
    uses_rules: bool

    def build_finding(self, window: Window, found: ToxicityScores) -> Detection | None:
        """Returns a finding with the strongest label of a window and the scores of all."""
        rules = found.rules if self.uses_rules else ()
        scores = dict(found.model)
        for rule in rules:
            for label in (rule.label, TOXIC):  # every phrase is toxic
                scores[label] = max(scores[label], rule.score)
        specific_first = sorted(self.labels, key=TOXIC.__eq__)
        label = max(specific_first, key=scores.__getitem__)  # of equals the first
        if scores[label] < MIN_SCORE:
            return None
        rule_name = next((rule.name for rule in rules if label in (rule.label, TOXIC)), "")
        metadata: dict[str, Any] = {"tier": "patterns" if scores[label] > found.model[label] else "model"}
        metadata |= {"rule": rule_name} if rule_name else {}
        metadata["scores"] = {name: round(score, 4) for name, score in scores.items()}
        score = metadata["scores"][label]
        return Detection(window.start, window.end, window.text, label, NAME, score, metadata=metadata)


def _read_request(params: Params, default: ToxicityRequest) -> ToxicityRequest:
    return ToxicityRequest(
        params.choices("labels", LABELS) or default.labels, params.flag("patterns", default.uses_rules)
    )


@with_context
@asynccontextmanager
async def open_toxicity_detector(
    options: Mapping[str, Any], context: PartContext
) -> AsyncIterator[WindowDetector[ToxicityScores]]:
    """Reports toxic text. Options: `labels` to report, and `patterns`; false turns the rules off."""
    default = _read_request(Params.of_options(options, KNOWN), ToxicityRequest(LABELS, uses_rules=True))
    model = await asyncio.to_thread(load_model, context.data_dir, TOXICITY.name, load_toxicity_model)

    def prepare(params: Params) -> BuildFinding[ToxicityScores]:
        return _read_request(params, default).build_finding

    async with open_pool(model.run, name=NAME, max_items=BATCH_WINDOWS) as pool:
        yield WindowDetector(model.cutter, pool, KNOWN, prepare)
