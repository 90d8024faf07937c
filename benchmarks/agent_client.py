# SPDX-License-Identifier: Apache-2.0
"""The client of the agent's benchmarks, a process of its own so that its CPU time does not count.

`python -m benchmarks.agent_client` reads one job as a line of JSON and prints one line of JSON when it is done:
  turns    `count` turns of the agent, each followed by the same upstream calls made directly, one after the other;
           prints of each way the seconds to the first token and to the end, and what the upstream says it took
  lags     `count` streams at once of `tokens` tokens, one every `pace_ms`, of the agent or (`is_direct`) of the model;
           prints for each token how long after it was written it was heard, in milliseconds
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import uvloop

from benchmarks.agent_upstream import (
    CHAT_PATH,
    CLASSIFY,
    EMBED,
    EMBED_PATH,
    MEANING,
    REWRITE,
    SEARCH_PATH,
    SPEAK,
    TIMES_PATH,
    WORDS,
)
from benchmarks.processes import HOST
from lockgate.wire.protos.assistance_pb2 import AgentRequest, AgentResponse

STREAM = "/brunix.AssistanceEngine/AskAgentStream"
CONVERSATION = "CONVERSATIONAL"
_QUESTION = "Can I still change the date of my stay, and whom would I have to tell?"
_MESSAGES = [
    {"role": "system", "content": "You answer guests of a small agency that lets houses by the sea. Be brief."},
    {"role": "user", "content": _QUESTION},
]
_BODIES: dict[str, Any] = {
    CLASSIFY: {"model": "m", "stream": False, "messages": [{"role": "user", "content": "CODE_GENERATION?"}]},
    REWRITE: {"model": "m", "stream": False, "messages": _MESSAGES},
    SPEAK: {"model": "m", "stream": True, "messages": _MESSAGES},
    EMBED: {"model": "m", "input": [_QUESTION]},
    WORDS: {"query": {"multi_match": {"query": "harbour"}}, "size": 24},
    MEANING: {"knn": {"field": "embedding"}, "size": 24},
}
_PATHS = {EMBED: EMBED_PATH, WORDS: SEARCH_PATH, MEANING: SEARCH_PATH}
_READY_S = 30.0
_END = b"0\r\n"


class Line:
    """One connection to the upstream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever it says
        """One whole answer, without a body to a GET."""
        await self._send(path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return json.loads(await self._reader.readexactly(length))

    async def stream(self, body: object) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they come."""
        await self._send(CHAT_PATH, body)
        await self._reader.readuntil(b"\r\n\r\n")
        while (size := await self._reader.readline()) != _END:
            yield (await self._reader.readexactly(int(size, 16) + 2))[:-2]
        await self._reader.readline()

    def close(self) -> None:
        """No more."""
        self._writer.close()

    async def _send(self, path: str, body: object) -> None:
        sent = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(sent)}\r\n\r\n"
        self._writer.write(head.encode() + sent)
        await self._writer.drain()


@asynccontextmanager
async def _open_lines(port: int, count: int) -> AsyncIterator[list[Line]]:
    lines = [Line(*await asyncio.open_connection(HOST, port)) for _ in range(count)]
    try:
        yield lines
    finally:
        for line in lines:
            line.close()


@asynccontextmanager
async def _open_agent(port: int) -> AsyncIterator[Any]:
    """The method, callable."""
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), _READY_S)
        yield channel.unary_stream(
            STREAM, request_serializer=AgentRequest.SerializeToString, response_deserializer=AgentResponse.FromString
        )


# Turns, one after the other.


async def measure_turns(job: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Of each way: seconds to the first token, to the end, and those that the upstream took until the first token."""
    label = str(job["label"])
    request = AgentRequest(query=_QUESTION, session_id=f"bench-{label}", query_type=label)
    found: dict[str, list[list[float]]] = {"agent": [], "direct": []}
    async with _open_agent(job["port"]) as ask, _open_lines(job["upstream"], 2) as lines:
        for _ in range(int(job["count"]) + 1):  # the first of each only opens connections
            for way, turn in (("agent", _hear_agent(ask, request)), ("direct", _hear_direct(lines, label))):
                await lines[0].ask(TIMES_PATH)
                first_s, whole_s = await turn
                found[way].append([first_s, whole_s, _sum_waits(await lines[0].ask(TIMES_PATH))])
    return {way: times[1:] for way, times in found.items()}


async def _hear_agent(ask: Any, request: AgentRequest) -> tuple[float, float]:  # noqa: ANN401
    started, first_s, is_final = time.perf_counter(), 0.0, False
    async for message in ask(request):
        first_s = first_s or time.perf_counter() - started
        is_final = message.is_final
    whole_s = time.perf_counter() - started
    if not is_final:
        raise RuntimeError("the answer is not whole")
    return first_s, whole_s


async def _hear_direct(lines: list[Line], label: str) -> tuple[float, float]:
    """What the agent asks for, by itself: the same calls in the same order."""
    started, first_s = time.perf_counter(), 0.0
    if label != CONVERSATION:
        if not label:
            await _call(lines[0], CLASSIFY)
        await _call(lines[0], REWRITE)
        await asyncio.gather(_call(lines[1], WORDS), _search_meaning(lines[0]))
    async for _ in lines[0].stream(_BODIES[SPEAK]):
        first_s = first_s or time.perf_counter() - started
    return first_s, time.perf_counter() - started


async def _call(line: Line, kind: str) -> None:
    await line.ask(_PATHS.get(kind, CHAT_PATH), _BODIES[kind])


async def _search_meaning(line: Line) -> None:
    await _call(line, EMBED)
    await _call(line, MEANING)


def _sum_waits(times: Iterable[tuple[str, float]]) -> float:
    """One after the other, but for the two searches."""
    took = dict.fromkeys((CLASSIFY, REWRITE, EMBED, WORDS, MEANING, SPEAK), 0.0) | {kind: s for kind, s in times}
    return took[CLASSIFY] + took[REWRITE] + max(took[WORDS], took[EMBED] + took[MEANING]) + took[SPEAK]


# Many streams at once.


async def measure_lags(job: dict[str, Any]) -> list[float]:
    """Of every token of every stream."""
    count, tokens = int(job["count"]), int(job["tokens"])
    question = f"Please tell me the time, pace-{job['pace_ms']}-{tokens}."
    lags: list[list[int]] = [[] for _ in range(count)]
    if job["is_direct"]:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
        async with _open_lines(job["upstream"], count) as lines:
            pairs = zip(lines, lags, strict=True)
            await asyncio.gather(*[_listen_direct(line, body, heard) for line, heard in pairs])
    else:
        async with _open_agent(job["port"]) as ask:
            asked = [AgentRequest(query=question, session_id=f"lag-{n}", query_type=CONVERSATION) for n in range(count)]
            pairs_asked = zip(asked, lags, strict=True)
            await asyncio.gather(*[_listen_agent(ask, one, heard) for one, heard in pairs_asked])
    if any(len(heard) != tokens for heard in lags):
        raise RuntimeError("tokens are missing")
    return [lag / 1e6 for heard in lags for lag in heard]


async def _listen_agent(ask: Any, request: AgentRequest, lags: list[int]) -> None:  # noqa: ANN401
    async for message in ask(request):
        if not message.is_final:
            lags.append(time.monotonic_ns() - int(message.text))


async def _listen_direct(line: Line, body: object, lags: list[int]) -> None:
    async for raw in line.stream(body):
        heard_at = time.monotonic_ns()
        said = json.loads(raw)
        if not said["done"]:
            lags.append(heard_at - int(said["message"]["content"]))


async def main(job: dict[str, Any]) -> None:
    """Do the job."""
    work = measure_turns if job["kind"] == "turns" else measure_lags
    print(json.dumps(await work(job)), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(given))
