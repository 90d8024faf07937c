# SPDX-License-Identifier: Apache-2.0
"""What pyproject registers can be loaded, is a factory, and stands in the docs."""

import inspect
import tomllib
from contextlib import AbstractAsyncContextManager
from importlib.metadata import EntryPoint

import pytest

from lockgate.config.settings import PART_GROUPS
from lockgate.interfaces import ContextFactory
from tests.rules.tree import ROOT

GROUPS = (*PART_GROUPS.values(), "lockgate.sessions")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PARTS = [EntryPoint(name, value, group) for group, of in PROJECT["entry-points"].items() for name, value in of.items()]
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.group}-{part.name}")
def test_every_part_is_a_factory_and_is_documented(part: EntryPoint) -> None:
    factory = part.load()
    takes_context = isinstance(factory, ContextFactory)
    assert len(inspect.signature(factory).parameters) == (2 if takes_context else 1)
    assert isinstance(factory({}, None) if takes_context else factory({}), AbstractAsyncContextManager)
    assert f"`{part.name}`" in PAGES


def test_every_group_is_known_and_documented() -> None:
    assert set(PROJECT["entry-points"]) <= set(GROUPS)
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert [group for group in GROUPS if f"`{group}`" not in page] == []


def test_every_command_can_be_loaded() -> None:
    for name, value in PROJECT["scripts"].items():
        assert callable(EntryPoint(name, value, "console_scripts").load())
