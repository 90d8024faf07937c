# SPDX-License-Identifier: Apache-2.0
"""Imports point down; rooms side by side do not know each other; the core knows only the standard library."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.rules.tree import PACKAGE, Import, Module, read_imports, read_modules

# From top to bottom. Rooms of one floor never import each other, except where the floor is one flat.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli", "terminal", "commands"}),
    frozenset({"server"}),
    frozenset({"assembly", "agents", "api"}),
    frozenset({"compat"}),
    frozenset({"guard", "pipelines", "clients", "embedded", "plugins", "testing"}),
    frozenset({"searching"}),
    frozenset({"data_files", "holding", "interfaces", "wire", "config", "telemetry"}),
    frozenset({"core"}),
    frozenset({"errors", "_version"}),
)
FLATS = (
    frozenset({"cli", "terminal", "commands"}),
    frozenset({"assembly", "agents"}),
    frozenset({"guard", "pipelines"}),
)
NEVER = dict.fromkeys(("guard", "pipelines"), frozenset({"wire", "config", "server"}))
COMPAT = "compat"  # only the package itself imports the modes in it
ROOT_MAY_SEE = frozenset({"_version", "errors", "core", "interfaces"})


def floor_of(room: str) -> int:
    for number, rooms in enumerate(FLOORS):
        if room in rooms:
            return number
    raise LookupError(f"room `{room}` stands on no floor: add it to FLOORS")


def may_import(room: str, other: str) -> bool:
    if room == other:
        return True
    if other in NEVER.get(room, ()):
        return False
    if any({room, other} <= flat for flat in FLATS):
        return True
    return floor_of(other) > floor_of(room)


def find_faults(package: Path) -> list[str]:
    """Every import that points the wrong way, in words."""
    faults = []
    for module in read_modules(package):
        for found in read_imports(module):
            reason = _judge(module, found, package.name)
            if reason:
                faults.append(f"{module.name}:{found.line} imports {found.name}: {reason}")
    return faults


def _judge(module: Module, found: Import, package: str) -> str | None:
    parts = found.name.split(".")
    if parts[0] != package:
        is_known = parts[0] in sys.stdlib_module_names
        return None if is_known or module.room != "core" else "core uses the standard library only"
    other = parts[1] if len(parts) > 1 else ""
    if not other or (other.startswith("__") and other != "__main__"):
        return None  # the package itself, its __version__ and the like
    if module.room == package:
        return None if other in ROOT_MAY_SEE else "the package itself must stay light"
    if not may_import(module.room, other):
        return f"{module.room} may not see {other}"
    return _judge_mode(module, found)


def _judge_mode(module: Module, found: Import) -> str | None:
    """Why a module may not import a compatibility mode: only the place that chooses one, and the mode itself, may."""
    _, *inner = found.name.split(".")
    if inner[:1] != [COMPAT] or not _is_mode(module, inner):
        return None
    is_chooser = module.name.split(".")[1:] == [COMPAT]
    is_itself = module.name.split(".")[1:3] == inner[:2]
    return None if is_chooser or is_itself else f"only {COMPAT} itself chooses a mode"


def _is_mode(module: Module, inner: list[str]) -> bool:
    """Whether the second part of a name in `compat` is a mode, which is a package, and not a function."""
    package = next(parent for parent in module.path.parents if parent.name == module.name.split(".")[0])
    return len(inner) > 1 and package.joinpath(*inner[:2]).is_dir()


def test_imports_point_down() -> None:
    assert find_faults(PACKAGE) == []


def find_questions(package: Path) -> list[str]:
    """The modules outside `compat` that ask which mode is chosen."""
    asked = re.compile(r"is_fms|\bcompat\s*(==|!=|in\b|not in\b)")
    outside = [module for module in read_modules(package) if module.room != COMPAT]
    return [module.name for module in outside if asked.search(module.source)]


def test_nothing_asks_for_a_mode_but_the_place_that_chooses_it() -> None:
    assert find_questions(PACKAGE) == []


@pytest.mark.parametrize("line", ["is_fms = True", "settings.compat == 'fms'", "settings.compat not in ('none',)"])
def test_a_question_for_the_mode_is_found(tmp_path: Path, line: str) -> None:
    assert find_questions(build_tree(tmp_path, "server/__init__", line)) == ["house.server"]
    assert find_questions(build_tree(tmp_path, "compat/__init__", line)) == []


def test_the_core_never_waits() -> None:
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    found = [
        f"{module.name}:{node.lineno}"
        for module in read_modules(PACKAGE / "core")
        for node in ast.walk(module.tree)
        if isinstance(node, waiting)
    ]
    assert found == []


def test_every_room_stands_on_a_floor() -> None:
    rooms = {module.room for module in read_modules(PACKAGE)} - {PACKAGE.name}
    assert rooms <= frozenset().union(*FLOORS)


def build_tree(root: Path, name: str, line: str) -> Path:
    """A small package that keeps the rules, with one more line in one module."""
    files = {
        "__init__": "from house._version import __version__",
        "_version": "__version__ = '1'",
        "errors": "",
        "core/__init__": "",
        "core/gate": "from house.errors import *\nfrom collections import deque",
        "interfaces": "from house.core.gate import *",
        "wire/__init__": "",
        "config/__init__": "",
        "pipelines/__init__": "from house.interfaces import *",
        "embedded/__init__": "import third_party",
        "compat/__init__": "from house.config import *\ndef find_rules():\n    from house.compat.fms import RULES",
        "compat/fms/__init__": "from house.compat.fms.rules import RULES",
        "compat/fms/rules": "from house.wire import *",
        "assembly": "from house.config import *\nfrom house.pipelines import *\nfrom house.compat import find_rules",
        "server/__init__": "from house.assembly import *\nfrom house.wire import *",
        "terminal": "from house.server import *",
        "cli": "from house.terminal import *",
    }
    package = root / "house"
    for place, source in files.items():
        path = package / f"{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + ("\n" + line if place == name else "") + "\n", encoding="utf-8")
    return package


def test_a_tree_that_keeps_the_rules_has_no_faults(tmp_path: Path) -> None:
    assert find_faults(build_tree(tmp_path, "", "")) == []


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("core/gate", "import third_party", "core uses the standard library only"),
        ("core/gate", "from house.interfaces import x", "core may not see interfaces"),
        ("core/gate", "from ..interfaces import x", "core may not see interfaces"),
        ("core/gate", "from .. import cli", "core may not see cli"),
        ("errors", "from house import core", "errors may not see core"),
        ("interfaces", "import house.wire", "interfaces may not see wire"),
        ("pipelines/__init__", "from house.wire import x", "pipelines may not see wire"),
        ("pipelines/__init__", "from house.config import x", "pipelines may not see config"),
        ("pipelines/__init__", "from house.embedded import x", "pipelines may not see embedded"),
        ("embedded/__init__", "def f():\n    from house.assembly import x", "embedded may not see assembly"),
        ("assembly", "from house.server import x", "assembly may not see server"),
        ("assembly", "from house.compat.fms.rules import RULES", "only compat itself chooses a mode"),
        ("assembly", "from house.compat import fms", "only compat itself chooses a mode"),
        ("server/__init__", "def f():\n    import house.compat.fms", "only compat itself chooses a mode"),
        ("wire/__init__", "from house.compat import find_rules", "wire may not see compat"),
        ("compat/fms/rules", "from house.assembly import x", "compat may not see assembly"),
        ("server/__init__", "import house.cli", "server may not see cli"),
        ("__init__", "from house.server import x", "the package itself must stay light"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(tmp_path: Path, name: str, line: str, reason: str) -> None:
    faults = find_faults(build_tree(tmp_path, name, line))
    assert len(faults) == 1
    assert faults[0].endswith(reason)


def test_a_room_without_a_floor_is_found(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="`attic` stands on no floor"):
        find_faults(build_tree(tmp_path, "cli", "import house.attic"))
