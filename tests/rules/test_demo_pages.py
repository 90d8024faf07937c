# SPDX-License-Identifier: Apache-2.0
"""What the pages about the demo, the playground and the model that runs here tell in tables is what there is."""

import argparse
import re
from pathlib import Path

import yaml

from lockgate.api.aggregator.trace_format import encode_note
from lockgate.cli.main import build_parser
from lockgate.models.llamacpp import OPTIONS
from lockgate.rag.sources import Retrieval, Status
from lockgate.rag.trace import FrontierNote, HeldNote, ReleaseNote, SourceNote
from tests.rules.tree import PACKAGE, ROOT

MAX_PICTURE_BYTES = 300_000


def read_column(page: str, heading: str, column: int = 0) -> list[str]:
    """A column of the first table behind a heading."""
    part = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.+\n)+)", part, re.MULTILINE)
    assert table, heading
    return [row.split(" | ")[column].strip("| ") for row in table[1].splitlines()]


def test_every_option_of_the_model_is_on_its_page() -> None:
    assert [one.strip("`") for one in read_column("embedded-model.md", "## Options")] == list(OPTIONS)


def test_the_questions_of_the_demo_are_on_its_page() -> None:
    samples = yaml.safe_load((PACKAGE / "demo" / "samples.yaml").read_text(encoding="utf-8"))["samples"]
    told = zip(
        read_column("demo.md", "## Questions to ask"), read_column("demo.md", "## Questions to ask", 1), strict=True
    )
    assert list(told) == [(one["question"], f"`{one['policy']}`") for one in samples]


def test_every_option_of_ask_is_on_the_page_of_the_demo() -> None:
    commands = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    flags = {flag for action in commands.choices["ask"]._actions for flag in action.option_strings}
    told = set(re.findall(r"`(--?[a-z-]+)", " ".join(read_column("demo.md", "## In the terminal"))))
    everywhere = {"-h", "--help", "--config-path", "--compat", "--data-dir", "--detector"}
    assert told == flags - everywhere


def test_every_kind_of_event_of_the_trace_is_on_its_page() -> None:
    came = SourceNote(0.0, Retrieval("hours", Status.SUCCESS))
    notes = (came, HeldNote(0.0, 0, "x"), FrontierNote(0.0, {}, 1), ReleaseNote(0.0, 0, 1, 0.0, "released", 1, ()))
    kinds = [re.search(rb'"kind":"(\w+)"', encode_note(note)) for note in notes]
    told = [one.strip("`") for one in read_column("playground.md", "## The trace")]
    assert told == [found[1].decode() for found in kinds if found]


def test_pictures_are_small() -> None:
    pictures: list[Path] = list((ROOT / "docs" / "images").glob("*.png"))
    assert pictures
    assert [one.name for one in pictures if one.stat().st_size > MAX_PICTURE_BYTES] == []
