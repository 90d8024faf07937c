# SPDX-License-Identifier: Apache-2.0
"""`lockgate parts test` against real servers: good ones, and ones that break a rule each."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate.backends.chunker import open_chunker_client
from lockgate.backends.detector import open_detector_client
from lockgate.cli.part_checks import FAIL, PASS, SAMPLE, SKIP, CheckResult, check_remote_chunker, check_remote_detector
from lockgate.gate.values import Chunk
from lockgate.plugins import find_factory
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import at, build_chunk, build_chunker_server, serve_chunker
from tests.contracts.http_peers import Exchange, Script, open_peer, reply, reply_json
from tests.contracts.parts_process import serving_parts
from tests.server.processes import COMMAND, clean_environment

MAIL = re.compile(r"[\w.]+@[\w.]+\w")
Result = dict[str, Any]
Find = Callable[[str], list[Result]]


def find(text: str) -> list[Result]:
    """What a detector that keeps its contract finds."""
    return [place(text, found.start(), found.end()) for found in MAIL.finditer(text)]


def place(text: str, start: int, end: int) -> Result:
    return {
        "start": start, "end": end, "text": text[start:end], "detection": "Mail", "detection_type": "pii", "score": 0.9,
    }  # fmt: skip


def detect(find: Find = find, refusal: int = 422) -> Script:
    """A detector of contents; a body of another shape is refused."""

    async def script(exchange: Exchange) -> None:
        if exchange.received.method == "GET":
            await exchange.answer(b"{}")
            return
        contents = exchange.received.json.get("contents")
        if not isinstance(contents, list):
            await exchange.answer(b'{"code":422,"message":"`contents` must be a list"}', refusal)
            return
        await exchange.answer(json.dumps([find(text) for text in contents]).encode())

    return script


def in_bytes(text: str) -> list[Result]:
    def offset(at: int) -> int:
        return len(text[:at].encode())

    return [{**one, "start": offset(one["start"]), "end": offset(one["end"])} for one in find(text)]


def without_text(found: list[Result]) -> list[Result]:
    return [{key: value for key, value in one.items() if key != "text"} for one in found]


class Moody:
    """Finds something every second time that it is asked about a text."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def __call__(self, text: str) -> list[Result]:
        self._asked[text] += 1
        return find(text) if self._asked[text] % 2 else []


PLACES = "one list of results per text, each at its place"
CODE_POINTS = "places in a text that is not ASCII"
STEADY = "the same results for the same text, alone or among others"
REFUSED = "a wrong body is refused"
SCORES = "scores from 0 to 1"
HEALTH = "GET /health"


async def check(script: Script, kind: Any = "text_contents", sample: str = SAMPLE) -> list[CheckResult]:
    async with open_peer(script) as peer, open_detector_client("pii", peer.detector(kind)) as client:
        return await check_remote_detector(client, kind, {}, sample)


def states_of(results: list[CheckResult]) -> dict[str, str]:
    """The checks that have not passed."""
    return {one.name: one.state for one in results if one.state != PASS}


async def test_a_detector_that_keeps_its_contract_passes_every_check() -> None:
    results = await check(detect())
    assert states_of(results) == {}
    assert len(results) == 8
    assert states_of(await check(detect(lambda text: without_text(find(text))))) == {}


BAD: dict[str, tuple[Script, set[str]]] = {
    "offsets in bytes": (detect(in_bytes), {PLACES, CODE_POINTS}),
    "offsets in bytes without text": (detect(lambda text: without_text(in_bytes(text))), {CODE_POINTS}),
    "a list too many": (reply_json([[]]), {PLACES, REFUSED}),
    "a score in per cent": (detect(lambda text: [{**one, "score": 90} for one in find(text)]), {SCORES}),
    "a normalised text": (detect(lambda text: [{**one, "text": one["text"].upper()} for one in find(text)]), {PLACES}),
    "an answer by chance": (detect(Moody()), {STEADY}),
    "a wrong body is a 500": (detect(refusal=500), {REFUSED}),
    "a web page": (reply(b"<html>", 200, "text/html"), {PLACES, REFUSED}),
}


@pytest.mark.parametrize("how", BAD)
async def test_a_detector_that_breaks_a_rule_fails_its_check_with_advice(how: str) -> None:
    script, expected = BAD[how]
    results = await check(script)
    failed = {one.name for one in results if one.state == FAIL}
    assert expected <= failed
    assert all(one.seen and one.advice for one in results if one.state == FAIL)


async def test_what_cannot_be_seen_is_skipped_and_not_passed() -> None:
    nothing = await check(detect(lambda _: []))
    assert states_of(nothing) == {CODE_POINTS: SKIP}

    async def sick(exchange: Exchange) -> None:
        if exchange.received.method == "GET":
            await exchange.answer(b"", 500)
        else:
            await detect()(exchange)

    assert states_of(await check(sick)) == {HEALTH: SKIP}


@pytest.mark.parametrize("kind", ["text_chat", "text_generation", "text_context_doc"])
async def test_reviewers_are_checked_by_their_type(kind: str) -> None:
    def review(score: float) -> Script:
        async def script(exchange: Exchange) -> None:
            if exchange.received.method == "GET":
                await exchange.answer(b"{}")
            elif exchange.received.json.keys() == {"contents"}:
                await exchange.answer(b'{"code":422,"message":"no"}', 422)
            else:
                found = [{"detection": "Risk", "detection_type": "risk", "score": score}]
                await exchange.answer(json.dumps(found).encode())

        return script

    assert states_of(await check(review(0.5), kind)) == {}
    assert states_of(await check(review(5), kind)) == {SCORES: FAIL}
    assert "a list of results" in states_of(await check(detect(), kind))


COVER = "chunks of whole texts leave out only white space"
STREAMED = "chunks of streams come in order and leave out only white space"
ALIKE = "whole and streamed texts have the same chunks"
HOW_CUT = "a stream has the same chunks however it is cut into frames"
EARLY = "a chunk comes before its stream ends"
GRPC_HEALTH = "grpc.health.v1.Health/Check"


async def check_chunks(server: Any) -> dict[str, str]:
    async with server.listening() as port, open_chunker_client("cut", at(port)) as client:
        return states_of(await check_remote_chunker(client, SAMPLE))


async def test_a_chunker_that_keeps_its_contract_passes() -> None:
    async with find_factory("lockgate.chunkers", "sentence")({}) as chunker:
        assert await check_chunks(serve_chunker(chunker)) == {GRPC_HEALTH: SKIP}


class LateChunker:
    """Cuts in the middle; of a stream it knows the frames, and gives all chunks at the end."""

    def __init__(self, *, drops: int = 0, by_frames: bool = False) -> None:
        self._drops = drops
        self._by_frames = by_frames

    async def cut(self, text: str) -> list[Chunk]:
        middle = len(text) // 2
        chunks = [Chunk(0, middle, text[:middle]), Chunk(middle, len(text), text[middle:])]
        return [one for one in chunks if one.text][: 2 - self._drops]

    async def stream(self, frames: AsyncIterator[Any]) -> AsyncIterator[Chunk]:
        texts = [frame.text async for frame in frames]
        if not self._by_frames:
            for chunk in await self.cut("".join(texts)):
                yield chunk
            return
        start = 0
        for text in texts:
            yield Chunk(start, start + len(text), text)
            start += len(text)


async def test_a_chunker_that_breaks_a_rule_fails_its_check() -> None:
    late = await check_chunks(serve_chunker(LateChunker()))  # type: ignore[arg-type]
    assert late == {GRPC_HEALTH: SKIP, EARLY: SKIP}
    short = await check_chunks(serve_chunker(LateChunker(drops=1)))  # type: ignore[arg-type]
    assert {COVER, STREAMED} <= {name for name, state in short.items() if state == FAIL}
    by_frames = await check_chunks(serve_chunker(LateChunker(by_frames=True)))  # type: ignore[arg-type]
    assert {name for name, state in by_frames.items() if state == FAIL} == {HOW_CUT, ALIKE}


async def test_a_chunker_that_counts_bytes_fails() -> None:
    def in_bytes(text: str) -> int:
        return len(text.encode())

    async def cut(request: Any, _context: Any) -> Any:
        text = request.text
        return nlp.TokenizationResults(results=[nlp.Token(start=0, end=in_bytes(text), text=text.upper())])

    async def converse(messages: Any, _context: Any) -> AsyncIterator[Any]:
        text = "".join([message.text_stream async for message in messages])
        half = len(text) // 2
        yield build_chunk(0, in_bytes(text[:half]), text[:half])
        yield build_chunk(in_bytes(text[:half]), in_bytes(text), text[half:])

    failed = await check_chunks(build_chunker_server(cut, converse))
    assert {COVER, STREAMED} <= {name for name, state in failed.items() if state == FAIL}


# The command.


async def command(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "parts", "test", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=clean_environment(**variables),
    )  # fmt: skip
    said, complained = await process.communicate()
    return process.returncode, said.decode(), complained.decode()


async def test_the_command_prints_each_check_and_returns_1_if_one_has_failed() -> None:
    async with open_peer(detect()) as good, open_peer(detect(in_bytes)) as bad:
        code, said, complained = await command(f"http://127.0.0.1:{good.port}", "--type", "text_contents")
        assert (code, complained) == (0, "")
        assert said.splitlines()[0] == f"detector http://127.0.0.1:{good.port} (text_contents)"
        assert said.splitlines()[-1] == "8 checks: 8 passed"
        variables = {"TOKEN": "hush"}
        url = f"http://127.0.0.1:{bad.port}"
        code, said, _ = await command(url, "--type", "text_contents", "--token-env", "TOKEN", "--id", "me", **variables)
    assert code == 1
    assert f"  FAIL  {PLACES}: " in said
    assert "code points of their own text, not bytes" in said
    assert "hush" not in said
    posted = [one for one in bad.received if one.method == "POST"]
    assert {(one.all("authorization")[0], one.all("detector-id")[0]) for one in posted} == {("Bearer hush", "me")}


async def test_types_are_found_by_asking() -> None:
    async def only_contents(exchange: Exchange) -> None:
        if exchange.received.method == "POST" and exchange.received.path != "/p/api/v1/text/contents":
            await exchange.answer(b"", 404)
        else:
            await detect()(exchange)

    async with open_peer(only_contents) as peer, open_peer(reply(b"", 404)) as other:
        code, said, _ = await command(f"http://127.0.0.1:{peer.port}/p")
        assert (code, said.count("detector http"), "(text_contents)" in said) == (0, 1, True)
        code, _, complained = await command(f"http://127.0.0.1:{other.port}")
    assert code == 3
    assert "no path of the detector API answers with 200: /api/v1/text/contents 404" in complained


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://127.0.0.1"], "must be http://host:port of a detector, or grpc://host:port of a chunker"),
        (["http://127.0.0.1:1", "--params", "[]"], "--params must be a JSON object"),
        (["http://127.0.0.1:1", "--token-env", "NO_SUCH"], "the variable NO_SUCH of --token-env is not set"),
    ],
)
async def test_a_wrong_use_is_told_with_status_2(arguments: list[str], words: str) -> None:
    code, said, complained = await command(*arguments)
    assert (code, said) == (2, "")
    assert words in complained


async def test_the_parts_of_lockgate_itself_pass(tmp_path: Path) -> None:
    with serving_parts(tmp_path) as parts:
        tested = await asyncio.gather(
            *[command(f"http://127.0.0.1:{parts.detectors_port}", "--id", name) for name in ("pii", "secrets")],
            *[command(f"grpc://127.0.0.1:{parts.chunkers_port}", "--id", name) for name in ("sentence", "word")],
        )
    assert [(code, "skip" in said) for code, said, _ in tested] == [(0, False), (0, True), (0, False), (0, False)]
