# SPDX-License-Identifier: Apache-2.0
"""Modules introduce themselves, public names are explained, interfaces and files stay small."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.rules.tree import PACKAGE, ROOT, Module, read_modules

LICENCE_LINE = "# SPDX-License-Identifier: Apache-2.0"
EXPLAINED_FOLDERS = frozenset({"agent", "errors", "gate", "guard", "interfaces", "plugins", "rag", "testing"})
MAX_LINES = 500
MAX_SWITCHED_OFF = 20
MAX_METHODS = 4
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

MODULES = read_modules(PACKAGE)


def is_public(name: str) -> bool:
    return not name.startswith("_")


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public classes and functions, and the public methods of public classes."""
    for node in body:
        if isinstance(node, Definition) and is_public(node.name):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


def read_all(module: Module) -> list[str] | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def test_every_python_file_begins_with_the_licence() -> None:
    bare = [
        path.relative_to(ROOT).as_posix()
        for path in list_python()
        if (text := path.read_text(encoding="utf-8"))
        and LICENCE_LINE not in text.splitlines()[: 2 if text.startswith("#!") else 1]
    ]
    assert bare == []


def test_every_module_says_what_it_is() -> None:
    silent = [module.name for module in MODULES if module.tree.body and not ast.get_docstring(module.tree)]
    assert silent == []


def test_lists_of_public_names_are_sorted_and_true() -> None:
    for module in MODULES:
        names = read_all(module)
        if names is not None:
            assert names == sorted(names), module.name
            assert len(names) == len(set(names)), module.name


def test_public_names_are_explained() -> None:
    silent = [
        f"{module.name}.{name}"
        for module in MODULES
        if module.folder in EXPLAINED_FOLDERS
        for name, node in public_definitions(module.tree.body)
        if not ast.get_docstring(node)
    ]
    assert silent == []


def test_interfaces_have_few_methods() -> None:
    tree = next(module.tree for module in MODULES if module.name == "lockgate.interfaces")
    protocols = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert {"Chunker", "DataSource", "Detector", "Model", "SessionStore"} <= {node.name for node in protocols}
    for node in protocols:
        methods = [name for name, _ in public_definitions(node.body)]
        assert 1 <= len(methods) <= MAX_METHODS, node.name


def list_python() -> list[Path]:
    """All Python files of ours. The copies of the conformance suites are not ours to change."""
    folders = [ROOT / name for name in ("lockgate", "tests", "benchmarks", "scripts")]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [path for path in paths if "conformance" not in path.parts]


def test_files_are_small() -> None:
    counts = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in list_python()}
    assert {name: count for name, count in counts.items() if count > MAX_LINES} == {}


def test_rules_of_the_linter_are_rarely_switched_off() -> None:
    switched_off = [module.name for module in MODULES for _ in re.findall(r"#\s*noqa", module.source)]
    assert len(switched_off) <= MAX_SWITCHED_OFF, switched_off
