# SPDX-License-Identifier: Apache-2.0
"""No test depends on the machine's speed: sleeps, clocks and short timeouts are only in `tests/waits.py`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.tree import ROOT
from tests.waits import HANG_S

TESTS = ROOT / "tests"
CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"})
MODULE_CLOCKS = frozenset({"time", "time_ns", "now", "utcnow"})  # only as time.time(), loop.time(), datetime.now()
# A literal of seconds given to one of these bounds how long a test waits.
BOUNDED = {"wait_for": 1, "timeout": 0, "wait": 0, "communicate": 1, "join": 0, "run": None, "urlopen": 2}
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
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name == "sleep" and not _is_zero(node):
                yield f"{node.lineno}: sleeps; wait for a state"
            elif _is_clock(node.func):
                yield f"{node.lineno}: reads a clock"
            elif (seconds := _bound(name, node)) is not None and seconds < HANG_S:
                yield f"{node.lineno}: a timeout of {seconds} s; only a hang may end a test"


def _name(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_zero(call: ast.Call) -> bool:
    """`sleep(0)` only lets other tasks run."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _is_clock(function: ast.expr) -> bool:
    name = _name(function)
    return name in CLOCKS or (name in MODULE_CLOCKS and isinstance(function, ast.Attribute))


def _bound(name: str, call: ast.Call) -> float | None:
    if name not in BOUNDED:
        return None
    place = BOUNDED[name]
    values = [keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "timeout_s")]
    if place is not None and len(call.args) > place:
        values.append(call.args[place])
    numbers = [value.value for value in values if isinstance(value, ast.Constant)]
    return next((float(number) for number in numbers if isinstance(number, int | float)), None)


@pytest.mark.parametrize("path", checked_files(), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_file_neither_sleeps_nor_reads_a_clock(path: Path) -> None:
    assert list(find_faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(0.1)",
        "time.sleep(delay_s)",
        "sleep(1)",
        "assert time.monotonic() - began < 0.5",
        "took = perf_counter() - began",
        "began = asyncio.get_running_loop().time()",
        "assert datetime.now(UTC) - began < LIMIT",
        "assert time.process_time() < 2",
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
