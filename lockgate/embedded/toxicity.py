# SPDX-License-Identifier: Apache-2.0
"""Insults, threats, obscenity and hatred.

This module decides how toxic a piece of text is, and in which way. Two tiers speak: a small classifier of English
comments (the weights of toxic-comment-classifier), where a text is English enough, and our table of phrases, in Spanish
and German above all; for each label the surer one counts. It refuses to know whether a text means what it says, quotes
it, or tells of it.

Windows of all streams run together; every text has the same length for the model, so that its score does not depend on
its neighbours.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.core.values import Detection
from lockgate.embedded.onnx_session import load_model, open_session
from lockgate.embedded.plain_text import Rule, RuleTable
from lockgate.embedded.pooling import ModelPool, open_pool
from lockgate.embedded.scanning import Params
from lockgate.embedded.toxicity_graph import FILE_NAME, LABELS, SIGNATURE, WORDS, build_graph
from lockgate.embedded.toxicity_rules import RULES
from lockgate.embedded.toxicity_words import KnownWords, load_words
from lockgate.embedded.weights import TOXICITY
from lockgate.embedded.windows import LOOKBEHIND_CHARS, Cutter, Window, WindowReading
from lockgate.interfaces import Headers, House, in_house

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

KNOWN = ("labels", "patterns")
NAME, TOXIC = "toxicity", "toxic"
MODEL_WORDS = 100  # what the model reads, always; before a shorter text stands nothing
WINDOW_WORDS, OVERLAP_WORDS = 60, 15
BATCH_WINDOWS = 32
MIN_SCORE = 0.5
"""What is less likely than not is not reported at all."""

Scores = Mapping[str, float]
NO_SCORES: Scores = dict.fromkeys(LABELS, 0.0)


class Heard(NamedTuple):
    """What the two tiers say of one window: the classifier's scores, and the phrases that were met."""

    model: Scores
    rules: Sequence[Rule]


class ToxicityModel:
    """The classifier and the table, for one thread at a time."""

    def __init__(self, words: KnownWords, session: "InferenceSession") -> None:
        self._words = words
        self._session = session
        self._rules = RuleTable(RULES)
        self.cutter = Cutter(words.tokenize, WINDOW_WORDS, OVERLAP_WORDS)

    def run(self, windows: Sequence[Window]) -> list[Heard]:
        """What is heard of each window."""
        rows = [self._read(window) for window in windows]
        scores = iter(self._classify([row for row in rows if row]))
        return [
            Heard(next(scores) if row else NO_SCORES, self._rules.meet(window.text))
            for window, row in zip(windows, rows, strict=True)
        ]

    def _read(self, window: Window) -> list[int]:
        """The words that the model knows of a window; none if it cannot read it."""
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
    return ToxicityModel(words, open_session(build_graph(), weights))


class Asked(NamedTuple):
    """What a request wants to hear of."""

    labels: tuple[str, ...]
    uses_rules: bool

    def tell(self, window: Window, heard: Heard) -> Detection | None:
        """The strongest label of a window, and all others beside it."""
        rules = heard.rules if self.uses_rules else ()
        scores = dict(heard.model)
        for rule in rules:
            for label in (rule.label, TOXIC):  # whatever a phrase is, it is toxic
                scores[label] = max(scores[label], rule.score)
        telling_first = sorted(self.labels, key=TOXIC.__eq__)
        label = max(telling_first, key=scores.__getitem__)  # of equals the first
        if scores[label] < MIN_SCORE:
            return None
        met = next((rule.name for rule in rules if label in (rule.label, TOXIC)), "")
        metadata: dict[str, Any] = {"tier": "patterns" if scores[label] > heard.model[label] else "model"}
        metadata |= {"rule": met} if met else {}
        metadata["scores"] = {name: round(score, 4) for name, score in scores.items()}
        score = metadata["scores"][label]
        return Detection(window.start, window.end, window.text, label, NAME, score, metadata=metadata)


class ToxicityDetector:
    """Reads for toxic text. `labels` says which kinds are reported, `patterns` false leaves the classifier alone."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(self, cutter: Cutter, pool: ModelPool[Window, Heard], default: Asked) -> None:
        self._cutter = cutter
        self._pool = pool
        self._default = default

    def accept(self, params: Mapping[str, Any], headers: Headers) -> WindowReading[Heard]:
        asked = _read_asked(Params.of_request(params, KNOWN), self._default)
        return WindowReading(self._cutter, self._pool, asked.tell)


def _read_asked(params: Params, default: Asked) -> Asked:
    return Asked(params.choices("labels", LABELS) or default.labels, params.flag("patterns", default.uses_rules))


@in_house
@asynccontextmanager
async def open_toxicity_detector(options: Mapping[str, Any], house: House) -> AsyncIterator[ToxicityDetector]:
    """Reports toxic text. Options: `labels`, `patterns`."""
    default = _read_asked(Params.of_options(options, KNOWN), Asked(LABELS, uses_rules=True))
    model = await asyncio.to_thread(load_model, house.data_dir, TOXICITY.name, load_toxicity_model)
    async with open_pool(model.run, name=NAME, max_items=BATCH_WINDOWS) as pool:
        yield ToxicityDetector(model.cutter, pool, default)
