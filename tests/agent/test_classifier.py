# SPDX-License-Identifier: Apache-2.0
"""The classifier that we ship: its figures on questions that it has not seen, and files that cannot be used."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockgate.agent.classifier import (
    EMBEDDER,
    NO_LABEL,
    SHIPPED_MODEL,
    Classifier,
    LabelModel,
    find_classifier,
    load_classifier,
    read_model,
    write_model,
)
from lockgate.agent.label_trainer import (
    EXAMPLES,
    MIN_PRECISION,
    ExampleVectors,
    LabelExample,
    LabelFigures,
    list_candidates,
    measure,
    read_examples,
    split,
    train,
)
from lockgate.agent.routes import choose_routes
from lockgate.cli.main import build_parser
from lockgate.errors import ConfigError, Unavailable
from lockgate.models.minilm import open_minilm

LABELS = {route.label for route in choose_routes(has_platform=True)}
PROBE = Path(__file__).parent / "label_probe.jsonl"  # written apart from the shipped file, never learnt from
SMALL = LabelModel(("A", "B", NO_LABEL), ((9.0, 0.0), (0.0, 9.0), (-9.0, -9.0)), (0.0, 0.0, 0.0), ("en",), 0, 4)

Run = Callable[..., int]


class FixedEmbedder:
    """Gives one vector for every text, or fails."""

    def __init__(self, vector: Sequence[float] | None) -> None:
        self._vector = vector

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self._vector is None:
            raise Unavailable("embedder", "busy")
        return [self._vector for _ in texts]


def embed(weights: Path, examples: Sequence[LabelExample]) -> ExampleVectors:
    async def run() -> ExampleVectors:
        async with open_minilm(weights) as embedder:
            return ExampleVectors(examples, np.array(await embedder.embed([example.query for example in examples])))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def shipped(weights_dir: Path) -> ExampleVectors:
    return embed(weights_dir, read_examples(EXAMPLES))


@pytest.fixture
def run(weights_dir: Path) -> Run:
    """Runs `lockgate classifier` with arguments."""
    classifier = SimpleNamespace(model_path=None, confidence_threshold=0.85)
    settings = SimpleNamespace(data_dir=weights_dir.parents[1], classifier=classifier)

    def call(*arguments: str) -> int:
        options = build_parser().parse_args(["classifier", *arguments])
        options.load = lambda _: settings
        code: int = options.run(options)
        return code

    return call


def test_the_shipped_file_has_enough_examples_of_each_label() -> None:
    examples = read_examples(EXAMPLES)
    least = {"en": 90, "es": 45, "de": 45}
    assert len({example.query.casefold() for example in examples}) == len(examples)
    assert {example.label for example in examples} == LABELS
    for language, count in least.items():
        for label in LABELS:
            found = sum((example.language, example.label) == (language, label) for example in examples)
            assert found >= (60 if (language, label) == ("en", "PLATFORM") else count)
    assert list_candidates(examples) == ["en", "es", "de"]


def test_precision_on_the_held_out_part_is_high_in_each_language_claimed(shipped: ExampleVectors) -> None:
    model = read_model(SHIPPED_MODEL)
    learnt, held = split(shipped.examples, model.seed)
    assert not set(learnt) & set(held)
    assert len(held) > len(shipped.examples) * 0.15
    figures = {
        one.language: one
        for one in measure(model, ExampleVectors([shipped.examples[at] for at in held], shipped.rows[held]))[0]
    }
    assert "en" in model.languages
    for language in model.languages:
        assert figures[language].precision >= MIN_PRECISION
        assert figures[language].precision == pytest.approx(model.figures[language]["precision"], abs=0.02)
        assert figures[language].coverage == pytest.approx(model.figures[language]["coverage"], abs=0.05)
    assert figures["en"].coverage > 0.6


def test_other_languages_fall_through(shipped: ExampleVectors) -> None:
    model = read_model(SHIPPED_MODEL)
    held = [at for at in split(shipped.examples, model.seed)[1] if shipped.examples[at].language not in model.languages]
    figures = measure(model, ExampleVectors([shipped.examples[at] for at in held], shipped.rows[held]))[0]
    assert sum(one.sure for one in figures) <= sum(one.examples for one in figures) * 0.1


def test_the_same_holds_for_questions_that_were_written_apart(weights_dir: Path) -> None:
    examples = read_examples(PROBE)
    assert not {one.query.casefold() for one in examples} & {one.query.casefold() for one in read_examples(EXAMPLES)}
    model = read_model(SHIPPED_MODEL)
    figures = measure(model, embed(weights_dir, examples))[0]
    for one in figures:
        if one.language in model.languages:
            assert one.precision >= MIN_PRECISION
            assert one.coverage > 0.2
        else:  # languages that training never saw
            assert one.sure == 0


def test_training_again_gives_the_shipped_model(shipped: ExampleVectors) -> None:
    model, found = read_model(SHIPPED_MODEL), train(shipped, read_model(SHIPPED_MODEL).seed).model
    assert (found.labels, found.languages, found.examples) == (model.labels, model.languages, model.examples)
    assert np.allclose(found.weights, model.weights, atol=1e-2)
    assert np.allclose(found.bias, model.bias, atol=1e-2)


def test_a_language_that_does_not_reach_the_precision_is_not_claimed() -> None:
    turn = np.random.default_rng(7)
    rows, examples = [], []
    for number in range(400):
        is_first, is_english = number % 2 == 0, number < 200
        is_told = is_first if is_english else turn.random() < 0.5  # in xx the vectors say nothing about the label
        rows.append([float(is_told), float(not is_told), float(not is_english)])
        examples.append(LabelExample(f"q{number}", "A" if is_first else "B", "en" if is_english else "xx"))
    trained = train(ExampleVectors(examples, np.array(rows)), seed=0)
    assert trained.model.languages == ("en",)
    assert NO_LABEL in trained.model.labels


def test_a_language_without_any_sure_guess_has_full_precision_and_no_coverage() -> None:
    assert (LabelFigures("en", 4, 0, 0).precision, LabelFigures("en", 4, 0, 0).coverage) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("vector", "label"),
    [((1.0, 0.0), "A"), ((0.0, 1.0), "B"), ((0.6, 0.6), None), ((-1.0, -1.0), None), ((1.0,), None), (None, None)],
)
def test_only_a_sure_guess_of_a_label_is_given(vector: Sequence[float] | None, label: str | None) -> None:
    guess = asyncio.run(Classifier(SMALL, FixedEmbedder(vector), 0.85).classify("any"))
    assert (guess.label if guess else None) == label
    assert guess is None or 0.85 <= guess.confidence <= 1


def test_a_missing_vector_is_told_once_until_there_is_one_again(caplog: pytest.LogCaptureFixture) -> None:
    embedder = FixedEmbedder(None)
    classifier = Classifier(SMALL, embedder, 0.85)
    for embedder._vector in (None, None, (1.0, 0.0), None):
        asyncio.run(classifier.classify("any"))
    assert len([one for one in caplog.records if one.name == "lockgate"]) == 2


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(write_model(SMALL), "utf-8")
    assert read_model(path) == SMALL
    assert load_classifier(path, FixedEmbedder((1.0, 0.0)), 0.85) is not None


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"embedder": "other"}, {"bias": [0.0]}, {"weights": [[1.0], [1.0, 2.0], [1.0]]}, {"labels": None},
     {"bias": [0.0, 0.0, float("nan")]}, {"labels": ["A", "A", ""]}, {"seed": "x"}, {"figures": 3}],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_a_warning(
    change: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(write_model(SMALL)) | change), "utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_classifier(path, FixedEmbedder((1.0, 0.0)), 0.85) is None
    assert len(caplog.records) == 1


def test_no_json_and_no_file_are_warnings_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"\xff{")
    with caplog.at_level(logging.WARNING):
        assert load_classifier(path, FixedEmbedder(None), 0.85) is None
        assert find_classifier(tmp_path / "none.json") is None
    assert len(caplog.records) == 2


def test_the_setting_wins_over_the_data_directory_and_that_over_the_shipped_one(tmp_path: Path) -> None:
    assert find_classifier(None, tmp_path) == SHIPPED_MODEL
    own = tmp_path / "classifier.json"
    own.touch()
    assert find_classifier(None, tmp_path) == own
    assert find_classifier(SHIPPED_MODEL, tmp_path) == SHIPPED_MODEL


def test_train_writes_a_model_and_prints_its_figures(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, out = tmp_path / "labels.jsonl", tmp_path / "new" / "classifier.json"
    lines = [line for line in EXAMPLES.read_text("utf-8").splitlines() if '"en"' in line]
    labels.write_text("\n".join(lines[::2]), "utf-8")
    assert run("train", "--labels", str(labels), "--out", str(out), "--seed", "3") == 0
    printed = capsys.readouterr().out
    assert "PRECISION" in printed
    assert "RETRIEVAL -> RETRIEVAL" in printed
    model = read_model(out)
    assert (model.seed, model.embedder) == (3, EMBEDDER)
    assert [path.name for path in out.parent.iterdir()] == ["classifier.json"]


def test_train_refuses_what_is_not_good_enough_in_english(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, out = tmp_path / "labels.jsonl", tmp_path / "classifier.json"
    lines = [{"query": f"is it {number}?", "label": "AB"[number % 7 % 2], "language": "en"} for number in range(100)]
    labels.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert run("train", "--labels", str(labels), "--out", str(out)) == 3
    assert "nothing was written" in capsys.readouterr().err
    assert not out.exists()


def test_train_names_the_line_that_is_wrong(run: Run, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"query": "a", "label": "A", "language": "en"}\n{"query": "a"}\n', "utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        run("train", "--labels", str(labels))


def test_try_shows_which_label_is_taken_and_by_whom(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("Write a function that sorts this list.", "my billing quota usage", "Quelle heure est-il ?")
    assert run("try", *texts) == 0
    printed = capsys.readouterr().out
    assert "label       CODE_GENERATION, by the classifier\n  classifier  CODE_GENERATION, 0." in printed
    assert "editor      meant" in printed
    assert f"{texts[1]}\n  label       left to the model\n  classifier  only with --platform, " in printed
    assert f"{texts[2]}\n  label       left to the model\n  classifier  another language, " in printed
    assert "PLATFORM" not in printed
    assert run("try", "--platform", texts[1]) == 0
    assert "label       PLATFORM, by the rules\n  classifier  PLATFORM, " in capsys.readouterr().out
