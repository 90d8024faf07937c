# SPDX-License-Identifier: Apache-2.0
"""Hits of two searches become one list; what was found by chance does not count beside what was meant."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.values import Document
from lockgate.index.hits import (
    FoundByWords,
    Hit,
    Spread,
    build_document,
    find_similarity,
    leave_out_chance,
    rank_hits,
)
from lockgate.index.hybrid_search import name_model


def hit(key: int) -> Hit:
    return Hit(key, f"{key}.md", 1, "", "text")


def kept(total: int, *spreads: Spread, hits: int = 3) -> list[int]:
    return [one.key for one in leave_out_chance(FoundByWords([hit(key) for key in range(hits)], total, spreads))]


def test_a_passage_counts_if_it_has_a_third_of_what_the_question_says() -> None:
    words = [Spread(10, {0, 1}), Spread(10, {0}), Spread(10, {0}), Spread(10, {0})]
    assert kept(100, *words) == [0]
    assert kept(100, *words[:3]) == [0, 1]


def test_a_rare_word_says_more_than_common_ones() -> None:
    common = [Spread(60, {1}), Spread(70, {1}), Spread(80, {1})]
    assert kept(100, Spread(1, {0}), *common) == [0]


def test_a_word_that_no_passage_has_is_still_asked_for() -> None:
    assert kept(100, Spread(5, {0}), *[Spread(0, ())] * 4) == []


@given(
    st.integers(1, 1000),
    st.lists(st.builds(Spread, st.integers(0, 1000), st.frozensets(st.integers(0, 2))), max_size=6),
)
def test_a_passage_with_all_words_always_counts(total: int, spreads: list[Spread]) -> None:
    whole = [Spread(spread.passages, {*spread.hits, 0}) for spread in spreads]
    assert 0 in kept(total, *whole)
    assert set(kept(total, *spreads)) <= {0, 1, 2}


def test_ranks_of_both_searches_add_up() -> None:
    best = rank_hits([[hit(1), hit(2)], [hit(2), hit(3)]], 2)
    assert [one.key for one, _ in best] == [2, 1]
    assert [score for _, score in best] == pytest.approx([1 / 61 + 1 / 62, 1 / 61])
    assert rank_hits([], 8) == []


def test_a_document_says_where_it_came_from_and_how_near_it_is_if_that_is_known() -> None:
    assert build_document(hit(1), 0.5, 0.25).metadata == {"id": "1.md#1", "file": "1.md", "similarity": 0.25}
    assert build_document(hit(1), 0.5, None).metadata == {"id": "1.md#1", "file": "1.md"}


def test_a_model_is_called_by_its_name_or_by_its_kind() -> None:
    class Other:
        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            return []

    class Named(Other):
        model = "m"

    assert name_model(None) == ""
    assert name_model(Named()) == "m"
    assert name_model(Other()).endswith("Other")


@pytest.mark.parametrize("told", [None, True, "0.5", float("nan"), [0.5]])
def test_what_is_no_number_is_no_similarity(told: object) -> None:
    assert find_similarity(Document("", "", 1.0, {"similarity": told})) is None
    assert find_similarity(Document("", "", 1.0)) is None
    assert find_similarity(build_document(hit(1), 0.5, 0)) == 0.0
