# SPDX-License-Identifier: Apache-2.0
"""Instructions that somebody put into a text for the model that will read it.

This module decides how sure it is that a piece of text tries to take over a model. Two tiers speak: a small classifier
(the ONNX model of stackone-defender on our own windows), and our table of plain overrides; the surer one counts. The
classifier has learned from English: it is given a gloss of Spanish and German, and in other languages, where any text
excites it, it must be much surer to be heard. It refuses to know who is speaking, so a quoted attack is an attack, and
decodes nothing.

Each window runs alone, at its own length. The model's weights are whole numbers, and it finds their scale from all that
runs at once: with neighbours a window's score would depend on the texts of others. Nor would it be faster on one core.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.data_files import read_table
from lockgate.detectors.injection.glosses import Interpreter, load_interpreter
from lockgate.detectors.letters import make_plain
from lockgate.detectors.plain_text import Rule, RuleFile, RuleTable
from lockgate.detectors.pooling import ModelPool, open_pool
from lockgate.detectors.windows import LOOKBEHIND_CHARS, Cutter, Window, WindowReading
from lockgate.gate.values import Detection
from lockgate.interfaces import Headers, PartContext, with_context
from lockgate.models.onnx_session import load_model, open_session
from lockgate.models.weights import PROMPT_INJECTION
from lockgate.models.wordpiece import WordPieces
from lockgate.params import Params

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

RULES = read_table(Path(__file__).with_name("injection.toml"), RuleFile).build()
KNOWN = ("patterns",)
NAME, DETECTION = "prompt_injection", "PromptInjection"
WINDOW_TOKENS, OVERLAP_TOKENS = 64, 16  # about 14 ms; an attack among more plain text is seen less well
BATCH_WINDOWS = 8
TEMPERATURE = 2.41  # by which the model's makers divide its answer, so that it is a probability
MAX_TOKENS = 254
FOREIGN_LOGIT = 6.0
"""So much less does the model's answer count in languages that it cannot read: plain text excites it as much."""
MIN_LETTERS = 8  # fewer are no sentence, and the model's answer to them is arbitrary
MIN_SCORE = 0.5
"""What is less likely than not is not reported at all."""

_RUNS = re.compile(r"([^\w\s])\1{3,}")
_LETTER = re.compile(r"[^\W\d_]")


class Heard(NamedTuple):
    """What the two tiers say of one window."""

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
        self.cutter = Cutter(self._tokenize, WINDOW_TOKENS, OVERLAP_TOKENS)

    def run(self, windows: Sequence[Window]) -> list[Heard]:
        """What is heard of each window."""
        return [Heard(self._classify(window), self._rules.meet(window.text)) for window in windows]

    def _tokenize(self, word: str) -> list[int]:
        """The pieces of a word; long lines of one mark are shortened, for the model has not seen any."""
        return self._pieces.list_pieces(_RUNS.sub(r"\1\1\1", make_plain(word)))

    def _classify(self, window: Window) -> float:
        if len(_LETTER.findall(make_plain(window.text))) < MIN_LETTERS:
            return 0.0
        told = self._interpreter.tell(window.text)
        tokens = self._tokenize_all(told.text) if told.is_gloss else window.tokens
        logit = max(self._run_model(tokens[at : at + MAX_TOKENS]) for at in range(0, len(tokens) or 1, MAX_TOKENS))
        logit -= 0.0 if told.is_english else FOREIGN_LOGIT
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


def _tell(window: Window, heard: Heard, *, uses_rules: bool) -> Detection | None:
    rule = heard.rules[0] if uses_rules and heard.rules else None
    score = max(heard.model, rule.score if rule else 0.0)
    if score < MIN_SCORE:
        return None
    metadata: dict[str, Any] = {"tier": "patterns" if rule and rule.score > heard.model else "model"}
    metadata["model_score"] = round(heard.model, 4)
    if rule:
        metadata["rule"] = rule.name
    return Detection(window.start, window.end, window.text, DETECTION, NAME, round(score, 4), metadata=metadata)


class InjectionDetector:
    """Reads for injected instructions. `patterns` false leaves the classifier alone."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(self, cutter: Cutter, pool: ModelPool[Window, Heard], uses_rules: bool) -> None:
        self._cutter = cutter
        self._pool = pool
        self._uses_rules = uses_rules

    def accept(self, params: Mapping[str, Any], headers: Headers) -> WindowReading[Heard]:
        uses_rules = Params.of_request(params, KNOWN).flag("patterns", self._uses_rules)
        return WindowReading(
            self._cutter, self._pool, lambda window, heard: _tell(window, heard, uses_rules=uses_rules)
        )


@with_context
@asynccontextmanager
async def open_injection_detector(options: Mapping[str, Any], context: PartContext) -> AsyncIterator[InjectionDetector]:
    """Reports injected instructions. Options: `patterns`."""
    uses_rules = Params.of_options(options, KNOWN).flag("patterns", True)
    model = await asyncio.to_thread(load_model, context.data_dir, PROMPT_INJECTION.name, load_injection_model)
    async with open_pool(model.run, name=NAME, max_items=BATCH_WINDOWS) as pool:
        yield InjectionDetector(model.cutter, pool, uses_rules)
