# SPDX-License-Identifier: Apache-2.0
"""`make bench-peers`: the chat load on LiteLLM's proxy and on Lockgate, each before the same scripted model.

The proxy is installed once, in a separate virtualenv under the data directory, and runs in its production mode with
one worker, no log and no database. Its start sends nothing to the network. Neither it nor Lockgate asks for a key: both
listen on loopback only, and what stands behind them is scripted. Exit code 1 if a target is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.chat import EMBEDDED, TITLES, Case, build_config, build_job, check, load_in_turn, per_one
from benchmarks.measuring import FULL, RESULTS, Effort, Row, micros, render, write_json
from benchmarks.processes import HOST, Server, free_port, open_lockgate, open_upstream, running
from benchmarks.upstream import BURST, CHAT_PATH, PACED

LITELLM = "1.106.2"
TARGET = 15.0
_FULL = FULL._replace(rounds=3, content_requests=100, chat_requests=16)
_QUICK = _FULL._replace(rounds=1, content_requests=5, chat_requests=1, chat_streams=1, pace_ms=5)
# So few streams, so slow, that the proxy keeps up. With more, tokens pile up before it, are read together, and cost it
# less; a gateway that keeps up pays more for each token the less it has to do.
_CALM_STREAMS, _CALM_MS = 8, 25
_CONFIG = """
model_list:
  - {{model_name: "{burst}", litellm_params: {{model: "openai/{burst}", api_base: "{url}", api_key: none}}}}
  - {{model_name: "{paced}", litellm_params: {{model: "openai/{paced}", api_base: "{url}", api_key: none}}}}
  - {{model_name: "{calm}", litellm_params: {{model: "openai/{calm}", api_base: "{url}", api_key: none}}}}
litellm_settings: {{telemetry: false, set_verbose: false}}
general_settings: {{disable_spend_logs: true}}
"""
_QUIET = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # its switch for local use: loopback, no key
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DISABLE_ADMIN_UI": "True",
}


def install(folder: Path) -> Path:
    """The proxy's command, in a virtualenv of its own."""
    stamp = folder / f".litellm-{LITELLM}"
    if not stamp.exists():
        print(f"installing LiteLLM {LITELLM} in {folder}; this takes some minutes the first time", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, f"litellm[proxy]=={LITELLM}"], check=True)
        stamp.touch()
    return folder / "bin" / "litellm"


@contextmanager
def open_litellm(command: Path, upstream: Server, effort: Effort, folder: Path) -> Iterator[Server]:
    """LiteLLM's proxy, quiet, with the scripted model behind it."""
    url = f"http://{HOST}:{upstream.port}/v1"
    config, port = folder / "litellm.yaml", free_port()
    models = {"burst": BURST, "paced": f"{PACED}{effort.pace_ms}", "calm": f"{PACED}{_CALM_MS}"}
    config.write_text(_CONFIG.format(url=url, **models), encoding="utf-8")
    options = ["--config", str(config), "--host", HOST, "--port", str(port), "--telemetry", "False"]
    quiet: dict[str, Any] = {"cwd": folder, "env": os.environ | _QUIET, "stderr": subprocess.DEVNULL}
    with running([str(command), *options], port, **quiet) as server:
        yield server


def measure_peers(effort: Effort, command: Path) -> list[Row]:
    """CPU per request and per token of both, and of Lockgate when it also guards."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_upstream() as upstream,
        open_litellm(command, upstream, effort, Path(folder)) as litellm,
        open_lockgate(build_config(upstream), Path(folder)) as lockgate,
    ):
        rows = [row for how in TITLES for row in _measure(how, litellm, lockgate, effort)]
        calm = effort._replace(chat_streams=min(effort.chat_streams, _CALM_STREAMS), pace_ms=_CALM_MS)
        return rows + [
            row._replace(name=f"{calm.chat_streams} streams, {row.name}", target=None)
            for row in _measure("paced", litellm, lockgate, calm)
        ]


def _measure(how: str, litellm: Server, lockgate: Server, effort: Effort) -> list[Row]:
    plain, guarded = Case("passthrough", how), Case("guarded", how, EMBEDDED)
    loads = {"LiteLLM": (litellm, plain), "Lockgate": (lockgate, plain), "Lockgate with pii": (lockgate, guarded)}
    for server, case in loads.values():
        check(server, CHAT_PATH, case, effort)
    jobs = {name: (server, build_job(CHAT_PATH, case, effort)) for name, (server, case) in loads.items()}
    best, per, title = load_in_turn(jobs, effort.rounds), per_one(how, effort), TITLES[how]
    rows = [Row(f"{title}: {name}, CPU per {per.unit}", micros(best[name].cpu_s, per.number), "us") for name in best]
    for name, target in (("Lockgate", TARGET), ("Lockgate with pii", None)):
        times = best["LiteLLM"].cpu_s / best[name].cpu_s
        rows.append(Row(f"{title}: LiteLLM to {name}", times, "x", target, is_minimum=True))
    return rows


def main() -> int:
    """Install, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it runs; the figures mean little")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the JSON file goes")
    options = parser.parse_args()
    effort = _QUICK if options.quick else _FULL
    data_dir = Path(os.environ.get("LOCKGATE_DATA_DIR", ".lockgate")).resolve()
    rows = measure_peers(effort, install(data_dir / "peers"))
    print(render(f"peers: LiteLLM {LITELLM}", rows))
    write_json(options.results, "peers", rows, effort)
    return 1 if any(row.verdict == "FAIL" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
