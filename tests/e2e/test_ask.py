# SPDX-License-Identifier: Apache-2.0
"""`lockgate ask` as a person runs it: at a server that runs or breaks, ended from outside, with a real model."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from select import PIPE_BUF
from typing import NamedTuple

import pytest

from lockgate.cli import ask_place
from lockgate.cli.main import main
from tests.cli.screen import Screen
from tests.cli.test_ask import MASKED, PIECES, QUESTION, write_config
from tests.server.agent_houses import find_free_port
from tests.server.processes import COMMAND, clean_environment, running
from tests.waits import wait_until
from tests.weights import require_weights

KEY = "a-key-of-at-least-sixteen-characters"


class Ran(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


Ask = Callable[..., Ran]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(["ask", *arguments])
        return Ran(int(str(ended.value.code)), *capsys.readouterr())

    return ask


# A server that runs.


def test_a_server_with_a_page_is_asked_as_the_page_would_ask(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path(write_config(tmp_path))
    more = "server: {host: 127.0.0.1, playground: true, trace: true}\ncallers: {me: {key_env: MY_KEY}}\n"
    config.write_text(config.read_text() + more)
    with running(tmp_path, ["--config-path", str(config)], MY_KEY=KEY) as server:
        url = f"http://127.0.0.1:{server.api_port}"
        refused = ask(QUESTION, "--url", url)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == "lockgate: the server requires a key: set LOCKGATE_KEY to yours\n"
        monkeypatch.setenv("LOCKGATE_KEY", KEY)
        ran = ask(QUESTION, "--url", f"{url}/")
        assert (ran.code, ran.out) == (0, MASKED + "\n")
        assert "answer masked, document dropped, policy house" in ran.err
        assert "first token" in ran.err, "the page's token opens the trace"
        monkeypatch.setenv("LOCKGATE_KEY", KEY)
        wrong = ask(QUESTION, "--url", url, "--trace-token", "guessed")
        assert (wrong.code, wrong.out) == (2, "")
        assert "X-Lockgate-Trace" in wrong.err


def test_a_server_without_a_page_is_told_what_to_use(ask: Ask, tmp_path: Path) -> None:
    config = Path(write_config(tmp_path))
    config.write_text(config.read_text() + "server: {host: 127.0.0.1}\n")
    with running(tmp_path, ["--config-path", str(config)]) as server:
        url = f"http://127.0.0.1:{server.api_port}"
        unknown = ask(QUESTION, "--url", url)
        assert (unknown.code, unknown.out) == (2, "")
        assert "use --model, and --source" in unknown.err
        ran = ask(QUESTION, "--url", url, "--model", "main", "--source", "hours", "-d", "output:mail")
        assert (ran.code, ran.out) == (0, "".join(PIECES) + "\n")
        assert "first release" in ran.err
        assert "first token" not in ran.err, "nobody may see what is held there"
        untraced = ask(QUESTION, "--url", url, "--model", "main", "--trace-token", "x")
        assert untraced.err == "lockgate: the server has no trace: `server.trace` is off there\n"
        assert untraced.code == 2


def test_a_server_that_is_not_there_is_exit_code_3(ask: Ask) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    ran = ask(QUESTION, "--url", url)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"lockgate: cannot reach {url}: ")


@contextmanager
def serving(status: int, body: bytes, *, lacks: int = 0, about: tuple[int, bytes] = (404, b"")) -> Iterator[str]:
    """A server that gives every request the same answer, and says nothing about itself, or only this."""

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(*about)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._reply(status, body)

        def _reply(self, code: int, content: bytes) -> None:
            self.send_response(code)
            self.send_header("content-type", "text/event-stream")
            self.send_header("location", "http://127.0.0.1:9/")
            self.send_header("content-length", str(len(content) + lacks * (self.command == "POST")))
            with suppress(ConnectionError):  # whoever asked may have left
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (200, b"", 3, "before the end of the answer"),
        (200, b'event: token\ndata: {"content": "Hi"}\n\n', 3, "before the end of the answer"),
        (200, b"event: done\ndata: {\n\n", 3, "the server sent something that is not JSON"),
        (302, b"", 2, "the server refused with status 302"),
        (422, b'{"error": "x", "message": "no \x1b[2Jgood"}', 2, "no good"),
        (500, b"<html>", 3, "the server refused with status 500"),
        (503, b'{"code": 503, "details": "too many requests at once"}', 3, "too many requests at once"),
    ],
)
def test_a_server_that_breaks_the_rules_is_told_in_one_line(
    ask: Ask, options: list[str], status: int, body: bytes, code: int, words: str
) -> None:
    with serving(status, body.replace(b"\x1b", b"\\u001b")) as url:
        ran = ask(QUESTION, "--url", url, "--model", "m", *options)
    assert ran.code == code
    assert words in re.sub(r"�\[2J", "", ran.err)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (302, b"", 2, "the server refused with status 302"),
        (403, b'{"code": 403, "details": "this host name is not allowed here"}', 2, "this host name is not allowed"),
        (500, b"<html>", 3, "the server refused with status 500"),
        (200, b"", 3, "the server sent something that is not JSON"),
    ],
)
def test_a_server_that_refuses_to_tell_about_itself_is_told_in_its_own_words(
    ask: Ask, status: int, body: bytes, code: int, words: str
) -> None:
    with serving(200, b"", about=(status, body)) as url:
        ran = ask(QUESTION, "--url", url)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"lockgate: {words}")


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for_without_end(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_place, "_OFFER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ran = ask(QUESTION, "--url", url)
    assert (ran.code, ran.err) == (3, f"lockgate: no answer from {url} within 0.2 seconds\n")


@pytest.mark.parametrize(
    "event",
    [b'token\ndata: {"content": 5}', b"token\ndata: []", b'done\ndata: {"receipt": {"mode": 1}}', b"trace\ndata: 1"],
)
def test_an_event_of_another_shape_is_no_stack_trace(ask: Ask, event: bytes) -> None:
    with serving(200, b"event: " + event + b"\n\n") as url:
        ran = ask(QUESTION, "--url", url, "--model", "m")
    assert ran.code == 3
    assert re.search(r"lockgate: the event `\w+` does not have the expected shape\n$", ran.err)


def test_a_connection_that_is_lost_leaves_what_was_released(ask: Ask) -> None:
    with serving(200, b'event: token\ndata: {"content": "Said."}\n\n', lacks=9) as url:
        ran = ask(QUESTION, "--url", url, "--model", "m")
    assert (ran.code, ran.out) == (3, "Said.\n")
    assert ran.err.startswith(f"lockgate: lost {url}: ")


# The end, from outside.


def children_of(pid: int) -> list[int]:
    """Its children, and theirs."""
    own: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            own += map(int, path.read_text().split())
    return own + [one for child in own for one in children_of(child)]


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, arguments: Sequence[str], **variables: str) -> None:
        self._master, slave = pty.openpty()
        environ = clean_environment(TERM="xterm", **variables)
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [*COMMAND, "ask", *arguments], stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
        )
        os.close(slave)
        self._bytes = b""

    @property
    def seen(self) -> str:
        return self._bytes.decode(errors="replace")

    def read_until(self, words: str) -> None:
        while words not in self.seen:
            assert self._read(), self.seen

    def finish(self) -> int:
        """The exit code, once everything is read."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait()

    def _read(self) -> bool:
        try:
            piece = os.read(self._master, 65_536)
        except OSError:  # the other end is closed
            return False
        self._bytes += piece
        return bool(piece)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_at_once_and_takes_held_text_from_the_screen(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    config = write_config(tmp_path, pieces=["Said. ", "Held", " back"], waits=True)
    terminal = Terminal([QUESTION, "--source", "hours", "--config-path", config], TMPDIR=str(tmp_path))
    terminal.read_until("Held back")
    terminal.process.send_signal(number)
    assert terminal.finish() == code
    assert "Loading the model" in terminal.seen
    lines = Screen().feed(terminal.seen).text().split("\n")
    assert lines == ["source   hours: 2 documents", "", "Said."]
    assert list(tmp_path.glob("lockgate-*")) == [], "its socket is gone"


def test_a_reader_that_leaves_ends_it_without_a_stack_trace(tmp_path: Path) -> None:
    config = write_config(tmp_path, pieces=["Said. " * 100] * 200)  # far more than a pipe takes
    command = [*COMMAND, "ask", QUESTION, "--source", "hours", "--config-path", config]
    pipe, environ = subprocess.PIPE, clean_environment()
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environ, bufsize=0, pipesize=PIPE_BUF) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"Said."
        process.stdout.close()
        assert process.stderr.read() == b"source   hours: 2 documents\n"
        assert process.wait() == 3


# The library of the demo, and the model that comes with us.


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the weights are, and nothing else is written."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "weights").symlink_to(require_weights("smollm2").parent, target_is_directory=True)
    return {"LOCKGATE_DATA_DIR": str(folder)}


def test_the_library_of_the_demo_answers_without_any_settings(library: dict[str, str], tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "ask", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean_environment(**library),
            check=False,
        )

    done = run("How long may I keep a book?")
    assert done.returncode == 0, done.stderr
    assert "three weeks [rules]" in done.stdout
    assert re.search(r"^source   rules: [1-9]\d* documents?$", done.stderr, re.MULTILINE)
    assert re.search(r"^cited    \[rules\] .*How long things may be kept", done.stderr, re.MULTILINE)
    assert re.search(r"^receipt  .*policy library, read by .*, all released text was read, ", done.stderr, re.MULTILINE)
    blocked = run("You stupid idiot, tell me when you open!", "--json")
    assert blocked.returncode == 1, blocked.stderr
    assert json.loads(blocked.stdout.splitlines()[-1])["data"]["outcome"] == "prompt_blocked"


def test_ctrl_c_leaves_no_process_of_the_model(library: dict[str, str]) -> None:
    code, children = 0, list[int]()
    while code == 0 or not children:  # the model may be quicker than the hand
        terminal = Terminal(["How long may I keep a book?"], **library)
        terminal.read_until("source   ")
        children = children_of(terminal.process.pid)
        terminal.process.send_signal(signal.SIGINT)
        code = terminal.finish()
    assert code == 130
    wait_until(lambda: not any(map(is_alive, children)), "the end of the model's process")
