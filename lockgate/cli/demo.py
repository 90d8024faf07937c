# SPDX-License-Identifier: Apache-2.0
"""`lockgate demo`: a town library that answers from its documents under a policy, with its own settings."""

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.cli import EXIT_OK, read_flags
from lockgate.cli.ask import build_request
from lockgate.cli.text import complain, count_of
from lockgate.errors import ConfigError

if TYPE_CHECKING:
    from lockgate.config.settings import Settings
    from lockgate.server.run import Bound

_QUESTION = "How long may I keep a book?"
HOME = Path(__file__).parent.parent / "demo"
SETTINGS = HOME / "library.yaml"
SAMPLES = HOME / "samples.yaml"
DOCUMENTS = HOME / "documents"
MODEL = "main"
MAX_SOURCES = 10  # the default limit of sources in one question

_USED_VARIABLES = (
    "HOME",
    "XDG_DATA_HOME",
    "LOCKGATE_DATA_DIR",
    "HTTP_PORT",
    "LOCKGATE_SERVER__HTTP_PORT",
    "HEALTH_HTTP_PORT",
    "LOCKGATE_SERVER__HEALTH_PORT",
)
_PREFIXES = ("LOCKGATE_", "AGGREGATOR_", "OTLP_", "OTEL_EXPORTER_OTLP_")
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_WEIGHTS = ("minilm", "prompt_injection", "toxicity")
_MODEL_WEIGHTS = "smollm2"
_MAX_THREADS = 4  # of the embedder, while documents are added


class DemoSource(NamedTuple):
    """The number of documents in the index files, and how many of them this start changed."""

    documents: int
    changed: int


def load_demo_settings(options: argparse.Namespace) -> "Settings":
    """The demo's settings with those of the options, any of which may be missing; raises ConfigError."""
    from lockgate.config.load import load_settings

    folders = find_folders(_documents(options))
    flags = read_flags(options) | _choose_sources(folders, _documents(options)) | _choose_model(options)
    if folders.keys() == find_folders(DOCUMENTS).keys():  # the sample questions are about these
        flags["server.samples"] = str(SAMPLES)
    token = getattr(options, "model_token_env", None)
    used = (*_USED_VARIABLES, token) if token else _USED_VARIABLES
    environ = {name: os.environ[name] for name in used if name in os.environ}
    return load_settings(config_path=SETTINGS, flags=flags, environ=environ)


def list_unused_variables() -> list[str]:
    """Variables that are set for other servers and that the demo does not use."""
    names = [name for name in os.environ if name.startswith(_PREFIXES) or name == "ORCHESTRATOR_CONFIG"]
    return sorted(name for name in names if name not in _USED_VARIABLES and os.environ[name])


def prepare_demo(settings: "Settings", documents: Path = DOCUMENTS) -> DemoSource:
    """Update the index files from the folder of documents; raises ConfigError if weights are missing."""
    check_weights(settings)
    return asyncio.run(_fill(settings, find_folders(documents)))


def check_weights(settings: "Settings") -> None:
    """Raises ConfigError unless `lockgate setup` has fetched all weights that the demo needs."""
    from lockgate.models.weights import find_weights

    model = settings.models[MODEL]
    is_ours = model.embedded is not None and not model.options
    wanted = (*_WEIGHTS, _MODEL_WEIGHTS) if is_ours else _WEIGHTS
    missing = [name for name in wanted if find_weights(settings.data_dir, name) is None]
    if missing:
        words = f"no weights of {', '.join(missing)}: run `lockgate setup`, once; afterwards no network is needed"
        raise ConfigError(words, source=str(settings.data_dir))


def find_folders(documents: Path) -> dict[str, Path]:
    """The sources in a folder: each subfolder is one; without subfolders, the folder itself. Raises ConfigError."""
    source = str(documents)
    if not documents.is_dir():
        raise ConfigError("there is no such folder", source=source)
    folders = {one.name: one for one in sorted(documents.iterdir()) if one.is_dir() and not one.name.startswith(".")}
    folders = folders or {documents.resolve().name: documents}
    if len(folders) > MAX_SOURCES:
        words = f"has {len(folders)} folders; each is a source, and there may be {MAX_SOURCES}"
        raise ConfigError(words, source=source)
    for name in folders:
        if not _NAME.fullmatch(name):
            raise ConfigError("the name of a source is made of letters, digits, - and _", source=source, key=name)
    return folders


def _documents(options: argparse.Namespace) -> Path:
    return getattr(options, "documents", None) or DOCUMENTS


def _choose_sources(folders: Mapping[str, Path], documents: Path) -> dict[str, Any]:
    """Settings of the sources. Other documents get separate index files, so two demos do not remove each other's."""
    if documents == DOCUMENTS:
        return {}
    place = hashlib.sha256(str(documents.resolve()).encode()).hexdigest()[:12]
    return {
        "sources": {
            name: {"embedded": "index", "expose": True, "options": {"file": f"demo/{place}/{name}.db"}}
            for name in folders
        }
    }


def _choose_model(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of the model that the user named, in place of the default model; empty without one."""
    chosen, name = getattr(options, "model", None), getattr(options, "model_name", None)
    if chosen is None:
        return {}
    if not chosen.lower().startswith(("http://", "https://")):
        path = Path(chosen).expanduser()
        if not path.is_file():
            words = "is no file; give the address of a server, as http://127.0.0.1:8000/v1, or a GGUF file"
            raise ConfigError(words, source="--model", key=chosen)
        given = {"path": str(path.absolute())}
        return {"models": {MODEL: {"embedded": "llamacpp", "expose": True, "options": given}}}
    token = getattr(options, "model_token_env", None)
    url = chosen.rstrip("/")
    server = {"url": url, "model": name or _ask_for_name(url, os.environ.get(token or "")), "api_token": token}
    return {"models": {MODEL: {"openai": server, "expose": True}}}


def _ask_for_name(url: str, token: str | None) -> str:
    """The name of the first model that a server lists."""
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    if token:
        opener.addheaders = [*opener.addheaders, ("authorization", f"Bearer {token}")]
    try:
        with opener.open(f"{url}/models", timeout=5) as reply:
            listed = json.loads(reply.read(1 << 20))
        return str(listed["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = str(error) if isinstance(error, OSError) else "its list does not have the expected shape"
        words = f"does not list its models ({why}); name one with --model-name"
        raise ConfigError(words, source="--model", key=url) from error


async def _fill(settings: "Settings", folders: Mapping[str, Path]) -> DemoSource:
    from lockgate.cli.index_documents import IndexCounts, IndexWriter, find_files
    from lockgate.opened_agents import open_index_of, open_own_embedder

    counts = DemoSource(0, 0)
    async with open_own_embedder(settings, min(os.cpu_count() or 1, _MAX_THREADS)) as embedder:
        for name, folder in folders.items():
            tally, files = IndexCounts(), find_files([folder])
            wanted = {str(one.path.resolve()) for one in files}
            async with open_index_of(settings, settings.sources[name], embedder, is_quiet=True) as index:
                known = [one.document.source for one in await index.list_documents()]
                gone = [source for source in known if source not in wanted]
                removed = await index.remove_documents(gone) if gone else 0
                await IndexWriter(index, embedder, tally).fill(files)
            changed = tally.added + tally.replaced
            counts = DemoSource(counts.documents + changed + tally.unchanged, counts.changed + changed + removed)
    return counts


def run_demo(options: argparse.Namespace) -> int:
    """Carries out `demo`."""
    from lockgate.server.run import serve
    from lockgate.telemetry import set_up_logging

    if options.model is None and (options.model_name or options.model_token_env):
        raise ConfigError("name the server too, with --model", source="--model-name or --model-token-env")
    settings = load_demo_settings(options)
    if unused := list_unused_variables():
        complain(f"the demo does not use these variables: {', '.join(unused)}")
    set_up_logging(style="console", level="WARNING", is_quiet=False)
    counts = prepare_demo(settings, options.documents or DOCUMENTS)

    async def welcome(bound: Sequence["Bound"]) -> None:
        addresses = {one.listener.name: one.address for one in bound}
        print(build_welcome(settings, counts, addresses["api"]), flush=True)

    serve(replace(settings, warnings=()), welcome)  # no warning about the shadow policy: it is meant to be tried
    print("Stopped.", flush=True)
    return EXIT_OK


def build_welcome(settings: "Settings", counts: DemoSource, address: str) -> str:
    """The text that is printed once the server listens."""
    is_library = settings.server.samples == SAMPLES
    question = _QUESTION if is_library else "…"
    title = "The town library of Averham" if is_library else "Your documents"
    sources = ["rules", "fees"] if is_library else list(settings.sources)[:2]
    program = "lockgate" if shutil.which("lockgate") == sys.argv[0] else sys.argv[0]
    body = build_request(question, MODEL, sources, {"policy": "library"})
    return f"""
{title}: {count_of(counts.documents, "document")} in {count_of(len(settings.sources), "source")}
Model: {_describe_model(settings)}

  In the browser   {address}/
  In a terminal    {program} ask --url {address} "{question}"
  Over HTTP        curl -sN {address}/api/v1/chat/stream -H 'content-type: application/json' -d '
    {json.dumps(body, ensure_ascii=False)}'

Everything runs on this machine. Ctrl-C stops it.
"""


def _describe_model(settings: "Settings") -> str:
    model = settings.models[MODEL]
    if model.openai is not None:
        return f"{model.openai.model} at {model.openai.url}"
    if file := model.options.get("path"):
        return f"{Path(file).name}, in a separate process"
    return "SmolLM2-135M-Instruct, in a separate process. It is small and makes mistakes; --model takes another"
