# SPDX-License-Identifier: Apache-2.0
"""The cache of findings in texts of requests: bounded, without texts, and apart for each set of detectors."""

import pickle
from typing import Any

import pytest

from lockgate.gate.values import Detection
from lockgate.guard.input_cache import InputCache

TEXT = "Mail ana@example.org now."
FOUND = Detection(5, 20, "ana@example.org", "EmailAddress", "pii", 0.9, "pii")


def test_findings_come_back_with_their_text() -> None:
    reads = InputCache().open()
    assert reads.find("prompt", TEXT) is None
    reads.keep("prompt", TEXT, [FOUND])
    assert reads.find("prompt", TEXT) == [FOUND]


def test_a_text_without_findings_is_known_too() -> None:
    reads = InputCache().open()
    reads.keep("prompt", "Hello", [])
    found = reads.find("prompt", "Hello")
    assert found is not None
    assert len(found) == 0


def test_the_cache_holds_no_text() -> None:
    cache = InputCache()
    cache.open().keep("prompt", TEXT, [FOUND])
    kept = pickle.dumps(cache.kept)
    assert b"ana" not in kept
    assert b"Mail" not in kept


@pytest.mark.parametrize(
    "change",
    [
        {"detection": "Ana@example.org"},
        {"detection_type": "is ana@example.org"},
        {"metadata": {"rule": "x"}},
        {"evidence": ({"name": "x"},)},
        {"text": "ana"},
    ],
)
def test_a_finding_that_may_repeat_its_text_is_not_kept(change: dict[str, Any]) -> None:
    reads = InputCache().open()
    reads.keep("prompt", TEXT, [FOUND._replace(**change)])
    assert reads.find("prompt", TEXT) is None


def test_other_detectors_other_roles_and_other_processes_share_nothing() -> None:
    cache = InputCache()
    first, second = cache.open(), cache.open()
    first.keep("prompt user", TEXT, [FOUND])
    assert second.find("prompt user", TEXT) is None
    assert first.find("prompt tool", TEXT) is None
    assert InputCache().digest("prompt", TEXT) != cache.digest("prompt", TEXT)


def test_the_text_that_was_used_last_is_kept_longest() -> None:
    cache = InputCache(max_texts=2)
    reads = cache.open()
    reads.keep("prompt", "one", [])
    reads.keep("prompt", "two", [])
    assert reads.find("prompt", "one") is not None
    reads.keep("prompt", "three", [])
    assert reads.find("prompt", "two") is None
    assert reads.find("prompt", "one") is not None
    assert len(cache.kept) == 2
