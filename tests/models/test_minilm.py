# SPDX-License-Identifier: Apache-2.0
"""The embedder computes what the model says, off the event loop, and lets nobody wait long."""

import asyncio
import json
import math
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from lockgate.errors import ConfigError, Unavailable
from lockgate.models import minilm
from lockgate.models.minilm import BATCH_TEXTS, BATCH_TOKENS, DIMENSIONS, RECENT, Minilm, cut_batches, open_minilm
from lockgate.models.wordpiece import load_vocabulary
from tests.server.processes import clean_environment
from tests.waits import HANG_S, latency, until
from tests.weights import require_weights

Matrix = Any

SENTENCES = (
    "How do I reset my password?",
    "I forgot my login credentials and cannot sign in.",
    "The cat sat on the mat.",
    "A feline was resting on a rug.",
    "Quarterly revenue rose by twelve percent.",
)


@pytest_asyncio.fixture
async def embedder(weights_dir: Path) -> AsyncIterator[Minilm]:
    async with open_minilm(weights_dir) as opened:
        yield opened


class Reference:
    """The model once more, word for word as its paper has it, in double precision and without batches."""

    def __init__(self, folder: Path) -> None:
        raw = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = {name: entry for name, entry in json.loads(raw[8 : 8 + size]).items() if name != "__metadata__"}
        self.weights = {name: self._read(memoryview(raw)[8 + size :], **entry) for name, entry in header.items()}
        self.pieces = load_vocabulary(folder / "vocab.txt")

    @staticmethod
    def _read(raw: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> Matrix:
        kind = {"F32": np.float32, "I64": np.int64}[dtype]
        part = np.frombuffer(raw, kind, math.prod(shape), data_offsets[0])
        return part.reshape(shape).astype(np.float64)

    def linear(self, x: Matrix, name: str) -> Matrix:
        # not `@`: the threads of its library fight with those of other tests
        return np.einsum("ti,oi->to", x, self.weights[f"{name}.weight"]) + self.weights[f"{name}.bias"]

    def normalise(self, x: Matrix, name: str) -> Matrix:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * self.weights[f"{name}.LayerNorm.weight"] + self.weights[f"{name}.LayerNorm.bias"]

    def attend(self, x: Matrix, name: str) -> Matrix:
        q, k, v = (np.split(self.linear(x, f"{name}.{one}"), 12, axis=1) for one in ("query", "key", "value"))
        heads = []
        for one in range(12):
            scores = np.exp(q[one] @ k[one].T / math.sqrt(32))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[one])
        return np.concatenate(heads, axis=1)

    def embed(self, text: str) -> Matrix:
        ids = self.pieces.encode(text, 256)
        kinds, places, words = ("token_type_embeddings", "position_embeddings", "word_embeddings")
        tables = {one: self.weights[f"embeddings.{one}.weight"] for one in (kinds, places, words)}
        x = self.normalise(tables[words][ids] + tables[places][: len(ids)] + tables[kinds][0], "embeddings")
        for layer in (f"encoder.layer.{number}" for number in range(6)):
            seen = self.linear(self.attend(x, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
            x = self.normalise(x + seen, f"{layer}.attention.output")
            inner = self.linear(x, f"{layer}.intermediate.dense")
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            x = self.normalise(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output")
        mean = x.mean(0)
        return mean / np.linalg.norm(mean)


async def test_vectors_are_those_of_the_model_computed_by_hand(embedder: Minilm, weights_dir: Path) -> None:
    reference = Reference(weights_dir)
    texts = [*SENTENCES, "", "Ünïcödé 日本語 [SEP] $5", "one two three four five six seven " * 3]
    found = await embedder.embed(texts)
    for text, vector in zip(texts, found, strict=True):
        assert np.abs(np.array(vector) - reference.embed(text)).max() < 1e-5, text


async def test_vectors_have_length_one_and_their_size(embedder: Minilm) -> None:
    found = await embedder.embed(SENTENCES)
    assert [len(vector) for vector in found] == [DIMENSIONS] * len(SENTENCES)
    assert all(abs(math.hypot(*vector) - 1) < 1e-5 for vector in found)
    assert isinstance(found[0][0], float)


async def test_what_means_the_same_is_near(embedder: Minilm) -> None:
    vectors = np.array(await embedder.embed(SENTENCES))
    near = vectors @ vectors.T
    assert min(near[0, 1], near[2, 3]) > 0.4
    assert max(near[0, 2], near[1, 3], near[0, 4], near[2, 4]) < 0.2


async def test_company_in_a_batch_changes_nothing(embedder: Minilm) -> None:
    texts = [" ".join(SENTENCES[:count]) for count in (1, 2, 3, 4, 5)] * 3
    together = np.array(await embedder.embed(texts))
    alone = np.array([(await embedder.embed([text]))[0] for text in texts])
    assert np.abs(together - alone).max() < 1e-5
    assert (together == np.array(await embedder.embed(texts))).all()


async def test_no_texts_give_no_vectors(embedder: Minilm) -> None:
    assert await embedder.embed([]) == []


async def test_only_the_beginning_of_a_long_text_counts(embedder: Minilm) -> None:
    beginning = "gate " * 254
    cut, whole = await embedder.embed([beginning, beginning + "lock " * 1_000_000])
    assert np.abs(np.array(cut) - np.array(whole)).max() < 1e-5


async def test_more_texts_than_a_window_come_back_in_order(embedder: Minilm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "WINDOW_TEXTS", 4)
    texts = [f"{'word ' * (at % 5)}{at}" for at in range(11)]
    together = np.array(await embedder.embed(texts))
    alone = np.array([(await embedder.embed([text]))[0] for text in texts])
    assert np.abs(together - alone).max() < 1e-5


async def test_a_question_waits_for_one_batch_of_an_indexing_job(
    embedder: Minilm, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    permits = threading.Semaphore(0)  # for runs of passages
    run = embedder._run

    def run_noted(rows: Sequence[list[int]]) -> list[list[float]]:
        lengths.append(len(rows[0]))
        assert len(rows[0]) < 10 or permits.acquire(timeout=HANG_S)
        return run(rows)

    monkeypatch.setattr(embedder, "_run", run_noted)
    job = asyncio.create_task(embedder.embed(["a passage of some length " * 40] * 60))
    await until(lambda: lengths)
    question = asyncio.create_task(embedder.embed(["How long?"]))
    await asyncio.sleep(0)  # it has asked
    permits.release(2)  # the one that ran, and one that may have come in between
    await question
    assert not job.done()
    permits.release(1000)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_the_event_loop_goes_on_meanwhile(embedder: Minilm, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, is_begun, go_on = embedder._begin, threading.Event(), threading.Event()

    def begin_held(texts: Sequence[str]) -> Any:
        is_begun.set()
        assert go_on.wait(HANG_S)
        return begin(texts)

    monkeypatch.setattr(embedder, "_begin", begin_held)
    job = asyncio.create_task(embedder.embed(["a passage of some length "] * 5))
    await until(is_begun.is_set)
    go_on.set()
    assert len(await job) == 5


async def test_a_call_that_is_left_does_not_disturb_others(embedder: Minilm) -> None:
    jobs = [asyncio.create_task(embedder.embed([f"{'word ' * 30}{at}"])) for at in range(8)]
    await latency(0.01)
    for job in jobs[::2]:
        job.cancel()
    ends = await asyncio.gather(*jobs, return_exceptions=True)
    assert all(isinstance(end, list) for end in ends[1::2])
    assert len(await embedder.embed(["after"])) == 1


async def test_too_many_calls_are_refused(embedder: Minilm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "MAX_CALLS", 20)
    jobs = [asyncio.create_task(embedder.embed(["x"])) for _ in range(23)]
    ends = await asyncio.gather(*jobs, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, BaseException)]
    assert [type(end) for end in refused] == [Unavailable] * 3
    assert len(await embedder.embed(["after"])) == 1


async def test_closing_ends_the_thread(weights_dir: Path) -> None:
    async with open_minilm(weights_dir, threads=2) as opened:
        assert len(await opened.embed(["x"])) == 1
        job = asyncio.create_task(opened.embed(["a passage of some length " * 40] * 20))
        await latency(0.05)
        job.cancel()
    assert not [one for one in threading.enumerate() if one.name.startswith("lockgate-embedder")]


async def test_missing_weights_are_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `lockgate setup`"):
        async with open_minilm(tmp_path):
            pass


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 100, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 9) + b"not json!"]
)
async def test_a_file_that_is_no_weights_is_told(weights_dir: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copy(weights_dir / "vocab.txt", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be used"):
        async with open_minilm(tmp_path):
            pass


async def test_a_missing_extra_is_named(weights_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install 'lockgate\[agent\]'"):
        async with open_minilm(weights_dir):
            pass


def test_the_modules_alone_load_nothing_heavy() -> None:
    code = "import sys, lockgate.models.minilm, lockgate.models.weights, lockgate.cli.setup\n"
    code += "print([name for name in ('numpy', 'onnxruntime') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


@given(st.lists(st.integers(2, 256), max_size=200))
def test_batches_hold_every_text_once_and_are_small(lengths: list[int]) -> None:
    batches = list(cut_batches(lengths))
    assert sorted(at for batch in batches for at in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= BATCH_TEXTS
        assert len(batch) * max(lengths[at] for at in batch) <= BATCH_TOKENS


async def test_a_question_that_was_just_embedded_is_not_embedded_again(weights_dir: Path) -> None:
    async with open_minilm(weights_dir) as embedder:
        first = await embedder.embed(["What is a lock gate?"])
        assert (await embedder.embed(["What is a lock gate?"]))[0] is first[0]
        for number in range(RECENT):
            await embedder.embed([f"Question {number}"])
        again = await embedder.embed(["What is a lock gate?"])
        assert again[0] is not first[0]
        assert again[0] == first[0]


def test_onnxruntime_reports_nothing_and_leaves_no_file_in_the_home_directory(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from lockgate.models.minilm import open_minilm

async def embed():
    async with open_minilm(Path(sys.argv[1])) as embedder:
        await embedder.embed(["one"])

asyncio.run(embed())
"""
    environ = clean_environment(HOME=str(tmp_path), XDG_CACHE_HOME="")
    subprocess.run([sys.executable, "-c", code, str(require_weights())], env=environ, check=True)
    assert list(tmp_path.rglob("*")) == []
