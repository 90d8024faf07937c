# SPDX-License-Identifier: Apache-2.0
"""Random worlds for the laws: texts, cuts, detectors, findings, and a player that tries any order of events.

The player keeps books of its own (what it fed, what it answered, what left), so that a law never trusts the machine
that it judges.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st

from lockgate.gate.batcher import DetectorRequest, DetectorSpec
from lockgate.gate.lanes import LanePlan, Lanes, OpenedLane, Outcome
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import Chunk, Detection, Excerpt, Frame

LOOKBEHIND = 6
TEXTS = st.text(alphabet=st.sampled_from("ab. \n\u2028éß中文क्षि😀́"), min_size=1, max_size=40)
LONGER_TEXTS = st.integers(0, 1 << 16).map(
    lambda seed: "".join(random.Random(seed).choices("ab. \n\u2028é中😀\u0301", k=30))
)


@dataclass
class Keeper:
    """One detector of a world: its chunk borders, what it finds, and whether it holds text."""

    name: str
    chunker: str
    holds: bool = True
    lookbehind: int = 0
    findings: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class World:
    """One text per choice, cut into frames; chunkers as borders per choice; detectors."""

    texts: list[str]
    frames: list[Frame]
    chunkers: dict[str, list[list[int]]]
    forced: dict[str, list[set[int]]]
    keepers: list[Keeper]

    def plan(self, strategy: Strategy, **more: int) -> LanePlan:
        readers = [
            DetectorSpec(one.name, one.chunker, threshold=0.5, lookbehind_chars=one.lookbehind, holds=one.holds)
            for one in self.keepers
        ]
        return LanePlan(tuple(readers), strategy, **more)  # type: ignore[arg-type]

    def chunks(self, chunker: str, choice: int) -> list[Chunk]:
        borders, forced = self.chunkers[chunker][choice], self.forced[chunker][choice]
        text = self.texts[choice]
        return [Chunk(a, b, text[a:b], b in forced and b < len(text)) for a, b in pairwise(borders)]

    def detect(self, keeper: Keeper, text: str, excerpt: Excerpt, chunk: Chunk) -> list[Detection]:
        """What an honest detector says: each finding that it can see whole, one below the threshold, spans relative."""
        seen_from = chunk.start - len(excerpt.before)
        found = [
            Detection(a - chunk.start, b - chunk.start, text[a:b], "kind", "type", 0.9)
            for a, b in keeper.findings
            if seen_from <= a and b <= chunk.end
        ]
        return [*found, Detection(0, 1, "", "noise", "type", 0.1)]

    def expected(self, keeper: Keeper, choice: int) -> list[tuple[int, int]]:
        """The findings that must be reported: whole inside a chunk, or across a forced cut and short enough."""
        chunks = self.chunks(keeper.chunker, choice)
        return sorted((a, b) for a, b in keeper.findings if _is_visible(a, b, chunks, keeper.lookbehind))


def _is_visible(a: int, b: int, chunks: list[Chunk], look: int) -> bool:
    reach = 0
    for chunk in chunks:
        if reach <= a and chunk.start < b <= chunk.end:
            return True
        reach = max(reach, chunk.end - look + 1) if chunk.is_forced and look else chunk.end
    return False


def _borders(draw: st.DrawFn, length: int) -> list[int]:
    inner = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=8)) if length > 1 else set()
    return sorted({0, length} | inner)


def _frames(draw: st.DrawFn, texts: list[str]) -> list[Frame]:
    """Each text cut anywhere, empty frames among them, the choices interleaved."""
    queues = [[text[a:b] for a, b in pairwise(_borders(draw, len(text)))] for text in texts]
    for queue in queues:
        for place in draw(st.lists(st.integers(0, len(queue)), max_size=2)):
            queue.insert(place, "")
    frames: list[Frame] = []
    turn = random.Random(draw(st.integers(0, 1 << 16)))
    while any(queues):
        choice = turn.choice([number for number, queue in enumerate(queues) if queue])
        fields = {"tokens": [len(frames)], "finish_reason": None if len(queues[choice]) > 1 else "stop"}
        frames.append(Frame(len(frames), queues[choice].pop(0), choice, fields))
    return frames


def _findings(draw: st.DrawFn, length: int, longest: int) -> list[tuple[int, int]]:
    starts = draw(st.sets(st.integers(0, length - 1), min_size=min(2, length), max_size=5))
    return [(a, min(length, a + draw(st.integers(1, longest)))) for a in sorted(starts)]


@st.composite
def worlds(draw: st.DrawFn, *, max_choices: int = 2, trailing: bool = True) -> World:
    texts = draw(st.lists(TEXTS | LONGER_TEXTS, min_size=1, max_size=max_choices))
    names = ["word", "sentence", "page"][: draw(st.integers(1, 3))]
    chunkers = {name: [_borders(draw, len(text)) for text in texts] for name in names}
    forced = {
        name: [set(draw(st.lists(st.sampled_from(borders), max_size=3))) - {0} for borders in of_chunker]
        for name, of_chunker in chunkers.items()
    }
    shortest = min(map(len, texts))
    keepers = []
    for number in range(draw(st.sampled_from([1, 2, 3, 3]))):
        look = draw(st.sampled_from([0, LOOKBEHIND]))
        keepers.append(
            Keeper(
                f"d{number}",
                draw(st.sampled_from(names)),
                holds=not trailing or draw(st.sampled_from([True, True, False])),
                lookbehind=look,
                findings=_findings(draw, shortest, LOOKBEHIND),
            )
        )
    used = {keeper.chunker for keeper in keepers}
    return World(texts, _frames(draw, texts), {name: chunkers[name] for name in names if name in used}, forced, keepers)


class Player:
    """Plays a world against the lanes in an order drawn from `turns`; `watch` sees every release as it leaves."""

    def __init__(self, world: World, plan: LanePlan, turns: random.Random) -> None:
        self.world = world
        self.plan = plan
        self.turns = turns
        self.lanes = Lanes(plan)
        self.to_read = list(world.frames)
        self.fed: dict[tuple[int, str], int] = {}
        self.to_cut: dict[tuple[int, str], list[Chunk]] = {}
        self.open: list[DetectorRequest] = []
        self.asked: list[tuple[int, str, Chunk]] = []
        self.answered: dict[tuple[int, str], list[Chunk]] = {}
        self.releases: list[Release] = []
        self.watch: Callable[[Player, Release], None] = lambda _player, _release: None
        self.has_ended = False
        self.most_open = 0
        self.idle_while_refusing = False

    def play(self) -> list[Release]:
        moves = self._moves()
        while moves:
            self._take(self.turns.choice(moves)())
            moves = self._moves()
        return self.releases

    def cleared(self, choice: int, keeper: Keeper) -> int:
        """How far the detector has answered without a gap, by the player's own books."""
        upto = 0
        answered = self.answered.get((choice, keeper.name), [])
        chunks = self.world.chunks(keeper.chunker, choice)
        for chunk in chunks:
            if chunk not in answered:
                break
            look = keeper.lookbehind
            upto = max(upto, chunk.end - look + 1) if chunk.is_forced and look else chunk.end
        return upto

    def _moves(self) -> list[Callable[[], list[Outcome]]]:
        moves: list[Callable[[], list[Outcome]]] = []
        moves += [lambda ask=ask: self._answer(ask) for ask in self.open]  # type: ignore[misc]
        for key, chunks in self.to_cut.items():
            if self.lanes.by_choice[key[0]].aligners[key[1]].feed():
                self.fed[key] = sum(len(f.text) for f in self._read() if f.choice == key[0])
            if chunks and chunks[0].end <= self.fed[key]:
                moves.append(lambda key=key: self._cut(key))  # type: ignore[misc]
            elif self.has_ended and not chunks:
                moves.append(lambda key=key: self._end_chunker(key))  # type: ignore[misc]
        may_read = self.lanes.may_read()
        if may_read and self.to_read:
            moves.append(self._read_frame)
        elif may_read and not self.has_ended:
            moves.append(self._end)
        self.idle_while_refusing |= not moves and bool(self.to_read)
        return moves

    def _read(self) -> list[Frame]:
        return self.world.frames[: len(self.world.frames) - len(self.to_read)]

    def _read_frame(self) -> list[Outcome]:
        return self.lanes.receive(self.to_read.pop(0))

    def _end(self) -> list[Outcome]:
        self.has_ended = True
        return self.lanes.end()

    def _cut(self, key: tuple[int, str]) -> list[Outcome]:
        return self.lanes.by_choice[key[0]].place(key[1], self.to_cut[key].pop(0))

    def _end_chunker(self, key: tuple[int, str]) -> list[Outcome]:
        del self.to_cut[key]
        return self.lanes.by_choice[key[0]].end_chunker(key[1])

    def _answer(self, ask: DetectorRequest) -> list[Outcome]:
        self.open.remove(ask)
        keeper = next(one for one in self.world.keepers if one.name == ask.detector)
        text = self.world.texts[ask.choice]
        findings = [
            self.world.detect(keeper, text, excerpt, chunk)
            for excerpt, chunk in zip(ask.excerpts, ask.chunks, strict=True)
        ]
        self.answered.setdefault((ask.choice, ask.detector), []).extend(ask.chunks)
        return self.lanes.by_choice[ask.choice].answer(ask, findings)

    def _take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, OpenedLane):
                for name in self.world.chunkers:
                    self.to_cut[outcome.choice, name] = self.world.chunks(name, outcome.choice)
                    self.fed[outcome.choice, name] = 0
            elif isinstance(outcome, DetectorRequest):
                self.open.append(outcome)
                self.asked += [(outcome.choice, outcome.detector, chunk) for chunk in outcome.chunks]
                same = [ask for ask in self.open if (ask.choice, ask.detector) == (outcome.choice, outcome.detector)]
                self.most_open = max(self.most_open, len(same))
            else:
                self.releases.append(outcome)
                self.watch(self, outcome)


def play(world: World, strategy: Strategy, seed: int, **more: int) -> Player:
    """A finished game."""
    player = Player(world, world.plan(strategy, **more), random.Random(seed))
    player.play()
    return player
