# SPDX-License-Identifier: Apache-2.0
"""A module, file or folder of ours that a page, a docstring or a comment names exists."""

import ast
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.rules.tree import PACKAGE, ROOT, read_modules, read_texts

MODULE = re.compile(r"(?<![/\w.-])lockgate(?:\.[A-Za-z_]\w*)+")
MADE = "benchmarks/results/"  # by our commands, not tracked
FILE = re.compile(r"(?<![/\w.~$-])(?:lockgate|tests|benchmarks|scripts)/\w[\w/]*(?:\.\w+)?")
SHORT_FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
OTHERS = frozenset({"lockgate.example.org", "lockgate.agent.label"})  # a host, an attribute of spans

MODULES = {module.name: module for module in read_modules(PACKAGE)}
GROUPS = {group for group in entry_points().groups if group.startswith("lockgate.")}


def is_read(name: str) -> bool:
    """Pages, and the modules of the package and its tools. The changelog tells of former versions."""
    if name == "CHANGELOG.md" or "conformance" in name or name.startswith("tests/"):
        return False
    return name.endswith((".md", ".py"))


def list_names(module: str) -> set[str]:
    """What a module defines or imports at its top level."""
    names: set[str] = set()
    for node in MODULES[module].tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names


def is_known(name: str) -> bool:
    """Whether a dotted name is a module, something in one, a plugin group, or a word that the code writes as it is."""
    if name in MODULES or name in GROUPS or name in OTHERS:
        return True
    inner = name.split(".")
    for size in range(len(inner) - 1, 1, -1):
        module = ".".join(inner[:size])
        if module in MODULES and inner[size] in list_names(module):
            return True
    return any(f'"{name}"' in module.source for module in MODULES.values())


def find_lost(text: str) -> Iterator[str]:
    """The modules and files that a text names and that do not exist."""
    yield from (name for name in MODULE.findall(text) if not is_known(name))
    yield from (name for name in FILE.findall(text) if not name.startswith(MADE) and not _exists(ROOT / name))
    short = [name for name in SHORT_FILE.findall(text) if not FILE.fullmatch(name)]
    yield from (name for name in short if not _exists(PACKAGE / name) and not _exists(ROOT / name))


def _exists(path: Path) -> bool:
    return path.exists() or path.with_name(f"{path.name}.py").exists()


def test_every_module_and_file_that_a_page_or_docstring_names_exists() -> None:
    lost = [f"{name}: {one}" for name, text in read_texts() if is_read(name) for one in find_lost(text)]
    assert lost == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("see `lockgate/pipelines/answer.py`", ["lockgate/pipelines/answer.py"]),
        ("from lockgate.core.masks import x", ["lockgate.core.masks"]),
        ("lockgate.testing.NoSuchFake", ["lockgate.testing.NoSuchFake"]),
        ("decided in `server/http/errors.py`", ["server/http/errors.py"]),
        ("run pytest tests/core now", ["tests/core"]),
    ],
)
def test_a_name_of_something_that_is_gone_is_found(text: str, lost: list[str]) -> None:
    assert list(find_lost(text)) == lost


@pytest.mark.parametrize(
    "text",
    [
        "`lockgate/gate`, `lockgate/gate/release.py`, lockgate/gate/release",
        "from lockgate.gate.release import ReleaseGate; lockgate.gate.release.ReleaseGate.clear",
        "the group `lockgate.data_sources`",
        "~/.local/share/lockgate/index.db and .lockgate/weights/x",
        "`gate/release.py`, `tests/rules/tree.py`",
        "lockgate serve; lockgate. Then",
    ],
)
def test_names_of_what_exists_are_no_faults(text: str) -> None:
    assert list(find_lost(text)) == []
