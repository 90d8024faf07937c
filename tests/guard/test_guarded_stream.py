# SPDX-License-Identifier: Apache-2.0
"""The shell around the core: real tasks, any timing, cancellation at every wait."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from lockgate.errors import (
    BrokeProtocol,
    HeldTooMuch,
    InvalidRequest,
    LockgateError,
    Unavailable,
    UnknownDetector,
    UnsuitableDetector,
)
from lockgate.gate.lanes import LanePlan
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import Chunk, Detection, Excerpt, Frame
from lockgate.guard.detectors import ActiveGuard, Guard, Rules, choose
from lockgate.guard.stream import detect_contents, list_readers, open_guarded_stream
from lockgate.interfaces import Chunker, Detector
from lockgate.testing import FixedChunker, ScriptedDetector, ScriptedModel, find_word
from tests.guard.early_parts import Gated
from tests.waits import latency, linger, until

TEXT = "the cat sat on the mat and the dog ran"


def _guards(*posts: tuple[str, Detector, Chunker], trailing: Sequence[str] = ()) -> list[ActiveGuard]:
    active = []
    for name, detector, chunker in posts:
        guard = Guard(name, "text_contents", detector, f"c{id(chunker)}", chunker, 0.5)
        reading = detector.accept({}, ())
        active.append(ActiveGuard(guard, reading, 0.5, name not in trailing))
    return active


def _source(text: str = TEXT, size: int = 4, *, pause_s: float = 0.0, error: Exception | None = None) -> ScriptedModel:
    return ScriptedModel([text[at : at + size] for at in range(0, len(text), size)], pause_s=pause_s, error=error)


async def _run(model: ScriptedModel, guards: list[ActiveGuard], **plan: object) -> list[Release]:
    lanes = LanePlan(list_readers(guards), **plan)  # type: ignore[arg-type]
    async with open_guarded_stream(model.generate((), {}), guards, lanes) as releases:
        return [release async for release in releases]


@pytest.mark.parametrize("how", Strategy)
@pytest.mark.parametrize("seed", range(20))
async def test_detectors_of_any_speed_and_size_give_the_same_text_and_findings(how: Strategy, seed: int) -> None:
    turns = random.Random(seed)
    posts = [
        (f"d{size}", ScriptedDetector(find_word("the"), delay_s=turns.choice([0, 0, 0.001, 0.003])), FixedChunker(size))
        for size in turns.sample([3, 7, 11, 64], 3)
    ]
    releases = await _run(_source(size=turns.randint(1, 9)), _guards(*posts), strategy=how)
    assert "".join(release.text for release in releases) == TEXT
    found = sorted((one.detector_id, one.start) for release in releases for one in release.detections)
    expected = [
        (name, start)
        for name, _, chunker in posts
        for start in (0, 15, 27)
        if start // chunker.size == (start + 2) // chunker.size
    ]
    assert found == sorted(expected)


async def test_a_shared_chunker_is_called_once() -> None:
    chunker = FixedChunker(5)
    await _run(_source(), _guards(("a", ScriptedDetector(), chunker), ("b", ScriptedDetector(), chunker)))
    assert chunker.calls == 1


async def test_a_whole_text_goes_through_the_same_path_in_one_request() -> None:
    detector = ScriptedDetector(find_word("the"))
    found = await detect_contents(TEXT, _guards(("a", detector, FixedChunker(8)), ("b", detector, FixedChunker(100))))
    assert [(one.start, one.detector_id) for one in found] == [(0, "a"), (0, "b"), (15, "b"), (27, "a"), (27, "b")]


async def test_nothing_leaves_before_the_slow_detector_has_answered() -> None:
    slow = ScriptedDetector(delay_s=0.05)
    guards = _guards(("fast", ScriptedDetector(), FixedChunker(4)), ("slow", slow, FixedChunker(100)))
    async with open_guarded_stream(_source().generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
        async for release in releases:
            assert slow.read_texts, release


async def test_a_trailing_detector_does_not_hold_the_stream() -> None:
    slow, releases = Gated("mat"), list[Release]()
    guards = _guards(("slow", slow, FixedChunker(100)), trailing=["slow"])
    async with open_guarded_stream(_source().generate((), {}), guards, LanePlan(list_readers(guards))) as stream:
        async for release in stream:
            releases.append(release)
            if release.end == len(TEXT):
                slow.may_read.set()
    assert [release.text for release in releases[:-1]] == [TEXT[at : at + 4] for at in range(0, len(TEXT), 4)]
    assert [one.start for one in releases[-1].detections] == [19]


class _BrokenLater(ScriptedDetector):
    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        if self.read_texts:
            raise Unavailable("broken", "gone")
        return await super().read(excerpts)


async def test_an_error_of_a_detector_ends_the_stream_behind_what_has_left() -> None:
    guards = _guards(("ok", ScriptedDetector(), FixedChunker(4)), ("broken", _BrokenLater(), FixedChunker(8)))
    texts: list[str] = []

    async def say() -> AsyncGenerator[Frame, None]:
        async for frame in _source().generate((), {}):
            if frame.number == 3:
                await until(lambda: "".join(texts) == TEXT[:8])
            yield frame

    with pytest.raises(Unavailable):
        async with open_guarded_stream(say(), guards, LanePlan(list_readers(guards))) as releases:
            async for release in releases:
                texts.append(release.text)  # noqa: PERF401 - what came before the error is the point
    assert "".join(texts) == TEXT[:8]


async def test_of_a_whole_text_an_error_does_not_wait_for_a_slow_detector() -> None:
    slow = ScriptedDetector(delay_s=3600)
    bad = ScriptedDetector(error=Unavailable("bad", "gone"))
    with pytest.raises(Unavailable):
        await detect_contents(TEXT, _guards(("slow", slow, FixedChunker(9)), ("bad", bad, FixedChunker(9))))
    assert slow.cancelled == 1


@pytest.mark.parametrize("size", [65_535, 65_536, 1_100_000])
async def test_a_whole_text_may_be_longer_than_any_mark(size: int) -> None:
    detector = ScriptedDetector(find_word("needle"))
    text = "x" * (size - 6) + "needle"
    found = await detect_contents(text, _guards(("a", detector, FixedChunker(size)), ("b", detector, FixedChunker(7))))
    assert ("a", size - 6) in [(one.detector_id, one.start) for one in found]


async def test_a_chunker_that_ends_before_its_text_is_named() -> None:
    class Lazy(FixedChunker):
        async def stream(self, frames: object) -> AsyncGenerator[Chunk, None]:
            yield Chunk(0, 4, "the ")

    for model in (_source(), _source(error=InvalidRequest("bad line"))):
        with pytest.raises(BrokeProtocol, match="ended before its text"):
            await _run(model, _guards(("d", ScriptedDetector(), Lazy(4))))


async def test_a_reader_that_does_not_read_stops_detectors_and_chunkers_too() -> None:
    detector = ScriptedDetector()
    guards = _guards(("d", detector, FixedChunker(2)))
    async with open_guarded_stream(
        ScriptedModel(["ab" * 100_000]).generate((), {}), guards, LanePlan(list_readers(guards))
    ) as releases:
        await anext(releases)
        await linger()
        assert len(detector.read_texts) < 1000


async def test_cancelling_a_whole_text_stops_its_detectors() -> None:
    slow = Gated("x")
    task = asyncio.create_task(detect_contents(TEXT, _guards(("d", slow, FixedChunker(9)))))
    await slow.is_reading.wait()
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), slow.cancelled) == (True, 1)


async def test_an_error_of_the_source_lets_what_is_cut_leave_first() -> None:
    model = _source("aaaa bbbb cccc", 5, error=InvalidRequest("bad line"))
    guards = _guards(("d", ScriptedDetector(delay_s=0.02), FixedChunker(5)))
    texts: list[str] = []
    with pytest.raises(InvalidRequest, match="bad line"):
        async with open_guarded_stream(model.generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
            async for release in releases:
                texts.append(release.text)  # noqa: PERF401 - what came before the error is the point
    assert texts == ["aaaa ", "bbbb "]


async def test_a_source_that_fails_after_one_choice_has_ended_is_not_waited_for() -> None:
    async def say() -> AsyncGenerator[Frame, None]:
        yield Frame(0, "aaaa bbbb ", 0)
        yield Frame(1, "", 0, is_last=True)
        yield Frame(2, "cccc dddd", 1)
        raise Unavailable("m", "gone")

    guards = _guards(("d", ScriptedDetector(), FixedChunker(5)))
    texts: list[tuple[int, str]] = []
    with pytest.raises(Unavailable):
        async with open_guarded_stream(say(), guards, LanePlan(list_readers(guards))) as releases:
            async for release in releases:
                texts.append((release.choice, release.text))  # noqa: PERF401 - what came before the error is the point
    assert [text for choice, text in texts if choice == 0 and text] == ["aaaa ", "bbbb "]
    assert [text for choice, text in texts if choice == 1] == ["cccc "]


async def test_held_text_beyond_the_limit_is_one_error_and_none_of_it_leaves() -> None:
    guards = _guards(("d", ScriptedDetector(), FixedChunker(1000)))
    texts: list[str] = []
    with pytest.raises(HeldTooMuch):
        async with open_guarded_stream(
            _source().generate((), {}), guards, LanePlan(list_readers(guards), max_held_chars=10)
        ) as releases:
            async for release in releases:
                texts.append(release.text)  # noqa: PERF401 - what came before the error is the point
    assert texts == []


async def test_a_chunker_that_invents_text_is_named() -> None:
    class Liar(FixedChunker):
        async def stream(self, frames: object) -> AsyncGenerator[Chunk, None]:
            yield Chunk(0, 3, "lie")

    with pytest.raises(BrokeProtocol, match="chunker `c"):
        await _run(_source(), _guards(("d", ScriptedDetector(), Liar(3))))


async def test_a_reader_that_does_not_read_stops_the_source() -> None:
    model = ScriptedModel(["word "] * 5000)
    guards = _guards(("d", ScriptedDetector(), FixedChunker(5)))
    async with open_guarded_stream(model.generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
        await anext(releases)
        await linger()
        assert model.said < 1000
    assert model.was_stopped


@pytest.mark.parametrize("steps", range(0, 40, 2))
async def test_wherever_the_reader_leaves_nothing_is_left_behind(steps: int) -> None:
    model = _source(pause_s=0.001)
    detector = ScriptedDetector(delay_s=0.002)
    guards = _guards(("a", detector, FixedChunker(3)), ("b", ScriptedDetector(), FixedChunker(7)))
    before = asyncio.all_tasks()

    async def read() -> None:
        async with open_guarded_stream(model.generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
            async for _ in releases:
                pass

    task = asyncio.create_task(read())
    for _ in range(steps):
        await asyncio.sleep(0)
    await latency(steps / 2000)
    task.cancel()
    await asyncio.wait([task])
    assert asyncio.all_tasks() == before
    assert model.was_stopped or model.said in (0, 10)


async def test_a_bug_in_a_part_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        await _run(_source(), _guards(("d", ScriptedDetector(error=ZeroDivisionError()), FixedChunker(4))))


async def test_an_empty_source_gives_no_release() -> None:
    assert await _run(ScriptedModel([]), _guards(("d", ScriptedDetector(), FixedChunker(4)))) == []


async def test_several_choices_keep_their_own_text() -> None:
    async def two() -> AsyncGenerator[Frame, None]:
        for number in range(20):
            yield Frame(number, f"{number:02} ", number % 2)

    guards = _guards(("d", ScriptedDetector(), FixedChunker(4)))
    async with open_guarded_stream(two(), guards, LanePlan(list_readers(guards))) as stream:
        releases = [release async for release in stream]
    for choice in (0, 1):
        text = "".join(release.text for release in releases if release.choice == choice)
        assert text == "".join(f"{number:02} " for number in range(choice, 20, 2))


async def test_the_watcher_sees_text_while_it_is_held() -> None:
    held: list[int] = []
    guards = _guards(("d", ScriptedDetector(), FixedChunker(100)))
    stream = open_guarded_stream(
        _source().generate((), {}),
        guards,
        LanePlan(list_readers(guards)),
        lambda lanes: held.append(lanes.by_choice[0].held_chars),
    )
    async with stream as releases:
        assert [release.text async for release in releases] == [TEXT, ""]
    assert max(held) == len(TEXT)


class _Rejecting(ScriptedDetector):
    def accept(self, params: object, headers: object) -> ScriptedDetector:
        raise InvalidRequest("unknown parameter `x`, expected `y`")


def _post(name: str = "d", type_: str = "text_contents", chunker: str = "c", detector: Detector | None = None) -> Guard:
    return Guard(name, type_, detector or ScriptedDetector(), chunker, FixedChunker(3), 0.5)


@pytest.mark.parametrize(
    ("guard", "params", "rules", "error", "words"),
    [
        (_post("other"), {}, Rules(), UnknownDetector, "detector `d` not found"),
        (
            _post(type_="text_chat"),
            {},
            Rules(),
            UnsuitableDetector,
            "detector `d` is not supported by this endpoint",
        ),
        (
            _post(chunker="whole_doc_chunker"),
            {},
            Rules(allows_whole_text=False),
            InvalidRequest,
            "detector `d` uses chunker `whole_doc_chunker`, which is not supported by this endpoint",
        ),
        (
            _post(),
            {"threshold": "high"},
            Rules(),
            InvalidRequest,
            "`threshold` parameter specified for model `d` must be a number",
        ),
        (
            _post(detector=_Rejecting()),
            {"x": 1},
            Rules(),
            InvalidRequest,
            "detector request failed for `d`: unknown parameter `x`, expected `y`",
        ),
    ],
)
def test_what_a_request_may_not_ask_for_is_said_exactly(
    guard: Guard, params: dict[str, object], rules: Rules, error: type[LockgateError], words: str
) -> None:
    with pytest.raises(error) as caught:
        choose({guard.id: guard}, {"d": params}, rules)
    assert caught.value.message == words


def test_a_threshold_of_the_request_wins_over_the_configured_one() -> None:
    guards = {"d": _post()}
    assert choose(guards, {"d": {"threshold": 1}}, Rules()).contents[0].threshold == 1.0
    assert choose(guards, {"d": {}}, Rules()).contents[0].threshold == 0.5
    lenient = Rules(checks_threshold=False)
    assert choose(guards, {"d": {"threshold": None}}, lenient).contents[0].threshold == 0.5


async def test_a_detector_below_the_threshold_finds_nothing() -> None:
    class Weak(ScriptedDetector):
        async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
            return [[Detection(0, 1, "t", "x", "y", 0.4)] for _ in excerpts]

    assert await detect_contents(TEXT, _guards(("d", Weak(), FixedChunker(100)))) == []


async def test_a_source_is_closed_even_when_it_was_never_read() -> None:
    model = _source()
    source = model.generate((), {})
    guards = _guards(("d", ScriptedDetector(), FixedChunker(4)))
    async with aclosing(source), open_guarded_stream(source, guards, LanePlan(list_readers(guards))):
        pass
    with pytest.raises(StopAsyncIteration):
        await anext(source)


class MachineChunker(FixedChunker):
    """The same chunks, fed in place."""

    def build_machine(self) -> "FixedMachine":
        return FixedMachine(self.size)


class FixedMachine:
    def __init__(self, size: int) -> None:
        self._size, self._start, self._rest = size, 0, ""

    def feed(self, text: str) -> list[Chunk]:
        self._rest += text
        chunks = []
        while len(self._rest) > self._size:
            chunks.append(self._cut(self._size))
        return chunks

    def finish(self) -> list[Chunk]:
        return [self._cut(len(self._rest))] if self._rest else []

    def _cut(self, size: int) -> Chunk:
        start, text = self._start, self._rest[:size]
        self._start, self._rest = start + size, self._rest[size:]
        return Chunk(start, start + len(text), text)


@pytest.mark.parametrize("pace", [0.0, 0.001])
async def test_a_chunker_fed_in_place_gives_what_a_streamed_one_gives_and_waits_for_slow_detectors(pace: float) -> None:
    text = TEXT * 40
    found = []
    for kind in (FixedChunker, MachineChunker):
        posts = [
            ("small", ScriptedDetector(find_word("the"), delay_s=pace), kind(1)),
            ("large", ScriptedDetector(find_word("the")), kind(31)),
        ]
        releases = await _run(_source(text, size=700), _guards(*posts))
        assert "".join(release.text for release in releases) == text
        found.append(sorted((one.detector_id, one.start) for release in releases for one in release.detections))
    assert found[0] == found[1]


async def test_a_source_that_fails_behind_a_chunker_fed_in_place_lets_cut_text_leave_first() -> None:
    guards = _guards(("a", ScriptedDetector(delay_s=0.002), MachineChunker(5)))
    model = _source("0123456789abc", size=4, error=Unavailable("m", "gone"))
    texts = []
    with pytest.raises(Unavailable):
        async with open_guarded_stream(model.generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
            async for release in releases:
                texts.append(release.text)  # noqa: PERF401 - it ends with an error
    assert "".join(texts) == "0123456789"
