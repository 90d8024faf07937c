# SPDX-License-Identifier: Apache-2.0
"""The client of the agent's benchmarks, a separate process so that its CPU time does not count.

It speaks gRPC to the agent, and to what stands behind it the way that the agent does: with the same HTTP library.

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
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
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
    WAITS_MS,
    WORDS,
)
from benchmarks.processes import HOST
from lockgate.protos.assistance_pb2 import AgentRequest, AgentResponse

STREAM = "/brunix.AssistanceEngine/AskAgentStream"
CONVERSATION = "CONVERSATIONAL"
_QUESTION = "Can I still change the date of my stay, and whom would I have to tell?"
_MESSAGES = [
    {"role": "system", "content": "You answer guests of a small agency that lets houses by the sea. Be brief."},
    {"role": "user", "content": _QUESTION},
]
_BODIES: Mapping[str, Any] = {
    CLASSIFY: {"model": "m", "stream": False, "messages": [{"role": "user", "content": "CODE_GENERATION?"}]},
    REWRITE: {"model": "m", "stream": False, "messages": _MESSAGES},
    SPEAK: {"model": "m", "stream": True, "messages": _MESSAGES},
    EMBED: {"model": "m", "input": [_QUESTION]},
    WORDS: {"query": {"multi_match": {"query": "harbour"}}, "size": 24},
    MEANING: {"knn": {"field": "embedding"}, "size": 24},
}
_PATHS = {EMBED: EMBED_PATH, WORDS: SEARCH_PATH, MEANING: SEARCH_PATH}
_READY_S = 30.0


class Upstream:
    """What stands behind the agent, called directly."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, kind: str) -> None:
        """One whole answer."""
        async with self._session.post(_PATHS.get(kind, CHAT_PATH), data=_encode(_BODIES[kind])) as answer:
            await answer.json()

    async def search(self) -> None:
        """Both searches at once, as an index is searched."""
        await asyncio.gather(self.ask(WORDS), self._search_meaning())

    async def stream(self, body: object) -> AsyncIterator[Any]:
        """The lines of a streamed answer as they come."""
        async with self._session.post(CHAT_PATH, data=_encode(body)) as answer:
            async for line in answer.content:
                yield json.loads(line)

    async def take_times(self) -> list[tuple[str, float]]:
        """What the calls since the last time took, as it says."""
        async with self._session.get(TIMES_PATH) as answer:
            return [(kind, taken_s) for kind, taken_s in await answer.json()]

    async def _search_meaning(self) -> None:
        await self.ask(EMBED)
        await self.ask(MEANING)


def _encode(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


@asynccontextmanager
async def _open_upstream(port: int) -> AsyncIterator[Upstream]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://{HOST}:{port}", connector=connector) as session:
        yield Upstream(session)


@asynccontextmanager
async def _open_agent(port: int) -> AsyncIterator[Any]:
    """The method, callable."""
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), _READY_S)
        yield channel.unary_stream(
            STREAM, request_serializer=AgentRequest.SerializeToString, response_deserializer=AgentResponse.FromString
        )


# Turns, one after the other.


async def measure_turns(job: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """Of each way: seconds to the first token, to the end, and those that the upstream took until the first token."""
    label = str(job["label"])
    request = AgentRequest(query=_QUESTION, session_id=f"bench-{label}", query_type=label)
    found: dict[str, list[list[float]]] = {"agent": [], "direct": []}
    async with _open_agent(job["port"]) as ask, _open_upstream(job["upstream"]) as upstream:
        for _ in range(int(job["count"]) + 1):  # the first of each only opens connections
            for way, turn in (("agent", _hear_agent(ask, request)), ("direct", _hear_direct(upstream, label))):
                await upstream.take_times()
                first_s, whole_s = await turn
                waits = await upstream.take_times()
                _check_calls(waits, label)
                found[way].append([first_s, whole_s, _sum_waits(waits)])
    return {way: times[1:] for way, times in found.items()}


async def _hear_agent(ask: Any, request: AgentRequest) -> tuple[float, float]:
    started, first_s, is_final = time.perf_counter(), 0.0, False
    async for message in ask(request):
        first_s = first_s or time.perf_counter() - started
        is_final = message.is_final
    whole_s = time.perf_counter() - started
    if not is_final:
        raise RuntimeError("the answer is not whole")
    return first_s, whole_s


async def _hear_direct(upstream: Upstream, label: str) -> tuple[float, float]:
    """What the agent asks for, by itself: the same calls in the same order."""
    started, first_s = time.perf_counter(), 0.0
    if label != CONVERSATION:
        await upstream.ask(CLASSIFY)
        await upstream.ask(REWRITE)
        await upstream.search()
    async for _ in upstream.stream(_BODIES[SPEAK]):
        first_s = first_s or time.perf_counter() - started
    return first_s, time.perf_counter() - started


def _check_calls(times: Iterable[tuple[str, float]], label: str) -> None:
    """Nothing is measured that makes other calls than those of its route."""
    kinds = sorted(kind for kind, _ in times)
    if kinds != ([SPEAK] if label == CONVERSATION else sorted(WAITS_MS)):
        raise RuntimeError(f"the upstream was asked for {', '.join(kinds)}")


def _sum_waits(times: Iterable[tuple[str, float]]) -> float:
    """One after the other, but for the two searches."""
    took = {**dict.fromkeys(WAITS_MS, 0.0), **dict(times)}
    return took[CLASSIFY] + took[REWRITE] + max(took[WORDS], took[EMBED] + took[MEANING]) + took[SPEAK]


# Many streams at once.


async def measure_lags(job: Mapping[str, Any]) -> list[float]:
    """Of every token of every stream, which begin one after the other."""
    count, tokens = int(job["count"]), int(job["tokens"])
    question = f"Please tell me the time, pace-{job['pace_ms']}-{tokens}."
    lags: list[list[int]] = [[] for _ in range(count)]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        if job["is_direct"]:
            upstream = await stack.enter_async_context(_open_upstream(job["upstream"]))
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
            works = [_listen_direct(upstream, body, heard) for heard in lags]
        else:
            ask = await stack.enter_async_context(_open_agent(job["port"]))
            works = [_listen_agent(ask, _build_request(question, number), lags[number]) for number in range(count)]
        for work in works:
            group.create_task(work)
            await asyncio.sleep(float(job["pace_ms"]) / 1000)
    if any(len(heard) != tokens for heard in lags):
        raise RuntimeError("tokens are missing")
    return [lag / 1e6 for heard in lags for lag in heard]


def _build_request(question: str, number: int) -> AgentRequest:
    return AgentRequest(query=question, session_id=f"lag-{number}", query_type=CONVERSATION)


async def _listen_agent(ask: Any, request: AgentRequest, lags: list[int]) -> None:
    lags += [time.monotonic_ns() - int(message.text) async for message in ask(request) if not message.is_final]


async def _listen_direct(upstream: Upstream, body: object, lags: list[int]) -> None:
    lags += [
        time.monotonic_ns() - int(said["message"]["content"])
        async for said in upstream.stream(body)
        if not said["done"]
    ]


async def main(job: Mapping[str, Any]) -> None:
    """Do the job."""
    work = measure_turns if job["kind"] == "turns" else measure_lags
    print(json.dumps(await work(job)), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(given))
