# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.soak.agent.launch`: starts servers on order, each in a process and a process group of its own.

Orders come as lines of JSON on standard input, an answer to each goes to standard output. What a server imports is
loaded here, once, so that a new one is there at once; with `is_cold` the command itself is run. Nobody's number can
become another's before `reap` was asked for. At the end of the input every server ends; should this process end in
another way, the system ends them.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

from tests.soak.agent.broken import WHOLE, break_server

_PR_SET_PDEATHSIG = 1
_LOADED = (
    "asyncpg.protocol.protocol",
    "langgraph.graph",
    "langsmith",
    "lockgate.cli.main",
    "lockgate.opened_agents",
    "lockgate.index.elasticsearch",
    "lockgate.backends.ollama",
    "lockgate.sessions.postgres",
    "lockgate.config.load",
    "lockgate.sessions.sqlite",
    "lockgate.api.grpc.agent",
    "lockgate.api.openai.turn_routes",
    "lockgate.server.run",
    "lockgate.server.ports",
)


def main() -> None:
    """Carry out orders until there are no more."""
    for name in _LOADED:
        importlib.import_module(name)
    living: set[int] = set()
    try:
        for line in sys.stdin:
            order = json.loads(line)
            print(_start(order, living) if "config" in order else _reap(order["reap"], living), flush=True)
    finally:
        for pid in list(living):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _reap(pid, living)


def _start(order: dict[str, Any], living: set[int]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(order)
    living.add(pid)
    return pid


def _reap(pid: int, living: set[int]) -> int:
    living.discard(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(order: dict[str, Any]) -> None:
    """Never comes back."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, mode) in enumerate(((os.devnull, os.O_RDONLY), (order["log"], flags), (order["errors"], flags))):
        os.dup2(os.open(path, mode, 0o600), number)
    os.environ.update(order["variables"])
    os.chdir(order["directory"])
    arguments = ["serve", "--config-path", order["config"]]
    if order["is_cold"] and order["variant"] == WHOLE:
        os.execv(sys.executable, [sys.executable, "-m", "lockgate", *arguments])
    code: Any = 1
    try:
        from lockgate.cli.main import main as run

        break_server(order["variant"])
        run(arguments)
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
