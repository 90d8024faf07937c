# SPDX-License-Identifier: Apache-2.0
"""What a remote detector says about its findings leaves only if the policy's detectors find nothing in it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.errors import Unavailable
from lockgate.gate.receipts import Receipt, RequestPart
from lockgate.gate.values import Conversation, Detection
from lockgate.gate.verdicts import Action, Measures
from lockgate.guard.detectors import ActiveGuard, ActiveReview, Guard, review_all
from lockgate.guard.finding_words import UNREAD_KIND, FindingWords, list_texts
from lockgate.guard.policy import Policy
from lockgate.guard.stream import detect_contents
from lockgate.testing import FixedChunker, ScriptedDetector, find_word

SECRET = "bluebird"
FOUND = Detection(0, 3, "the", "Article", "grammar", 0.9)


def build_guard(name: str, detector: Any, *, is_remote: bool = False, threshold: float = 0.5) -> ActiveGuard:
    guard = Guard(name, "text_contents", detector, "c", FixedChunker(100), 0.5, is_remote=is_remote)
    return ActiveGuard(guard, detector.accept({}, ()), threshold, holds=True)


def build_words(*readers: ActiveGuard) -> FindingWords:
    return FindingWords(readers or (build_guard("secret", ScriptedDetector(find_word(SECRET))),), {}, 5)


async def clear(found: Detection, words: FindingWords) -> tuple[Detection, dict[str, int]]:
    receipt = Receipt("p")
    [[cleared]] = await words.read([[found]], receipt)
    return cleared, receipt.dropped


LEAKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "detection": ({"detection": f"a {SECRET}"}, {"detection": UNREAD_KIND}),
    "detection_type": ({"detection_type": SECRET}, {"detection_type": UNREAD_KIND}),
    "metadata": ({"metadata": {"a": [{"b": [1, None, f"x{SECRET}"]}]}}, {"metadata": None}),
    "evidence": ({"evidence": ({"name": "n", "evidence": [{"name": SECRET}]},)}, {"evidence": ()}),
}


@pytest.mark.parametrize("field", LEAKS)
async def test_words_with_a_finding_are_left_out_and_counted(field: str) -> None:
    given_words, expected = LEAKS[field]
    cleared, dropped = await clear(FOUND._replace(**given_words), build_words())
    assert cleared == FOUND._replace(**expected)
    assert dropped == {f"detections.{field}": 1}


async def test_a_key_is_read_like_a_value() -> None:
    cleared, dropped = await clear(FOUND._replace(metadata={SECRET: 1}), build_words())
    assert (cleared.metadata, dropped) == (None, {"detections.metadata": 1})


async def test_words_without_a_finding_and_numbers_leave_as_they_are() -> None:
    found = FOUND._replace(metadata={"score": 0.5, "rule": "r1"}, evidence=({"name": "n", "score": 1.0},))
    assert await clear(found, build_words()) == (found, {})


async def test_without_a_detector_that_could_read_them_words_leave_as_they_are() -> None:
    found = FOUND._replace(detection=SECRET)
    assert await clear(found, FindingWords((), {}, 5)) == (found, {})


async def test_words_that_are_too_long_or_too_deep_are_left_out_unread() -> None:
    deep: Any = SECRET
    for _ in range(40):
        deep = [deep]
    reader = ScriptedDetector()
    words = build_words(build_guard("r", reader))
    for metadata in ({"a": "x" * 9000}, {"a": deep}):
        cleared, dropped = await clear(FOUND._replace(metadata=metadata), words)
        assert (cleared.metadata, dropped) == (None, {"detections.metadata": 1})
    assert sorted(reader.read_texts) == ["Article", "grammar"]


async def test_many_findings_are_read_at_once_and_up_to_a_limit() -> None:
    reader, receipt = ScriptedDetector(find_word(SECRET)), Receipt("p")
    found = [FOUND._replace(metadata={"id": f"{number:03} {'x' * 996}"}) for number in range(100)]
    found[7] = FOUND._replace(metadata={"id": SECRET})
    [cleared] = await build_words(build_guard("r", reader)).read([found], receipt)
    kept = [number for number, one in enumerate(cleared) if one.metadata]
    assert kept == [number for number in range(len(kept) + 1) if number != 7]
    assert 60 < len(kept) < 70
    assert receipt.dropped == {"detections.metadata": 100 - len(kept)}
    assert len(reader.read_texts) == len(set(reader.read_texts)) == len(kept) + 4  # kinds, a key and the secret


async def test_words_that_a_failed_detector_has_not_read_are_left_out() -> None:
    broken = build_guard("broken", ScriptedDetector(error=Unavailable("broken", "down")))
    cleared, dropped = await clear(FOUND._replace(metadata={"rule": "r"}), build_words(broken))
    assert (cleared.detection, cleared.metadata) == (UNREAD_KIND, None)
    assert set(dropped) == {"detections.detection", "detections.detection_type", "detections.metadata"}


async def test_clean_words_are_read_once_and_unclean_ones_each_time() -> None:
    reader = ScriptedDetector(find_word(SECRET))
    words = build_words(build_guard("r", reader))
    for _ in range(3):
        await clear(FOUND._replace(metadata={"rule": SECRET}), words)
    assert sorted(reader.read_texts) == ["Article", SECRET, SECRET, SECRET, "grammar", "rule"]


async def test_a_finding_below_the_threshold_does_not_count() -> None:
    reader = build_guard("r", ScriptedDetector(find_word("Article")), threshold=1.1)
    assert await clear(FOUND, build_words(reader)) == (FOUND, {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(json_values, st.data())
def test_every_string_of_a_value_is_read(value: Any, data: st.DataObject) -> None:
    def plant(inner: Any) -> Any:
        if isinstance(inner, list) and inner and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(inner) - 1))
            return [*inner[:at], plant(inner[at]), *inner[at + 1 :]]
        if isinstance(inner, dict) and inner and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(inner)))
            return {**inner, key: plant(inner[key])}
        return data.draw(st.sampled_from([SECRET, [SECRET], {SECRET: inner}, {"a": (SECRET,)}]))

    assert SECRET in list(list_texts(plant(value)))


def build_policy(far: ScriptedDetector, action: Action, *, is_remote: bool = True) -> Policy:
    guards = (build_guard("far", far, is_remote=is_remote), build_guard("near", ScriptedDetector(find_word(SECRET))))
    measures = Measures(action, {"far": Action.ANNOTATE}, own=frozenset({"far", "near"}))
    return Policy(output=guards, for_output=measures, name="p")


@pytest.mark.parametrize(
    ("action", "is_remote", "is_read"),
    [
        (Action.MASK, True, True),
        (Action.BLOCK, True, True),
        (Action.ANNOTATE, True, False),
        (Action.MASK, False, False),
    ],
)
async def test_only_words_of_services_under_a_policy_that_changes_text_are_read(
    action: Action, is_remote: bool, is_read: bool
) -> None:
    told = FOUND._replace(metadata={"quote": SECRET})
    policy = build_policy(ScriptedDetector(lambda _: [told]), action, is_remote=is_remote)
    meter = policy.open_meter()
    found = await detect_contents("the end", meter.watch(policy.output, RequestPart.ANSWER))
    assert [one.metadata for one in found] == [None if is_read else {"quote": SECRET}]
    assert meter.receipt.dropped == ({"detections.metadata": 1} if is_read else {})
    assert meter.receipt.is_covered


async def test_in_shadow_nothing_is_left_out() -> None:
    policy = replace(build_policy(ScriptedDetector(lambda _: [FOUND]), Action.MASK), is_shadow=True)
    assert not policy.reads_findings


async def test_the_words_of_a_reviewer_are_read_too() -> None:
    class Judge(ScriptedDetector):
        async def review(self, subject: object) -> list[Detection]:
            return [Detection(0, 0, "", f"about {SECRET}", "risk", 0.9)]

    judge = Judge()
    guard = Guard("judge", "text_chat", judge, "", None, 0.5, is_remote=True)
    review = ActiveReview(guard, judge, 0.5)
    policy = replace(build_policy(ScriptedDetector(), Action.MASK), reviews=(review,))
    meter = policy.open_meter()
    watched = meter.watch_reviews(policy.reviews, RequestPart.ANSWER)
    [found] = await review_all(watched, Conversation([{"role": "user", "content": "a"}]))
    assert (found.detection, found.detection_type) == (UNREAD_KIND, "risk")
