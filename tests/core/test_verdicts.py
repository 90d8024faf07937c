# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lockgate.core.values import Detection
from lockgate.core.verdicts import MASK_CHARACTER, Action, Judge, Policy

TEXTS = st.text(alphabet="abc中😀", min_size=1, max_size=20)
POLICIES = st.builds(Policy, st.sampled_from(Action), st.sampled_from([0.0, 0.3, 0.6, 0.9]))
FINDINGS = st.lists(
    st.tuples(st.integers(0, 19), st.integers(1, 8), st.sampled_from([0.1, 0.5, 0.8])).map(
        lambda it: Detection(it[0], it[0] + it[1], "", "kind", "type", it[2])
    ),
    max_size=4,
)
CUTS = st.sets(st.integers(1, 19), max_size=4)


def _judge(text: str, found: list[Detection], policy: Policy, cuts: set[int]) -> list[str]:
    """Each finding handed over with the first piece that overlaps it, as the gate does."""
    judge = Judge(policy)
    borders = sorted({0, len(text)} | {cut for cut in cuts if cut < len(text)})
    return [
        judge.judge(a, text[a:b], [one for one in found if a <= min(one.start, len(text) - 1) < b]).text
        for a, b in pairwise(borders)
    ]


def _visible(text: str, parts: list[str], cuts: set[int]) -> set[int]:
    """The places whose own character left."""
    borders = sorted({0, len(text)} | {cut for cut in cuts if cut < len(text)})
    return {
        start + place
        for start, part in zip(borders, parts, strict=False)
        for place, character in enumerate(part)
        if character != MASK_CHARACTER
    }


@given(TEXTS, FINDINGS, POLICIES, POLICIES, CUTS)
def test_a_stricter_policy_never_releases_more(
    text: str, found: list[Detection], one: Policy, other: Policy, cuts: set[int]
) -> None:
    strict = Policy(max(one.action, other.action), min(one.threshold, other.threshold))
    assert _visible(text, _judge(text, found, strict, cuts), cuts) <= _visible(
        text, _judge(text, found, one, cuts), cuts
    )


@given(TEXTS, FINDINGS, CUTS)
def test_a_mask_covers_every_span_whole_and_nothing_else_whatever_the_cuts(
    text: str, found: list[Detection], cuts: set[int]
) -> None:
    covered = {place for one in found for place in range(one.start, one.end)}
    expected = "".join(MASK_CHARACTER if place in covered else character for place, character in enumerate(text))
    assert "".join(_judge(text, found, Policy(Action.MASK), cuts)) == expected


@given(TEXTS, FINDINGS, CUTS)
def test_a_warning_changes_no_text(text: str, found: list[Detection], cuts: set[int]) -> None:
    assert "".join(_judge(text, found, Policy(Action.WARN), cuts)) == text


def test_nothing_follows_a_blocked_text() -> None:
    judge = Judge(Policy(Action.BLOCK, 0.5))
    assert judge.judge(0, "fine ", []).text == "fine "
    assert judge.judge(5, "bad ", [Detection(5, 8, "bad", "kind", "type", 0.9)]).action is Action.BLOCK
    assert judge.judge(9, "after", []).text == ""
