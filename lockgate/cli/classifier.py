# SPDX-License-Identifier: Apache-2.0
"""`lockgate classifier`: trains the classifier of questions on a labelled file, and tries it on texts."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lockgate.cli import EXIT_OK, with_settings
from lockgate.cli.text import complain, replace_file
from lockgate.errors import ConfigError

if TYPE_CHECKING:
    from lockgate.agent.label_trainer import LabelExample, TrainingResult
    from lockgate.agent.prompts import Guess
    from lockgate.config.settings import Settings
    from lockgate.interfaces import Embedder

MAIN_LANGUAGE = "en"


def run_train(options: argparse.Namespace) -> int:
    """Carries out `classifier train`."""
    from lockgate.agent.classifier import MODEL_NAME, write_model
    from lockgate.agent.label_trainer import EXAMPLES, MIN_PRECISION, read_examples

    settings = options.load(options)
    examples = read_examples(options.labels or EXAMPLES)
    if not examples:
        raise ConfigError("the labelled file is empty", source=str(options.labels))
    trained = asyncio.run(_train(settings, examples, options.seed))
    _print_figures(trained)
    if MAIN_LANGUAGE not in trained.model.languages:
        return complain(f"precision in English is below {MIN_PRECISION:g} or cannot be measured; nothing was written")
    out = options.out or settings.data_dir / MODEL_NAME
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(out, mode=0o644) as file:
            file.write(write_model(trained.model))
    except OSError as error:
        return complain(f"cannot write {out}: {error.strerror}")
    print(f"\nwritten to {out}")
    return EXIT_OK


async def _train(settings: "Settings", examples: "Sequence[LabelExample]", seed: int) -> "TrainingResult":
    import numpy as np

    from lockgate.agent.label_trainer import ExampleVectors, train

    complain(f"embedding {len(examples)} questions")
    async with _open_embedder(settings) as embedder:
        rows = np.array(await embedder.embed([example.query for example in examples]))
    complain("training")
    return await asyncio.to_thread(train, ExampleVectors(examples, rows), seed)


@asynccontextmanager
async def _open_embedder(settings: "Settings") -> AsyncIterator["Embedder"]:
    """The built-in embedder: the classifier works only with its vectors."""
    from lockgate.opened_agents import open_own_embedder

    async with open_own_embedder(settings) as embedder:
        if embedder is None:
            raise ConfigError("no weights of the embedder: run `lockgate setup`", source=str(settings.data_dir))
        yield embedder


def _print_figures(trained: "TrainingResult") -> None:
    model = trained.model
    print(f"{model.examples} questions, one in five held out; guesses with a confidence of at least 0.85\n")
    print(f"{'LANGUAGE':<10}{'HELD OUT':>9}{'PRECISION':>11}{'COVERAGE':>10}  USED")
    for one in trained.figures:
        used = "yes" if one.language in model.languages else "no"
        precision = f"{one.precision:.3f}" if one.sure else "-"
        print(f"{one.language:<10}{one.examples:>9}{precision:>11}{one.coverage:>10.3f}  {used}")
    print("\nLABEL BY PEOPLE -> BY THE CLASSIFIER, in the languages used")
    for (people, ours), count in sorted(trained.confusion.items()):
        print(f"{count:>5}  {people} -> {ours or '(left to the model)'}")


@with_settings
async def run_try(settings: "Settings", options: argparse.Namespace) -> int:
    """Carries out `classifier try`."""
    from lockgate.agent.classifier import Classifier, find_classifier, read_model
    from lockgate.agent.prompts import refers_to_editor
    from lockgate.agent.routes import choose_routes

    path = find_classifier(settings.classifier.model_path, settings.data_dir)
    if path is None:
        raise ConfigError("there is no such file", source=str(settings.classifier.model_path))
    try:
        model = read_model(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the classifier cannot be used: {error}", source=str(path)) from error
    labels = [route.label for route in choose_routes(has_platform=options.platform)]
    async with _open_embedder(settings) as embedder:
        classifier = Classifier(model, embedder, settings.classifier.confidence_threshold)
        for text in options.texts:
            guess, sure = await classifier.weigh(text), await classifier.classify(text)
            print(text)
            print(f"  label       {_name_label(text, sure, labels)}")
            named = "nothing"
            if guess is not None:
                other = "only with --platform" if guess.label else "another language"
                named = f"{guess.label if guess.label in labels else other}, {guess.confidence:.3f}"
            print(f"  classifier  {named}")
            print(f"  editor      {'meant' if refers_to_editor(text) else 'not meant'}")
    return EXIT_OK


def _name_label(text: str, sure: "Guess | None", labels: Sequence[str]) -> str:
    """The label that an agent with these labels would choose without a model."""
    from lockgate.agent.prompts import decide_by_rules

    ruled = decide_by_rules(text)
    if ruled in labels:
        return f"{ruled}, by the rules"
    if sure is not None and sure.label in labels:
        return f"{sure.label}, by the classifier"
    return "left to the model"
