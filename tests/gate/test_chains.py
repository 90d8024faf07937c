# SPDX-License-Identifier: Apache-2.0
"""The chain: equal frames give equal values, and whatever is done to them gives another one. The laws bite."""

import struct
from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockgate.gate.receipts import FrameChain
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

Frames = list[tuple[str, str]]

LANES = st.sampled_from(["answer", "0/content", "0/conten", "1/content", "0/tool_calls/0/arguments", "", "ü"])
TEXTS = st.text("ab t\n\u00e9\u0301e█\U0001f600\ud83d", max_size=6)
FRAMES: st.SearchStrategy[Frames] = st.lists(st.tuples(LANES, TEXTS.filter(bool)), max_size=8)
SOME_FRAMES = FRAMES.filter(bool)


def chain(frames: Frames) -> FrameChain:
    built = FrameChain()
    for lane, text in frames:
        built.add(lane, text)
    return built


def value(frames: Frames) -> str:
    return chain(frames).value


def copy(text: str) -> str:
    return "".join(list(text))


def place_in(data: st.DataObject, frames: Frames, spare: int = 1) -> int:
    return data.draw(st.integers(0, len(frames) - spare))


@given(FRAMES)
def test_equal_frames_give_equal_values(frames: Frames) -> None:
    assert value(frames) == value([(copy(lane), copy(text)) for lane, text in frames])
    assert chain(frames).frames == len(frames)


@given(FRAMES)
def test_the_value_is_the_one_of_the_specification(frames: Frames) -> None:
    now = sha256(b"lockgate receipt 1").digest()
    for lane, text in frames:
        name, body = lane.encode(), text.encode("utf-8", "surrogatepass")
        now = sha256(now + struct.pack(">I", len(name)) + name + struct.pack(">Q", len(body)) + body).digest()
    assert value(frames) == now.hex()


@given(SOME_FRAMES, st.data())
def test_another_character_gives_another_value(frames: Frames, data: st.DataObject) -> None:
    place = place_in(data, frames)
    lane, text = frames[place]
    at = data.draw(st.integers(0, len(text) - 1))
    others = {text[:at] + new + text[at + 1 :] for new in ("a", " ", "?", "\ufffd", text[at].swapcase())} - {text}
    values = {value([*frames[:place], (lane, other), *frames[place + 1 :]]) for other in others}
    assert len(values - {value(frames)}) == len(others)


@given(SOME_FRAMES, st.data())
def test_a_character_more_or_less_gives_another_value(frames: Frames, data: st.DataObject) -> None:
    place = place_in(data, frames)
    lane, text = frames[place]
    at = data.draw(st.integers(0, len(text) - 1))
    for other in (text[:at] + text[at + 1 :], text[:at] + data.draw(TEXTS.filter(bool)) + text[at:]):
        assert value([*frames[:place], (lane, other), *frames[place + 1 :]]) != value(frames)


@given(SOME_FRAMES, st.data())
def test_a_frame_that_is_dropped_or_doubled_gives_another_value(frames: Frames, data: st.DataObject) -> None:
    place = place_in(data, frames)
    dropped = [*frames[:place], *frames[place + 1 :]]
    doubled = [*frames[: place + 1], *frames[place:]]
    assert len({value(frames), value(dropped), value(doubled)}) == 3


@given(FRAMES, st.data())
def test_frames_in_another_order_give_another_value(frames: Frames, data: st.DataObject) -> None:
    other = data.draw(st.permutations(frames))
    assert (value(other) == value(frames)) is (other == frames)


@given(SOME_FRAMES, st.data())
def test_a_frame_that_is_cut_in_two_gives_another_value(frames: Frames, data: st.DataObject) -> None:
    place = place_in(data, frames)
    lane, text = frames[place]
    assume(len(text) > 1)
    at = data.draw(st.integers(1, len(text) - 1))
    cut = [*frames[:place], (lane, text[:at]), (lane, text[at:]), *frames[place + 1 :]]
    assert value(cut) != value(frames)


@given(FRAMES, st.data())
def test_the_same_text_cut_elsewhere_gives_another_value(frames: Frames, data: st.DataObject) -> None:
    assume(len(frames) > 1)
    place = place_in(data, frames, spare=2)
    (lane, first), (_, second) = frames[place : place + 2]
    frames = [*frames[: place + 1], (lane, second), *frames[place + 2 :]]
    both = first + second
    at = data.draw(st.integers(1, len(both) - 1))
    assume(at != len(first))
    moved = [*frames[:place], (lane, both[:at]), (lane, both[at:]), *frames[place + 2 :]]
    assert value(moved) != value(frames)


@given(SOME_FRAMES, LANES, st.data())
def test_a_frame_in_another_lane_gives_another_value(frames: Frames, lane: str, data: st.DataObject) -> None:
    place = place_in(data, frames)
    assume(lane != frames[place][0])
    assert value([*frames[:place], (lane, frames[place][1]), *frames[place + 1 :]]) != value(frames)


@given(SOME_FRAMES, st.data())
def test_what_moves_from_a_text_into_the_name_of_its_lane_gives_another_value(
    frames: Frames, data: st.DataObject
) -> None:
    place = place_in(data, frames)
    lane, text = frames[place]
    assume(len(text) > 1)
    assert value([*frames[:place], (lane + text[0], text[1:]), *frames[place + 1 :]]) != value(frames)


@given(FRAMES, LANES, st.data())
def test_an_empty_text_is_no_frame(frames: Frames, lane: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(frames)))
    with_empty = chain([*frames[:place], (lane, ""), *frames[place:]])
    assert (with_empty.value, with_empty.frames) == (value(frames), len(frames))


@given(FRAMES, FRAMES)
def test_two_sequences_have_one_value_only_if_they_are_one(frames: Frames, others: Frames) -> None:
    assert (value(frames) == value(others)) is (frames == others)


@given(FRAMES)
def test_looking_at_the_value_changes_nothing(frames: Frames) -> None:
    looked = FrameChain()
    for lane, text in frames:
        looked.add(lane, text)
        assert len(looked.value) == 64
    assert looked.value == value(frames)


# Bugs that the laws must catch.

BUGS = Bugs()


def plant(monkeypatch: pytest.MonkeyPatch, build: Callable[[bytes, bytes, bytes], bytes]) -> None:
    """Another way from one value to the next."""

    def add(self: FrameChain, lane: str, text: str) -> None:
        if text:
            self.frames += 1
            self._digest = build(self._digest, lane.encode(), text.encode("utf-8", "surrogatepass"))

    monkeypatch.setattr(FrameChain, "add", add)


def size(piece: bytes, width: int = 8) -> bytes:
    return len(piece).to_bytes(width, "big")


@BUGS.caught_by(
    test_the_value_is_the_one_of_the_specification,
    test_what_moves_from_a_text_into_the_name_of_its_lane_gives_another_value,
)
def lengths_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda before, lane, text: sha256(before + lane + text).digest())


@BUGS.caught_by(
    test_frames_in_another_order_give_another_value, test_a_frame_that_is_dropped_or_doubled_gives_another_value
)
def frames_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_up(before: bytes, lane: bytes, text: bytes) -> bytes:
        now = sha256(size(lane, 4) + lane + size(text) + text).digest()
        return bytes(one ^ other for one, other in zip(before, now, strict=True))

    plant(monkeypatch, add_up)


@BUGS.caught_by(test_another_character_gives_another_value, test_a_frame_that_is_dropped_or_doubled_gives_another_value)
def only_the_last_frame_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda _, lane, text: sha256(size(lane) + lane + size(text) + text).digest())


@BUGS.caught_by(test_a_frame_in_another_lane_gives_another_value)
def lanes_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda before, _, text: sha256(before + size(text) + text).digest())


@BUGS.caught_by(test_a_frame_in_another_lane_gives_another_value, test_the_value_is_the_one_of_the_specification)
def the_lane_of_the_first_frame_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add

    def add(self: FrameChain, lane: str, text: str) -> None:
        honest(self, self._lane if self.frames else lane, text)

    monkeypatch.setattr(FrameChain, "add", add)


@BUGS.caught_by(
    test_a_frame_that_is_cut_in_two_gives_another_value, test_the_same_text_cut_elsewhere_gives_another_value
)
def borders_of_frames_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def each_character(before: bytes, lane: bytes, text: bytes) -> bytes:
        for one in text:
            before = sha256(before + size(lane, 4) + lane + bytes([one])).digest()
        return before

    plant(monkeypatch, each_character)


@BUGS.caught_by(test_another_character_gives_another_value)
def half_characters_are_all_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add

    def add(self: FrameChain, lane: str, text: str) -> None:
        honest(self, lane, text.encode("utf-8", "replace").decode())

    monkeypatch.setattr(FrameChain, "add", add)


@BUGS.caught_by(test_a_character_more_or_less_gives_another_value)
def white_space_at_the_ends_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add
    monkeypatch.setattr(FrameChain, "add", lambda self, lane, text: honest(self, lane, text.strip() or text[:1]))


@BUGS.caught_by(test_another_character_gives_another_value)
def small_and_large_letters_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add
    monkeypatch.setattr(FrameChain, "add", lambda self, lane, text: honest(self, lane, text.lower()))


@BUGS.caught_by(test_a_frame_that_is_dropped_or_doubled_gives_another_value)
def a_frame_like_the_one_before_is_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add
    seen: dict[FrameChain, tuple[str, str]] = {}

    def add(self: FrameChain, lane: str, text: str) -> None:
        if seen.get(self) != (lane, text):
            honest(self, lane, text)
        seen[self] = lane, text

    monkeypatch.setattr(FrameChain, "add", add)


@BUGS.caught_by(test_an_empty_text_is_no_frame)
def an_empty_text_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.add

    def add(self: FrameChain, lane: str, text: str) -> None:
        self.frames += not text
        honest(self, lane, text)

    monkeypatch.setattr(FrameChain, "add", add)


@BUGS.caught_by(test_the_value_is_the_one_of_the_specification)
def lengths_are_those_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(before: bytes, lane: bytes, text: bytes) -> bytes:
        chars = len(text.decode("utf-8", "surrogatepass")).to_bytes(8, "big")
        return sha256(before + size(lane, 4) + lane + chars + text).digest()

    plant(monkeypatch, build)


@BUGS.caught_by(test_the_value_is_the_one_of_the_specification)
def the_chain_begins_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameChain.__init__
    monkeypatch.setattr(FrameChain, "__init__", lambda self: honest(self, _digest=bytes(32)))


@pytest.mark.parametrize(("planted", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(planted: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(planted, law, monkeypatch)
