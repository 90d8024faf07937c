# SPDX-License-Identifier: Apache-2.0
"""Ollama's own clients, unchanged, chat with a model under policies."""

import json
from collections.abc import Iterator

import pytest

from tests.server.processes import running
from tests.services.client_programs import run_client
from tests.services.test_tool_clients import FALLBACK, PLAIN_QUESTION, QUESTION, Site, hide
from tests.services.tool_model import ANSWER, USER_MARK, serving

CONFIG = """
models: {{tiny: {{openai: {{url: "http://127.0.0.1:{port}/v1", model: m}}}}}}
detectors: {{pii: {{embedded: pii}}}}
policies:
  masked: {{input: {{pii: {{}}}}, output: {{pii: {{}}}}, on_finding: mask}}
  blocked: {{output: {{pii: {{}}}}, on_finding: block, fallback: Withheld.}}
  closed: {{input: {{pii: {{}}}}, on_finding: block, fallback: Withheld.}}
server: {{host: 127.0.0.1}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = folder / "config.yaml"
    with serving() as model:
        path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
        with running(folder, ["--config-path", str(path)]) as server:
            yield Site(f"http://127.0.0.1:{server.api_port}", model)


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("client", ["ollama for Python", "ollama for Node"])
@pytest.mark.parametrize(
    ("model", "question", "text", "reason", "requests"),
    [
        ("tiny", PLAIN_QUESTION, ANSWER, "stop", 1),
        ("tiny@masked", QUESTION, hide(ANSWER), "stop", 1),
        ("tiny@blocked", PLAIN_QUESTION, FALLBACK, "content_filter", 1),
        ("tiny@closed", QUESTION, FALLBACK, "content_filter", 0),
    ],
    ids=["no policy", "masked", "blocked answer", "blocked question"],
)
def test_ollama_chats_under_a_policy(
    site: Site, client: str, how: str, model: str, question: str, text: str, reason: str, requests: int
) -> None:
    before = len(site.model.asked)
    printed = run_client(client, site.url, model, how, question)
    assert printed == {"text": text, "done": True, "done_reason": reason}
    asked = site.model.asked[before:]
    assert len(asked) == requests
    assert USER_MARK not in json.dumps(asked)
