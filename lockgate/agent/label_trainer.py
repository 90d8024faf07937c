# SPDX-License-Identifier: Apache-2.0
"""Trains the classifier of questions and measures it on a part of the examples that it has not seen.

The model serves the languages in which enough of its sure labels are right. All others become one class without a
label. The same file and seed give the same model.
"""

import json
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.agent.classifier import LABELS_DIR, NO_LABEL, LabelModel
from lockgate.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXAMPLES = LABELS_DIR / "queries.jsonl"
THRESHOLD = 0.85  # a guess with this confidence or more is sure
MIN_PRECISION = 0.85  # of sure guesses, in each language that the model serves
MIN_PER_LABEL = 20  # examples that a language needs of each label before it is tried
HELD_OUT = 0.2
_PENALTY, _STEPS, _DIGITS = 1e-4, 400, 5


class LabelExample(NamedTuple):
    """A question, and the label that people gave it."""

    query: str
    label: str
    language: str


class ExampleVectors(NamedTuple):
    """Examples with their vectors, row by row."""

    examples: Sequence[LabelExample]
    rows: Any  # an array


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """The results of a model on examples of one language that it had not seen."""

    language: str
    examples: int
    sure: int  # got a label with enough confidence
    right: int  # of these

    @property
    def precision(self) -> float:
        """The share of sure labels that are right; 1 where none was sure."""
        return self.right / self.sure if self.sure else 1.0

    @property
    def coverage(self) -> float:
        """The share of examples that got a sure label."""
        return self.sure / self.examples if self.examples else 0.0


class TrainingResult(NamedTuple):
    """A model and its results: per language, and per (label by people, label by the model)."""

    model: LabelModel
    figures: tuple[LabelFigures, ...]
    confusion: dict[tuple[str, str], int]


def read_examples(path: Path) -> list[LabelExample]:
    """Returns the examples of a file of JSON lines; raises ConfigError for a line that is not one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the labelled file cannot be read ({error})", source=str(path)) from error
    return [_read_example(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]


def _read_example(line: str, number: int, path: Path) -> LabelExample:
    try:
        found = json.loads(line)
        texts = [found[key] for key in LabelExample._fields]
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigError(f'line {number} is not an object with "query", "label" and "language"', source=str(path))
    return LabelExample(*texts)


def split(examples: Sequence[LabelExample], seed: int) -> tuple[list[int], list[int]]:
    """Returns the indexes to train with, and to hold out: one in five of each label and language."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault((example.language, example.label), []).append(place)
    held: set[int] = set()
    for key in sorted(groups):
        places = groups[key]
        random.Random(f"{seed} {key}").shuffle(places)  # noqa: S311 - no secret
        held.update(places[: round(len(places) * HELD_OUT)])
    return [place for place in range(len(examples)) if place not in held], sorted(held)


def train(vectors: ExampleVectors, seed: int) -> TrainingResult:
    """Trains models, each without the worst language of the last, until all are precise."""
    languages = list_candidates(vectors.examples)
    while True:
        trained = _train(vectors, seed, languages)
        served = [one for one in trained.figures if one.language in languages]
        poor = [one for one in served if not one.sure or one.precision < MIN_PRECISION]
        if not poor:
            return trained
        # One at a time: its examples may make the others worse. Of equals, the one that is last in the file.
        worst = min(reversed(poor), key=lambda one: (one.precision if one.sure else 0.0, one.coverage))
        languages = [language for language in languages if language != worst.language]


def list_candidates(examples: Iterable[LabelExample]) -> list[str]:
    """The languages with enough examples of each label."""
    counts = Counter((one.language, one.label) for one in examples)
    languages = dict.fromkeys(language for language, _ in counts)
    labels = {label for _, label in counts}
    return [one for one in languages if all(counts[one, label] >= MIN_PER_LABEL for label in labels)]


def _train(vectors: ExampleVectors, seed: int, languages: Collection[str]) -> TrainingResult:
    examples, rows = vectors
    learnt, held = split(examples, seed)
    wanted = [one.label if one.language in languages else NO_LABEL for one in examples]
    labels = tuple(sorted(set(wanted), reverse=True))
    places = [labels.index(label) for label in wanted]
    weights, bias = _fit(rows[learnt], [places[place] for place in learnt], len(labels))
    model = LabelModel(labels, weights, bias, tuple(languages), seed, len(examples))
    figures, confusion = measure(model, ExampleVectors([examples[place] for place in held], rows[held]))
    summary = {
        one.language: {
            "held_out": one.examples,
            "precision": round(one.precision, 4),
            "coverage": round(one.coverage, 4),
        }
        for one in figures
    }
    return TrainingResult(replace(model, figures=summary), figures, confusion)


def _fit(
    rows: "NDArray[Any]", places: Sequence[int], count: int
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Multinomial logistic regression with a quadratic penalty, by Nesterov's accelerated descent."""
    import numpy as np

    inputs = np.hstack([rows, np.ones((len(rows), 1))])
    wanted = np.eye(count)[list(places)]
    penalty = np.full((inputs.shape[1], 1), _PENALTY)
    penalty[-1] = 0.0  # the biases have no penalty
    step = 1.0 / (0.5 * float(np.linalg.norm(inputs, 2)) ** 2 / len(inputs) + _PENALTY)
    found = ahead = np.zeros((inputs.shape[1], count))
    pace = 1.0
    for _ in range(_STEPS):
        scores = inputs @ ahead
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        moved = ahead - step * (inputs.T @ (odds - wanted) / len(inputs) + penalty * ahead)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead = moved + (pace - 1) / faster * (moved - found)
        found, pace = moved, faster
    whole = np.round(found, _DIGITS).T.tolist()
    return tuple(tuple(row[:-1]) for row in whole), tuple(row[-1] for row in whole)


def measure(
    model: LabelModel, vectors: ExampleVectors, threshold: float = THRESHOLD
) -> tuple[tuple[LabelFigures, ...], dict[tuple[str, str], int]]:
    """A model's results per language, and the counts of (label by people, sure label by the model)."""
    counts: dict[str, list[int]] = {}
    confusion: Counter[tuple[str, str]] = Counter()
    for example, vector in zip(vectors.examples, vectors.rows.tolist(), strict=True):
        guess = model.judge(vector)
        is_sure = guess.label != NO_LABEL and guess.confidence >= threshold
        count = counts.setdefault(example.language, [0, 0, 0])
        for place, more in enumerate((True, is_sure, is_sure and guess.label == example.label)):
            count[place] += more
        if example.language in model.languages:
            confusion[example.label, guess.label if is_sure else NO_LABEL] += 1
    return tuple(LabelFigures(language, *count) for language, count in counts.items()), confusion
