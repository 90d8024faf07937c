# SPDX-License-Identifier: Apache-2.0
"""No test depends on the machine's speed: sleeps, clocks and short timeouts are only in `tests/waits.py`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.tree import ROOT
from tests.waits import HANG_S, assert_linear

TESTS = ROOT / "tests"
CLOCKS = frozenset({"time", "now", "utcnow"})  # as asyncio's loop.time() and datetime.now(); `time` is not imported
# Calls that wait, and the place of their bound. Other calls may have it by the name `timeout`.
BOUNDED = {"wait_for": 1, "timeout": 0, "wait": 0, "communicate": 1, "join": 0, "urlopen": 2, "result": 0}
PAUSES = frozenset({"linger", "latency"})
MAX_PAUSE_S = 3.0
# The long runs measure: their workloads have a pace and their reports have times. Their slices in `make test` do not.
MEASURES = TESTS / "soak"


def checked_files() -> list[Path]:
    return [
        path
        for path in sorted(TESTS.rglob("*.py"))
        if "conformance" not in path.parts  # copies of the suites, which are not ours to change
        and path != TESTS / "waits.py"
        and (MEASURES not in path.parents or path.name.startswith("test_"))
    ]


def find_faults(source: str) -> Iterator[str]:
    """Every sleep, clock and short timeout of a file, with its line."""
    tree = ast.parse(source)
    constants = _read_constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports_time(node):
            yield f"{node.lineno}: imports `time`; use tests.waits"
        elif isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {fault}" for fault in _judge_call(node, constants))


def _read_constants(tree: ast.Module) -> dict[str, float]:
    """The numbers that the module gives a name."""
    return {
        target.id: float(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, int | float)
    }


def _imports_time(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time"
    return any(alias.name == "time" for alias in node.names)


def _judge_call(call: ast.Call, constants: dict[str, float]) -> Iterator[str]:
    name = _name(call.func)
    if name == "sleep" and not _is_zero(call):
        yield "sleeps; wait for a state"
    elif name in CLOCKS and isinstance(call.func, ast.Attribute):
        yield "reads a clock"
    elif name in PAUSES and (seconds := _read_number(call.args[0], constants) if call.args else 0.0) is not None:
        if seconds > MAX_PAUSE_S:
            yield f"pauses for {seconds} s"
    elif (seconds := _find_bound(name, call, constants)) is not None and seconds < HANG_S:
        yield f"a timeout of {seconds} s; only a hang may end a test"


def _name(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_zero(call: ast.Call) -> bool:
    """`sleep(0)` only lets other tasks run."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _find_bound(name: str, call: ast.Call, constants: dict[str, float]) -> float | None:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    place = BOUNDED.get(name)
    if place is not None and len(call.args) > place:
        values.append(call.args[place])
    return next((number for value in values if (number := _read_number(value, constants)) is not None), None)


def _read_number(value: ast.expr, constants: dict[str, float]) -> float | None:
    if isinstance(value, ast.Name):
        return constants.get(value.id)
    is_number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    return float(ast.literal_eval(value)) if is_number else None


@pytest.mark.parametrize("path", checked_files(), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_file_neither_sleeps_nor_reads_a_clock(path: Path) -> None:
    assert list(find_faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(0.1)",
        "from time import sleep as pause",
        "sleep(1)",
        "import time",
        "from time import perf_counter",
        "began = asyncio.get_running_loop().time()",
        "assert datetime.now(UTC) - began < LIMIT",
        "await linger(10)",
        "HTTPConnection(host, timeout=5)",
        "thread_future.result(5)",
        "await asyncio.wait_for(left.wait(), 1)",
        "await asyncio.wait_for(left.wait(), timeout=0.5)",
        "async with asyncio.timeout(5): pass",
        "process.wait(10)",
        "subprocess.run(command, timeout=30)",
    ],
)
def test_a_planted_fault_is_found(line: str) -> None:
    planted = f"async def test_something() -> None:\n    {line}\n"
    assert len(list(find_faults(planted))) == 1


def test_a_planted_constant_is_found() -> None:
    assert len(list(find_faults("LIMIT_S = 5.0\nasync def test_it() -> None:\n    await wait_for(x, LIMIT_S)\n"))) == 1


def test_work_that_grows_too_fast_is_found_and_linear_work_is_not() -> None:
    assert_linear(lambda size: sum(len("x" * 10) for _ in range(size)), 3_000)
    with pytest.raises(AssertionError, match="times the CPU time"):
        assert_linear(lambda size: sum(1 for one in range(size) for _ in range(one)), 200)


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(0)",
        "await until(lambda: peer.has_left)",
        "async with asyncio.timeout(HANG_S): pass",
        "await left.wait()",
        "subprocess.run(command, timeout=HANG_S)",
        "settings = Settings(timeout_s=0.5)",
        "', '.join(words)",
    ],
)
def test_an_ordinary_line_is_no_fault(line: str) -> None:
    assert list(find_faults(f"async def test_something() -> None:\n    {line}\n")) == []
