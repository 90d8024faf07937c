# SPDX-License-Identifier: Apache-2.0
"""Shows the way of a request: `make walk`.

Sends one stream of seven frames under a policy that masks through four surfaces of a gateway, over real sockets. Prints
the functions of `lockgate/` that ran, by file, in the order of their first call. Counting begins when the request is
sent and ends when the gateway has done with it: neither the start of the gateway nor the upstream is counted, nor a
first request that fills what is cached.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from inspect import CO_OPTIMIZED
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

import lockgate
from lockgate.gateway import open_gateway
from lockgate.server.app import App
from lockgate.server.ports import build_api_app
from tests.contracts.http_peers import Exchange, open_peer
from tests.server.http_client import Answer, build_request, connect
from tests.server.served_app import served
from tests.surfaces.answers import collect_text, read_answer
from tests.surfaces.gateway import HOST, load_config
from tests.surfaces.upstreams import HEAD

PACKAGE = Path(lockgate.__file__).resolve().parent
FRAMES = ("The gates ", "open at ", "nine. ", "Write to ", "ana@exam", "ple.org", " for keys.")
MASKED = "The gates open at nine. Write to ███████████████ for keys."
MODEL, SOURCE, POLICY = "gates", "docs", "mask"
QUESTION, EARLIER = "When do the gates open?", "When do the gates shut?"
CHAT, AGGREGATOR = "/v1/chat/completions", "/api/v1/chat/stream"
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # belong to the function that they stand in


class Surface(NamedTuple):
    """A path and what is sent to it."""

    path: str
    body: Mapping[str, Any]


def _build_chat(model: str, **more: Any) -> Surface:
    return Surface(CHAT, {"model": model, "stream": True, "messages": [{"role": "user", "content": QUESTION}], **more})


SURFACES: Mapping[str, Surface] = {
    "proxied OpenAI": _build_chat("m", detectors={"policy": POLICY}),
    "configured model": _build_chat(f"{MODEL}@{POLICY}"),
    "aggregator": Surface(
        AGGREGATOR,
        {
            "prompt": QUESTION,
            "model": {"url": "lockgate:", "slug": MODEL},
            "data_sources": [{"url": "lockgate:", "slug": SOURCE}],
            "detectors": {"policy": POLICY},
        },
    ),
    "agent": _build_chat(f"agent/default@{POLICY}"),
}


class Function(NamedTuple):
    """A function of the package."""

    path: str
    name: str

    @property
    def folder(self) -> str:
        """The folder of its file."""
        return self.path.rpartition("/")[0]


class Walk(NamedTuple):
    """The functions that a request visits, in the order of first visits, and the text that its client got."""

    functions: Sequence[Function]
    answer: str

    @property
    def files(self) -> Sequence[str]:
        """The files of the functions, in order."""
        return list(dict.fromkeys(one.path for one in self.functions))

    @property
    def folder_changes(self) -> int:
        """How often the next function is in another folder."""
        return len(list(groupby(self.functions, key=lambda one: one.folder))) - 1


class Recorder:
    """Notes the functions of the package that are called while it is on, in any thread that starts under it."""

    def __init__(self) -> None:
        self.is_on = False
        self._codes: dict[CodeType, None] = {}

    @contextmanager
    def install(self) -> Iterator[None]:
        """Notes calls in this thread and in those that it starts."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_on and event == "call":
            self._codes[frame.f_code] = None

    def list_functions(self) -> list[Function]:
        """What was noted, each function once. Bodies of classes and modules are none."""
        named = [code for code in self._codes if code.co_flags & CO_OPTIMIZED and code.co_name not in _COMPREHENSIONS]
        ours = [code for code in named if Path(code.co_filename).is_relative_to(PACKAGE)]
        root = PACKAGE.parent
        functions = [Function(Path(one.co_filename).relative_to(root).as_posix(), one.co_qualname) for one in ours]
        return list(dict.fromkeys(functions))


# The gateway and what stands behind it.


def _build_config(model_port: int, source_port: int) -> dict[str, Any]:
    url = f"http://{HOST}:{model_port}/v1"
    mail = {"embedded": "pii", "chunker_id": "sentence"}
    return {
        "openai": {"service": {"hostname": HOST, "port": model_port}},
        "models": {MODEL: {"openai": {"url": url, "model": "m"}, "expose": True}},
        "sources": {SOURCE: {"syftai_space": {"url": f"http://{HOST}:{source_port}", "slug": "docs"}, "expose": True}},
        "agents": {"default": {"main": MODEL, "sources": [SOURCE]}},
        "aggregator": {"model_streaming": True},
        "detectors": {"mail": mail},
        "policies": {POLICY: {"input": {"mail": {}}, "output": {"mail": {}}, "on_finding": "mask"}},
    }


async def _play_model(exchange: Exchange) -> None:
    """The stream of seven frames; where the agent asks for itself, one word."""
    if not exchange.received.json.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "gates"}, "finish_reason": "stop"}
        await exchange.answer(json.dumps({**HEAD, "object": "chat.completion", "choices": [choice]}).encode())
        return
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": text}, None) for text in FRAMES]
    await exchange.start()
    for delta, reason in [*deltas, ({}, "stop")]:
        message = {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        await exchange.chunk(b"data: %b\n\n" % json.dumps(message).encode())
        await exchange.wait_until_taken()
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


async def _play_source(exchange: Exchange) -> None:
    document = {"content": "The gates open at nine.", "metadata": {"title": "Gates"}, "similarity_score": 0.9}
    await exchange.answer(json.dumps({"summary": None, "references": {"documents": [document]}}).encode())


@asynccontextmanager
async def _open_app(folder: Path) -> AsyncIterator[App]:
    async with open_peer(_play_model) as model, open_peer(_play_source) as source:
        settings = load_config(folder, "walk", _build_config(model.port, source.port))
        async with open_gateway(settings) as gateway:
            yield build_api_app(gateway)


class _Watched:
    """An application, and when a request has ended."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.has_ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            self.has_ended.set()


async def _send(surface: Surface, folder: Path, recorder: Recorder) -> Answer:
    """The second of two requests with different questions: the first fills what is cached."""
    body = json.dumps(surface.body)
    async with _open_app(folder) as app:
        watched = _Watched(app)
        async with served(watched) as port, connect(port) as client:
            for is_on in (False, True):
                recorder.is_on = is_on
                said = body if is_on else body.replace(QUESTION, EARLIER)
                await client.send(build_request("POST", surface.path, said.encode()))
                answer = await client.read_answer()
                await watched.has_ended.wait()
                watched.has_ended.clear()
            recorder.is_on = False
    return answer


def walk(name: str) -> Walk:
    """The way of one request through a surface."""
    recorder = Recorder()
    with TemporaryDirectory() as folder, recorder.install():
        answer = asyncio.run(_send(SURFACES[name], Path(folder), recorder))
    return Walk(recorder.list_functions(), collect_text(read_answer(answer)[0])["content"])


# The report.


def describe_walk(name: str, walked: Walk) -> Iterator[str]:
    """The functions under their files; a file that is left and entered again stands again."""
    yield f"== {name}: POST {SURFACES[name].path}"
    folder = None
    for path, functions in groupby(walked.functions, key=lambda one: one.path):
        entered = path.rpartition("/")[0]
        if entered != folder:
            yield f"{entered}/"
        folder = entered
        yield f"  {path.rpartition('/')[2]}: {', '.join(one.name for one in functions)}"
    yield ""


def describe_totals(walks: Mapping[str, Walk]) -> Iterator[str]:
    """A table: a line for each surface."""
    yield f"{'':18} functions  files  folder changes"
    for name, one in walks.items():
        yield f"{name:18} {len(one.functions):9} {len(one.files):6} {one.folder_changes:15}"


def describe_folders(walks: Mapping[str, Walk]) -> Iterator[str]:
    """A table: a line for each folder, with the functions that ran on each surface, and on all of them."""
    shared = set.intersection(*[set(one.functions) for one in walks.values()])
    yield f"{'functions by folder':26} {' '.join(f'{name:>16}' for name in walks)}   on all"
    for folder in sorted({one.folder for walked in walks.values() for one in walked.functions}):
        counts = [sum(one.folder == folder for one in walked.functions) for walked in walks.values()]
        common = sum(one.folder == folder for one in shared)
        yield f"{folder:26} {' '.join(f'{count:16}' for count in counts)} {common:8}"


def find_differing(walks: Mapping[str, Walk], folder: str) -> dict[Function, list[str]]:
    """The functions in a folder that did not run on every surface, and where they ran."""
    found: dict[Function, list[str]] = {}
    for name, walked in walks.items():
        for one in walked.functions:
            if one.folder == folder:
                found.setdefault(one, []).append(name)
    return {one: names for one, names in found.items() if len(names) < len(walks)}


def main() -> None:
    """Print the way through each surface, then the totals."""
    walks = {name: walk(name) for name in SURFACES}
    for name, walked in walks.items():
        print("\n".join(describe_walk(name, walked)))
    print("\n".join([*describe_folders(walks), "", *describe_totals(walks)]))
    differing = find_differing(walks, "lockgate/guard")
    print(f"\nFunctions of guard/ that ran on some surfaces only: {len(differing)}")
    for one, names in differing.items():
        print(f"  {one.path.rpartition('/')[2]} {one.name}: {', '.join(names)}")


if __name__ == "__main__":
    main()
