# SPDX-License-Identifier: Apache-2.0
"""`lockgate demo`: a town library that answers from its papers, guarded, on this machine alone.

Decides what is said to whoever starts it. What the demo is made of is decided in `lockgate.cli.demo_library`, how
it is served in `lockgate.server`.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.cli import EXIT_OK, AddSettings, Commands
from lockgate.cli.ask_request import build_request
from lockgate.cli.demo_library import (
    DOCUMENTS,
    MODEL,
    SAMPLES,
    Shelf,
    list_unheard,
    load_demo_settings,
    prepare_demo,
)
from lockgate.errors import ConfigError

if TYPE_CHECKING:
    from lockgate.config.settings import Settings
    from lockgate.server.run import Bound

__all__ = ["add_parser", "load_demo_settings", "prepare_demo", "run_demo"]

_ABOUT = (
    "Serve a small town library that answers questions from its papers: a model, detectors and an index that run "
    "here, and a page on which one sees text being held, checked and released. It listens on 127.0.0.1 only, needs no "
    "network once `lockgate setup` has been run, and has settings of its own: config files and variables are not read, "
    "except for ports and the data directory. Ctrl-C stops it."
)
_QUESTION = "How long may I keep a book?"


def add_parser(commands: Commands, _: AddSettings) -> None:
    """Adds `demo`; its settings are its own."""
    parser = commands.add_parser("demo", help="a guarded library to talk to, in your browser", description=_ABOUT)
    parser.set_defaults(run=run_demo)
    add_choices(parser)
    parser.add_argument("--http-port", dest="set:server.http_port", metavar="PORT", help="API port, default 8033")
    parser.add_argument("--health-http-port", dest="set:server.health_port", metavar="PORT", help="default 8034")


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What can be chosen about the demo's parts."""
    parser.add_argument(
        "--model",
        metavar="URL|FILE",
        help="a model of yours: an OpenAI-compatible server, as http://127.0.0.1:8000/v1, or a GGUF file",
    )
    parser.add_argument("--model-name", metavar="NAME", help="its name there; default: the first that the server lists")
    parser.add_argument("--model-token-env", metavar="VARIABLE", help="the variable that holds the server's token")
    parser.add_argument(
        "--documents",
        type=Path,
        metavar="FOLDER",
        help="other documents: each folder in it is a source of Markdown, text, HTML and PDF files",
    )
    parser.add_argument(
        "--data-dir",
        dest="set:data_dir",
        metavar="DIR",
        help="where weights and index lie (LOCKGATE_DATA_DIR; default ~/.local/share/lockgate)",
    )


def run_demo(options: argparse.Namespace) -> int:
    """Carries out `demo`."""
    from lockgate.server.run import serve
    from lockgate.telemetry import set_up_logging

    if options.model is None and (options.model_name or options.model_token_env):
        raise ConfigError("name the server too, with --model", source="--model-name or --model-token-env")
    settings = load_demo_settings(options)
    if unheard := list_unheard():
        print(f"lockgate: the demo has settings of its own; not used: {', '.join(unheard)}", file=sys.stderr)
    set_up_logging(style="console", level="WARNING", is_quiet=False)
    shelf = prepare_demo(settings, options.documents or DOCUMENTS)

    async def welcome(bound: Sequence["Bound"]) -> None:
        addresses = {one.listener.name: one.address for one in bound}
        print(build_welcome(settings, shelf, addresses["api"]), flush=True)

    serve(replace(settings, warnings=()), welcome)  # that a policy is in shadow is no news here: it is there to be seen
    print("Stopped.", flush=True)
    return EXIT_OK


def build_welcome(settings: "Settings", shelf: Shelf, address: str) -> str:
    """What is told once everything listens."""
    is_library = settings.server.samples == SAMPLES
    question = _QUESTION if is_library else "…"
    title = "The town library of Averham" if is_library else "Your documents"
    sources = ["rules", "fees"] if is_library else list(settings.sources)[:2]
    body = build_request(question, MODEL, sources, {"policy": "library"})
    return f"""
{title}: {_count(shelf.documents, "document")} in {_count(len(settings.sources), "source")}
Model: {_describe_model(settings)}

  In the browser   {address}/
  In a terminal    {_name_program()} ask --url {address} "{question}"
  Over HTTP        curl -sN {address}/api/v1/chat/stream -H 'content-type: application/json' -d '
    {json.dumps(body, ensure_ascii=False)}'

Everything runs on this machine. Ctrl-C stops it.
"""


def _name_program() -> str:
    """How this program was called, as one may type it again."""
    return "lockgate" if shutil.which("lockgate") == sys.argv[0] else sys.argv[0]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _describe_model(settings: "Settings") -> str:
    model = settings.models[MODEL]
    if model.openai is not None:
        return f"{model.openai.model} at {model.openai.url}"
    if file := model.options.get("path"):
        return f"{Path(file).name}, in a process of its own"
    return "SmolLM2-135M-Instruct, in a process of its own. It is small and errs; --model takes one of yours"
