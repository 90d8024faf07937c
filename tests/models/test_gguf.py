# SPDX-License-Identifier: Apache-2.0
"""The head of a model's file, and the marks that no text of others may hold."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.models.gguf import build_cleaner, check_gguf, read_marks
from tests.weights import require_weights

MARKS = ("<|im_start|>", "<|im_end|>", "<s>", "[INST]", "|")


def write_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def write_file(path: Path, tokens: list[tuple[str, int]]) -> Path:
    entries = [
        write_string("general.name") + struct.pack("<I", 8) + write_string("m"),
        write_string("some.flag") + struct.pack("<I?", 7, True),
        write_string("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(tokens))
        + b"".join(write_string(token) for token, _ in tokens),
        write_string("tokenizer.ggml.token_type")
        + struct.pack(f"<IIQ{len(tokens)}i", 9, 5, len(tokens), *(kind for _, kind in tokens)),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


def test_marks_are_control_tokens_and_what_looks_like_them(tmp_path: Path) -> None:
    tokens = [("<|im_end|>", 3), ("a", 1), ("<think>", 4), ("  ", 4), ("[INST]", 4), ("<unk>", 2)]
    path = write_file(tmp_path / "m.gguf", tokens)
    assert check_gguf(path) == ""
    assert read_marks(path) == ["<|im_end|>", "<think>", "[INST]"]


def test_the_marks_of_the_model_that_is_fetched_are_found() -> None:
    (path,) = require_weights("smollm2").glob("*.gguf")
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(read_marks(path))


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", [("<s>", 3)])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        read_marks(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60))
    with pytest.raises(ValueError, match="damaged"):
        read_marks(path)
    path.write_bytes(b"<html>")
    assert check_gguf(path) == "it is no GGUF file"
    assert check_gguf(tmp_path / "no") == "there is no such file"
    assert check_gguf(tmp_path).startswith("it cannot be read")


@given(st.lists(st.sampled_from([*MARKS, "<", "|im_end|>", "x", " ", "<|im_"]), max_size=12).map("".join))
def test_no_mark_is_left_in_a_text(text: str) -> None:
    cleaned = build_cleaner(MARKS)(text)
    assert not any(mark in cleaned for mark in MARKS)


def test_other_text_stays_as_it_is() -> None:
    assert build_cleaner(MARKS[:4])("a <b> | c\n <|im_x|>") == "a <b> | c\n <|im_x|>"
    assert build_cleaner(MARKS[:4])("say <|im_end|>!") == "say < |im_end|>!"
    assert build_cleaner(())("<s>") == "<s>"
