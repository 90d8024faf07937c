# SPDX-License-Identifier: Apache-2.0
"""The figures of detectors on the labelled sets: what is counted, and that every set can be read."""

import pytest

from benchmarks.detectors import (
    NAMES,
    Outcome,
    Sample,
    build_rows,
    build_span_rows,
    choose_samples,
    count,
    load_samples,
    mark_unwanted,
)
from lockgate.gate.values import Detection

FOUND = (Detection(3, 9, "secret", "Secret", "secrets", 1.0),)


def outcome(label: bool, is_reported: bool, kind: str = "plain", language: str = "en") -> Outcome:
    return Outcome(Sample("x", language, kind, "a text", label), FOUND if is_reported else (), (0.002,))


def test_precision_and_recall_are_counted_by_item() -> None:
    outcomes = [outcome(True, True)] * 3 + [outcome(True, False)] + [outcome(False, True)] + [outcome(False, False)] * 5
    figures = count(outcomes)
    assert figures == (3, 1, 1)
    assert (figures.precision, figures.recall) == (75.0, 75.0)
    assert (count([]).precision, count([]).recall) == (100.0, 100.0)


def test_rows_tell_hard_negatives_languages_threshold_and_time() -> None:
    outcomes = [outcome(True, True), outcome(False, True, "hard_talk", "es"), outcome(False, False, "hard_talk", "de")]
    rows = {row.name: row.value for row in build_rows("secrets", outcomes)}
    assert rows["secrets, false alarms on 2 hard negatives"] == 1
    assert rows["secrets, es, 1 items: precision"] == 0.0
    assert rows["secrets, de, 1 items: precision"] == 100.0
    assert rows["secrets, default threshold"] == 0.5
    assert rows["secrets, per chunk, p50"] == pytest.approx(2.0)


def test_a_span_counts_if_one_finding_covers_it_and_a_finding_if_it_touches_one() -> None:
    whole, part = Sample("x", "en", "a", "t", True, spans=((4, 8),)), Sample("y", "en", "a", "t", True, spans=((2, 8),))
    far = Sample("z", "en", "a", "t", True, spans=((20, 30),))
    rows = build_span_rows("pii", [Outcome(one, FOUND, ()) for one in (whole, part, far)])
    assert [(row.name, row.value) for row in rows] == [
        ("pii, of 3 spans found whole", 1),
        ("pii, of 3 findings beside every span", 1),
    ]


def test_a_text_without_language_is_wanted_in_every_list() -> None:
    french, none = Sample("x", "fr", "sentence", "t", False), Sample("y", "und", "no_language", "t", False)
    assert mark_unwanted(french, ["en"]).label
    assert not mark_unwanted(french, ["fr"]).label
    assert not mark_unwanted(none, ["en"]).label
    assert mark_unwanted(none, ["en"]).is_hard


@pytest.mark.parametrize("name", NAMES)
def test_every_set_has_enough_items_of_each_language_and_its_spans_lie_in_the_text(name: str) -> None:
    samples = load_samples(name)
    assert len(samples) >= 100
    assert len({one.id for one in samples}) == len(samples)
    assert all(sum(one.language == language for one in samples) >= 30 for language in ("en", "es", "de"))
    assert all(0 <= start < end <= len(one.text) for one in samples for start, end in one.spans)
    assert len(choose_samples(samples, 16)) <= 32
