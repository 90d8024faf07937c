# SPDX-License-Identifier: Apache-2.0
"""Rankings become one (B-38, B-39)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.index.fusion import RANK_OFFSET, fuse

RANKINGS = st.lists(st.lists(st.sampled_from("abcdefghijkl"), unique=True, max_size=12), max_size=3)


def test_the_contracts_example() -> None:
    fused = fuse([["e", "d"], ["v1", "v2", "v3", "v4", "d"]], 8)
    assert [one for one, _ in fused] == ["d", "e", "v1", "v2", "v3", "v4"]
    assert fused[0][1] == pytest.approx(1 / 62 + 1 / 65)
    assert fused[1][1] == pytest.approx(1 / 61)


@given(RANKINGS, st.integers(0, 12))
def test_the_order_is_by_score_then_best_rank_then_id(rankings: list[list[str]], limit: int) -> None:
    def place(one: str) -> tuple[Fraction, int, str]:
        ranks = [ranking.index(one) + 1 for ranking in rankings if one in ranking]
        return -sum((Fraction(1, RANK_OFFSET + rank) for rank in ranks), Fraction()), min(ranks), one

    known = {one for ranking in rankings for one in ranking}
    assert [one for one, _ in fuse(rankings, limit)] == sorted(known, key=place)[:limit]


@given(RANKINGS)
def test_the_order_of_the_rankings_changes_nothing(rankings: list[list[str]]) -> None:
    assert fuse(rankings, 8) == fuse(rankings[::-1], 8)


def test_an_id_that_stands_twice_in_one_ranking_counts_once() -> None:
    assert fuse([["a", "b", "a"]], 8) == fuse([["a", "b"]], 8)
