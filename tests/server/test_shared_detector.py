# SPDX-License-Identifier: Apache-2.0
"""Many requests at once before a slow remote detector: calls are shared, findings are never mixed up."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange, open_peer
from tests.server.gateways import ask, gateway
from tests.waits import latency

CONTENT = "/api/v2/text/detection/content"
WORD = "heron"
CALLERS, SENTENCES = 60, 6


class Slow:
    """A detector that finds one word, and looks at one call at a time; at none before it is let."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.may_look = asyncio.Event()
        self._turn = asyncio.Lock()

    async def __call__(self, exchange: Exchange) -> None:
        texts = exchange.received.json["contents"]
        self.sizes.append(len(texts))
        if len(texts) > SENTENCES:
            self.may_look.set()
        await self.may_look.wait()
        async with self._turn:
            await latency(0.003)
        await exchange.answer(json.dumps([[_result(at) for at in places(text)] for text in texts]).encode())


def _result(at: int) -> dict[str, Any]:
    return {"start": at, "end": at + len(WORD), "detection": "bird", "detection_type": "animal", "score": 0.9}


def places(text: str) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(WORD, at)]


def write(seed: int) -> str:
    """Some sentences, each with the word at a place of its own or without it."""
    words = random.Random(seed)
    sentences = []
    for number in range(SENTENCES):
        sentence = ["Name", *(words.choice(["lake", "reed", "Wind", "täglich", "😀"]) for _ in range(6)), str(number)]
        if words.random() < 0.5:
            sentence.insert(words.randrange(1, 7), WORD)
        sentences.append(" ".join(sentence) + ".")
    return " ".join(sentences)


@pytest.mark.parametrize(("extra", "is_shared"), [(", batch_wait_ms: 1000", True), (", batch_contents: 1", False)])
async def test_every_request_gets_its_own_findings_whoever_shares_its_calls(extra: str, is_shared: bool) -> None:
    """Where calls are shared no answer comes before one of them has the texts of several requests."""
    slow = Slow()
    if not is_shared:
        slow.may_look.set()
    async with open_peer(slow) as peer:
        service = f"{{hostname: 127.0.0.1, port: {peer.port}, request_timeout: 600}}"
        remote = f"{{type: text_contents, chunker_id: sentence, default_threshold: 0.5, service: {service}{extra}}}"
        async with gateway(f"detectors: {{birds: {remote}}}\n") as port:
            texts = [write(seed) for seed in range(CALLERS)]
            bodies = [{"detectors": {"birds": {}}, "content": text} for text in texts]
            answers = await asyncio.gather(*(ask(port, CONTENT, body) for body in bodies))
    for text, answer in zip(texts, answers, strict=True):
        found = json.loads(answer.body)["detections"]
        assert [(one["start"], one["text"]) for one in found] == [(at, WORD) for at in places(text)]
    assert (max(slow.sizes) > SENTENCES) == is_shared
    assert sum(slow.sizes) == SENTENCES * CALLERS
