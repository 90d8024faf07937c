# SPDX-License-Identifier: Apache-2.0
"""A real `lockgate demo` as a child process: on free ports, with an index of its own, ended as by Ctrl-C.

Decides when the demo is up and when nothing of it is left. Refuses to know what it answers.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.server.processes import COMMAND, clean_environment
from tests.waits import HANG_S, wait_until
from tests.weights import require_weights

MODEL_PROGRAM = "lockgate.models.llama_child"
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


class Relative:
    """A process of the tree; its start time tells it from another that gets its number later."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._born = _read_stat(Path(f"/proc/{pid}"))[19]

    def is_there(self) -> bool:
        """Whether it still runs; one that only waits to be counted does not."""
        try:
            stat = _read_stat(Path(f"/proc/{self.pid}"))
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat[19] == self._born and stat[0] not in "ZX"

    def is_gone(self) -> bool:
        """Whether it does not run any more."""
        return not self.is_there()

    def is_waiting(self) -> bool:
        """Whether none of its threads has anything to do."""
        states = []
        with suppress(FileNotFoundError, ProcessLookupError):
            states = [_read_stat(task)[0] for task in Path(f"/proc/{self.pid}/task").iterdir()]
        return set(states) == {"S"}

    def command(self) -> str:
        """How it was called; nothing, once it is gone."""
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return ""

    def cpu_ticks(self) -> int:
        """How long it has worked."""
        stat = _read_stat(Path(f"/proc/{self.pid}"))
        return int(stat[11]) + int(stat[12])

    def kill(self) -> None:
        """End it at once, as when memory runs out."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@contextmanager
def halted(one: Relative) -> Iterator[None]:
    """A process that stands still for a while."""
    os.kill(one.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGCONT)


def _read_stat(folder: Path) -> list[str]:
    """The fields behind the name: state is 0, parent 1, times 11 and 12, birth 19."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def list_descendants(pid: int) -> list[Relative]:
    """Everybody below a process."""
    parents: dict[int, int] = {}
    for one in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if one.name.isdigit():
                parents[int(one.name)] = int(_read_stat(one)[1])
    below, size = {pid}, 0
    while len(below) > size:
        size = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    found = []
    for one_pid in sorted(below - {pid}):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Relative(one_pid))
    return found


class DemoProcess:
    """One demo."""

    def __init__(self, folder: Path) -> None:
        (folder / "weights").symlink_to(require_weights("smollm2").parent, target_is_directory=True)
        self._paths = folder / "demo.out", folder / "demo.err"
        arguments = ("demo", "--http-port", "0", "--health-http-port", "0", "--data-dir", str(folder))
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments], cwd=folder, env=clean_environment(), stdout=out, stderr=errors
            )
        self.address = ""

    def wait_for_start(self) -> None:
        """Until it has printed its address."""
        wait_until(lambda: bool(self._find_address()) or self.process.poll() is not None, "the demo's start")
        assert self.process.poll() is None, self.said()
        self.address = self._find_address()

    def said(self) -> str:
        """All that it has printed."""
        return "".join(path.read_text(encoding="utf-8") for path in self._paths)

    def family(self) -> list[Relative]:
        """Everybody below it."""
        return list_descendants(self.process.pid)

    def model(self) -> Relative:
        """The process in which the model runs; another may be about to take its place."""
        found: list[Relative] = []

        def is_found() -> bool:
            found[:] = [one for one in self.family() if one.is_there() and MODEL_PROGRAM in one.command()]
            return len(found) == 1

        wait_until(is_found, "a single process of the model")
        return found[0]

    def stop(self) -> None:
        """As Ctrl-C does; nobody of the tree may be left."""
        tree = [Relative(self.process.pid), *self.family()] if self.process.poll() is None else []
        try:
            self.process.send_signal(signal.SIGINT)
            status = self.process.wait(HANG_S)
        finally:
            left = [one for one in tree if one.is_there()]
            for one in left:
                one.kill()
            self.process.wait()
        assert (status, left) == (0, []), self.said()

    def _find_address(self) -> str:
        found = _ADDRESS.search(self._paths[0].read_text(encoding="utf-8"))
        return found[0] if found else ""


@contextmanager
def running_demo(folder: Path) -> Iterator[DemoProcess]:
    """A demo that answers."""
    demo = DemoProcess(folder)
    try:
        demo.wait_for_start()
        yield demo
    finally:
        demo.stop()
