# SPDX-License-Identifier: Apache-2.0
"""The model that runs here, in its process: what it says, how it stops, and what becomes of it when it dies."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from lockgate.errors import ConfigError, Rejected, Unavailable
from lockgate.gate.prompt import AnswerGrounds
from lockgate.gate.values import Document, Frame, Message
from lockgate.interfaces import PartContext
from lockgate.models import llama_process as llama_keeper
from lockgate.models import llamacpp
from lockgate.models.llama_child import load_engine
from lockgate.models.llama_process import BUSY, CLOSED, DIED, NOT_RUNNING, GenerationEnd, _Job
from lockgate.models.llamacpp import LlamaModel, ShortLlamaModel, open_llamacpp_model
from lockgate.models.short_prompt import REFUSAL
from tests.waits import HANG_S, LoopClock, linger, until
from tests.weights import require_weights

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAM: Mapping[str, Any] = {"stream": True}
STORY = [Message("user", "Tell me a long story about a ship.")]
LONG = [Message("user", "The old map shows a mill and two bridges. " * 200)]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Lodging:
    """As much of a house as the model wants."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir


def house(data_dir: Path | None = None) -> PartContext:
    return cast("PartContext", Lodging(data_dir or require_weights("smollm2").parents[1]))


def find_gguf() -> Path:
    (path,) = require_weights("smollm2").glob("*.gguf")
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ShortLlamaModel]:
    async with open_llamacpp_model({"max_waiting": 2}, house()) as opened:
        assert isinstance(opened, ShortLlamaModel)
        yield opened


def document(text: str, score: float = 0.8, source: str = "al/hours") -> Document:
    return Document("Opening hours", text, score, source=source)


def ask(question: str, *documents: Document) -> AnswerGrounds:
    return AnswerGrounds(question, documents, True)


async def hear(frames: Any) -> list[Frame]:
    """All frames of an answer."""
    heard: list[Frame] = []
    async with aclosing(frames):
        async for burst in frames:
            heard += burst if isinstance(burst, list) else [burst]
    return heard


async def say(frames: Any) -> str:
    return "".join(frame.text for frame in await hear(frames))


def count_ticks(pid: int | None) -> int | None:
    """The processor time of a process so far; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    return None if fields[0] == "Z" else int(fields[11]) + int(fields[12])


def list_children() -> set[int]:
    """The processes that this thread started and that are not gone."""
    return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))


def read_peak_kb(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def list_open_ports(pid: int | None) -> list[str]:
    """What a process has open of TCP."""
    open_files = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if f"socket:[{row[9]}]" in open_files]


async def check_stopped(model: LlamaModel, job: _Job | None, pid: int | None) -> None:
    """It was stopped before its end, by its own child, which did hardly anything since: all would take many seconds."""
    assert job is not None
    await until(lambda: job.end)
    assert job.end == GenerationEnd(None, False)
    assert model.pid == pid
    readings = [count_ticks(pid)]
    while len(readings) < 2 or readings[-2] != readings[-1]:
        await linger()
        readings.append(count_ticks(pid))
    assert readings[0] is not None
    assert readings[-1] is not None
    assert readings[-1] - readings[0] < 5 / TICK_S


async def stop_reading(model: LlamaModel) -> _Job | None:
    """The job of a long prompt that is left while the model reads it."""
    frames = model.generate(LONG, STREAM)
    reading = asyncio.ensure_future(anext(frames))
    await until(lambda: model._keeper._job)
    job, before = model._keeper._job, count_ticks(model.pid) or 0
    await until(lambda: (count_ticks(model.pid) or 0) > before)
    reading.cancel()
    await asyncio.wait([reading])
    await frames.aclose()
    return job


# What it says.


async def test_an_answer_comes_in_frames_and_ends_with_its_usage(model: ShortLlamaModel) -> None:
    frames = await hear(model.generate(STORY, {**STREAM, "max_tokens": 8}))
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert all(frame.text for frame in frames[:-1])
    assert frames[-1].text == ""
    fields = frames[-1].fields
    assert fields is not None
    assert fields["is_cut"] is True
    usage = fields["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    (whole,) = await hear(model.generate(STORY, {"max_tokens": 8}))
    assert whole == Frame(0, "".join(frame.text for frame in frames), fields=fields)


async def test_a_reader_that_is_slower_than_the_model_gets_every_word(model: ShortLlamaModel) -> None:
    quick = await hear(model.generate(STORY, {"stream": True, "max_tokens": 24}))
    slow: list[Frame] = []
    async with aclosing(model.generate(STORY, {"stream": True, "max_tokens": 24})) as frames:
        async for burst in frames:
            slow += burst if isinstance(burst, list) else [burst]
            await until(lambda: model._keeper._job is None)  # the whole answer is there before more of it is taken
    assert "".join(frame.text for frame in slow) == "".join(frame.text for frame in quick)
    assert slow[-1].fields == quick[-1].fields


async def test_the_likeliest_words_are_said_whatever_temperature_is_wished(model: ShortLlamaModel) -> None:
    plain = await say(model.generate(STORY, {"max_tokens": 12}))
    assert await say(model.generate(STORY, {"max_tokens": 12, "temperature": 1.9})) == plain


async def test_characters_that_are_several_tokens_come_whole(model: ShortLlamaModel) -> None:
    frames = await hear(
        model.generate([Message("user", "Repeat exactly: 😀 Grüße 👩‍👩‍👧")], {**STREAM, "max_tokens": 30})
    )
    assert "👩" in "".join(frame.text for frame in frames)
    assert not any("�" in frame.text for frame in frames)


async def test_a_prompt_that_is_too_long_is_refused_and_the_model_goes_on(model: ShortLlamaModel) -> None:
    pid = model.pid
    with pytest.raises(Rejected, match="the prompt is too long for the model, which reads 4096 tokens"):
        await say(model.generate([Message("user", "word " * 5000)], STREAM))
    assert await say(model.generate([Message("user", "Hi")], {"max_tokens": 3}))
    assert model.pid == pid


async def test_text_cannot_close_its_message(model: ShortLlamaModel) -> None:
    async def count(text: str) -> int:
        (frame,) = await hear(model.generate([Message("user", text)], {"max_tokens": 1}))
        assert frame.fields is not None
        return int(frame.fields["usage"]["prompt_tokens"])

    assert await count("a <|im_end|> b") == await count("a < |im_end|> b")
    assert await count("a\0b \ud800") > 0


async def test_an_answer_cites_and_follows_the_documents(model: ShortLlamaModel) -> None:
    question = "When does the library close on Saturday?"
    said = await say(model.answer(ask(question, document("On Saturday the library closes at four.")), STREAM))
    assert said == "On Saturday the library closes at four [al/hours]."
    said = await say(model.answer(ask(question, document("On Saturday the library closes at nine.")), {}))
    assert said == "On Saturday the library closes at nine [al/hours]."


async def test_any_path_can_be_cited(model: ShortLlamaModel) -> None:
    odd = document("The museum is closed on Monday.", source='Ärzte "x"/café\\y')
    assert (await say(model.answer(ask("When is the museum closed?", odd), {}))).endswith(' [Ärzte "x"/café\\y].')


async def test_without_documents_it_says_so(model: ShortLlamaModel) -> None:
    for question in ("What is the capital of Mongolia?", "", "Hello!"):
        assert await say(model.answer(ask(question), STREAM)) == REFUSAL
    assert (
        await say(model.answer(ask("Is there a swimming pool?", document("The library is old.", 0.4)), {})) == REFUSAL
    )


async def test_the_same_question_gets_the_same_answer_whatever_was_asked_before(model: ShortLlamaModel) -> None:
    texts = ("On Saturday it opens at ten.", "A card costs 3 pounds.")
    asked = [ask(text, document(text), document("On Sunday the house is closed.", 0.7)) for text in texts]
    first = [await say(model.answer(one, STREAM)) for one in asked]
    assert len({*first}) == 2
    await say(model.generate([Message("user", "Hi")], {"max_tokens": 2}))
    assert [await say(model.answer(one, STREAM)) for one in reversed(asked)] == first[::-1]
    await stop_reading(model)
    assert [await say(model.answer(one, STREAM)) for one in asked] == first


async def test_the_library_is_never_loaded_here(model: ShortLlamaModel) -> None:
    assert "xllamacpp" not in sys.modules
    assert read_peak_kb(model.pid) < 350_000
    assert list_open_ports(model.pid) == []


# How it stops.


async def test_it_stops_when_its_reader_has_left(model: ShortLlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_keeper, "STOP_GRACE_S", HANG_S)
    frames = model.generate(STORY, {**STREAM, "max_tokens": 4000})
    await anext(frames)
    job, pid = model._keeper._job, model.pid
    await frames.aclose()
    await check_stopped(model, job, pid)


async def test_it_stops_while_it_reads(model: ShortLlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_keeper, "STOP_GRACE_S", HANG_S)
    pid = model.pid
    await check_stopped(model, await stop_reading(model), pid)
    assert await say(model.generate([Message("user", "Hi")], {"max_tokens": 3}))


async def test_one_that_does_not_stop_is_killed(model: ShortLlamaModel) -> None:
    frames = model.generate(STORY, STREAM)
    await anext(frames)
    pid = model.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await frames.aclose()
    await until(lambda: count_ticks(pid) is None)
    assert await say(model.generate([Message("user", "Hi")], {"max_tokens": 3}))


async def test_a_few_wait_and_others_are_refused(model: ShortLlamaModel) -> None:
    ended: list[int] = []

    async def tell(number: int) -> None:
        await say(model.generate(STORY, {"max_tokens": 4}))
        ended.append(number)

    await until(lambda: model._keeper.is_ready and model._keeper._job is None)
    tasks = [asyncio.create_task(tell(number)) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match=BUSY):
        await say(model.generate(STORY, STREAM))
    tasks[1].cancel()
    await asyncio.sleep(0)
    await asyncio.gather(*tasks, tell(3), return_exceptions=True)
    assert ended == [0, 2, 3]


# When it dies.


async def test_when_it_dies_an_answer_fails_and_the_next_is_given_by_another(model: ShortLlamaModel) -> None:
    frames = model.generate(STORY, STREAM)
    await anext(frames)
    pid = model.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match=DIED):
        await say(frames)
    assert await say(model.generate([Message("user", "Hi")], {"max_tokens": 3}))
    assert model.pid != pid
    assert (await model.probe(())).status == "HEALTHY"


async def test_what_was_said_before_it_died_is_heard_before_the_failure(model: ShortLlamaModel) -> None:
    frames = model.generate(STORY, STREAM)
    heard = [await anext(frames)]
    job, pid = model._keeper._job, model.pid
    assert job is not None
    assert pid is not None
    await until(lambda: len(job._pieces) >= 5)  # the reader is slow
    os.kill(pid, signal.SIGKILL)
    await until(lambda: job.error)  # and learns of nothing
    said = len(job._pieces)
    with pytest.raises(Unavailable, match=DIED):
        async for burst in frames:
            heard.append(burst)  # noqa: PERF401 - what came before the failure counts
    assert sum(len(burst) for burst in heard[1:] if isinstance(burst, list)) == said


async def test_one_that_stands_still_is_replaced(model: ShortLlamaModel) -> None:
    frames = model.generate(STORY, STREAM)
    await anext(frames)
    pid = model.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    LoopClock().advance()
    with pytest.raises(Unavailable, match=DIED):
        await say(frames)
    assert await say(model.generate([Message("user", "Hi")], {"max_tokens": 3}))


async def test_a_model_that_cannot_be_loaded_again_is_told_and_not_tried_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_PAUSE_S", "MAX_PAUSE_S"):
        monkeypatch.setattr(llama_keeper, name, 3600.0)
    path = tmp_path / "m.gguf"
    path.symlink_to(find_gguf())
    async with open_llamacpp_model({"path": str(path), "context_tokens": 512}, house()) as opened:
        assert type(opened) is LlamaModel
        assert not hasattr(opened, "answer")
        path.unlink()
        path.write_bytes(b"GGUF" + bytes(100))
        pid = opened.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: opened.pid != pid)
        with pytest.raises(Unavailable, match=NOT_RUNNING):
            await say(opened.generate(STORY, STREAM))
        assert (await opened.probe(())).status == "UNHEALTHY"
        with pytest.raises(Unavailable, match=NOT_RUNNING):  # at once: the next attempt is not due yet
            await say(opened.generate(STORY, STREAM))


async def test_nothing_is_left_when_it_is_closed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_llamacpp_model({"answers_short": False}, house()))
        pid = opened.pid
        frames = opened.generate(STORY, STREAM)
        await anext(frames)
    assert count_ticks(pid) is None
    with pytest.raises(Unavailable, match=CLOSED):
        await say(frames)
    with pytest.raises(Unavailable, match=CLOSED):
        await say(opened.generate(STORY, STREAM))


async def test_nothing_is_left_when_opening_is_cancelled() -> None:
    before = list_children()
    opening = asyncio.create_task(AsyncExitStack().enter_async_context(open_llamacpp_model({}, house())))
    await until(lambda: list_children() > before)
    (pid,) = list_children() - before
    assert not opening.done()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert count_ticks(pid) is None


async def test_it_ends_with_the_process_that_started_it() -> None:
    code = f"""
import asyncio
from pathlib import Path
from types import SimpleNamespace
from lockgate.models.llamacpp import open_llamacpp_model

async def main():
    options = {{"path": {str(find_gguf())!r}, "context_tokens": 512}}
    async with open_llamacpp_model(options, SimpleNamespace(data_dir=Path("."))) as model:
        print(model.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    os.kill(pid, signal.SIGINT)  # Ctrl-C is for the parent
    await linger()
    assert count_ticks(pid) is not None
    parent.kill()
    await parent.wait()
    await until(lambda: count_ticks(pid) is None)


# Its settings.


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"thread": 2}, "thread", "unknown parameter `thread`"),
        ({"threads": 0}, "threads", "`threads` must be a whole number from 1 to 256"),
        ({"context_tokens": 100}, "context_tokens", "from 512 to"),
        ({"max_tokens": True}, "max_tokens", "`max_tokens` must be a whole number"),
        ({"max_waiting": -1}, "max_waiting", "from 0 to"),
        ({"cites": "yes"}, "cites", "`cites` must be true or false"),
        ({"path": 3}, "path", "`path` must be the path of a GGUF file"),
        ({"path": "/no/such.gguf"}, "path", "is not the file of a model: there is no such file"),
        ({"path": __file__}, "path", "is not the file of a model: it is no GGUF file"),
    ],
)
async def test_a_wrong_option_is_named(options: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with open_llamacpp_model(options, house()):
            pass
    assert caught.value.key == key
    assert words in caught.value.message


async def test_missing_weights_and_a_missing_library_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="run `lockgate setup`"):
        async with open_llamacpp_model({}, house(tmp_path)):
            pass
    monkeypatch.setattr(llamacpp, "LIBRARY", "no_such_library")
    with pytest.raises(ConfigError, match=r"pip install 'lockgate\[llamacpp\]'"):
        async with open_llamacpp_model({}, house()):
            pass


async def test_a_file_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with find_gguf().open("rb") as file:
        path.write_bytes(file.read(3_000_000))
    with pytest.raises(ConfigError, match=r"half\.gguf cannot be loaded: llama\.cpp"):
        async with open_llamacpp_model({"path": str(path)}, house()):
            pass


async def test_a_missing_system_library_is_told_with_the_command_that_installs_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="apt-get install libgomp1"):
        load_engine({"path": str(find_gguf())})
