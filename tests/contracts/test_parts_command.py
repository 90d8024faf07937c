# SPDX-License-Identifier: Apache-2.0
"""`lockgate parts serve` as a process: how it stops, how it fails to start, and the page that shows it."""

import asyncio
import errno
import signal
import socket
import subprocess
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lockgate.cli.main import main
from tests.contracts.parts_process import serving_parts
from tests.contracts.test_parts_chunkers import Stream, channel_to, cut, describe
from tests.server.http_client import build_request, connect
from tests.server.processes import COMMAND, ROOT, clean_environment
from tests.waits import HANG_S

PAGE = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")


async def test_what_is_under_way_ends_in_peace_when_the_servers_are_told_to_stop(tmp_path: Path) -> None:
    with serving_parts(tmp_path) as parts:
        async with channel_to(parts) as channel, connect(parts.detectors_port) as client:
            request = build_request("POST", "/api/v1/text/contents", b'{"contents":[]}', _HEADERS)
            await client.send(request[:-5])
            stream = Stream(channel)
            await stream.send("One. Tw", 0)
            assert describe(await stream.read())[0] == "One. "
            parts.process.send_signal(signal.SIGTERM)
            async with channel_to(parts) as other:
                await _wait_until_refused(other)
            await client.send(request[-5:])
            assert (await client.read_answer()).body == b"[]"
            await stream.send("o!", 1)
            assert [describe(one)[0] for one in await stream.finish()] == ["Two!"]
        status = await asyncio.to_thread(parts.process.wait, HANG_S)
    assert status == 0
    assert parts.log()[-1]["event"] == "stopped"


_HEADERS = {"content-type": "application/json", "detector-id": "pii"}


async def _wait_until_refused(channel: grpc.aio.Channel) -> None:
    while True:
        try:
            await cut(channel, "a")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return
            if error.code() is not grpc.StatusCode.CANCELLED:  # it came at the very moment
                raise


async def test_a_second_interrupt_cuts_what_is_under_way(tmp_path: Path) -> None:
    with serving_parts(tmp_path) as parts:
        async with channel_to(parts) as channel:
            stream = Stream(channel)
            await stream.send("One. Tw", 0)
            assert describe(await stream.read())[0] == "One. "
            parts.process.send_signal(signal.SIGINT)
            async with channel_to(parts) as other:
                await _wait_until_refused(other)
            assert parts.process.poll() is None
            parts.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(parts.process.wait, HANG_S) == 0


@pytest.mark.parametrize("flag", ["--detectors-port", "--chunkers-port"])
def test_a_port_that_is_taken_is_told_with_the_flag_that_chooses_another(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--detectors-port": "0", "--chunkers-port": "0", flag: str(taken.getsockname()[1])}
        command = [*COMMAND, "parts", "serve", *(word for pair in ports.items() for word in pair)]
        environ = clean_environment(QUIET="true")
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=HANG_S, check=False)
    words = f"Address already in use (os error {errno.EADDRINUSE}); {flag} chooses another port"
    told = f"lockgate: failed to run server: io error: {words}\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (3, b"", told)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parts"], "the following arguments are required: COMMAND"),
        (["parts", "serve", "--detectors-port", "many"], "must be a whole number from 0 to 65535, not 'many'"),
        (["parts", "serve", "--config-path", "no/such/file"], "no/such/file"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "parts serve"), (["parts"], "chunker API"), (["parts", "serve"], "--chunkers-port")]
)
def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert words in " ".join(capsys.readouterr().out.split())
