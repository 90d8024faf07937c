# SPDX-License-Identifier: Apache-2.0
"""`lockgate verify`: checks whether a saved answer is the text that its receipt says was cleared.

Reads the file in pieces, so it may have any length. `lockgate.api.receipts` decides which texts count.
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from lockgate.cli import EXIT_FOUND, EXIT_OK
from lockgate.cli.text import align, count_of, in_one_line
from lockgate.errors import BrokeProtocol, ConfigError

if TYPE_CHECKING:
    from lockgate.api.receipts import ReceiptBody, ReceiptDetector

_MAX_OBJECT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 65_536
_KEPT_FRAMES = 1000  # the last frames, to show which ones follow the cleared ones
_SHOWN_CHARS = 60
_DIGEST_CHARS = 64
_DONE = "[DONE]"
_STANDARD_INPUT = "standard input"
_BOM = b"\xef\xbb\xbf"
_TRACE = "trace"
_EVENT_LINE = re.compile(rb"(?:data|event|id|retry)?:")
_MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]')
_SPACES = re.compile(r"[ \t\r\n]*")
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
_decode_next = json.JSONDecoder().raw_decode

_OTHERS = "the text, the order or the lane of at least one is another"
_HOW_TO_SAVE = "Save the body as it comes: curl -sN ... -o FILE, without -i."
_HOW_TO_GET = (
    "Ask with a policy, or with detectors and the header `X-Lockgate-Receipt: true`, and save the whole answer; "
    "if the receipt is not in the answer, as in gRPC metadata, give it with --receipt."
)


def run_verify(options: argparse.Namespace) -> int:
    """Carries out `verify`."""
    stream = _Stream()
    given = None if options.receipt is None else _load_receipt(options.receipt)
    with _open(options.file) as saved:
        stream.read(saved)
    name = _STANDARD_INPUT if options.file == "-" else options.file
    receipt = given or stream.find_receipt(name)
    fault = stream.compare(receipt)
    doubts = _list_doubts(receipt)
    for line in (stream.describe(name), *_describe(receipt), *[f"warning: {doubt}" for doubt in doubts]):
        print(line)
    print(f"NOT what was cleared: {fault}" if fault else "The text is what was cleared.")
    if doubts and options.strict:
        print("NOT accepted: with --strict every detector must have read everything.")
        return EXIT_FOUND
    return EXIT_FOUND if fault else EXIT_OK


class _Kept(NamedTuple):
    """A frame, and the digest of the chain before it."""

    before: str
    lane: str
    text: str


class _Stream:
    """The frames, receipts and errors in a saved answer."""

    def __init__(self) -> None:
        from lockgate.gate.receipts import FrameChain

        self._chain = FrameChain()
        self._last: deque[_Kept] = deque(maxlen=_KEPT_FRAMES)
        self._objects = self._receipts = 0
        self._receipt: Any = None
        self._error = ""

    def read(self, saved: BinaryIO) -> None:
        """Read the whole file."""
        from lockgate.api.receipts import list_frames

        for one in _read_objects(saved):
            self._objects += 1
            for lane, text in list_frames(one):
                self._last.append(_Kept(self._chain.value, lane, text[:_SHOWN_CHARS]))
                self._chain.add(lane, text)
            if isinstance(one.get("receipt"), dict):
                self._receipts += 1
                self._receipt = one["receipt"]
            self._error = _find_error(one) or self._error

    def find_receipt(self, name: str) -> "ReceiptBody":
        """The receipt in the answer; raises ConfigError without one."""
        if self._receipt is None:
            ended = f", and ended with an error: {in_one_line(self._error)}" if self._error else ""
            raise ConfigError(f"the answer has no receipt{ended}. {_HOW_TO_GET}", source=name)
        return _read_receipt(self._receipt, name)

    def compare(self, receipt: "ReceiptBody") -> str:
        """Describes how the answer differs from the cleared text; empty if the digests are equal."""
        found, cleared = self._chain.frames, receipt.digest.frames
        if found == cleared:
            same = self._chain.value == receipt.digest.value
            return "" if same else f"{count_of(found, 'frame')} as there should be, but {_OTHERS}."
        if self._receipts > 1:
            return f"the file holds {self._receipts} receipts: save each answer in its own file."
        counts = f"{count_of(cleared, 'frame')} cleared, {found} in the file"
        if found < cleared:
            missing = count_of(cleared - found, "frame")
            return f"{counts}: {missing} missing. Was it saved whole?"
        more = f"{counts}: {count_of(found - cleared, 'frame')} too many"
        place = len(self._last) - (found - cleared)
        if place < 0 or self._last[place].before != receipt.digest.value:
            return f"{more}, and not only at the end."
        lane, text = in_one_line(self._last[place].lane), in_one_line(self._last[place].text)
        return f"{more}, behind what was cleared. The first, in lane `{lane}`: {text}"

    def describe(self, name: str) -> str:
        """The number of messages and frames read."""
        frames = count_of(self._chain.frames, "frame")
        return f"{in_one_line(name)}: {count_of(self._objects, 'message')}, {frames} with text"


def _find_error(one: Mapping[str, Any]) -> str:
    """The error text of a message that reports an error, else empty."""
    error = one.get("error")
    words = error.get("message") if isinstance(error, dict) else error or one.get("details") or one.get("message")
    return words[:_SHOWN_CHARS] if isinstance(words, str) else ""


@contextlib.contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    try:
        if name == "-":
            yield sys.stdin.buffer
            return
        with open(name, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=name) from None
    except _InvalidFile as error:
        source = _STANDARD_INPUT if name == "-" else name
        raise ConfigError(f"{error} {_HOW_TO_SAVE}", source=source) from None


class _InvalidFile(Exception):
    """The file does not have the shape of an answer."""


def _read_objects(saved: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """The objects in a file: events, JSON, or lines of JSON."""
    pieces = iter(lambda: saved.readline(_PIECE_BYTES), b"")
    for first in pieces:
        start = first.removeprefix(_BOM).lstrip()
        if start.startswith((b"{", b"[")):
            yield from _read_json(start, pieces)
            return
        if start and _EVENT_LINE.match(start):
            yield from _read_events(first, pieces)
            return
        if start:
            raise _InvalidFile("these are neither events nor JSON.")
    raise _InvalidFile("there is nothing in it.")


def _read_events(first: bytes, pieces: Iterator[bytes]) -> Iterator[Mapping[str, Any]]:
    from lockgate.gate.sse import SseParser

    parser = SseParser(max_event_bytes=_MAX_OBJECT_BYTES)
    count = 0
    try:
        for piece in chain([first], pieces, [b"\n\n"]):  # the last event may lack its blank line
            for event in parser.feed(piece):
                count += 1
                if event.data.strip() != _DONE and event.event != _TRACE:  # trace events are not part of the answer
                    yield from _list_objects(_decode(event.data, f"event {count}"), f"event {count}")
    except BrokeProtocol as error:
        raise _InvalidFile(f"{error.message}.") from None


def _read_json(first: bytes, pieces: Iterator[bytes]) -> Iterator[Mapping[str, Any]]:
    """Yields objects: one on a line, one over several lines, or several on a line.

    JSON strings contain no line ends, so open brackets can be counted line by line.
    """
    held: list[str] = []
    size = depth = 0
    for number, line in enumerate(_join_lines(chain([first], pieces)), 1):
        where = f"line {number}"
        if not held:
            with contextlib.suppress(ValueError, RecursionError):
                yield from _list_objects(_unwrap(json.loads(line)), where)  # one object on the line, the usual case
                continue
        held.append(line)
        size += len(line)
        depth += sum([_DEPTHS.get(mark, 0) for mark in _MARKS.findall(line)])
        if size > _MAX_OBJECT_BYTES:
            raise _InvalidFile(f"{where}: an object is longer than {_MAX_OBJECT_BYTES} bytes.")
        if depth <= 0:
            yield from _split("".join(held), where)
            held, size, depth = [], 0, 0
    if held:
        raise _InvalidFile("it ends inside a JSON object.")


def _unwrap(value: Any) -> Any:
    """The content of an event that `lockgate ask --json` wrote with its name; an empty list for a trace event."""
    if isinstance(value, dict) and value.keys() == {"event", "data"}:
        return [] if value["event"] == _TRACE else value["data"]
    return value


def _split(text: str, where: str) -> Iterator[Mapping[str, Any]]:
    """The objects in a text, one after the other."""
    place = _find_next(text, 0)
    while place < len(text):
        try:
            value, end = _decode_next(text, place)
        except (ValueError, RecursionError):
            raise _InvalidFile(f"{where} is no JSON.") from None
        yield from _list_objects(value, where)
        place = _find_next(text, end)


def _find_next(text: str, place: int) -> int:
    found = _SPACES.match(text, place)
    return found.end() if found else place


def _decode(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _InvalidFile(f"{where} is no JSON.") from None


def _list_objects(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """The object, or the objects of a list."""
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise _InvalidFile(f"{where} is no JSON object.")
        yield one


def _join_lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Whole lines, each of bounded length."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size > _MAX_OBJECT_BYTES:
            raise _InvalidFile(f"a line is longer than {_MAX_OBJECT_BYTES} bytes.")
        if piece.endswith(b"\n"):
            yield b"".join(held).decode("utf-8", "replace")
            held, size = [], 0
    yield b"".join(held).decode("utf-8", "replace")


def _load_receipt(word: str) -> "ReceiptBody":
    """The receipt of `--receipt`: JSON or the name of a file; alone, or inside an answer."""
    from lockgate.api.receipts import METADATA_KEY

    text = word.strip().removeprefix(f"{METADATA_KEY}:").lstrip()
    is_text = text.startswith("{")
    name = "--receipt" if is_text else word
    found: Any = None
    with contextlib.nullcontext(io.BytesIO(os.fsencode(text))) if is_text else _open(word) as saved:
        try:
            for one in _read_objects(saved):
                found = one["receipt"] if isinstance(one.get("receipt"), dict) else one if "digest" in one else found
        except _InvalidFile as error:
            raise ConfigError(f"{error} Give the receipt as JSON, or a file with it.", source=name) from None
    if found is None:
        raise ConfigError("this is no receipt: it has no `digest`.", source=name)
    return _read_receipt(found, name)


def _read_receipt(value: Any, name: str) -> "ReceiptBody":
    import msgspec

    from lockgate.api.receipts import VERSION, ReceiptBody
    from lockgate.gate.receipts import ALGORITHM

    if "digest" not in value:
        raise ConfigError("its receipt has no digest: an older version wrote it, which gave none", source=name)
    if value.get("version") != VERSION:
        version = in_one_line(json.dumps(value.get("version"))[:_SHOWN_CHARS])
        raise ConfigError(f"its receipt is of version {version}: this command knows {VERSION}", source=name)
    try:
        receipt = msgspec.convert(value, ReceiptBody)
    except msgspec.ValidationError as error:
        raise ConfigError(f"its receipt has another shape: {error}", source=name) from None
    if receipt.digest.algorithm != ALGORITHM:
        algorithm = in_one_line(receipt.digest.algorithm[:_SHOWN_CHARS])
        raise ConfigError(f"its digest is a `{algorithm}`: this command knows `{ALGORITHM}`", source=name)
    return receipt


def _describe(receipt: "ReceiptBody") -> list[str]:
    """The receipt as lines of text."""
    is_shadow = receipt.mode == "shadow"
    released = receipt.released
    rare = {"sources": released.sources, "fields": released.fields}
    shown = "".join([f", {name} {count}" for name, count in rare.items() if isinstance(count, int)])
    counts = f"prompt {released.prompt}, documents {released.documents}, answer {released.answer}{shown} characters"
    facts = [
        ("policy", in_one_line(receipt.policy) if receipt.policy else "none"),
        ("mode", f"{receipt.mode}: findings changed nothing" if is_shadow else receipt.mode),
        ("outcome", f"{receipt.outcome}, if it had been enforced" if is_shadow else receipt.outcome),
        ("released", counts),
        ("covered", "yes" if receipt.covered else "NO"),
        *[(name, _count_fields(counts)) for name, counts in _list_counts(receipt)],
        ("digest", f"{count_of(receipt.digest.frames, 'frame')}, {in_one_line(receipt.digest.value[:_DIGEST_CHARS])}"),
    ]
    head = ("detector", "covered", "read", "chunks", "findings")
    rows = [head, *map(_describe_detector, receipt.detectors)] if receipt.detectors else []
    return [*align(facts), *align(rows)] if rows else align(facts)


def _list_counts(receipt: "ReceiptBody") -> list[tuple[str, dict[str, int]]]:
    """The counts of values that were not read, and of values that were left out, where the receipt has them."""
    both = (("unread", receipt.unread), ("dropped", receipt.dropped))
    return [(name, counts) for name, counts in both if isinstance(counts, dict)]


def _count_fields(counts: dict[str, int]) -> str:
    return ", ".join(f"{in_one_line(name)} {count}" for name, count in counts.items())


def _describe_detector(one: "ReceiptDetector") -> tuple[str, ...]:
    read = ", ".join(f"{part} {count}" for part, count in one.read.items()) or "nothing"
    covered = "yes" if one.covered else "NO, it failed" if one.failed is True else "NO"
    return in_one_line(one.detector_id), covered, read, str(one.chunks), str(one.findings)


def _list_doubts(receipt: "ReceiptBody") -> list[str]:
    """Reasons why text may have been cleared without being read."""
    if not receipt.detectors:
        return ["no detector was to read anything"]
    doubts = []
    for one in receipt.detectors:
        if not one.covered:
            why = "failed, and the text went on without it" if one.failed is True else "has not read all of it"
            doubts.append(f"not covered: detector `{in_one_line(one.detector_id)}` {why}")
    if isinstance(receipt.unread, dict):
        doubts.append(f"not covered: no detector read {_count_fields(receipt.unread)}")
    return doubts if doubts or receipt.covered else ["not covered, says the receipt"]
