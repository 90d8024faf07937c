# SPDX-License-Identifier: Apache-2.0
"""Reports credentials: tokens with a known prefix, keys, passwords in URLs and assignments."""

import base64
import binascii
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockgate.data_files import Table, fill_parts, fill_pattern, read_table, split_words
from lockgate.detectors.scans import (
    LOOKBEHIND_CHARS,
    PatternTable,
    Scan,
    ScanMatch,
    ScanningDetector,
    flatten,
    report,
)
from lockgate.gate.values import Detection
from lockgate.params import Params

# --- Checks ---------------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(
    r"(?i)^your|(?<![a-z])(?:my|some|example|sample|dummy|change[-_]?me|redacted|placeholder|insert|todo)(?![a-z])"
    r"|x{3}|\*{3}|\.{3}|^<|\$\{|\{\{|%\(|^\$[a-z_]"
)
_WORD_LIKE = re.compile(r"[A-Za-z]+(?:[-_][A-Za-z]+)*\d{0,2}")
_PROGRAM = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+|[\w.]*[(\[].*|[$%@{<&*].*|/[\w./-]*|\w+://.*|(?:None|null|nil)\W*"
)


def _entropy(value: str) -> float:
    """Returns the Shannon entropy of the value's characters, in bits per character."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _is_random(value: str) -> bool:
    """Accepts random letters and digits: no words joined by dashes, no row of one letter."""
    has_both = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return has_both and _entropy(value) >= 3.0 and not _WORD_LIKE.fullmatch(value) and not _PLACEHOLDER.search(value)


def _is_password(value: str) -> bool:
    """Accepts at least two kinds of characters, no placeholder and no piece of a program."""
    if _PLACEHOLDER.search(value) or _PROGRAM.fullmatch(value):
        return False
    kinds = (str.isdigit, str.islower, str.isupper, lambda char: not char.isalnum())
    return sum(any(map(kind, value)) for kind in kinds) >= 2 and _entropy(value) >= 2.0 and not value.isalpha()


def _is_url_password(value: str) -> bool:
    return not _PLACEHOLDER.search(value) and value.lower() not in {"password", "pass", "pwd", "secret", "token"}


def _is_basic(value: str) -> bool:
    """Returns whether the value is the Base64 of a name, a colon and a password that is no placeholder."""
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return False
    return bool(name and colon) and password.isprintable() and len(password) > 2 and _is_url_password(password)


def _is_jwt(value: str) -> bool:
    """Returns whether the first part is a JSON object that names an algorithm."""
    head = value.split(".", 1)[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    return isinstance(header, dict) and "alg" in header


# --- The table ------------------------------------------------------------------------------------------------


class SecretForm(Table, frozen=True):
    """One rule. Group 1 of its pattern is the secret, else the whole match."""

    rule: str
    detection: str
    pattern: str
    check: str = "token"
    score: float = 0.95


class SecretFile(Table, frozen=True):
    """The forms, and the parts that their patterns share."""

    documented: str
    parts: dict[str, str]
    forms: tuple[SecretForm, ...]


_CHECKS: dict[str, Callable[[str], bool]] = {
    "any": bool,  # no secret is empty
    "random": _is_random,
    "token": lambda value: _entropy(value) >= 3.0,  # not a placeholder such as a row of `x`
    "password": _is_password,
    "url_password": _is_url_password,
    "basic": _is_basic,
    "jwt": _is_jwt,
}


_FILE = read_table(Path(__file__).with_name("secrets.toml"), SecretFile)
_PARTS = fill_parts(_FILE.parts.items())
FORMS = _FILE.forms
_DOCUMENTED = split_words(_FILE.documented)

# --- The detector ---------------------------------------------------------------------------------------------


class SecretScan(Scan):
    """Matches the set of all patterns first, then each pattern that occurs."""

    reads_folded = True

    def __init__(self) -> None:
        self._table = PatternTable(fill_pattern(form.pattern, _PARTS) for form in FORMS)

    def __call__(self, text: str) -> list[Detection]:
        page = flatten(text)
        found = [hit for number in self._table.occurring(page) for hit in self._find(number, page)]
        return report(found, text, "secret")

    def may_find(self, text: str) -> bool:
        """Returns whether any pattern matches."""
        return bool(self._table.occurring(flatten(text)))

    def _find(self, number: int, page: bytes) -> Iterator[ScanMatch]:
        form = FORMS[number]
        check = _CHECKS[form.check]

        def accept(start: int, end: int) -> bool:
            value = page[start:end]
            return check(value.decode("latin-1")) and hashlib.sha256(value).hexdigest() not in _DOCUMENTED

        for start, end in self._table.spans(number, page, accept, is_bounded=False):
            yield ScanMatch(start, end, form.detection, form.score, {"rule": form.rule})


@asynccontextmanager
async def open_secrets_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports credentials. No options."""
    Params.of_options(options, ())
    scan = SecretScan()

    def prepare(_params: Params) -> Scan:
        return scan

    yield ScanningDetector(prepare, (), LOOKBEHIND_CHARS)
