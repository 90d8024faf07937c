# SPDX-License-Identifier: Apache-2.0
"""Labels questions in languages where a logistic regression is precise enough."""

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
MODEL_NAME = "classifier.json"  # of a model that the operator trained, in the data directory
EMBEDDER = "all-MiniLM-L6-v2"  # the classifier needs vectors of this model
NO_LABEL = ""  # the class of questions in all other languages
MAX_QUESTION_CHARS = 4_000
MAX_MODEL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LabelModel:
    """A trained model: one row of weights and one bias per label, and its measured figures."""

    labels: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]
    languages: tuple[str, ...]  # in which it was precise enough
    seed: int  # of the split, to repeat it
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
    """Labels questions if it is sure enough."""

    def __init__(self, model: LabelModel, embedder: Embedder, threshold: float) -> None:
        self._model = model
        self._embedder = embedder
        self._threshold = threshold
        self._warned = ""

    async def classify(self, question: str) -> Guess | None:
        """Returns the label; None if it is not sure enough, for another language, or without a vector."""
        guess = await self.weigh(question)
        if guess is None or guess.label == NO_LABEL or guess.confidence < self._threshold:
            return None
        return guess

    async def weigh(self, question: str) -> Guess | None:
        """Returns the likeliest label, sure or not; None if there is no usable vector."""
        try:
            (vector,) = await self._embedder.embed([question[:MAX_QUESTION_CHARS]])
        except LockgateError:
            self._warn("the embedder gave no vector; questions are classified by the model")
            return None
        if len(vector) != len(self._model.weights[0]):
            self._warn("the embedder is not the one that the classifier was trained with; it is not used")
            return None
        self._warned = ""
        return self._model.judge(vector)

    def _warn(self, reason: str) -> None:
        """Logs a reason once, until the classifier works again."""
        if self._warned != reason:
            self._warned = reason
            log_event(LogEvent.WARNING, logging.WARNING, reason=reason)


def find_classifier(model_path: Path | None, data_dir: Path | None = None) -> Path | None:
    """Returns the configured file, None if it is missing; else the one in the data directory, else the shipped one."""
    if model_path is not None:
        if model_path.is_file():
            return model_path
        reason = f"no classifier at {model_path}; questions are classified by rules and by the model"
        log_event(LogEvent.WARNING, logging.WARNING, reason=reason)
        return None
    own = data_dir / MODEL_NAME if data_dir is not None else None
    return own if own is not None and own.is_file() else SHIPPED_MODEL


def load_classifier(path: Path, embedder: Embedder, threshold: float) -> Classifier | None:
    """Loads the classifier of a file; returns None, with a warning, if the file cannot be used."""
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
    """Reads the model of a file; raises OSError or ValueError."""
    with path.open("rb") as file:
        raw = file.read(MAX_MODEL_BYTES + 1)
    if len(raw) > MAX_MODEL_BYTES:
        raise ValueError("it is too large")
    try:
        model = msgspec.json.decode(raw, type=LabelModel)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError("it is not a classifier file") from error
    _check(model)
    return model


def _check(model: LabelModel) -> None:
    if model.version != 1:
        raise ValueError("its version is not 1")
    if model.embedder != EMBEDDER:
        raise ValueError(f"it was trained with another embedder than {EMBEDDER}")
    widths = {len(row) for row in model.weights}
    is_whole = len(model.labels) == len(model.weights) == len(model.bias) > 1 and len(widths) == 1 and widths != {0}
    if not is_whole or len(set(model.labels)) != len(model.labels):
        raise ValueError("its labels, weights and biases do not match")
    if not all(map(math.isfinite, (*model.bias, *(weight for row in model.weights for weight in row)))):
        raise ValueError("a weight or bias is not finite")


def write_model(model: LabelModel) -> str:
    """The text of a model's file."""
    return json.dumps(asdict(model), ensure_ascii=False) + "\n"
