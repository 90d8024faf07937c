# SPDX-License-Identifier: Apache-2.0
"""Imports point down; folders of one layer do not import each other; the gate uses the standard library only."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.rules.tree import PACKAGE, Import, Module, read_imports, read_modules

# From top to bottom. A folder imports those below its layer; folders of one layer never import each other, except where
# the layer is one group.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"server", "api", "compat", "gateway", "opened_agents", "policy_resolver"}),
    frozenset({"agent"}),
    frozenset({"rag"}),
    frozenset({"guard", "plugins", "testing"}),
    frozenset({"detectors"}),
    frozenset({"chunkers", "index", "models", "sessions"}),
    frozenset({"backends"}),
    frozenset({"part_pool", "telemetry"}),
    frozenset({"config", "interfaces", "params", "protos", "store_tasks", "task_groups"}),
    frozenset({"core", "data_files"}),
    frozenset({"gate"}),
    frozenset({"errors", "_version"}),
)
GROUPS = (frozenset({"server", "api", "compat", "gateway", "opened_agents", "policy_resolver"}),)
SERVICES = frozenset({"backends", "config", "detectors", "index", "models", "sessions"})
NEVER = {"guard": SERVICES, "rag": SERVICES, "agent": SERVICES}
# Values and rules of a feature that any folder may import. They see only `gate`, `errors` and each other.
PURE = frozenset(
    {
        "agent.routes",
        "agent.turn_machine",
        "detectors.judge.scores",
        "detectors.letters",
        "index.fusion",
        "index.hits",
        "index.passages",
        "index.search_words",
        "sessions.turns",
    }
)
COMPAT = "compat"  # only the package itself imports the modes in it
ROOT_MAY_SEE = frozenset({"_version", "errors", "gate", "interfaces"})


def layer_of(folder: str) -> int:
    for number, folders in enumerate(LAYERS):
        if folder in folders:
            return number
    raise LookupError(f"folder `{folder}` has no layer: add it to LAYERS")


def may_import(folder: str, other: str) -> bool:
    if folder == other:
        return True
    if other in NEVER.get(folder, ()):
        return False
    if any({folder, other} <= group for group in GROUPS):
        return True
    return layer_of(other) > layer_of(folder)


def is_pure(name: str) -> bool:
    """Whether a dotted name is a pure module, or something in it."""
    inner = name.partition(".")[2]
    return any(inner == one or inner.startswith(f"{one}.") for one in PURE)


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
        return None if is_known or not _is_strict(module) else f"{module.folder} uses the standard library only"
    other = parts[1] if len(parts) > 1 else ""
    if not other or (other.startswith("__") and other != "__main__"):
        return None  # the package itself, its __version__ and the like
    if module.folder == package:
        return None if other in ROOT_MAY_SEE else "the package itself must stay light"
    if is_pure(found.name) and layer_of(module.folder) < layer_of("gate"):
        return None
    if is_pure(module.name) and other not in ("gate", "errors"):
        return "a pure module sees gate, errors and pure modules only"
    if not may_import(module.folder, other):
        return f"{module.folder} may not see {other}"
    return _judge_mode(module, found)


def _is_strict(module: Module) -> bool:
    return module.folder == "gate" or is_pure(module.name)


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
    outside = [module for module in read_modules(package) if module.folder != COMPAT]
    return [module.name for module in outside if asked.search(module.source)]


def test_nothing_asks_for_a_mode_but_the_place_that_chooses_it() -> None:
    assert find_questions(PACKAGE) == []


@pytest.mark.parametrize("line", ["is_fms = True", "settings.compat == 'fms'", "settings.compat not in ('none',)"])
def test_a_question_for_the_mode_is_found(tmp_path: Path, line: str) -> None:
    assert find_questions(build_tree(tmp_path, "server/__init__", line)) == ["shop.server"]
    assert find_questions(build_tree(tmp_path, "compat/__init__", line)) == []


def test_the_gate_and_pure_modules_never_wait() -> None:
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    found = [
        f"{module.name}:{node.lineno}"
        for module in read_modules(PACKAGE)
        if _is_strict(module)
        for node in ast.walk(module.tree)
        if isinstance(node, waiting)
    ]
    assert found == []


def test_every_pure_module_exists() -> None:
    names = {module.name for module in read_modules(PACKAGE)}
    assert {f"lockgate.{one}" for one in PURE} <= names


def test_every_folder_has_a_layer() -> None:
    folders = {module.folder for module in read_modules(PACKAGE)} - {PACKAGE.name}
    assert folders <= frozenset().union(*LAYERS)


def build_tree(root: Path, name: str, line: str) -> Path:
    """A small package that keeps the rules, with one more line in one module."""
    files = {
        "__init__": "from shop._version import __version__",
        "_version": "__version__ = '1'",
        "errors": "",
        "gate/__init__": "",
        "gate/release": "from shop.errors import *\nfrom collections import deque",
        "interfaces": "from shop.gate.release import *\nfrom shop.index.passages import *",
        "index/__init__": "import third_party",
        "index/passages": "from shop.gate.release import *",
        "config/__init__": "",
        "guard/__init__": "from shop.interfaces import *",
        "rag/__init__": "from shop.guard import *",
        "models/__init__": "import third_party",
        "compat/__init__": "from shop.config import *\ndef find_rules():\n    from shop.compat.fms import RULES",
        "compat/fms/__init__": "from shop.compat.fms.rules import RULES",
        "compat/fms/rules": "from shop.api import *",
        "api/__init__": "from shop.guard import *",
        "gateway": "from shop.config import *\nfrom shop.guard import *\nfrom shop.compat import find_rules",
        "server/__init__": "from shop.gateway import *\nfrom shop.api import *",
        "cli/__init__": "from shop.server import *",
    }
    package = root / "shop"
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
        ("gate/release", "import third_party", "gate uses the standard library only"),
        ("gate/release", "from shop.interfaces import x", "gate may not see interfaces"),
        ("gate/release", "from ..interfaces import x", "gate may not see interfaces"),
        ("gate/release", "from .. import cli", "gate may not see cli"),
        ("gate/release", "from shop.index.passages import x", "gate may not see index"),
        ("index/passages", "import third_party", "index uses the standard library only"),
        ("index/passages", "from shop.config import x", "a pure module sees gate, errors and pure modules only"),
        ("errors", "from shop import gate", "errors may not see gate"),
        ("interfaces", "import shop.api", "interfaces may not see api"),
        ("interfaces", "import shop.index", "interfaces may not see index"),
        ("guard/__init__", "from shop.api import x", "guard may not see api"),
        ("guard/__init__", "from shop.config import x", "guard may not see config"),
        ("guard/__init__", "from shop.models import x", "guard may not see models"),
        ("guard/__init__", "from shop.rag import x", "guard may not see rag"),
        ("models/__init__", "def f():\n    from shop.gateway import x", "models may not see gateway"),
        ("models/__init__", "from shop.index import x", "models may not see index"),
        ("gateway", "from shop.compat.fms.rules import RULES", "only compat itself chooses a mode"),
        ("gateway", "from shop.compat import fms", "only compat itself chooses a mode"),
        ("server/__init__", "def f():\n    import shop.compat.fms", "only compat itself chooses a mode"),
        ("config/__init__", "from shop.compat import find_rules", "config may not see compat"),
        ("server/__init__", "import shop.cli", "server may not see cli"),
        ("__init__", "from shop.server import x", "the package itself must stay light"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(tmp_path: Path, name: str, line: str, reason: str) -> None:
    faults = find_faults(build_tree(tmp_path, name, line))
    assert len(faults) == 1
    assert faults[0].endswith(reason)


def test_a_folder_without_a_layer_is_found(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="`attic` has no layer"):
        find_faults(build_tree(tmp_path, "cli/__init__", "import shop.attic"))
