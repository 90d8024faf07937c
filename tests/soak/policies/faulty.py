# SPDX-License-Identifier: Apache-2.0
"""Ways to break a server that runs in this process, each by one small change to a part of it, and who must notice.

This is the only place here that knows how the server is made inside. Every change is taken back at the end.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any, NamedTuple

from lockgate.api import receipts
from lockgate.api.openai import deltas as openai_deltas
from lockgate.api.openai import events as openai_events
from lockgate.api.openai import stream_reader
from lockgate.api.openai import tool_calls as openai_calls
from lockgate.api.openai.format import encode_event
from lockgate.backends import detector
from lockgate.gate import arguments, release, verdicts
from lockgate.gate import receipts as gate_receipts
from lockgate.guard import request
from lockgate.guard import stream as guarded_stream

WHOLE = "whole"
Change = tuple[Any, str, Any]


class Variant(NamedTuple):
    """A broken server: how it is broken, which laws may report it, and in which kind of stream it shows."""

    plant: Callable[[], Change]
    laws: frozenset[str]
    kind: str = "mask"


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The server of this process is broken in this way until the end."""
    with ExitStack() as stack:
        if name != WHOLE:
            owner, attribute, new = VARIANTS[name].plant()
            own = vars(owner).get(attribute)  # nothing if it is inherited
            stack.callback(*((delattr, owner, attribute) if own is None else (setattr, owner, attribute, own)))
            setattr(owner, attribute, new)
        yield


def _every(number: int) -> Callable[[], bool]:
    """True for one call of so many."""
    calls = count(1)
    return lambda: next(calls) % number == 0


def forget_what_is_ahead() -> Change:
    """What a finding covers beyond a release is forgotten."""
    honest = verdicts.Masker.mask

    def mask(self: verdicts.Masker, start: int, length: int, found: Sequence[Any]) -> list[verdicts.Mask]:
        written = honest(self, start, length, found)
        self.ahead = []
        return written

    return verdicts.Masker, "mask", mask


def mask_too_little() -> Change:
    """The last character of a mask stays."""
    honest, is_time = verdicts.apply_masks, _every(5)

    def apply(start: int, text: str, given: Sequence[verdicts.Mask]) -> str:
        if is_time():
            given = [one._replace(end=one.end - 1) for one in given]
        return honest(start, text, given)

    return verdicts, "apply_masks", apply


def release_early() -> Change:
    """Text leaves when the first detector has read it, not the last."""
    honest, is_time = release.ReleaseGate.clear, _every(3)

    def clear(self: release.ReleaseGate, name: str, upto: int, found: Sequence[Any] = ()) -> list[Any]:
        releases = honest(self, name, upto, found)
        furthest = max(self._frontiers.values(), default=0)
        if furthest > self.released and is_time():
            releases.append(self._release(furthest))
        return releases

    return release.ReleaseGate, "clear", clear


def leave_arguments() -> Change:
    """Masks do not reach the arguments of calls."""
    honest = openai_calls.CallReader.release

    def leave(self: openai_calls.CallReader, one: Any, _verdict: Any, said: str) -> str:
        return honest(self, one, None, said)

    return openai_calls.CallReader, "release", leave


def read_escapes_as_they_are() -> Change:
    """Escapes are not decoded for detectors."""
    honest = arguments._JsonScanner._take_escape

    def take(self: Any, raw: str, at: int, found: list[Any]) -> int:
        end = honest(self, raw, at, found)
        if not self.incomplete:
            kind, _, written = found[-1]
            found[-1] = (kind, written, written)
        return end

    return arguments._JsonScanner, "_take_escape", take


def leave_reasoning() -> Change:
    """Nobody reads what the model thinks."""
    honest = openai_deltas.list_lane_texts

    def list_texts(message: Any, lanes: Any) -> list[tuple[str, str]]:
        return [one for one in honest(message, lanes) if one[0] != "reasoning_content"]

    return stream_reader, "list_lane_texts", list_texts


def tell_findings() -> Change:
    """What was hidden stands in the findings."""
    return verdicts, "hide", lambda found: found


def forget_names() -> Change:
    """The same value has another name each time."""
    honest = verdicts.Pseudonyms.name

    def name(self: verdicts.Pseudonyms, found: Any) -> str:
        self._names.pop(found.text, None)
        return honest(self, found)

    return verdicts.Pseudonyms, "name", name


def forget_a_frame() -> Change:
    """A frame that leaves is not in the digest."""
    honest, is_time = receipts.AnswerAccount.add, _every(50)

    def add(self: receipts.AnswerAccount, event: Any) -> None:
        if not is_time():
            honest(self, event)

    return receipts.AnswerAccount, "add", add


def forget_lanes() -> Change:
    """In the digest all lanes are one: the server's own check does not notice."""
    honest = gate_receipts.FrameChain.add

    def add(self: gate_receipts.FrameChain, _lane: str, text: str) -> None:
        honest(self, "", text)

    return gate_receipts.FrameChain, "add", add


def tell_the_receipt_early() -> Change:
    """The receipt is not in the last event."""

    def encode(self: openai_events.EventWriter, events: list[dict[str, Any]]) -> bytes:
        for event in events:
            self.account.add(event)
        told = [{**event, **(self.account.tell() if not place else {})} for place, event in enumerate(events)]
        return b"".join(map(encode_event, told)) + openai_events.DONE

    return openai_events.EventWriter, "_encode_last", encode


def mix_shared_answers() -> Change:
    """Streams that share a call to a detector get each other's findings."""
    honest = detector.RemoteReading.find_shared

    async def find(self: detector.RemoteReading, *args: Any) -> Any:
        parts = await honest(self, *args)
        return parts and [*parts[1:], parts[0]]

    return detector.RemoteReading, "find_shared", find


def change_in_shadow() -> Change:
    """In shadow something is lost after all."""
    honest, is_time = openai_events.EventWriter.take, _every(40)

    def take(self: openai_events.EventWriter, *args: Any) -> bytes:
        return b"" if self._options.is_shadow and is_time() else honest(self, *args)

    return openai_events.EventWriter, "take", take


def leave_the_model() -> Change:
    """Nobody stops the model when its answer is withheld."""
    honest = guarded_stream.open_guarded_stream

    @asynccontextmanager
    async def open_stream(*args: Any) -> AsyncIterator[AsyncIterator[Any]]:
        async with honest(*args) as releases:
            yield releases
            async for _ in releases:
                pass

    return request, "open_guarded_stream", open_stream


_SHOWN = frozenset({"leak", "mask", "text"})
VARIANTS = {
    "forgets what is ahead": Variant(forget_what_is_ahead, frozenset({"leak"})),
    "masks too little": Variant(mask_too_little, _SHOWN),
    "early release": Variant(release_early, frozenset({"leak"})),
    "arguments left as they are": Variant(leave_arguments, frozenset({"leak"})),
    "escapes not decoded": Variant(read_escapes_as_they_are, frozenset({"leak"})),
    "reasoning unread": Variant(leave_reasoning, _SHOWN),
    "findings told": Variant(tell_findings, frozenset({"leak"})),
    "names forgotten": Variant(forget_names, frozenset({"names", "mask"})),
    "frame not in the digest": Variant(forget_a_frame, frozenset({"digest"})),
    "lanes not in the digest": Variant(forget_lanes, frozenset({"digest"})),
    "receipt not at the end": Variant(tell_the_receipt_early, frozenset({"receipt"})),
    "shared answers mixed": Variant(mix_shared_answers, _SHOWN),
    "shadow that changes": Variant(change_in_shadow, frozenset({"text"}), "shadow"),
    "model left running": Variant(leave_the_model, frozenset({"closing"}), "stop"),
}
