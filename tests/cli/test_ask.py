# SPDX-License-Identifier: Apache-2.0
"""`lockgate ask` with a model that follows a script: what goes where, what a terminal shows, and the exit codes."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from lockgate.cli.answer_view import DIM
from lockgate.cli.main import main
from tests.cli.ask_parts import WRITTEN
from tests.cli.screen import Screen

CONFIG = """
models:
  main: {{embedded: "tests.cli.ask_parts:open_model", expose: true, options: {model}}}
  hidden: {{embedded: "tests.cli.ask_parts:open_model", options: {{pieces: []}}}}
sources:
  hours: {{embedded: "tests.cli.ask_parts:open_hours", expose: true}}
  notices: {{embedded: "tests.cli.ask_parts:open_notices", expose: true}}
  lost: {{embedded: "tests.cli.ask_parts:open_lost", expose: true}}
detectors:
  mail: {{embedded: pii, chunker_id: sentence}}
  orders: {{embedded: keywords, chunker_id: sentence, options: {{keywords: ["ignore all previous instructions"]}}}}
  rude: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [idiot]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [call]}}}}
policies:
  house:
    input: {{rude: {{}}}}
    documents: {{orders: {{}}}}
    output: {{mail: {{}}}}
    on_finding: {{input: block, documents: drop, output: mask}}
  label: {{output: {{mail: {{}}}}, on_finding: mask, mask_with: label}}
  stop: {{output: {{mail: {{}}}}, on_finding: stop, fallback: "(the rest is not for you)"}}
  note: {{output: {{mail: {{}}, whole: {{}}}}}}
  shade: {{mode: shadow, output: {{mail: {{}}}}, on_finding: block}}
aggregator: {{model_streaming: true}}
"""
PIECES = [
    "The library is ",
    "open from nine to six [hours]. ",
    "Write to ana@exam",
    "ple.org or ",
    "call [abbey/rules]. ",
    "Bye.",
]
MASKED = "The library is open from nine to six [hours]. Write to ███████████████ or call [abbey/rules]. Bye."
QUESTION = "When is it open?"


class Ran(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def write_config(folder: Path, **model: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(
        CONFIG.format(model=yaml.safe_dump({"pieces": PIECES} | model, default_flow_style=True, width=10_000)),
        encoding="utf-8",
    )
    return str(path)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, **model: Any) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(["ask", *arguments, "--config-path", write_config(tmp_path, **model)])
        return Ran(int(str(ended.value.code)), *capsys.readouterr())

    return run


class Terminal:
    """A real terminal as standard output; what was written to it is read while it happens."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = open(slave, "w", encoding="utf-8")  # noqa: SIM115 - closed in `read`
        WRITTEN.clear()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()
        self.screen = Screen(columns, rows)

    def _listen(self) -> None:
        try:
            while piece := os.read(self.master, 65_536):
                WRITTEN.extend(piece)
        except OSError:  # the other end is closed
            pass

    def read(self) -> str:
        """Everything that was written."""
        self.stream.close()
        self._reader.join()
        os.close(self.master)
        return WRITTEN.decode()


@pytest.fixture
def watch(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, Screen]]:
    """Runs the command on a terminal: its exit code, what it wrote, and the screen in the end."""

    def watch(*arguments: str, columns: int = 80, rows: int = 24, **model: Any) -> tuple[int, str, Screen]:
        terminal = Terminal(columns, rows)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal.stream)
            patch.setenv("TERM", "xterm")
            patch.delenv("NO_COLOR", raising=False)
            try:
                code = run(*arguments, **model).code
            finally:
                seen = terminal.read()
        return code, seen, terminal.screen.feed(seen)

    return watch


Watch = Callable[..., tuple[int, str, Screen]]


# Where there is no terminal.


def test_standard_output_has_the_answer_alone_and_standard_error_the_rest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_TRACE_TOKEN", "of another server")
    monkeypatch.setenv("LOCKGATE_KEY", "for another server")
    ran = run(QUESTION)
    assert (ran.code, ran.out) == (0, MASKED + "\n")
    lines = ran.err.splitlines()
    assert sorted(lines[:3]) == [
        "source   hours: 2 documents",
        "source   lost: failed",
        "source   notices: 1 document, 1 dropped",
    ]
    assert lines[3:8] == [
        "found    orders: Keyword in “Suggestion box” of notices: dropped",
        "found    mail: EmailAddress in the answer, characters 55 to 70, score 0.95",
        "warning  source lost: the shelf is gone",
        "cited    [hours] Opening hours; Holidays",
        "cited    [abbey/rules] is no source of this answer",
    ]
    receipt, digest, rest = lines[8].partition(", digest ")
    actions = "receipt  answer masked, document dropped"
    assert receipt == f"{actions}, policy house, read by rude, orders, mail, all released text was read"
    assert re.fullmatch("[0-9a-f]{12}, prompt sent to .*hours.* and main", rest), digest
    words = [part.rsplit(" ", 2)[0] for part in lines[9].removeprefix("times    ").split(", ")]
    assert words == ["retrieval", "first token", "first release", "total"]
    assert len(lines) == 10


def test_a_question_that_is_blocked_is_told_and_is_exit_code_1(run: Run) -> None:
    ran = run("You idiot")
    assert (ran.code, ran.out) == (1, "This answer was withheld.\n")
    assert ran.err.startswith("blocked  the question was not let through\n")
    assert "\nfound    rude: Keyword in the question, " in ran.err
    assert "warning" not in ran.err


def test_an_answer_that_is_blocked_ends_with_the_fallback_and_exit_code_1(run: Run) -> None:
    ran = run(QUESTION, "--policy", "stop")
    assert ran.code == 1
    assert ran.out == "The library is open from nine to six [hours]. \n(the rest is not for you)\n"
    assert "\nblocked  the answer was cut off\nfound    mail: EmailAddress in the answer" in ran.err
    assert "\nreceipt  stopped, policy stop, " in ran.err


def test_an_answer_that_fails_is_told_and_is_exit_code_3(run: Run) -> None:
    ran = run(QUESTION, fails="the model\x1b[2J is gone")
    assert ran.code == 3
    assert ran.out == "The library is open from nine to six [hours]. \n", "what was released before stays"
    assert ran.err.endswith("\nfailed   Model generation failed: the model�[2J is gone\n")


def test_a_policy_in_shadow_changes_nothing_and_the_receipt_says_so(run: Run) -> None:
    ran = run(QUESTION, "--policy", "shade", "--source", "hours")
    assert (ran.code, ran.out) == (0, "".join(PIECES) + "\n")
    assert "found" not in ran.err
    assert "receipt  shadow: would have blocked, policy shade, " in ran.err


def test_detectors_can_be_named_in_place_of_a_policy(run: Run) -> None:
    ran = run(QUESTION, "-d", "output:mail", "-d", 'input:rude={"keywords": ["open"]}', "--source", "hours")
    assert (ran.code, ran.out) == (1, "This answer was withheld.\n")
    assert "found    rude: Keyword in the question, characters 11 to 15" in ran.err
    ran = run(QUESTION, "-d", "output:mail", "--source", "hours")
    assert ran.code == 0
    assert "receipt  released, read by mail, " in ran.err


def test_nothing_that_a_model_says_can_command_a_terminal(run: Run, watch: Watch) -> None:
    said = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\x7f\x08\u202ee\r\x0bf\u2028g"
    shown = "a�]0;title�b�[2Jc�31md���e��f�g"
    assert run(QUESTION, "--source", "hours", pieces=[said]).out == shown + "\n"
    assert shown in watch(QUESTION, "--source", "hours", pieces=[said])[2].text()
    as_json = run(QUESTION, "--json", "--trace", pieces=[said]).out
    assert as_json.isascii()
    assert as_json.replace("\n", "").isprintable()


def test_an_answer_without_a_word_is_an_answer(run: Run) -> None:
    ran = run(QUESTION, "--source", "hours", pieces=[])
    assert (ran.code, ran.out) == (0, "")
    assert "receipt  released" in ran.err


# JSON.


def test_every_event_can_be_had_as_json(run: Run) -> None:
    ran = run(QUESTION, "--json")
    assert (ran.code, ran.err) == (0, "")
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert {tuple(event) for event in events} == {("event", "data")}
    names = [event["event"] for event in events]
    assert names == ["retrieval_start", *["source_complete"] * 3, "retrieval_complete", "generation_start",
                     *["token"] * 3, "done"]  # fmt: skip
    assert "".join(event["data"]["content"] for event in events if event["event"] == "token") == MASKED
    assert events[-1]["data"]["receipt"]["policy"] == "house"


def test_the_trace_can_be_had_as_json_too(run: Run) -> None:
    events = [json.loads(line) for line in run(QUESTION, "--json", "--trace").out.splitlines()]
    kinds = {event["data"]["kind"] for event in events if event["event"] == "trace"}
    assert kinds == {"documents", "held", "read", "released"}


@pytest.mark.parametrize(
    ("arguments", "model", "code"),
    [(["You idiot"], {}, 1), ([QUESTION, "--policy", "stop"], {}, 1), ([QUESTION], {"fails": "gone"}, 3)],
)
def test_exit_codes_are_the_same_with_json(run: Run, arguments: list[str], model: dict[str, Any], code: int) -> None:
    assert run(*arguments, "--json", **model).code == code


# What is asked.


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_question_can_come_from_standard_input(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"You \xff idiot\n")))
    assert run(*arguments).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["  "], "the question: is empty"),
        ([QUESTION, "--policy", "none"], "there is no policy `none`; there are: house, label, stop, note, shade"),
        ([QUESTION, "--model", "hidden"], "there is no model `hidden`; there are: main"),
        ([QUESTION, "--source", "x"], "there is no source `x`; there are: hours, notices, lost"),
        ([QUESTION, "-d", "pii"], "-d pii: write SECTION:ID, where SECTION is one of input, documents, output, "),
        ([QUESTION, "-d", "output:mail={"], "-d: output:mail: not JSON"),
        ([QUESTION, "-d", "output:mail=[]"], "-d: output:mail: parameters must be a JSON object"),
        ([QUESTION, "-d", "output:nobody"], "detector `nobody` not found"),
        ([QUESTION, "--threshold", "2"], "argument --threshold: must be a number from 0 to 1, not '2'"),
        ([QUESTION, "--trace"], "--trace: needs --json"),
        ([QUESTION, "--url", "ftp://x"], "--url: must be an absolute http or https address"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(run: Run, arguments: list[str], words: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_house_without_a_model_to_ask_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("detectors: {pii: {embedded: pii}}")
    with pytest.raises(SystemExit, match="2"):
        main(["ask", QUESTION, "--config-path", str(path)])
    assert capsys.readouterr().err == "lockgate: no model is exposed: add `expose: true` to one of `models`\n"


# On a terminal.


def test_held_text_is_dim_and_becomes_solid(watch: Watch) -> None:
    shown = {
        0: f"{DIM}The library is \x1b[0m",
        1: f"\r\x1b[J{DIM}The library is open from nine to six [hours]. \x1b[0m",
        3: f"The library is open from nine to six [hours]. {DIM}Write to ana@example.org or \x1b[0m",
    }
    code, seen, screen = watch(QUESTION, "--source", "hours", shown=shown)
    assert code == 0
    assert all(words in seen for words in shown.values())
    lines = screen.text().split("\n")
    assert lines[:5] == [
        "source   hours: 2 documents",
        "",
        "The library is open from nine to six [hours]. Write to ███████████████[mail:",
        "EmailAddress] or call [abbey/rules]. Bye.",
        "",
    ]
    assert (screen.styled("1;31"), screen.styled("33")) == ("█" * 15, "[mail: EmailAddress]")
    assert [line.split()[0] for line in lines[5:] if line[0] != " "] == ["cited", "cited", "receipt", "times"]
    assert lines[8].startswith(" " * 9 + "text was read, digest "), "a long line goes on behind its margin"
    assert "ana@" not in screen.text()


@pytest.mark.parametrize(
    ("columns", "rows", "policy", "held"),
    [(120, 30, "label", "ana@exa"), (40, 5, "stop", "ana@exa"), (14, 4, "label", "ana@exa"), (5, 3, "stop", "図書"),
     (2, 2, "label", "…")],
)  # fmt: skip
def test_every_width_shows_the_whole_answer_and_nothing_else(
    watch: Watch, columns: int, rows: int, policy: str, held: str
) -> None:
    pieces = [
        "図書館は九時に開きます。 ",
        "Schön ",
        "ist es hier. ",
        "Mail ana@exa",
        "mple.org. ",
        "\n- 😀 one\n\t- two ",
    ]
    arguments = (QUESTION, "--policy", policy, "--source", "hours")
    _, seen, screen = watch(*arguments, columns=columns, rows=rows, pieces=pieces, shown={3: held})
    end = "Mail[EMAIL][mail:EmailAddress].-😀one-two"
    if policy == "stop":
        end = "(therestisnotforyou)[mail:EmailAddress]"
    whole = f"sourcehours:2documents図書館は九時に開きます。Schönisteshier.{end}"
    shown = "".join(screen.text().split())
    assert shown.startswith(whole)
    assert shown.removeprefix(whole).startswith(("receipt", "blocked"))
    assert held in seen


def test_a_held_text_longer_than_the_screen_is_cut_and_goes(watch: Watch) -> None:
    long = ["All of this waits", *[f" for the {number}th word" for number in range(60)]]
    _, seen, screen = watch(QUESTION, "--source", "hours", columns=20, rows=6, pieces=long, shown={60: "…"})
    assert "…" in seen
    text = " ".join(screen.text().split())
    assert "".join(long) in text
    assert text.count("All of this waits") == 1
    assert "…" not in text


def test_a_blocked_question_and_findings_at_the_end_are_told_on_a_terminal(watch: Watch) -> None:
    code, _, screen = watch("You idiot")
    assert code == 1
    assert screen.text().startswith("This answer was withheld.\n\nblocked  the question was not let through\n")
    assert "\nfound    rude: Keyword in the question" in screen.text()
    code, _, screen = watch(QUESTION, "--policy", "note", "--source", "hours")
    assert code == 0
    assert "ana@example.org[mail: EmailAddress]" in screen.text().replace("\n", " ")
    found = [line for line in screen.text().split("\n") if line.startswith("found")]
    assert found == ["found    whole: Keyword in the answer, characters 74 to 78, score 1.00"]


def test_an_answer_that_fails_takes_what_was_held_with_it(watch: Watch) -> None:
    held = f"{DIM}Held back"
    code, seen, screen = watch(
        QUESTION, "--source", "hours", pieces=["Said. ", "Held", " back"], shown={2: held}, fails="x"
    )
    assert code == 3
    assert held in seen
    assert screen.text().endswith("\nSaid.\n\nfailed   Model generation failed: x")


def test_without_colours_a_terminal_gets_plain_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in ({"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}):
        terminal = Terminal(80, 24)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal.stream)
            patch.delenv("NO_COLOR", raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                ran = run(QUESTION)
            finally:
                seen = terminal.read()
        assert seen.replace("\r\n", "\n") == MASKED + "\n"
        assert ran.err.startswith("source   ")
