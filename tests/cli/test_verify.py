# SPDX-License-Identifier: Apache-2.0
"""`lockgate verify`: a saved answer in any shape is told apart from one that was changed, and nothing makes it fall."""

import io
import json
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.receipts import add_frames, build_receipt, encode_receipt
from lockgate.cli import verify
from lockgate.cli.main import main
from lockgate.errors import ConfigError
from lockgate.gate.receipts import Receipt, RequestPart

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "receipts.md").read_text(encoding="utf-8")
TEXTS = ("Hello ", "wörld. ", "\u2028Bye.\n")
Event = dict[str, Any]
Run = Callable[..., tuple[int, str]]


def say(text: str) -> Event:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def fill(receipt: Receipt, events: list[Event]) -> Receipt:
    receipt.expect("pii", RequestPart.ANSWER)
    for event in events:
        add_frames(receipt.chain, event)
    receipt.note_read("pii", RequestPart.ANSWER, TEXTS, 0.001)
    receipt.note_released(RequestPart.ANSWER, "".join(TEXTS))
    return receipt


def build(*, policy: str = "strict", is_shadow: bool = False) -> list[Event]:
    """The objects of a chat that was streamed, its receipt in the last one."""
    events = [say(text) for text in TEXTS]
    return [*events, {"choices": [], "receipt": build_receipt(fill(Receipt(policy, is_shadow=is_shadow), events))}]


def as_events(events: list[Event]) -> bytes:
    lines = [f"event: token\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return "".join([": comment\n\n", *lines, "data: [DONE]\n\n"]).encode()


def as_lines(events: list[Event]) -> bytes:
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()


def as_pretty(events: list[Event]) -> bytes:
    return "\n".join(json.dumps(event, indent=2) for event in events).encode()


NOTE: Event = {"kind": "held", "start": 0, "text": "Hello ", "at_ms": 1.5}


def as_traced(events: list[Event]) -> bytes:
    note = f"event: trace\ndata: {json.dumps(NOTE)}\n\n".encode()
    return note + note.join(as_events([event]).removesuffix(b"data: [DONE]\n\n") for event in events)


def as_told_by_ask(events: list[Event]) -> bytes:
    told = [{"event": name, "data": value} for one in events for name, value in (("trace", NOTE), ("token", one))]
    return as_lines(told)


SHAPES: dict[str, Callable[[list[Event]], bytes]] = {
    "events": as_events,
    "events with CRLF": lambda events: as_events(events).replace(b"\n", b"\r\n"),
    "events with CR": lambda events: as_events(events).replace(b"\n", b"\r"),
    "events with a mark before them": lambda events: b"\xef\xbb\xbf" + as_events(events),
    "events without an end": lambda events: as_events(events).removesuffix(b"data: [DONE]\n\n").rstrip(),
    "events with a trace": as_traced,
    "lines": as_lines,
    "lines of ask --json --trace": as_told_by_ask,
    "lines with CRLF": lambda events: b"\n\n" + as_lines(events).replace(b"\n", b"\r\n"),
    "lines without an end": lambda events: as_lines(events).rstrip(),
    "objects over several lines": as_pretty,
    "objects on one line": lambda events: as_lines(events).replace(b"\n", b" "),
    "objects that touch": lambda events: as_lines(events).replace(b"\n", b""),
    "a list": lambda events: json.dumps(events).encode(),
    "a list over several lines": lambda events: b"\xef\xbb\xbf" + json.dumps(events, indent=1).encode(),
}


@pytest.fixture
def run(tmp_path: Path, capsys: Any) -> Run:
    """Runs the command as a person does; its exit code, and what it said on both outputs."""

    def run(saved: bytes, *arguments: str) -> tuple[int, str]:
        file = tmp_path / "answer"
        file.write_bytes(saved)
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(file), *arguments])
        told = capsys.readouterr()
        return cast("int", ended.value.code), (told.out + told.err).replace(f"{tmp_path}/", "")

    return run


def last_line(told: str) -> str:
    return told.rstrip("\n").splitlines()[-1]


# What was cleared.


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_of_any_shape_is_found_to_be_what_was_cleared(shape: str, run: Run) -> None:
    code, told = run(SHAPES[shape](build()))
    assert told.startswith("answer: 4 messages, 3 frames with text\n")
    assert last_line(told) == "The text is what was cleared."
    assert code == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_of_any_shape_that_was_changed_is_not(shape: str, run: Run) -> None:
    code, told = run(SHAPES[shape](build()).replace(b"Hello", b"Hallo"))
    words = "NOT what was cleared: 3 frames as there should be, but the text, the order or the lane of at least one"
    assert last_line(told).startswith(words)
    assert code == 1


WHOLE: list[Event] = [
    {"choices": [{"index": 0, "message": {"content": "Hi"}}, {"index": 1, "message": {"refusal": "No"}}]},
    {"choices": [{"index": 0, "text": "Hi"}], "usage": None},
    {"generated_text": "Hi", "token_classification_results": {}},
    {"response": "Hi", "sources": {}},
    {"message": {"role": "assistant", "content": "Hi"}, "done": True},
]


@pytest.mark.parametrize("answer", WHOLE, ids=lambda answer: next(iter(answer)))
def test_a_whole_answer_is_checked_like_a_stream(answer: Event, run: Run) -> None:
    whole = {**answer, "receipt": build_receipt(fill(Receipt(), [answer]))}
    for saved in (json.dumps(whole), json.dumps(whole, indent=2), f"data: {json.dumps(whole)}\n\n"):
        assert run(saved.encode())[0] == 0
        assert run(saved.replace('"Hi"', '"Ho"').encode())[0] == 1


def test_it_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(as_events(build()))))
    with pytest.raises(SystemExit, match="0"):
        main(["verify", "-"])
    assert capsys.readouterr().out.startswith("standard input: 4 messages")


def test_it_says_what_was_checked(run: Run) -> None:
    _, told = run(as_lines(build()))
    value = build()[-1]["receipt"]["digest"]["value"]
    assert told.splitlines() == [
        "answer: 4 messages, 3 frames with text",
        "policy    strict",
        "mode      enforce",
        "outcome   released",
        "released  prompt 0, documents 0, answer 19 characters",
        "covered   yes",
        f"digest    3 frames, {value}",
        "detector  covered  read       chunks  findings",
        "pii       yes      answer 19  3       0",
        "The text is what was cleared.",
    ]


def test_in_shadow_it_says_that_nothing_was_changed(run: Run) -> None:
    receipt = fill(Receipt(is_shadow=True), WHOLE[:1])
    receipt.note_action("block")
    code, told = run(as_lines([*WHOLE[:1], {"receipt": build_receipt(receipt)}]))
    assert "\nmode      shadow: findings changed nothing\noutcome   blocked, if it had been enforced\n" in told
    assert "\npolicy    none\n" in told
    assert code == 0


def test_the_command_of_the_page_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sample = re.search(r"```text\n(data: .*?)\n```", PAGE, re.DOTALL)
    shown = re.search(r"```console\n\$ .venv/bin/lockgate (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert sample
    assert shown
    (tmp_path / "answer.sse").write_text(sample[1] + "\n\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(shown[1].split())
    assert capsys.readouterr().out == shown[2]


# What was not cleared.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: events[1:], "3 frames cleared, 2 in the file: 1 frame missing. Was it saved whole?"),
        (lambda events: events[-1:], "3 frames cleared, 0 in the file: 3 frames missing. Was it saved whole?"),
        (
            lambda events: [*events, say("And \x1b[2Jmore."), say("!")],
            "3 frames cleared, 5 in the file: 2 frames too many, behind what was cleared. "
            "The first, in lane `0/content`: And \ufffd[2Jmore.",
        ),
        (
            lambda events: [events[0], *events],
            "3 frames cleared, 4 in the file: 1 frame too many, and not only at the end.",
        ),
        (
            lambda events: [say("Hel"), say("lo "), *events[1:]],
            "3 frames cleared, 4 in the file: 1 frame too many, and not only at the end.",
        ),
        (
            lambda events: [*[say("x")] * 1100, *events],
            "3 frames cleared, 1103 in the file: 1100 frames too many, and not only at the end.",
        ),
        (
            lambda events: [events[1], events[0], *events[2:]],
            "3 frames as there should be, but the text, the order or the lane of at least one is another.",
        ),
        (
            lambda events: [{"choices": [{"index": 1, "delta": {"content": TEXTS[0]}}]}, *events[1:]],
            "3 frames as there should be, but the text, the order or the lane of at least one is another.",
        ),
        (lambda events: events * 2, "the file holds 2 receipts: save each answer in its own file."),
    ],
)
def test_it_says_what_is_wrong(change: Callable[[list[Event]], list[Event]], words: str, run: Run) -> None:
    code, told = run(as_events(change(build())))
    assert last_line(told) == f"NOT what was cleared: {words}"
    assert code == 1


@given(st.integers(0, 2), st.data())
def test_any_change_of_a_text_is_seen(place: int, data: st.DataObject) -> None:
    text = TEXTS[place]
    at = data.draw(st.integers(0, len(text)))
    other = text[:at] + data.draw(st.text(max_size=2)) + text[at + data.draw(st.integers(0, 1)) :]
    events = build()
    events[place] = say(other)
    stream = verify._Stream()
    stream.read(io.BytesIO(as_lines([event for event in events if event])))
    assert bool(stream.compare(stream.find_receipt("x"))) is (other != text)


def test_a_detector_that_has_not_read_everything_is_a_warning_and_with_strict_a_fault(run: Run) -> None:
    receipt = fill(Receipt(), WHOLE[:1])
    receipt.expect("slow", RequestPart.ANSWER)
    receipt.expect("lazy", RequestPart.ANSWER)
    receipt.note_failure("slow")
    saved = as_lines([*WHOLE[:1], {"receipt": build_receipt(receipt)}])
    code, told = run(saved)
    assert told.splitlines()[-4:] == [
        "lazy      NO             answer 0   0       0",
        "warning: not covered: detector `slow` failed, and the text went on without it",
        "warning: not covered: detector `lazy` has not read all of it",
        "The text is what was cleared.",
    ]
    assert "\nslow      NO, it failed  answer 0   0       0\n" in told
    assert code == 0
    code, told = run(saved, "--strict")
    assert last_line(told) == "NOT accepted: with --strict every detector must have read everything."
    assert code == 1
    assert run(as_lines(build()), "--strict")[0] == 0


def test_what_went_on_unread_is_named_and_a_warning(run: Run) -> None:
    receipt = fill(Receipt(), WHOLE[:1])
    receipt.expect("pii", RequestPart.PROMPT)
    receipt.note_unread("image", 2)
    receipt.note_left_out("logprobs")
    saved = as_lines([*WHOLE[:1], {"receipt": build_receipt(receipt)}])
    code, told = run(saved)
    assert "\nunread    image 2\ndropped   logprobs 1\n" in told
    assert told.splitlines()[-2:] == [
        "warning: not covered: no detector read image 2",
        "The text is what was cleared.",
    ]
    assert (code, run(saved, "--strict")[0]) == (0, 1)


def test_a_receipt_without_detectors_proves_little(run: Run) -> None:
    saved = as_lines([{"text": "", "receipt": build_receipt(Receipt())}])
    code, told = run(saved)
    assert told.splitlines()[-2:] == ["warning: no detector was to read anything", "The text is what was cleared."]
    assert (code, run(saved, "--strict")[0]) == (0, 1)


# The receipt from elsewhere.


def test_the_receipt_may_come_from_elsewhere(run: Run, tmp_path: Path) -> None:
    events: list[Event] = [{"text": "Hi "}, {"text": "Ana."}, {"isFinal": True}]
    saved, receipt = as_pretty(events), fill(Receipt("grün"), events)
    told = encode_receipt(receipt)
    file = tmp_path / "receipt.json"
    for text in (told, f"lockgate-receipt: {told}", json.dumps({"receipt": json.loads(told)}, indent=1)):
        file.write_text(text.removeprefix("lockgate-receipt: "), encoding="utf-8")
        assert run(saved, "--receipt", text)[0] == run(saved, "--receipt", str(file))[0] == 0
        assert run(saved.replace(b"Ana", b"Eva"), "--receipt", text)[0] == 1
    assert "\npolicy    grün\n" in run(saved, "--receipt", told)[1]
    file.write_bytes(as_events([{"choices": [], "receipt": json.loads(told)}]))
    assert run(as_lines(build()), "--receipt", str(file))[0] == 1


# What cannot be said.

SAVE = "Save the body as it comes: curl -sN ... -o FILE, without -i."
NESTED = b"[" * 100_000


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (b"", f"there is nothing in it. {SAVE}"),
        (b"\n \r\n\n", f"there is nothing in it. {SAVE}"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\r\n\r\n", f"these are neither events nor JSON. {SAVE}"),
        (b"\x1f\x8b\x08\x00binary", f"these are neither events nor JSON. {SAVE}"),
        (b"data: {}\n\ndata: hello\n\n", f"event 2 is no JSON. {SAVE}"),
        (b"data: 7\n\n", f"event 1 is no JSON object. {SAVE}"),
        (b"data: [{}, 7]\n\n", f"event 1 is no JSON object. {SAVE}"),
        (b"{}\n{]\n{}\n", f"line 2 is no JSON. {SAVE}"),
        (b"{}\n{} x\n", f"line 2 is no JSON. {SAVE}"),
        (b"{}\nnull\n", f"line 2 is no JSON object. {SAVE}"),
        (b'{"text":', f"it ends inside a JSON object. {SAVE}"),
        (b'{"text": "\xff"}{', f"it ends inside a JSON object. {SAVE}"),
        (NESTED, f"it ends inside a JSON object. {SAVE}"),
        (b"data: " + NESTED + b"\n\n", f"event 1 is no JSON. {SAVE}"),
        (b'{"n": ' + b"9" * 5000 + b"}", f"line 1 is no JSON. {SAVE}"),
        (b"{}", verify._HOW_TO_GET),
        (b"data: [DONE]\n\n", f"the answer has no receipt. {verify._HOW_TO_GET}"),
        (b'{"receipt": null}', verify._HOW_TO_GET),
        (
            b'event: error\ndata: {"message": "Too \\u001b late"}\n\n',
            f"the answer has no receipt, and ended with an error: Too \ufffd late. {verify._HOW_TO_GET}",
        ),
        (b'{"error": {"message": "No"}}', "and ended with an error: No. "),
        (b'{"receipt": {}}', "its receipt has no digest: an older version wrote it, which gave none"),
        (b'{"receipt": {"digest": 1}}', "its receipt is of version null: this command knows 1"),
        (b'{"receipt": {"digest": 1, "version": "\x1b"}}', "line 1 is no JSON"),
        (b'{"receipt": {"digest": 1, "version": [2]}}', "its receipt is of version [2]: this command knows 1"),
        (b'{"receipt": {"digest": 1, "version": 1}}', "its receipt has another shape: "),
    ],
)
def test_what_cannot_be_read_is_told_with_what_to_do(saved: bytes, words: str, run: Run) -> None:
    code, told = run(saved)
    assert told.startswith("lockgate: answer: ")
    assert words in told
    assert code == 2


def test_a_digest_of_another_kind_is_not_compared(run: Run) -> None:
    events = build()
    events[-1]["receipt"]["digest"]["algorithm"] = "sha256-chain-2"
    assert "its digest is a `sha256-chain-2`: this command knows `sha256-chain-1`" in run(as_lines(events))[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--receipt", "{"), "lockgate: --receipt: it ends inside a JSON object. Give the receipt as JSON, or a file"),
        (("--receipt", "{}"), "lockgate: --receipt: this is no receipt: it has no `digest`."),
        (("--receipt", "nowhere.json"), "lockgate: nowhere.json: cannot be read: No such file or directory"),
    ],
)
def test_a_receipt_that_cannot_be_read_is_told(arguments: tuple[str, ...], words: str, run: Run) -> None:
    code, told = run(as_lines(build()), *arguments)
    assert told.startswith(words)
    assert code == 2


def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: Any) -> None:
    for name, words in ((str(tmp_path), "Is a directory"), (str(tmp_path / "none"), "No such file or directory")):
        with pytest.raises(SystemExit, match="2"):
            main(["verify", name])
        assert capsys.readouterr().err == f"lockgate: {name}: cannot be read: {words}\n"


PIECES = st.sampled_from(
    [b"data: ", b"event: x\n", b"\n", b"\r\n", b"{", b"}", b"[", b"]", b'"', b"\\", b'"text":', b'"a"', b",", b"1",
     b" ", b'{"receipt":', b'{"digest":', b'"version":1', b'{"choices":[{"delta":{"content":"a"}}]}', b"\xff", b":",
     b"\xef\xbb\xbf", b"[DONE]", b"\\ud800", b"null"]
)  # fmt: skip


@given(st.one_of(st.binary(max_size=40), st.lists(PIECES, max_size=14).map(b"".join)))
def test_no_file_makes_it_fall(saved: bytes) -> None:
    stream = verify._Stream()
    try:
        stream.read(io.BytesIO(saved))
        receipt = stream.find_receipt("x")
    except (ConfigError, verify._InvalidFile):
        return
    stream.compare(receipt)


@given(st.lists(st.sampled_from([*TEXTS, "a", "{", '"', "\\", "[\n]"]), max_size=6), st.sampled_from(sorted(SHAPES)))
def test_every_shape_gives_the_same_objects(texts: list[str], shape: str) -> None:
    events = [*[say(text) for text in texts], {"receipt": {}}, {"choices": []}]
    assert list(verify._read_objects(io.BytesIO(SHAPES[shape](events)))) == events


class Endless(io.RawIOBase):
    """A long file that nobody has to write."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = next(self._pieces, b"")
        self.size += len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize("shape", ["events", "lines", "objects over several lines"])
def test_a_long_file_takes_no_more_memory_than_a_short_one(shape: str) -> None:
    piece = SHAPES[shape]([say("x" * 200)] * 20) + b"\n"
    raw = Endless(piece for _ in range(200))
    stream = verify._Stream()
    saved = cast("BinaryIO", io.BufferedReader(raw))
    tracemalloc.start()
    stream.read(saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stream._chain.frames == 4000
    assert raw.size > 1_000_000
    assert peak < 800_000


@pytest.mark.parametrize("start", [b"data: ", b'{"text": "', b"{\n"])
def test_a_message_without_end_is_refused(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_MAX_OBJECT_BYTES", 200_000)
    line = b"x" * 8000 + (b"\n" if start == b"{\n" else b"")
    raw = Endless(piece for piece in [start, *[line] * 1000])
    with pytest.raises(verify._InvalidFile, match="longer than 200000 bytes"):
        verify._Stream().read(cast("BinaryIO", io.BufferedReader(raw)))
    assert raw.size < 400_000
