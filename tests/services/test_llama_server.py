# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own server behind the gateway. It announces that it keeps connections, and closes them after a stream."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.processes import ROOT, clean_environment, running
from tests.waits import HANG_S
from tests.weights import require_weights

STREAMS, AT_ONCE, TOKENS = 600, 6, 4
CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}, policies: {{"*": masked}}}}
detectors: {{pii: {{embedded: pii}}, secrets: {{embedded: secrets}}}}
policies: {{masked: {{output: {{pii: {{}}, secrets: {{}}}}, on_finding: mask}}}}
server: {{host: 127.0.0.1}}
"""


@pytest.fixture(scope="module")
def llama_port() -> Iterator[int]:
    [model] = require_weights("smollm2").glob("*.gguf")
    command = [sys.executable, str(Path(__file__).with_name("llama_server.py")), str(model)]
    environ = clean_environment(PYTHONWARNINGS="default")
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().decode().strip().rpartition(":")[2])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def base_url(llama_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(port=llama_port), encoding="utf-8")
    with running(folder, ["--config-path", str(path)]) as server:
        yield f"http://127.0.0.1:{server.api_port}/v1"


async def listen(client: openai.AsyncOpenAI, number: int) -> dict[str, Any]:
    """One stream: its text, the reason to finish, and what the receipt says."""
    messages: Any = [{"role": "user", "content": f"Count from {number}."}]
    stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=TOKENS)
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    receipt = (chunks[-1].model_extra or {})["receipt"]
    return {
        "has_text": any(choice.delta.content for choice in choices),
        "reason": choices[-1].finish_reason,
        "outcome": receipt["outcome"],
        "covered": receipt["covered"],
    }


async def test_all_guarded_streams_of_a_llama_server_come_to_their_end(base_url: str) -> None:
    numbers = iter(range(STREAMS))
    failures: list[str] = []
    ends: list[dict[str, Any]] = []

    async def work(client: openai.AsyncOpenAI) -> None:
        for number in numbers:
            try:
                ends.append(await listen(client, number))
            except openai.OpenAIError as error:
                failures.append(f"stream {number}: {error}")

    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=HANG_S) as client:
        await asyncio.gather(*[work(client) for _ in range(AT_ONCE)])
    assert failures == []
    assert len(ends) == STREAMS
    expected = {"has_text": True, "outcome": "released", "covered": True}
    assert [one for one in ends if one != expected | {"reason": one["reason"]}] == []
    assert {one["reason"] for one in ends} <= {"length", "stop"}
