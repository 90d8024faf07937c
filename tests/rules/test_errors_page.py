# SPDX-License-Identifier: Apache-2.0
"""Every exception is drawn in the tree of lockgate.errors and described in docs/errors.md."""

import ast
import html
import inspect
import re
from collections.abc import Iterator

import pytest

from lockgate import errors
from lockgate.errors import LockgateError
from tests.rules.tree import PACKAGE, ROOT, read_modules

CLASSES = [item for item in vars(errors).values() if inspect.isclass(item) and issubclass(item, LockgateError)]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def drawn_parents() -> dict[str, str]:
    """Name -> name of the parent, as the module's docstring draws them: two spaces per level."""
    above: list[str] = []
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"( *)([A-Z]\w+)(?:\([\w, ]+\))?(?: {2,}|$)", line)
        if found:
            depth = len(found[1]) // 2
            above[depth:] = [found[2]]
            parents[found[2]] = above[depth - 1] if depth else "Exception"
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn_parents() == {one.__name__: one.__base__.__name__ for one in CLASSES if one.__base__}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_exception_is_on_the_page_with_its_status(error: type[LockgateError]) -> None:
    row = re.search(rf"^\| +`{error.__name__}` +\| ([^|]+) \|", PAGE, re.MULTILINE)
    assert row, f"{error.__name__} is not in docs/errors.md"
    is_leaf = not any(other.__base__ is error for other in CLASSES)
    if is_leaf and "at start" not in row[1]:
        assert str(error.status) in row[1]


def test_the_page_names_no_exception_that_does_not_exist() -> None:
    named = re.findall(r"^\| +`([A-Z]\w+)` +\|", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(one.__name__ for one in CLASSES)


def spoken_words() -> Iterator[str]:
    """The fixed words of every error that is raised with a text of its own where callers can read it."""
    names = {one.__name__ for one in CLASSES if issubclass(one, errors.RequestError | errors.OverloadedError)}
    for module in read_modules(PACKAGE):
        if module.folder not in ("server", "api", "guard", "rag", "agent", "gate", "sessions", "config"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                parts = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
                yield from (part for part in parts if isinstance(part, str) and len(part) > 3)


def test_every_text_that_a_caller_can_read_is_on_the_page() -> None:
    words = set(spoken_words())
    plain = html.unescape(PAGE).replace("\\`", "`").replace("*", "")
    assert "`content` cannot be empty" in words
    assert sorted(part for part in words if part.strip("`: ") not in plain) == []
