# SPDX-License-Identifier: Apache-2.0
"""The laws of the whole core: any cut, any order, any number of detectors and choices, both strategies."""

import random
import sys
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.batcher import DetectorRequest, DetectorSpec
from lockgate.gate.lanes import Lane, LanePlan, Lanes
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import Chunk, Frame
from tests.gate.worlds import Player, World, play, worlds

STRATEGIES = st.sampled_from(Strategy)
SEEDS = st.integers(0, 1 << 32)


def _of_choice(player: Player, choice: int) -> list[Release]:
    return [release for release in player.releases if release.choice == choice]


def _found(player: Player) -> Counter[tuple[int, str, int, int]]:
    return Counter(
        (release.choice, found.detector_id, found.start, found.end)
        for release in player.releases
        for found in release.detections
    )


@given(worlds(), STRATEGIES, SEEDS)
def test_no_character_leaves_before_every_holding_detector_has_cleared_it(
    world: World, how: Strategy, seed: int
) -> None:
    player = Player(world, world.plan(how), random.Random(seed))

    def watch(player: Player, release: Release) -> None:
        for keeper in world.keepers:
            assert not keeper.holds or release.end <= player.cleared(release.choice, keeper)

    player.watch = watch
    player.play()


@given(worlds(), STRATEGIES, SEEDS)
def test_releases_join_to_exactly_the_text_in_order(world: World, how: Strategy, seed: int) -> None:
    player = play(world, how, seed)
    for choice, text in enumerate(world.texts):
        releases = _of_choice(player, choice)
        assert "".join(release.text for release in releases) == text
        position = 0
        for release in releases:
            assert (release.start, release.end) == (position, position + len(release.text))
            position = release.end


@given(worlds(), STRATEGIES, SEEDS)
def test_everything_leaves_in_the_end_and_each_choice_ends_once(world: World, how: Strategy, seed: int) -> None:
    player = play(world, how, seed)
    assert player.lanes.is_finished
    for choice in range(len(world.texts)):
        assert [release.is_final for release in _of_choice(player, choice)].count(True) == 1
        assert _of_choice(player, choice)[-1].is_final


@given(worlds(), STRATEGIES, SEEDS)
def test_every_finding_is_delivered_exactly_once(world: World, how: Strategy, seed: int) -> None:
    expected = Counter(
        (choice, keeper.name, a, b)
        for choice in range(len(world.texts))
        for keeper in world.keepers
        for a, b in world.expected(keeper, choice)
    )
    assert _found(play(world, how, seed)) == expected


@given(worlds(trailing=False), STRATEGIES, SEEDS)
def test_a_finding_leaves_with_the_first_released_text_that_overlaps_it(world: World, how: Strategy, seed: int) -> None:
    for release in play(world, how, seed).releases:
        for found in release.detections:
            assert release.start <= found.start < release.end


@given(worlds(), STRATEGIES, SEEDS)
def test_a_trailing_detector_reports_at_the_end_and_holds_nothing(world: World, how: Strategy, seed: int) -> None:
    trailing = {keeper.name for keeper in world.keepers if not keeper.holds}
    player = play(world, how, seed)
    for release in player.releases:
        assert release.is_final or not any(found.detector_id in trailing for found in release.detections)
    if len(trailing) == len(world.keepers):
        assert [release.text for release in player.releases if not release.is_final] == [f.text for f in world.frames]


@given(worlds(), worlds(), STRATEGIES, SEEDS, SEEDS)
def test_any_cut_and_any_order_give_the_same_text_and_findings(
    world: World, other: World, how: Strategy, first: int, second: int
) -> None:
    one = play(world, how, first)
    recut, number = [], 0
    for choice, text in enumerate(world.texts):  # the other world lends its cuts
        size = 1 + len(other.frames) % 7
        for start in range(0, len(text), size):
            recut.append(Frame(number, text[start : start + size], choice))
            number += 1
    two = play(World(world.texts, recut, world.chunkers, world.forced, world.keepers), how, second)
    assert _found(one) == _found(two)
    for choice in range(len(world.texts)):
        assert "".join(r.text for r in _of_choice(one, choice)) == "".join(r.text for r in _of_choice(two, choice))


@given(worlds(trailing=False), SEEDS, SEEDS)
def test_with_max_processed_index_even_the_releases_do_not_depend_on_the_order(
    world: World, first: int, second: int
) -> None:
    assume(len(world.keepers) > 1)
    how = Strategy.MAX_PROCESSED_INDEX

    def cuts(player: Player) -> Counter[tuple[int, int, int, tuple[object, ...]]]:
        return Counter((r.choice, r.start, r.end, r.detections) for r in player.releases if r.text)

    assert cuts(play(world, how, first)) == cuts(play(world, how, second))


@given(worlds(), STRATEGIES, SEEDS)
def test_what_a_frame_carried_leaves_exactly_once_with_its_last_character(
    world: World, how: Strategy, seed: int
) -> None:
    player = play(world, how, seed)
    for choice in range(len(world.texts)):
        frames = [frame for frame in world.frames if frame.choice == choice]
        left: list[Frame] = []
        ends, position = {}, 0
        for frame in frames:
            position += len(frame.text)
            ends[frame.number] = position
        for release in _of_choice(player, choice):
            left += release.frames
            for frame in release.frames:
                assert release.start <= ends[frame.number] <= release.end
        assert left == frames


@given(worlds(), STRATEGIES, SEEDS, st.integers(1, 3))
def test_each_chunk_is_asked_once_of_each_of_its_detectors_and_few_requests_are_open(
    world: World, how: Strategy, seed: int, most: int
) -> None:
    player = play(world, how, seed, max_open=most)
    expected = Counter(
        (choice, keeper.name, chunk)
        for choice in range(len(world.texts))
        for keeper in world.keepers
        for chunk in world.chunks(keeper.chunker, choice)
    )
    assert Counter(player.asked) == expected
    assert player.most_open <= most


@given(worlds(), STRATEGIES, SEEDS, st.integers(0, 4))
def test_we_never_wait_for_text_that_we_refuse_to_read(world: World, how: Strategy, seed: int, soft: int) -> None:
    player = play(world, how, seed, soft_held_chars=soft)
    assert not player.idle_while_refusing
    assert player.lanes.is_finished


@given(worlds(trailing=False), STRATEGIES, SEEDS)
def test_frames_held_are_only_those_that_have_not_left(world: World, how: Strategy, seed: int) -> None:
    player = Player(world, world.plan(how), random.Random(seed))
    seen: Counter[int] = Counter()

    def watch(player: Player, release: Release) -> None:
        seen[release.choice] += len(release.frames)
        received = sum(frame.choice == release.choice for frame in player._read())
        assert len(player.lanes.by_choice[release.choice]._gate.log.frames) <= received - seen[release.choice]

    player.watch = watch
    player.play()


@given(worlds(max_choices=1), SEEDS)
def test_a_whole_text_gives_the_same_findings_in_any_order_of_chunkers_and_answers(world: World, seed: int) -> None:
    turns = random.Random(seed)
    lane = Lane(world.plan(Strategy.FRONTIER, is_whole=True, soft_held_chars=0))
    outcomes = []
    for frame in world.frames:
        outcomes += lane.receive(frame)
        assert lane.may_read()
    outcomes += lane.end()
    chunkers = list(world.chunkers)
    turns.shuffle(chunkers)
    for name in chunkers:
        chunks = world.chunks(name, 0)
        turns.shuffle(chunks)
        assert lane.place_all(name, sorted(chunks)) == []
        outcomes += lane.end_chunker(name)
    keepers = {keeper.name: keeper for keeper in world.keepers}
    while asks := [one for one in outcomes if isinstance(one, DetectorRequest)]:
        ask = turns.choice(asks)
        outcomes.remove(ask)
        pairs = zip(ask.excerpts, ask.chunks, strict=True)
        found = [world.detect(keepers[ask.detector], world.texts[0], excerpt, chunk) for excerpt, chunk in pairs]
        outcomes += lane.answer(ask, found)
    releases = [one for one in outcomes if isinstance(one, Release)]
    assert "".join(release.text for release in releases) == world.texts[0]
    assert Counter(
        (one.detector_id, one.start, one.end) for release in releases for one in release.detections
    ) == Counter((keeper.name, a, b) for keeper in world.keepers for a, b in world.expected(keeper, 0))


def _drive(lane: Lane, pieces: int) -> None:
    """A long text through one lane: words, sentences of ten words, one whole."""
    position = 0
    for number in range(pieces):
        lane.receive(Frame(number, "word "))
        position += 5
        chunks = [("word", Chunk(position - 5, position, "word "))]
        if number % 10 == 9:
            chunks.append(("sentence", Chunk(position - 50, position, "word " * 10)))
        for chunker, chunk in chunks:
            for outcome in lane.place(chunker, chunk):
                assert isinstance(outcome, DetectorRequest)
                lane.answer(outcome, [[]])
        lane.may_read()


def _calls(pieces: int, how: Strategy) -> int:
    count = 0

    def trace(_frame: object, _event: str, _arg: object) -> None:
        nonlocal count
        count += 1

    lane = Lane(LanePlan((DetectorSpec("w", "word"), DetectorSpec("s", "sentence")), how))
    sys.setprofile(trace)
    try:
        _drive(lane, pieces)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("how", Strategy)
def test_cost_is_linear_in_the_text(how: Strategy) -> None:
    assert _calls(2000, how) <= 10.5 * _calls(200, how)


def test_text_beyond_the_hard_limit_ends_the_stream_and_does_not_leave() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "page"),), max_held_chars=10))
    assert lane.receive(Frame(0, "0123456789")) == []
    with pytest.raises(HeldTooMuch):
        lane.receive(Frame(1, "x"))


def test_endless_empty_frames_count_against_the_limit_too() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "page"),), max_held_chars=10))
    lane.receive(Frame(0, "a"))
    with pytest.raises(HeldTooMuch):
        for number in range(1, 12):
            lane.receive(Frame(number, ""))


def test_a_slow_trailing_detector_is_bounded_as_well() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "page", holds=False),), max_held_chars=10))
    lane.receive(Frame(0, "0123456789"))
    with pytest.raises(HeldTooMuch):
        lane.receive(Frame(1, "x"))


def test_reading_stops_while_the_slowest_detector_owes_an_answer_and_goes_on_while_it_wants_text() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "page"),), soft_held_chars=3))
    lane.receive(Frame(0, "abcd"))
    assert not lane.may_read()  # the chunker has not taken what it was given
    lane.aligners["page"].feed()
    assert lane.may_read()  # the chunker wants more
    (ask,) = lane.place("page", Chunk(0, 4, "abcd"))
    assert isinstance(ask, DetectorRequest)
    assert not lane.may_read()  # an answer is owed
    lane.answer(ask, [[]])
    assert lane.may_read()


def test_a_whole_text_is_asked_in_one_request_per_detector() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "word"),), is_whole=True))
    lane.receive(Frame(0, "a b"))
    assert lane.end() == []
    assert lane.place("word", Chunk(0, 2, "a ")) == lane.place("word", Chunk(2, 3, "b")) == []
    (ask,) = lane.end_chunker("word")
    assert isinstance(ask, DetectorRequest)
    assert [chunk.text for chunk in ask.chunks] == ["a ", "b"]
    assert [out.text for out in lane.answer(ask, [[]]) if isinstance(out, Release)] == ["a b", ""]


def test_a_chunker_that_skips_text_is_at_fault() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "word"),)))
    lane.receive(Frame(0, "secret text"))
    lane.end()
    lane.place("word", Chunk(0, 6, "secret"))
    with pytest.raises(BrokeProtocol, match="is in no chunk"):
        lane.end_chunker("word")


def test_a_chunker_that_ends_before_its_text_is_at_fault() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "word"),)))
    lane.receive(Frame(0, "text"))
    with pytest.raises(BrokeProtocol, match="ended before its text"):
        lane.end_chunker("word")


def test_a_model_of_endless_choices_is_at_fault() -> None:
    lanes = Lanes(LanePlan((DetectorSpec("d", "word"),), max_choices=3))
    for choice in range(3):
        lanes.receive(Frame(choice, "x", choice))
    with pytest.raises(BrokeProtocol, match="more than 3 choices"):
        lanes.receive(Frame(3, "x", 3))


def test_a_chunker_waits_while_many_of_its_chunks_wait_for_a_detector() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "word"),)))
    lane.receive(Frame(0, "x" * 1000))
    placed = 0
    while not lane.batcher.has_backlog("word"):
        lane.place("word", Chunk(placed, placed + 1, "x"))
        placed += 1
    assert 256 <= placed < 300


def test_a_frame_after_the_end_is_a_bug_of_the_caller() -> None:
    lane = Lane(LanePlan((DetectorSpec("d", "word"),)))
    lane.end()
    with pytest.raises(RuntimeError, match="ended"):
        lane.receive(Frame(0, "x"))
