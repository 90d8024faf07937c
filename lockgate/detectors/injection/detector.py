# SPDX-License-Identifier: Apache-2.0
"""Reports instructions in a text to the model that will read it.

The higher of two scores counts: of a small English classifier and of a table of rules. Spanish and German text is
translated word by word for the classifier; in other languages its score must be much higher.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.data_files import read_table, split_words
from lockgate.detectors.language import LanguageModel, load_language_model, read_prose
from lockgate.detectors.letters import make_plain
from lockgate.detectors.plain_text import Rule, RuleFile, RuleTable, TextNormaliser
from lockgate.detectors.windows import BuildFinding, TokenCutter, Window, WindowDetector, open_pool
from lockgate.gate.values import Detection
from lockgate.interfaces import PartContext, with_context
from lockgate.models.onnx_session import load_model, open_session
from lockgate.models.weights import PROMPT_INJECTION
from lockgate.models.wordpiece import WordPieces
from lockgate.params import Params

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


# --- Glosses --------------------------------------------------------------------------------------------------

ENGLISH = "en"
LANGUAGES = ("es", "de")
MIN_COVER = 0.5
"""From this share of known words a table is used although the language model guessed otherwise."""
MIN_STEM = 3

_FOLDER = Path(__file__).parent / "gloss_words"
# No words in names of hosts and files: none next to a sign that occurs in those.
_WORD = re.compile(r"(?<![\w./@:#-])[a-z]+(?:-[a-z]+)*(?![\w/@]|[.:][\w/])")
_UMLAUT_AS_TWO = re.compile(r"([aou])e")


class InjectionFile(RuleFile, frozen=True):
    """The word lists and rules of the detector."""

    english: str
    homographs: str


_FILE = read_table(Path(__file__).with_name("injection.toml"), InjectionFile)


class TranslatedText(NamedTuple):
    """A text for the English classifier. `is_english`: it is English or was translated."""

    text: str
    is_english: bool
    is_gloss: bool = False


class Gloss:
    """The word table of one language."""

    def __init__(self, lines: str) -> None:
        self._words: dict[str, str] = {}
        self._stems: dict[str, str] = {}
        self._homographs = split_words(_FILE.homographs)
        phrases: dict[str, str] = {}
        for line in lines.splitlines():
            if line and not line.startswith("#"):
                english, _, forms = line.partition(" = ")
                for form in forms.split(", "):
                    kept = self._stems if form.endswith("*") else phrases if " " in form else self._words
                    kept.setdefault(form.removesuffix("*"), english)
        self._phrases: Mapping[str, str] = phrases
        longest_first = sorted(phrases, key=len, reverse=True)
        self._phrase = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")

    def find(self, word: str) -> str | None:
        """Returns the English of a word, or None."""
        found = self._find(word)
        return found if found is not None or "e" not in word else self._find(_UMLAUT_AS_TWO.sub(r"\1", word))

    def _find(self, word: str) -> str | None:
        if word in self._words:
            return self._words[word]
        ends = range(len(word), MIN_STEM - 1, -1)
        return next((self._stems[word[:end]] for end in ends if word[:end] in self._stems), None)

    def render(self, plain: str) -> str:
        """Replaces the known words of a plain text by English ones."""
        # Translated phrases are in capitals, so that their words are not translated again.
        marked = self._phrase.sub(lambda match: self._phrases[match[0]].upper(), plain)
        return _WORD.sub(lambda match: self.find(match[0]) or match[0], marked).lower()

    def cover(self, words: list[str]) -> float:
        """Returns the share of known words; those that English has too do not count."""
        own = [word for word in words if word not in self._homographs]
        return sum(self.find(word) not in (None, word) for word in own) / max(1, len(own))


class Interpreter:
    """Translates texts for an English classifier."""

    def __init__(self, languages: LanguageModel, glosses: Mapping[str, Gloss]) -> None:
        self._languages = languages
        self._glosses = glosses
        self._small_english = split_words(_FILE.english)
        self._plain = TextNormaliser()

    def translate(self, text: str) -> TranslatedText:
        """Translates a text of a language with a table; returns any other text unchanged."""
        plain = self._plain.fold(text).decode()
        language = self._guess(text, plain)
        if language in self._glosses:
            return TranslatedText(self._glosses[language].render(plain), is_english=True, is_gloss=True)
        return TranslatedText(text, language == ENGLISH)

    def _guess(self, text: str, plain: str) -> str:
        prose = read_prose(text)
        language = self._languages.guess(prose)[0] if prose else ""
        if language == ENGLISH or language in self._glosses:
            return language
        words = _WORD.findall(plain)
        covers = {name: gloss.cover(words) for name, gloss in self._glosses.items()}
        best = max(covers, key=covers.__getitem__)
        english = sum(word in self._small_english for word in words) / max(1, len(words))
        if covers[best] >= MIN_COVER and covers[best] > english:
            return best
        return language or ENGLISH


def load_interpreter() -> Interpreter:
    """Reads the tables and the language model; raises ConfigError if the latter is not installed."""
    glosses = {name: Gloss((_FOLDER / f"{name}.txt").read_text(encoding="utf-8")) for name in LANGUAGES}
    return Interpreter(load_language_model(), glosses)


# --- The detector ---------------------------------------------------------------------------------------------

RULES = _FILE.build()
KNOWN = ("patterns",)
NAME, DETECTION = "prompt_injection", "PromptInjection"
WINDOW_TOKENS, OVERLAP_TOKENS = 64, 16  # about 14 ms; in larger windows attacks are found less often
BATCH_WINDOWS = 8
TEMPERATURE = 2.41  # the model's authors divide its logit by this to get a probability
MAX_TOKENS = 254
FOREIGN_LOGIT = 6.0
"""Subtracted for languages that the model cannot read: harmless text gets logits as high as this."""
MIN_LETTERS = 8  # for shorter texts the model's answer is arbitrary
MIN_SCORE = 0.5
"""A lower score is not reported."""

_RUNS = re.compile(r"([^\w\s])\1{3,}")
_LETTER = re.compile(r"[^\W\d_]")


class InjectionScores(NamedTuple):
    """The classifier's score of one window, and the rules that matched."""

    model: float
    rules: Sequence[Rule]


class InjectionModel:
    """The classifier and the table, for one thread at a time."""

    def __init__(self, pieces: WordPieces, session: "InferenceSession", interpreter: Interpreter) -> None:
        self._pieces = pieces
        self._session = session
        self._interpreter = interpreter
        self._first, self._last = pieces.ids["[CLS]"], pieces.ids["[SEP]"]
        self._rules = RuleTable(RULES)
        self.cutter = TokenCutter(self._tokenize, WINDOW_TOKENS, OVERLAP_TOKENS)

    def run(self, windows: Sequence[Window]) -> list[InjectionScores]:
        """Scores each window alone, as the quantized model's scale depends on the others of a batch."""
        return [InjectionScores(self._classify(window), self._rules.meet(window.text)) for window in windows]

    def _tokenize(self, word: str) -> list[int]:
        """Returns the tokens of a word; shortens long runs of one sign, which the model does not know."""
        return self._pieces.list_pieces(_RUNS.sub(r"\1\1\1", make_plain(word)))

    def _classify(self, window: Window) -> float:
        if len(_LETTER.findall(make_plain(window.text))) < MIN_LETTERS:
            return 0.0
        translated = self._interpreter.translate(window.text)
        tokens = self._tokenize_all(translated.text) if translated.is_gloss else window.tokens
        logit = max(self._run_model(tokens[at : at + MAX_TOKENS]) for at in range(0, len(tokens) or 1, MAX_TOKENS))
        logit -= 0.0 if translated.is_english else FOREIGN_LOGIT
        return 1.0 / (1.0 + math.exp(-logit / TEMPERATURE))

    def _run_model(self, tokens: Sequence[int]) -> float:
        import numpy as np

        ids = np.array([[self._first, *tokens, self._last]], np.int64)
        (logits,) = self._session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return float(logits[0][0])

    def _tokenize_all(self, text: str) -> list[int]:
        return [token for word in text.split() for token in self._tokenize(word)]


def load_injection_model(weights: Path) -> InjectionModel:
    """Reads the weight files of a folder."""
    vocabulary = json.loads((weights / "tokenizer.json").read_bytes())["model"]["vocab"]
    pieces = WordPieces(sorted(vocabulary, key=vocabulary.__getitem__))
    return InjectionModel(pieces, open_session(weights / "model_quantized.onnx", weights), load_interpreter())


def _build_finding(window: Window, scores: InjectionScores, *, uses_rules: bool) -> Detection | None:
    rule = scores.rules[0] if uses_rules and scores.rules else None
    score = max(scores.model, rule.score if rule else 0.0)
    if score < MIN_SCORE:
        return None
    metadata: dict[str, Any] = {"tier": "patterns" if rule and rule.score > scores.model else "model"}
    metadata["model_score"] = round(scores.model, 4)
    if rule:
        metadata["rule"] = rule.name
    return Detection(window.start, window.end, window.text, DETECTION, NAME, round(score, 4), metadata=metadata)


@with_context
@asynccontextmanager
async def open_injection_detector(
    options: Mapping[str, Any], context: PartContext
) -> AsyncIterator[WindowDetector[InjectionScores]]:
    """Reports injected instructions. Options: `patterns`; false turns the rules off."""
    default = Params.of_options(options, KNOWN).flag("patterns", True)
    model = await asyncio.to_thread(load_model, context.data_dir, PROMPT_INJECTION.name, load_injection_model)

    def prepare(params: Params) -> BuildFinding[InjectionScores]:
        return partial(_build_finding, uses_rules=params.flag("patterns", default))

    async with open_pool(model.run, name=NAME, max_items=BATCH_WINDOWS) as pool:
        yield WindowDetector(model.cutter, pool, KNOWN, prepare)
