# SPDX-License-Identifier: Apache-2.0
"""The installed command, as a person or a script runs it: output, exit codes, streams and colours."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockgate
from tests.server.certificates import Authority
from tests.server.processes import COMMAND, ROOT, clean_environment
from tests.weights import require_weights

MAIL = "Mail ana@example.org or bob@example.org"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
BROKEN = sorted((ROOT / "examples" / "broken").glob("*.yaml"))


def run(
    *arguments: str | bytes, text: bytes = b"", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        capture_output=True,
        cwd=cwd or ROOT / "tests",
        env=clean_environment(**variables),
        check=False,
    )


def test_the_command_is_installed_and_knows_its_version() -> None:
    done = subprocess.run([Path(sys.executable).with_name("lockgate"), "--version"], capture_output=True, check=True)
    assert done.stdout.decode() == f"lockgate {lockgate.__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["check"], ["detect"], ["demo"]])
def test_every_command_has_help(command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: lockgate")


def test_the_exit_codes_are_documented() -> None:
    words = " ".join(run("--help").stdout.decode().split())
    assert "exit codes: 0 success (detect: nothing found), 1 detect found something" in words
    assert "2 wrong usage or settings, 3 any other failure" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["detect", "x", "--file", "y"], "give a text or a file, not both"),
        (["detect", "--file", "no/such/file"], "No such file or directory"),
        (["detect", "--file", "."], "Is a directory"),
        (["detect", "x", "-d", "nobody"], "detector `nobody` not found"),
        (["detect", "x", "-d", "pii={"], "--detector: pii: not JSON"),
        (["detect", "x", "-d", "pii=[]"], "--detector: pii: parameters must be a JSON object"),
        (["detect", "x", "-d", 'pii={"x":1}'], "detector request failed for `pii`: unknown parameter `x`"),
        (["check", "--config-path", "no/such/file"], "no/such/file"),
        (["check", "--compat", "both"], "compat"),
        (["serve", "--http-port", "many"], "server.http_port"),
    ],
)
def test_wrong_usage_is_told_in_one_breath_with_exit_code_2(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_detect_prints_one_line_per_finding_and_exits_with_1() -> None:
    done = run("detect", MAIL)
    assert done.returncode == 1
    assert done.stdout.decode() == (
        "5-20\tpii\tEmailAddress\t0.95\tana@example.org\n24-39\tpii\tEmailAddress\t0.95\tbob@example.org\n"
    )
    assert done.stderr == b""


def test_detect_that_finds_nothing_is_silent_and_exits_with_0() -> None:
    for arguments in (["detect", "nothing"], ["detect", ""]):
        done = run(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("arguments", [["detect"], ["detect", "-"]])
def test_detect_reads_standard_input(arguments: list[str]) -> None:
    done = run(*arguments, text=MAIL.encode())
    assert (done.returncode, done.stdout.count(b"\n")) == (1, 2)


def test_detect_reads_a_file_and_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text(f"😀 Hello. {MAIL}. Bye now.")
    done = run("detect", "--file", str(file), "--json", "-d", "pii", "-d", 'regex={"patterns":["B\\\\w+"]}')
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["start_index"], line["processed_index"]) for line in lines] == [(0, 9), (9, 50), (50, 58)]
    found = [(one["detector_id"], one["start"]) for line in lines for one in line["detections"]]
    assert found == [("pii", 14), ("pii", 33), ("regex", 50)]
    assert done.returncode == 1


def test_bytes_that_are_not_utf8_are_replaced_wherever_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xff a@b.example")
    for arguments in (["detect", b"\xff a@b.example"], ["detect", "--file", str(file)], ["detect"]):
        done = run(*arguments, "--json", "-d", 'regex={"patterns":["^."]}', text=file.read_bytes())
        assert json.loads(done.stdout)["detections"][0]["text"] == "�", done.stderr


def test_detect_answers_while_standard_input_is_still_open() -> None:
    with subprocess.Popen(
        [*COMMAND, "detect"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(), bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Mail ana@example.org now. Then")
        assert process.stdout.readline() == b"5-20\tpii\tEmailAddress\t0.95\tana@example.org\n"
        process.stdin.close()
        assert process.wait() == 1


@pytest.mark.parametrize("arguments", [["detect"], ["detect", "--json"]])
def test_a_reader_that_leaves_ends_the_command_without_a_stack_trace(arguments: list[str]) -> None:
    environ = clean_environment(HTTP_PORT="0", HEALTH_HTTP_PORT="0")
    text = b"Mail ana@example.org now. " * 20_000
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        try:
            process.stdin.write(text)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.stderr.read() == b""
        assert process.wait() == 3


def test_a_long_file_shows_progress_and_needs_little_memory(tmp_path: Path) -> None:
    """20 MB here; the figure must not grow with the file."""
    file = tmp_path / "long.txt"
    file.write_text(
        ("Plain words here and there, and no address at all. " * 40 + "Mail ana@example.org now.\n") * 9_700
    )
    assert file.stat().st_size > 20_000_000
    arguments = [*COMMAND, "detect", "--file", str(file), "-d", "pii"]
    pipe, environ = subprocess.PIPE, clean_environment()
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, env=environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        peaks = [read_peak_kb(process.pid) for _ in process.stdout]  # ru_maxrss counts what the parent had at the fork
        progress = process.stderr.read().decode()
    assert process.returncode == 1
    assert re.search(r"100 %  20\.\d of 20\.\d MB  \d+\.\d MB/s\n$", progress)
    assert len(peaks) == 9_700
    assert 10_000 < max(peaks) < 200_000, "kilobytes"


def read_peak_kb(pid: int) -> int:
    """The most memory that the process has had resident."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except ProcessLookupError:
        return 0
    return int(found[1]) if found else 0


def read_terminal(*arguments: str, **variables: str) -> tuple[int, bytes]:
    """Runs the command on a terminal; what a person would see."""
    environ = clean_environment(TERM="xterm", **variables)
    master, slave = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environ) as process:
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 65536):
                seen += piece
        except OSError:  # the other end is closed
            pass
        os.close(master)
        return process.wait(), seen


def test_on_a_terminal_the_text_is_shown_with_findings_in_colour() -> None:
    status, seen = read_terminal("detect", f"{MAIL}.")
    assert status == 1
    assert seen == (
        b"Mail \x1b[1;31mana@example.org\x1b[0m\x1b[2m[EmailAddress]\x1b[0m or "
        b"\x1b[1;31mbob@example.org\x1b[0m\x1b[2m[EmailAddress]\x1b[0m.\r\n"
    )


def test_colours_can_be_switched_off() -> None:
    status, seen = read_terminal("detect", MAIL, NO_COLOR="1")
    assert status == 1
    assert b"\x1b" not in seen


def test_nothing_in_a_text_can_command_the_terminal() -> None:
    """Escape sequences, bells, C1 codes, deletes and direction marks are shown as replacement characters."""
    text = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\x7f\x08\u202ee\r\x0bf ana@example.org"
    name = json.dumps({"patterns": [{"pattern": "f", "name": "\x1b[2Jname\x07"}]})
    for variables in ({}, {"NO_COLOR": "1"}):
        _, seen = read_terminal("detect", text, "-d", "pii", "-d", f"regex={name}", **variables)
        shown = re.sub(r"\x1b\[(1;31|2|0)m", "", seen.decode()).replace("\r\n", "\n")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown), repr(shown)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_check_accepts_every_example(path: Path, tmp_path: Path) -> None:
    pair = Authority(tmp_path, "authority").issue("server")
    pair.cert.rename(tmp_path / "cert.pem")
    pair.key.rename(tmp_path / "key.pem")
    data_dir, secret = str(require_weights().parents[1]), "t0psecret"
    command = ("check", "--config-path", str(path))
    done = run(*command, cwd=tmp_path, LOCKGATE_DATA_DIR=data_dir, LLM_TOKEN=secret, WEB_KEY=secret)
    lacks_files = b"would not start here" in done.stdout
    assert lacks_files == (path.name == "orchestrator.yaml")  # its certificates belong to other servers
    assert (done.returncode, done.stderr) == (2 if lacks_files else 0, b"")
    assert b"Detectors\n" in done.stdout
    assert b"t0psecret" not in done.stdout


def test_check_without_a_file_shows_the_embedded_default(tmp_path: Path) -> None:
    done = run("check", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(b"settings from     embedded default\n")


AGENT = """
detectors: {pii: {embedded: pii}}
models: {m: {ollama: {url: "http://127.0.0.1:9", model: x}}}
agents: {default: {main: m}}
classifier: {model_path: gone.json}
evaluation: {judge: m, questions: gone.jsonl}
unknown: 1
"""


def test_check_tells_what_is_missing_at_the_end_of_its_output(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(AGENT)
    done = run("check", "--config-path", str(path), cwd=tmp_path, LOCKGATE_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    last = done.stdout.decode().split("All settings\n")[1].split("Warnings\n")[1].splitlines()
    assert [line.strip() for line in last if line] == [
        "unknown key `unknown` is ignored",
        f"no embedding weights in {tmp_path}: run `lockgate setup`; until then agents search by words alone, "
        "without the classifier",
        f"sources.index: there is no {tmp_path}/index.db yet: run `lockgate index add`",
        f"classifier.model_path: there is no {tmp_path}/gone.json",
        f"evaluation.questions: there is no {tmp_path}/gone.jsonl",
    ]


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_broken_config_is_refused_with_its_file_and_place(path: Path, command: str) -> None:
    done = run(command, "--config-path", str(path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert str(path) in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_all_faults_are_told_at_once() -> None:
    path = ROOT / "examples" / "broken" / "several_faults.yaml"
    told = run("check", "--config-path", str(path)).stderr.decode()
    assert told.startswith("lockgate: invalid config file: 8 faults\n")
    for key in (
        "openai.service.api_token",
        "openai.service.hostname",
        "detectors.pii.type",
        "detectors.pii.service.tls",
        "detectors.pii.default_threshold",
        "detectors.secrets.chunker_id",
        "detectors.both",
        "limits.body_bytes",
    ):
        assert f"{path}: {key}: " in told  # fmt: skip


@pytest.mark.parametrize("arguments", [["index", "list"], ["sessions", "list"], ["detect", "x"]])
def test_only_those_who_serve_need_the_keys_of_callers(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("detectors: {pii: {embedded: pii}}\ncallers: {app: {key_env: APP_KEY}}\n")
    done = run(*arguments, "--config-path", str(path), LOCKGATE_DATA_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    refused = run("check", "--config-path", str(path))
    assert refused.returncode == 2
    assert b"env var `APP_KEY` not found" in refused.stderr
