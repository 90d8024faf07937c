# SPDX-License-Identifier: Apache-2.0
"""`lockgate demo` as a person runs it, with the real model: every sample shows its case, and nothing stays behind."""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from lockgate.cli.demo import DOCUMENTS, SAMPLES, find_folders, load_demo_settings, prepare_demo
from tests.server.processes import COMMAND, clean_environment
from tests.weights import require_weights

STORY = {one["title"]: one for one in yaml.safe_load(SAMPLES.read_text(encoding="utf-8"))["samples"]}
SOURCES = list(find_folders(DOCUMENTS))
MASK = "█"
RUNS = int(os.environ.get("DEMO_RUNS", "2"))
REFUSAL = "The documents do not contain this information."


class Answer(NamedTuple):
    """What a client hears: the text, where documents were dropped, and the last event."""

    text: str
    dropped: Mapping[str, int]
    end: Mapping[str, Any]

    @property
    def outcomes(self) -> tuple[str, str]:
        return self.end["outcome"], self.end["receipt"]["outcome"]

    @property
    def cited(self) -> list[str]:
        return [one["path"] for one in self.end["citations"] if one["is_retrieved"]]


class Running(NamedTuple):
    """A demo at work."""

    process: subprocess.Popen[bytes]
    address: str

    def ask(self, question: str, policy: str, hear: Callable[[str], object] = str) -> Answer:
        """The answer; `hear` is told each piece of it as it comes."""
        body = {
            "prompt": question,
            "model": {"url": "lockgate:", "slug": "main"},
            "data_sources": [{"url": "lockgate:", "slug": name} for name in SOURCES],
            "detectors": {"policy": policy},
            "citations": True,
            "similarity_threshold": 0.35,
            "temperature": 0,
        }
        request = urllib.request.Request(f"{self.address}/api/v1/chat/stream", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        text, event = "", ""
        dropped: dict[str, int] = {}
        end: dict[str, Any] = {}
        with urllib.request.urlopen(request) as reply:
            for line in reply:
                name, _, value = line.decode().strip().partition(": ")
                event = value if name == "event" else event
                told = json.loads(value) if name == "data" else {}
                if event == "token" and told:
                    hear(told["content"])
                    text += told["content"]
                elif event == "source_complete" and told:
                    dropped[told["path"]] = told["dropped"]
                elif event in ("done", "error") and told:
                    end = told
        assert "message" not in end, end
        return Answer(text, dropped, end)


@contextmanager
def start(*arguments: str, data_dir: Path, **variables: str) -> Iterator[Running]:
    words = [*COMMAND, "demo", "--http-port", "0", "--health-http-port", "0", "--data-dir", str(data_dir), *arguments]
    environ = clean_environment(**variables)
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environ, start_new_session=True) as process:
        assert process.stdout is not None
        said = b""
        try:
            while b"Ctrl-C stops it." not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            found = re.search(rb"In the browser +(http://127\.0\.0\.1:\d+)/\n", said)
            assert found is not None, said
            yield Running(process, found[1].decode())
        finally:
            if process.poll() is None:
                process.terminate()
                process.stdout.read()
                process.wait()


def list_tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in list_tree(int(child)))]


def read_resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def make_data_dir(folder: Path) -> Path:
    folder.mkdir()
    (folder / "weights").symlink_to(require_weights("smollm2").parent)
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data_dir(tmp_path_factory.mktemp("demo") / "state")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the documents, which a test may change."""
    return Path(shutil.copytree(DOCUMENTS, tmp_path_factory.mktemp("demo") / "papers"))


@pytest.fixture(scope="module")
def library(data_dir: Path, papers: Path) -> Iterator[Running]:
    """One for all tests; at the end it is told to stop, and must leave nothing behind."""
    with start("--documents", str(papers), data_dir=data_dir) as running:
        yield running
        tree = list_tree(running.process.pid)
        running.process.terminate()
        assert running.process.wait() == 0
    assert not any(map(is_there, tree))


def is_grounded(answer: Answer) -> None:
    """Cited, and compared with the documents without an objection."""
    assert answer.outcomes == ("answered", "released")
    assert answer.cited
    assert not any(answer.end["detections"].values())


def has_found_nothing(answer: Answer) -> None:
    assert answer.text == REFUSAL
    assert answer.end["sources"] == {}
    assert answer.cited == []


def is_masked(answer: Answer) -> None:
    assert answer.outcomes == ("answered", "masked")
    assert MASK * 5 in answer.text
    assert "@" not in answer.text


def is_renamed(answer: Answer) -> None:
    assert answer.outcomes == ("answered", "masked")
    assert "@masked.invalid" in answer.text
    assert "example.org" not in json.dumps(answer.end)


def has_dropped(answer: Answer) -> None:
    assert answer.dropped["notices"] == 1
    assert sum(answer.dropped.values()) == 1
    assert "never waived" in answer.text
    assert answer.cited == ["fees"]


def has_believed(answer: Answer) -> None:
    assert sum(answer.dropped.values()) == 0
    assert answer.text.startswith("All late fees are waived ")
    assert answer.cited == ["notices"]
    assert [one["path"] for one in answer.end["detections"]["documents"]] == ["notices"]


def is_refused(answer: Answer) -> None:
    assert answer.outcomes == ("prompt_blocked", "blocked")
    assert answer.text == "This answer was withheld."
    assert answer.end["usage"] is None


def is_stopped(answer: Answer) -> None:
    assert answer.outcomes == ("answer_blocked", "stopped")
    assert answer.text.endswith("\n… (the rest is for you to find)")
    assert "ightingale" not in answer.text


CASES: dict[str, Callable[[Answer], None]] = {
    "A grounded answer": is_grounded,
    "Another grounded answer": is_grounded,
    "Nothing is found": has_found_nothing,
    "Personal data": is_masked,
    "A made-up name": is_renamed,
    "An injected instruction": has_dropped,
    "The same note, unguarded": has_believed,
    "An insult": is_refused,
    "A codeword": is_stopped,
}


@pytest.mark.parametrize("title", STORY)
def test_every_sample_shows_its_case_each_time(title: str, library: Running) -> None:
    """Two runs show that runs do not differ; `DEMO_RUNS=10` asks for ten."""
    sample = STORY[title]
    answers = [library.ask(sample["question"], sample["policy"]) for _ in range(RUNS)]
    for answer in answers:
        CASES[title](answer)
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize(
    ("file", "before", "after", "question"),
    [
        ("rules/loan-periods.md", "three weeks", "five weeks", "How long may I keep a book?"),
        ("fees/late-fees.md", "20 pence", "35 pence", "What is the late fee for a book?"),
        ("history/founding.md", "Josephine Thorne", "Agatha Millbrook", "Who founded the library of Averham?"),
    ],
)
def test_an_answer_changes_with_its_document(
    library: Running, papers: Path, data_dir: Path, file: str, before: str, after: str, question: str
) -> None:
    assert before in library.ask(question, "library").text
    path = papers / file
    path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    settings = load_demo_settings(argparse.Namespace(documents=papers, **{"set:data_dir": str(data_dir)}))
    assert prepare_demo(settings, papers).changed == 1  # as the next start does; the one that runs finds it too
    answer = library.ask(question, "library")
    assert after in answer.text
    assert before not in answer.text
    assert answer.cited == [file.partition("/")[0]]


def test_it_needs_little_memory(library: Running) -> None:
    library.ask("How long may I keep a book?", "library")
    tree = list_tree(library.process.pid)
    assert len(tree) == 2  # the model has a process of its own
    assert sum(map(read_resident_bytes, tree)) < 1_000_000_000


def test_ctrl_c_ends_it_and_leaves_no_process(data_dir: Path) -> None:
    """A terminal tells every process at once. Variables that were meant for another server change nothing."""
    with start(data_dir=data_dir, LOCKGATE_NO_SUCH_SETTING="1", ORCHESTRATOR_CONFIG="/nowhere") as running:
        tree = list_tree(running.process.pid)
        assert len(tree) == 2
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.process.wait() == 0
    assert not any(map(is_there, tree))


def test_a_port_that_is_taken_is_told(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [*COMMAND, "demo", "--http-port", port, "--health-http-port", "0", "--data-dir", str(data_dir)]
        done = subprocess.run(words, capture_output=True, env=clean_environment(), check=False)
    assert done.returncode == 3
    assert f"Address already in use (os error 98) on 127.0.0.1:{port}; --http-port" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_without_weights_it_says_what_to_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--data-dir", str(tmp_path)],
        capture_output=True,
        env=clean_environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"run `lockgate setup`, once" in done.stderr
