# SPDX-License-Identifier: Apache-2.0
"""The label of a question by its meaning: an embedding and a logistic regression, about a millisecond beside it.

A question in a language that the model was not found good at gets none.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import mul
from pathlib import Path
from typing import Any

import msgspec

from lockgate.agent.prompts import Guess
from lockgate.errors import LockgateError
from lockgate.interfaces import Embedder
from lockgate.telemetry import LogEvent, log_event

LABELS_DIR = Path(__file__).parent / "label_data"
SHIPPED_MODEL = LABELS_DIR / "classifier.json"
MODEL_NAME = "classifier.json"  # of a model of one's own, in the data directory
EMBEDDER = "all-MiniLM-L6-v2"  # vectors of another one mean something else
NO_LABEL = ""  # the class of questions in all other languages
MAX_QUESTION_CHARS = 4_000
MAX_MODEL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LabelModel:
    """A trained model: one row of weights and one bias per label, and what it was measured to do."""

    labels: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]
    languages: tuple[str, ...]  # in which it was found good enough
    seed: int  # of the split: the held-out part can be made again from it
    examples: int
    figures: dict[str, Any] = field(default_factory=dict)
    embedder: str = EMBEDDER
    version: int = 1

    def judge(self, vector: Sequence[float]) -> Guess:
        """The likeliest label of a vector and its probability."""
        scores = [sum(map(mul, row, vector)) + bias for row, bias in zip(self.weights, self.bias, strict=True)]
        best = max(range(len(scores)), key=scores.__getitem__)
        return Guess(self.labels[best], 1 / sum(math.exp(score - scores[best]) for score in scores))


class Classifier:
    """Guesses labels, where it is sure."""

    def __init__(self, model: LabelModel, embedder: Embedder, threshold: float) -> None:
        self._model = model
        self._embedder = embedder
        self._threshold = threshold
        self._told = ""

    async def classify(self, question: str) -> Guess | None:
        """The label if it is sure enough; none if not, for another language, or while there is no vector."""
        guess = await self.weigh(question)
        if guess is None or guess.label == NO_LABEL or guess.confidence < self._threshold:
            return None
        return guess

    async def weigh(self, question: str) -> Guess | None:
        """The likeliest label, sure or not; none if no vector can be had of the question."""
        try:
            (vector,) = await self._embedder.embed([question[:MAX_QUESTION_CHARS]])
        except LockgateError:
            self._warn("the embedder gave no vector; questions are classified by the model")
            return None
        if len(vector) != len(self._model.weights[0]):
            self._warn("the embedder is not the one that the classifier was trained with; it is not used")
            return None
        self._told = ""
        return self._model.judge(vector)

    def _warn(self, reason: str) -> None:
        """Once, until it works again."""
        if self._told != reason:
            self._told = reason
            log_event(LogEvent.WARNING, logging.WARNING, reason=reason)


def find_classifier(model_path: Path | None, data_dir: Path | None = None) -> Path | None:
    """The file that counts: the one of the settings, else one's own in the data directory, else the one shipped."""
    if model_path is not None:
        if model_path.is_file():
            return model_path
        reason = f"no classifier at {model_path}; questions are classified by rules and by the model"
        log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
        return None
    own = data_dir / MODEL_NAME if data_dir is not None else None
    return own if own is not None and own.is_file() else SHIPPED_MODEL


def load_classifier(path: Path, embedder: Embedder, threshold: float) -> Classifier | None:
    """The classifier of a file; none, with a warning, if the file cannot be used."""
    try:
        model = read_model(path)
    except (OSError, ValueError) as error:
        reason = (
            f"the classifier at {path} cannot be used ({error}); questions are classified by rules and by the model"
        )
        log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
        return None
    return Classifier(model, embedder, threshold)


def read_model(path: Path) -> LabelModel:
    """The model of a file; raises OSError or ValueError."""
    with path.open("rb") as file:
        raw = file.read(MAX_MODEL_BYTES + 1)
    if len(raw) > MAX_MODEL_BYTES:
        raise ValueError("it is too large")
    try:
        model = msgspec.json.decode(raw, type=LabelModel)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError("it is no classifier") from error
    _check(model)
    return model


def _check(model: LabelModel) -> None:
    if model.version != 1:
        raise ValueError("it is of another version")
    if model.embedder != EMBEDDER:
        raise ValueError(f"it was trained with another embedder than {EMBEDDER}")
    widths = {len(row) for row in model.weights}
    is_whole = len(model.labels) == len(model.weights) == len(model.bias) > 1 and len(widths) == 1 and widths != {0}
    if not is_whole or len(set(model.labels)) != len(model.labels):
        raise ValueError("its parts do not fit together")
    if not all(map(math.isfinite, (*model.bias, *(weight for row in model.weights for weight in row)))):
        raise ValueError("its numbers are no numbers")


def write_model(model: LabelModel) -> str:
    """The text of a model's file."""
    return json.dumps(asdict(model), ensure_ascii=False) + "\n"
