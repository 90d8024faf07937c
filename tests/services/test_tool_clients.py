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
    CARD,
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
def test_a_blocked_question_reaches_no_model(site: Site, client: str, how: str) -> None:
    printed, asked = site.ask(client, "closed", how, QUESTION)
    assert printed == {"text": shown_fallback(client), "finish_reason": "content_filter", "calls": []}
    assert chats(asked) == []
