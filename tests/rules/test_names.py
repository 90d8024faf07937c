# SPDX-License-Identifier: Apache-2.0
"""Modules introduce themselves, public names are explained, interfaces and files stay small."""

import ast
from collections.abc import Iterator

import pytest

from tests.rules.tree import PACKAGE, ROOT, Module, read_modules

LICENCE_LINE = "# SPDX-License-Identifier: Apache-2.0"
EXPLAINED_FOLDERS = frozenset({"agent", "errors", "gate", "guard", "interfaces", "plugins", "rag", "testing"})
MAX_LINES = 500
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
    paths = [module.path for module in MODULES]
    paths += [path for folder in ("tests", "benchmarks", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
    bare = [
        path.relative_to(ROOT).as_posix()
        for path in paths
        if "conformance" not in path.parts  # copies of the suites, which are not ours to change
        and (text := path.read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_file_has_one_idea(module: Module) -> None:
    assert len(module.source.splitlines()) <= MAX_LINES
