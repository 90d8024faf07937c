# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.chunker_inputs import InputLog

LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=12)
CUTS = st.sets(st.integers(1, 36), max_size=8)


def cut_into_chunks(total: int, cuts: set[int]) -> list[tuple[int, int]]:
    ends = sorted({cut for cut in cuts if cut < total} | {total})
    return list(zip([0, *ends], ends, strict=False))


def play(lengths: Sequence[int], chunks: Sequence[tuple[int, int]], lag: int) -> list[tuple[int, int]]:
    """Each chunk is known `lag` messages after its text has come, the last one at the end."""
    log, ranges, received = InputLog(), [], 0
    waiting = list(chunks)
    late = [0] * lag
    for number, length in enumerate(lengths):
        log.receive(number, length)
        late.append(received := received + length)
        while len(waiting) > 1 and waiting[0][1] <= late[-1 - lag]:
            ranges.append(log.place(*waiting.pop(0)))
    log.finish()
    ranges += [log.place(*chunk) for chunk in waiting]
    assert log.held_chars == 0
    return ranges


@given(LENGTHS, CUTS, st.integers(0, 3))
def test_the_messages_of_a_chunk_cover_it(lengths: list[int], cuts: set[int], lag: int) -> None:
    chunks = cut_into_chunks(sum(lengths), cuts)
    owners = [number for number, length in enumerate(lengths) for _ in range(length)]
    for (start, end), (first, last) in zip(chunks, play(lengths, chunks, lag), strict=True):
        within = owners[start:end]
        if within:
            assert first <= within[0]
            assert last >= within[-1]
        assert sum(lengths[first : within[0]] if within else []) == 0, "a message before it has text"
        assert sum(lengths[within[-1] + 1 : last + 1] if within else []) == 0, "a message after it has text"


@given(LENGTHS, CUTS, st.integers(0, 3))
def test_every_message_belongs_to_a_chunk_and_the_ranges_follow_each_other(
    lengths: list[int], cuts: set[int], lag: int
) -> None:
    ranges = play(lengths, cut_into_chunks(sum(lengths), cuts), lag)
    covered = {number for first, last in ranges for number in range(first, last + 1)}
    assert covered == set(range(len(lengths)))
    for (_, last), (first, _) in zip(ranges, ranges[1:], strict=False):
        assert last <= first <= last + 1


def test_a_message_that_two_chunks_share_belongs_to_both() -> None:
    assert play([3, 3, 0, 2], [(0, 4), (4, 8)], 0) == [(0, 1), (1, 3)]


def test_a_message_without_text_belongs_to_what_follows_and_at_the_end_to_the_last_chunk() -> None:
    assert play([0, 2, 0, 2, 0, 0], [(0, 2), (2, 4)], 0) == [(0, 1), (2, 5)]


def test_a_stream_without_text_has_one_chunk_of_all_its_messages() -> None:
    assert play([0, 0, 0], [(0, 0)], 0) == [(0, 2)]
    log = InputLog()
    log.finish()
    assert log.place(0, 0) == (0, 0)


def test_messages_without_text_take_no_room() -> None:
    log = InputLog()
    for number in range(1000):
        log.receive(number, 0)
    assert len(log._runs) == 1
    log.receive(1000, 1)
    log.finish()
    assert log.place(0, 1) == (0, 1000)


def test_text_that_no_chunk_has_is_passed_over() -> None:
    log = InputLog()
    for number in range(3):
        log.receive(number, 2)
    assert log.place(4, 5) == (2, 2)
    assert log.held_chars == 1


def test_numbers_are_told_as_they_came() -> None:
    log = InputLog()
    for number in (7, 7, -1):
        log.receive(number, 1)
    assert log.place(0, 3) == (7, -1)


def test_a_message_after_the_end_is_a_bug_of_the_caller() -> None:
    log = InputLog()
    log.finish()
    with pytest.raises(RuntimeError, match="after the end"):
        log.receive(0, 1)
