# SPDX-License-Identifier: Apache-2.0
"""The texts of a request that detectors read before the model gets them.

Without a policy a surface names the slices of one text. Under a policy it gives a Survey of the whole request, and
`build_input` makes an Input of it. `lockgate.guard.input_reader` reads and judges the texts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lockgate.errors import InvalidRequest
from lockgate.gate.arguments import ArgumentsReader
from lockgate.gate.coverage import DEEP, FieldRule, FieldText, Path, Survey, TextKind, describe
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import Mask

_MAX_CONTENTS, _MAX_NAMES, _PACK_CHARS = 10_000, 512, 8192
_GAP = 2  # characters between two texts in the positions of findings
_BETWEEN_NAMES = "\n\n"
_UNCHANGED: Mapping[Path, str] = MappingProxyType({})
_NAME = TextKind.NAME


class Slice(NamedTuple):
    """A piece of a text that is read separately, and its start in that text."""

    start: int
    text: str


class InputText(NamedTuple):
    """A text of a request as detectors read it, and its start in the positions of findings.

    `raw` is the text as it stands in the request, which differs for JSON. `joins`: it continues the text before it.
    """

    start: int
    text: str
    raw: str
    path: Path = ()
    kind: TextKind = TextKind.CONTENT
    role: str = ""
    part: RequestPart = RequestPart.PROMPT
    joins: bool = False


class Input(NamedTuple):
    """The input of a request: one text with the slices that detectors read, or all `texts` of the request.

    `unread` are the fields that go on unread; `table` has the places of the texts. `own_slices` are the parts of the
    text that its client has marked for the request's own detectors; a policy's detectors read all. `has_runs`: some
    texts continue others.
    """

    text: str
    slices: Sequence[Slice]
    texts: Sequence[InputText] = ()
    unread: Sequence[str] = ()
    table: FieldRule | None = None
    own_slices: Sequence[Slice] = ()
    has_runs: bool = False


class CheckedInput(NamedTuple):
    """The input after the check, and the findings: `found` as they may be reported, `raw` as the detectors gave them.

    `changes` are the texts that are masked or replaced, by their places; `replaced` are the places of the latter.
    `is_refused`: a `refusing` detector has a finding and no policy action blocks the input.
    """

    text: str
    found: Sequence[Detection] = ()
    raw: Sequence[Detection] = ()
    masks: Sequence[Mask] = ()
    is_blocked: bool = False
    is_refused: bool = False
    changes: Mapping[Path, str] = _UNCHANGED
    replaced: frozenset[Path] = frozenset()


def build_input(
    found: Survey,
    table: FieldRule,
    refuses: Callable[[str], bool],
    text: str = "",
    own_slices: Sequence[Slice] = (),
) -> Input:
    """Returns the input of a request; raises InvalidRequest for a value that cannot be read, if `refuses` its kind."""
    unread = []
    for one in found.unreadable:
        if refuses(one.kind):
            reason = "is nested too deep to" if one.kind == DEEP else "cannot"
            raise InvalidRequest(f"`{describe(one.path, table)}` {reason} be read by detectors: leave it out")
        unread.append(describe(one.path, table, has_positions=False))
    contents = [one for one in found.texts if one.kind is not _NAME]
    if len(contents) > _MAX_CONTENTS:
        raise InvalidRequest("the request has more than 10,000 texts")
    names = [one for one in found.texts if one.kind is _NAME]
    placed = _place([*contents, *(_pack(names) if len(names) > 1 else names)])
    return Input(text, (), placed, unread, table, own_slices, any(one.joins for one in placed))


def _pack(names: list[FieldText]) -> Iterable[FieldText]:
    """Returns each name once; if there are very many, several together as one text."""
    unique: dict[tuple[str, str], FieldText] = {}
    for one in names:
        unique.setdefault((one.text, one.role), one)
    if len(unique) <= _MAX_NAMES:
        return unique.values()
    packs: list[FieldText] = []
    for one in unique.values():
        last = packs[-1] if packs else None
        if last and (last.path, last.role) == (one.path[:1], one.role) and len(last.text) < _PACK_CHARS:
            packs[-1] = last._replace(text=last.text + _BETWEEN_NAMES + one.text)
        else:
            packs.append(one._replace(path=one.path[:1]))
    return packs


def _place(texts: Sequence[FieldText]) -> list[InputText]:
    """Returns the texts with their positions. A part of a message's content continues the part before it."""
    placed: list[InputText] = []
    end, parent = -_GAP, None
    for path, text, kind, role in texts:
        plain = decode_json(text) if kind is TextKind.JSON else text
        own_parent = path[:-2] if kind is TextKind.CONTENT and path[-3:-2] == ("content",) else None
        joins = own_parent is not None and own_parent == parent
        start, parent = end if joins else end + _GAP, own_parent
        part = RequestPart.FIELDS if kind is _NAME else RequestPart.PROMPT
        placed.append(InputText(start, plain, text, path, kind, role, part, joins))
        end = start + len(plain)
    return placed


def decode_json(raw: str) -> str:
    """Returns JSON as detectors read it: without escapes."""
    reader = ArgumentsReader()
    return reader.feed(raw) + reader.finish()


def list_runs(texts: Sequence[InputText]) -> Iterator[Sequence[InputText]]:
    """Yields the texts, those that continue each other together."""
    begin = 0
    for at in range(1, len(texts) + 1):
        if at == len(texts) or not texts[at].joins:
            yield texts[begin:at]
            begin = at


def locate(texts: Sequence[InputText], found: Iterable[Detection]) -> list[tuple[InputText, list[Detection]]]:
    """Returns the texts with findings, each with its findings, whose spans count in that text.

    A finding that reaches into the next text is cut in two.
    """
    starts = [one.start for one in texts]
    located: dict[int, list[Detection]] = {}
    for one in found:
        at = max(bisect_right(starts, one.start) - 1, 0)
        located.setdefault(at, []).append(_clip(one, texts[at]))
        while at + 1 < len(texts) and texts[at + 1].joins and texts[at + 1].start < one.end:
            at += 1
            located.setdefault(at, []).append(_clip(one, texts[at]))
    return [(texts[at], located[at]) for at in sorted(located)]


def _clip(found: Detection, text: InputText) -> Detection:
    low, high = max(found.start, text.start), min(found.end, text.start + len(text.text))
    own = found.text[low - found.start : high - found.start]
    return found._replace(start=low - text.start, end=high - text.start, text=own)
