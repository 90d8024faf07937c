# SPDX-License-Identifier: Apache-2.0
"""Finds in a GGUF file the model's control tokens, which a prompt's texts must not contain."""

import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

MAGIC = b"GGUF"
MAX_COUNT = 1 << 24  # entries or bytes of one value of the header; no model has more
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_CONTROL, _USER_DEFINED = 3, 4
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_BRACKETED = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")  # tokens added by users that look like control tokens
_ROUNDS = 4

Clean = Callable[[str], str]


def check_gguf(path: Path) -> str:
    """Checks the first bytes of a model's file; returns what is wrong, or an empty text."""
    try:
        with path.open("rb") as file:
            return "" if file.read(len(MAGIC)) == MAGIC else "it is no GGUF file"
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def read_marks(path: Path) -> list[str]:
    """Returns a model's control tokens; raises ValueError if the file is no GGUF file, and OSError."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it is no GGUF file")
        try:
            head = _read_head(file)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise ValueError("its head is damaged") from error
    tokens, types = head.get(_TOKENS, ()), head.get(_TYPES, ())
    return [token for token, kind in zip(tokens, types, strict=False) if _is_mark(token, kind)]


def build_cleaner(marks: Iterable[str]) -> Clean:
    """Returns a function that breaks every control token of a text with a space."""
    longest_first = sorted(filter(None, marks), key=len, reverse=True)
    if not longest_first:
        return str
    pattern = re.compile("|".join(map(re.escape, longest_first)))

    def clean(text: str) -> str:
        for _ in range(_ROUNDS):  # a broken one could, in theory, form another
            if not pattern.search(text):
                return text
            text = pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}" if len(found[0]) > 1 else " ", text)
        return pattern.sub(" ", text)

    return clean


def _is_mark(token: str, kind: int) -> bool:
    return kind == _CONTROL or (kind == _USER_DEFINED and bool(_BRACKETED.fullmatch(token)))


def _read_head(file: IO[bytes]) -> dict[str, Any]:
    _version, _tensors, count = _take(file, "<IQQ")
    head = {}
    for _ in range(_check(count)):
        key = _read_string(file)
        (kind,) = _take(file, "<I")
        head[key] = _read_value(file, kind)
        if _TOKENS in head and _TYPES in head:
            break
    return head


def _read_value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _read_string(file)
    if kind != _ARRAY:
        return _take(file, _NUMBERS[kind])[0]
    of, count = _take(file, "<IQ")
    if of in (_STRING, _ARRAY):
        return [_read_value(file, of) for _ in range(_check(count))]
    return _take(file, f"<{_check(count)}{_NUMBERS[of][1]}")


def _read_string(file: IO[bytes]) -> str:
    (size,) = _take(file, "<Q")
    return file.read(_check(size)).decode("utf-8", "replace")


def _take(file: IO[bytes], form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _check(count: int) -> int:
    if count > MAX_COUNT:
        raise ValueError("its head is damaged")
    return count
