# SPDX-License-Identifier: Apache-2.0
"""Reads the repository: its files, its modules, and what they import."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lockgate"


class Module(NamedTuple):
    """A Python file of a package tree."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The folder or top module of the package that the module belongs to; of the package itself, its own name."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else parts[0]


class Import(NamedTuple):
    """One imported module and the line that asks for it."""

    name: str
    line: int


def read_modules(package: Path) -> list[Module]:
    """Every module under a package folder, by name."""
    return [_read_module(package, path) for path in sorted(package.rglob("*.py"))]


def _read_module(package: Path, path: Path) -> Module:
    parts = path.relative_to(package.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    source = path.read_text(encoding="utf-8")
    return Module(name, path, source, ast.parse(source))


def read_imports(module: Module) -> Iterator[Import]:
    """What a module imports, wherever in it. `from x import y` gives x.y: y may be a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(module, node)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _resolve(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, node.module] if node.module else base)


def list_files() -> list[Path]:
    """What git tracks, and what it would track if it were added now."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    command = [git, "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def read_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that is text."""
    for path in list_files():
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
