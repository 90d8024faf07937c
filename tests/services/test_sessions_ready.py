# SPDX-License-Identifier: Apache-2.0
"""A running gateway whose PostgreSQL goes away and comes back: `/ready` says so, and no restart is needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.postgres import start_server
from tests.server.agent_peers import ollama_at_work
from tests.server.processes import running
from tests.waits import HANG_S, wait_until

CONFIG = """
models: {{tiny: {{ollama: {{url: "http://127.0.0.1:{port}", model: tiny}}}}}}
agents: {{default: {{main: tiny, conversational: tiny, sources: []}}}}
sessions: {{postgres: {{dsn_env: SESSIONS_DSN}}}}
server: {{host: 127.0.0.1}}
"""


@pytest.fixture
def database() -> Iterator[Any]:
    server = start_server()
    try:
        yield server
    finally:
        server.cleanup()


def test_a_database_that_goes_away_is_named_until_it_is_back(tmp_path: Path, database: Any) -> None:
    with ollama_at_work() as model:
        path = tmp_path / "config.yaml"
        path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
        variables = {
            "SESSIONS_DSN": database.get_uri(database="postgres"),
            "LOCKGATE_DATA_DIR": str(tmp_path / "state"),
            "LOCKGATE_SERVER__GRPC_PORT": "0",
            "CLASSIFIER_MODEL_PATH": str(tmp_path / "none"),
        }
        with running(tmp_path, ["--config-path", str(path)], **variables) as server:
            url = f"http://127.0.0.1:{server.api_port}"
            with httpx.Client(base_url=url, timeout=HANG_S) as client:
                play(client, database)
            assert [one["part"] for one in server.events("unhealthy")] == ["sessions"]


def play(client: httpx.Client, database: Any) -> None:
    wait_until(lambda: is_ready(client), "readiness")
    assert take_turn(client, "Who was first?") == 200
    database.stop()
    wait_until(lambda: not is_ready(client), "the failure")
    assert client.get("/ready").json() == {"status": "not ready", "checks": {"sessions": "failing"}}
    assert take_turn(client, "Is that kept?") == 503
    database.ensure_postgres_running()
    wait_until(lambda: is_ready(client), "the recovery")
    assert take_turn(client, "Who was last?") == 200
    stored = database.psql("SELECT text FROM lockgate_messages WHERE role = 'user' ORDER BY seq")
    assert [text in stored for text in ("Who was first?", "Is that kept?", "Who was last?")] == [True, False, True]


def is_ready(client: httpx.Client) -> bool:
    return client.get("/ready").status_code == 200


def take_turn(client: httpx.Client, text: str) -> int:
    """One turn of a session; the status of its answer."""
    messages = [{"role": "user", "content": text}]
    asked = {"model": "brunix", "stream": False, "session_id": "s1", "messages": messages}
    return client.post("/api/chat", json=asked).status_code
