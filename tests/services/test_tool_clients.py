# SPDX-License-Identifier: Apache-2.0
"""Function calling over several turns with unchanged clients, whole and streamed, before a running gateway.

Three parties write an address: the user, a tool and the model. Under a policy that masks, none reaches the other side
and all JSON parses; under one that blocks, the client gets `content_filter`.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.server.processes import running
from tests.services.client_programs import run_client
from tests.services.tool_model import (
    ANSWER,
    CARD,
    LETTER,
    LOOK_UP,
    MODEL_MARK,
    RESULT_MARK,
    USER_MARK,
    ToolModel,
    serving,
)

CLIENTS = ("openai for Python", "openai for Python, previous major", "openai for Node", "LangChain", "AI SDK")
QUESTION = f"Write to Ana for me. I am {USER_MARK}."
PLAIN_QUESTION = "Write to Ana for me."
FALLBACK = "Withheld."
CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
detectors: {{pii: {{embedded: pii}}}}
policies:
  masked: {{input: {{pii: {{}}}}, output: {{pii: {{}}}}, on_finding: mask}}
  blocked: {{output: {{pii: {{}}}}, on_finding: block, fallback: Withheld.}}
  closed: {{input: {{pii: {{}}}}, on_finding: block, fallback: Withheld.}}
  replaced: {{input: {{pii: {{roles: [user, tool]}}}}, on_finding: block, fallback: Withheld.}}
server: {{host: 127.0.0.1}}
"""


class Site(NamedTuple):
    """A gateway and the model behind it."""

    url: str
    model: ToolModel

    def ask(self, client: str, policy: str, how: str, question: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What the client printed, and what the model was asked meanwhile."""
        before = len(self.model.asked)
        printed = run_client(client, f"{self.url}/{policy}/v1", how, question)
        return printed, self.model.asked[before:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = folder / "config.yaml"
    with serving() as model:
        path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
        with running(folder, ["--config-path", str(path)]) as server:
            yield Site(f"http://127.0.0.1:{server.api_port}", model)


def hide(value: Any) -> Any:
    """The value as it is masked."""
    text = json.dumps(value, ensure_ascii=False)
    for mark in (USER_MARK, RESULT_MARK, MODEL_MARK):
        text = text.replace(mark, "█" * len(mark))
    return json.loads(text.replace(str(CARD), '"' + "█" * len(str(CARD)) + '"'))


def shown_fallback(client: str) -> str | None:
    """The text of a blocked answer that a program gets. OpenAI's `runTools` for Node raises an error without a text."""
    return None if client == "openai for Node" else FALLBACK


def chats(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The requests for an answer; the others count tokens."""
    return [one for one in asked if "messages" in one]


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_masked_function_calling_goes_through_all_its_turns(site: Site, client: str, how: str) -> None:
    printed, asked = site.ask(client, "masked", how, QUESTION)
    assert (printed["text"], printed["finish_reason"]) == (hide(ANSWER), "stop")
    assert [call["name"] for call in printed["calls"]] == ["find_address", "find_address", "send_letter"]
    assert [call["arguments"] for call in printed["calls"]] == [hide(LOOK_UP), {"name": "Ben"}, hide(LETTER)]
    assert len(chats(asked)) == 3
    sent = json.dumps(asked)
    assert [mark for mark in (USER_MARK, RESULT_MARK, MODEL_MARK, str(CARD)) if mark in sent] == []
    results = [one for one in chats(asked)[-1]["messages"] if one["role"] == "tool"]
    assert json.loads(results[0]["content"]) == {"name": "Ana", **hide({"mail": RESULT_MARK, "card": CARD})}


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_blocked_call_reaches_the_client_as_content_filter(site: Site, client: str, how: str) -> None:
    printed, asked = site.ask(client, "blocked", how, PLAIN_QUESTION)
    assert printed == {"text": shown_fallback(client), "finish_reason": "content_filter", "calls": []}
    assert len(chats(asked)) == 1


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_blocked_question_reaches_no_model(site: Site, client: str, how: str) -> None:
    printed, asked = site.ask(client, "closed", how, QUESTION)
    assert printed == {"text": shown_fallback(client), "finish_reason": "content_filter", "calls": []}
    assert chats(asked) == []


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_blocked_tool_result_is_replaced_and_the_conversation_goes_on(site: Site, client: str, how: str) -> None:
    printed, asked = site.ask(client, "replaced", how, PLAIN_QUESTION)
    assert (printed["text"], printed["finish_reason"]) == (ANSWER, "stop")
    results = [one["content"] for one in chats(asked)[-1]["messages"] if one["role"] == "tool"]
    assert results == [json.dumps(FALLBACK), json.dumps(FALLBACK), FALLBACK]  # what was JSON stays JSON
    assert RESULT_MARK not in json.dumps(asked)
