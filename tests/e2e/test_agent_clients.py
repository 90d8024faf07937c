# SPDX-License-Identifier: Apache-2.0
"""The official clients of OpenAI and Ollama, unchanged, against a running server with an agent (B-41, B-43)."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import ollama
import openai
import pytest

from tests.server.agent_peers import SAID, WORDS, ScriptedOllama, ollama_at_work
from tests.server.processes import running
from tests.waits import HANG_S

KEY = "sk-app"
BEARER = {"authorization": f"Bearer {KEY}"}
NAMES = ["brunix", "agent/default", "tiny"]
QUESTION: Any = [{"role": "user", "content": "How are you?"}]
CONFIG = """
models:
  tiny: {{ollama: {{url: "http://127.0.0.1:{port}", model: tiny}}}}
agents:
  default: {{main: tiny, conversational: tiny, sources: []}}
detectors:
  words: {{embedded: keywords, chunker_id: word, options: {{keywords: [there]}}}}
policies:
  masked: {{output: {{words: {{}}}}, on_finding: mask}}
  closed: {{output: {{words: {{}}}}, on_finding: block, fallback: Not here.}}
callers:
  app: {{key_env: APP_KEY}}
  web: {{key_env: WEB_KEY}}
server: {{host: 127.0.0.1}}
"""


class Site(NamedTuple):
    """A server, and the model behind it."""

    url: str
    model: ScriptedOllama


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = Path(folder) / "config.yaml"
    with ollama_at_work() as model:
        path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
        variables = {
            "APP_KEY": KEY,
            "WEB_KEY": "sk-web",
            "LOCKGATE_DATA_DIR": str(folder / "state"),
            "LOCKGATE_SERVER__GRPC_PORT": "0",
            "CLASSIFIER_MODEL_PATH": str(folder / "none"),
        }
        with running(folder, ["--config-path", str(path)], **variables) as server:
            yield Site(f"http://127.0.0.1:{server.api_port}", model)


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=KEY, max_retries=0, timeout=HANG_S) as made:
        yield made


@pytest.fixture
def llama(site: Site) -> Iterator[ollama.Client]:
    with ollama.Client(site.url, headers=BEARER, timeout=HANG_S) as made:
        yield made


def ask(words: str) -> Any:
    return [{"role": "user", "content": words}]


# OpenAI.


def test_openai_lists_and_shows_who_can_be_named(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == NAMES
    assert client.models.retrieve("agent/default").owned_by == "lockgate"


@pytest.mark.parametrize("name", NAMES)
def test_openai_gets_a_whole_answer(client: openai.OpenAI, name: str) -> None:
    answer = client.chat.completions.create(model=name, messages=QUESTION, temperature=0.2, max_tokens=50)
    assert (answer.model, answer.choices[0].message.content, answer.choices[0].finish_reason) == (name, SAID, "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 2, 5)


@pytest.mark.parametrize("name", NAMES)
def test_openai_gets_a_stream(client: openai.OpenAI, name: str) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=name, messages=QUESTION, stream=True, stream_options=options))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [one.choices[0].delta.content for one in chunks if one.choices]
    assert [text for text in texts if text] == WORDS
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert [one.usage.total_tokens for one in chunks if one.usage] == [5]


def test_openai_gets_text_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="brunix", prompt="How are you?")
    assert (whole.object, whole.choices[0].text) == ("text_completion", SAID)
    parts = client.completions.create(model="brunix", prompt="How are you?", stream=True)
    assert [one.choices[0].text for one in parts if one.choices[0].text] == WORDS


def test_openai_hears_each_word_while_the_model_still_speaks(client: openai.OpenAI, site: Site) -> None:
    chunks = client.chat.completions.create(model="brunix", messages=ask("Please wait."), stream=True)
    texts = (one.choices[0].delta.content for one in chunks if one.choices[0].delta.content)
    assert next(texts) == WORDS[0]
    site.model.go_on()
    assert list(texts) == WORDS[1:]


def test_openai_finds_its_history_in_a_session_and_nobody_elses(client: openai.OpenAI, site: Site) -> None:
    session = {"session_id": "s1"}
    client.chat.completions.create(model="brunix", messages=ask("I like kiwis."), extra_body=session)
    list(client.chat.completions.create(model="agent/default", messages=ask("Why?"), stream=True, extra_body=session))
    said = [(one["role"], one["content"]) for one in site.model.prompts[-1][1:]]
    assert said == [("user", "I like kiwis."), ("assistant", SAID), ("user", "Why?")]
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="sk-web", max_retries=0) as stranger:
        stranger.chat.completions.create(model="brunix", messages=ask("And me?"), extra_body=session)
    assert "kiwis" not in json.dumps(site.model.prompts[-1])


def test_openai_sends_its_own_history_without_a_session(client: openai.OpenAI, site: Site) -> None:
    sent: Any = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}, *ask("Two?")]
    client.chat.completions.create(model="brunix", messages=sent)
    assert [one["content"] for one in site.model.prompts[-1][1:]] == ["One?", "1", "Two?"]
    client.chat.completions.create(model="tiny", messages=sent)
    assert [one["content"] for one in site.model.prompts[-1]] == ["One?", "1", "Two?"]


def test_openai_gets_a_model_under_a_policy(client: openai.OpenAI) -> None:
    masked = client.chat.completions.create(model="tiny@masked", messages=QUESTION)
    assert masked.choices[0].message.content == SAID.replace("there", "█" * 5)
    closed = client.chat.completions.create(model="tiny@closed", messages=QUESTION)
    assert closed.choices[0].finish_reason == "content_filter"
    assert "there" not in (closed.choices[0].message.content or "")


def test_openai_raises_what_it_knows(client: openai.OpenAI, site: Site) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-4o", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="must hold a message with role `user`"):
        create(model="brunix", messages=[{"role": "system", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="unknown query_type"):
        create(model="brunix", messages=QUESTION, extra_body={"query_type": "NONE"})
    with pytest.raises(openai.InternalServerError) as failed:
        create(model="brunix", messages=ask("Please fail."))
    assert failed.value.status_code == 503
    with pytest.raises(openai.InternalServerError) as failed:
        create(model="brunix", messages=ask("Please fail."), stream=True)
    assert failed.value.status_code == 503
    with (
        openai.OpenAI(base_url=f"{site.url}/v1", api_key="no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_openai_raises_in_the_middle_of_a_stream(client: openai.OpenAI) -> None:
    heard: list[str] = []
    with pytest.raises(openai.APIError, match="the model is not available"):
        chunks = client.chat.completions.create(model="brunix", messages=ask("Please break."), stream=True)
        heard.extend(one.choices[0].delta.content or "" for one in chunks)
    assert [word for word in heard if word] == WORDS[:2]


async def test_openai_reads_many_streams_at_once(site: Site) -> None:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=KEY, max_retries=0, timeout=HANG_S) as client:

        async def read() -> str:
            chunks = await client.chat.completions.create(model="brunix", messages=QUESTION, stream=True)
            return "".join([one.choices[0].delta.content or "" async for one in chunks])

        async def read_whole() -> str:
            answer = await client.chat.completions.create(model="brunix", messages=QUESTION)
            return answer.choices[0].message.content or ""

        assert await asyncio.gather(*[read() for _ in range(6)], *[read_whole() for _ in range(2)]) == [SAID] * 8


# Ollama.


def test_ollama_lists_who_can_be_named(llama: ollama.Client) -> None:
    assert [one.model for one in llama.list().models] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_ollama_gets_a_whole_answer(llama: ollama.Client, name: str) -> None:
    answer = llama.chat(model=name, messages=QUESTION, options={"temperature": 0.2, "num_predict": 50})
    assert (answer.model, answer.message.role, answer.message.content) == (name, "assistant", SAID)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", 2)
    assert llama.generate(model=name, prompt="How are you?", system="Be kind.").response == SAID


@pytest.mark.parametrize("name", NAMES)
def test_ollama_gets_a_stream(llama: ollama.Client, name: str) -> None:
    parts = list(llama.chat(model=name, messages=QUESTION, stream=True))
    assert [one.message.content for one in parts] == [*WORDS, ""]
    assert [one.done for one in parts] == [False] * len(WORDS) + [True]
    texts = [one.response for one in llama.generate(model=name, prompt="How are you?", stream=True)]
    assert texts == [*WORDS, ""]


def test_ollama_raises_what_it_knows(llama: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'none' not found") as missing:
        llama.chat(model="none", messages=QUESTION)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as wrong:
        llama.chat(model="brunix", messages=[])
    assert wrong.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="the model is not available") as failed:
        list(llama.chat(model="brunix", messages=ask("Please fail."), stream=True))
    assert failed.value.status_code == 503


def test_ollama_raises_in_the_middle_of_a_stream(llama: ollama.Client) -> None:
    heard: list[str | None] = []
    with pytest.raises(ollama.ResponseError, match="the model is not available"):
        heard.extend(
            one.message.content for one in llama.chat(model="brunix", messages=ask("Please break."), stream=True)
        )
    assert heard == WORDS[:2]


async def test_ollama_reads_many_streams_at_once(site: Site) -> None:
    async with ollama.AsyncClient(site.url, headers=BEARER, timeout=HANG_S) as llama:

        async def read() -> str:
            parts = await llama.chat(model="brunix", messages=QUESTION, stream=True)
            return "".join([one.message.content or "" async for one in parts])

        async def read_whole() -> str:
            return str((await llama.generate(model="brunix", prompt="How are you?")).response)

        assert await asyncio.gather(*[read() for _ in range(6)], *[read_whole() for _ in range(2)]) == [SAID] * 8


def test_the_editor_reaches_the_model_through_user(site: Site) -> None:
    """`user` is a JSON text with base64 inside (B-42)."""
    user = json.dumps({"selected_text": "cHJpbnQoNDIp", "user_info": {"plan": "free"}})
    asked = {"model": "brunix", "messages": QUESTION, "user": user, "query_type": "CONVERSATIONAL"}
    answer = httpx.post(f"{site.url}/v1/chat/completions", json=asked, headers=BEARER, timeout=HANG_S)
    assert answer.status_code == 200
    assert "print(42)" in site.model.prompts[-1][-1]["content"]
