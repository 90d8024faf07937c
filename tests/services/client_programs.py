# SPDX-License-Identifier: Apache-2.0
"""Runs the client programs of `clients/`, each with its own packages, as an application would use them."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import ROOT
from tests.waits import HANG_S

CLIENTS = Path(__file__).resolve().parent / "clients"
_CURRENT, _PREVIOUS = (ROOT / f".venv-clients-{name}" / "bin" for name in ("current", "previous"))
COMMANDS: Mapping[str, tuple[Path, str]] = {
    "openai for Python": (_CURRENT / "python", "openai_tools.py"),
    "openai for Python, previous major": (_PREVIOUS / "python", "openai_tools.py"),
    "openai for Node": (_CURRENT / "node", "openai_tools.mjs"),
    "LangChain": (_CURRENT / "python", "langchain_tools.py"),
    "AI SDK": (_CURRENT / "node", "ai_sdk_tools.mjs"),
    "ollama for Python": (_CURRENT / "python", "ollama_chat.py"),
    "ollama for Node": (_CURRENT / "node", "ollama_chat.mjs"),
}


def run_client(name: str, *arguments: str) -> dict[str, Any]:
    """What the program printed; it must end without a failure."""
    program, script = COMMANDS[name]
    if not program.exists():
        pytest.fail(f"{program.relative_to(ROOT)} is missing: run `make test-services`", pytrace=False)
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANGSMITH_TRACING": "false"}
    command = [str(program), str(CLIENTS / script), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, f"{name}:\n{done.stdout}\n{done.stderr}"
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
