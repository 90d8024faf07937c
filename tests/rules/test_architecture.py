# SPDX-License-Identifier: Apache-2.0
"""The architecture page lists folders and modules in the layers of the import rules, with their docstrings."""

import ast
from pathlib import Path

from tests.rules.test_imports import GROUPS, LAYERS, NEVER, PURE
from tests.rules.tree import PACKAGE, ROOT

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- folders: begin -->\n", "<!-- folders: end -->"


def list_parts(package: Path) -> set[str]:
    """The folders and top-level modules of a package."""
    return {path.stem for path in package.glob("*.py")} - {"__init__"} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }


def summarize(package: Path, part: str) -> str:
    """The first paragraph of a part's docstring, in one line."""
    path = package / part / "__init__.py" if (package / part).is_dir() else package / f"{part}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, f"{part} has no docstring"
    return " ".join(docstring.split("\n\n")[0].split())


def render_table(package: Path) -> str:
    """The table of the page: a part in each row, from the top layer to the bottom."""
    rows = ["| Layer | Part | Content |", "|---|---|---|"]
    for number, layer in enumerate(LAYERS, 1):
        for part in sorted(layer):
            name = f"`{part}/`" if (package / part).is_dir() else f"`{part}.py`"
            rows.append(f"| {number} | {name} | {summarize(package, part)} |")
    return "\n".join(rows) + "\n"


def test_every_part_of_the_package_has_a_layer() -> None:
    assert list_parts(PACKAGE) == set().union(*LAYERS)


def test_the_page_has_the_table_of_layers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0] == render_table(PACKAGE)


def test_the_page_names_the_exceptions_that_the_import_rules_have() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [LAYERS.index(group) for group in GROUPS] == [2]
    assert "Parts of layer 3 may import each other" in page
    services = ", ".join(f"`{name}`" for name in sorted(NEVER["guard"]))
    assert set(NEVER) == {"guard", "rag", "agent"}
    assert set(NEVER.values()) == {NEVER["guard"]}
    assert f"`guard`, `rag` and `agent` never import {services}" in " ".join(page.split())
    assert all(f"`{name}`" in page for name in PURE)


def test_every_path_on_the_page_exists() -> None:
    words = PAGE.read_text(encoding="utf-8").split("`")[1::2]
    paths = [word for word in words if "/" in word and word.endswith((".py", ".md", ".toml", "/")) and " " not in word]
    assert len(paths) > 10
    assert [path for path in paths if not any((root / path).exists() for root in (ROOT, PACKAGE))] == []
