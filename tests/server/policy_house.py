# SPDX-License-Identifier: Apache-2.0
"""One gateway with policies on every surface that asks a model, before one model that speaks all their dialects."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lockgate.api.grpc.agent import build_agent_port
from lockgate.cli.main import build_parser
from lockgate.config.load import load_settings
from lockgate.config.settings import Listener
from lockgate.gate.values import Document
from lockgate.gateway import open_gateway
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.server.health import Readiness
from lockgate.server.ports import build_api_app
from lockgate.testing import ScriptedDataSource
from tests.contracts.grpc_peers import Context, build_nlp_server
from tests.contracts.http_peers import Exchange, Script, open_peer, reply_json
from tests.server.agent_houses import find_free_port
from tests.server.gateways import BASE, sse
from tests.server.http_client import Answer, call
from tests.server.served_app import served

MAIL, OTHER_MAIL = "ana@example.org", "bo@example.net"
PIECES = ["Write to a", "na@exam", "ple.org now. ", "It is blue", "bird. Bye."]
SAID = "".join(PIECES)
CONFIG = """
openai:
  service: {{hostname: 127.0.0.1, port: {model}, request_timeout: 600}}
  policies: {{guarded: masked}}
generation: {{provider: nlp, service: {{hostname: 127.0.0.1, port: {generation}}}}}
models:
  main: {{ollama: {{url: "http://127.0.0.1:{model}", model: m}}, expose: true}}
  alone: {{ollama: {{url: "http://127.0.0.1:{model}", model: alone}}, expose: true}}
  safe: {{ollama: {{url: "http://127.0.0.1:{model}", model: alone}}, expose: true, policy: masked}}
sources: {{docs: {{embedded: "tests.server.policy_house:open_docs"}}}}
agents:
  default: {{main: main, sources: [docs], policy: {agent_policy}}}
  free: {{main: main, sources: [docs]}}
detectors:
  mail: {{embedded: pii, chunker_id: sentence}}
  word: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [bluebird]}}}}
  code: {{embedded: regex, chunker_id: sentence, options: {{patterns: [{{name: Ticket, pattern: "T-[0-9]+"}}]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [bluebird]}}}}
  far:
    type: text_contents
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: 127.0.0.1, port: {far}, request_timeout: {patience}}}
policies:
  masked: {{input: {{mail: {{}}}}, output: {{mail: {{}}}}, on_finding: mask}}
  labelled: {{input: {{mail: {{}}}}, output: {{mail: {{}}}}, on_finding: mask, mask_with: label}}
  renamed: {{input: {{mail: {{}}}}, output: {{mail: {{}}}}, on_finding: mask, mask_with: pseudonym}}
  stopped: {{output: {{mail: {{}}}}, on_finding: stop, fallback: "[cut]"}}
  blocked: {{output: {{mail: {{}}}}, on_finding: block, fallback: "[cut]"}}
  noted: {{output: {{whole: {{}}}}}}
  asked: {{input: {{word: {{}}}}, on_finding: block, fallback: "[no]"}}
  own:
    output: {{mail: {{on_finding: mask}}, word: {{on_finding: stop}}, code: {{}}}}
    on_finding: annotate
    fallback: "[cut]"
  content: {{output: {{mail: {{}}}}, on_finding: mask, lanes: [content]}}
  every: {{output: {{mail: {{}}}}, on_finding: mask, lanes: [content, reasoning, tool_arguments]}}
  two: {{output: {{mail: {{}}}}, on_finding: mask, lanes: [content, reasoning]}}
  nothing: {{output: {{mail: {{}}}}, on_finding: mask, lanes: []}}
  shade: {{mode: shadow, input: {{word: {{}}}}, output: {{mail: {{}}, word: {{}}}}, on_finding: block,
    lanes: [content, reasoning, tool_arguments]}}
  early: {{input: {{far: {{}}}}, output: {{mail: {{}}}}, on_finding: {{input: block, output: mask}}, fallback: "[no]",
    speculative: true}}
  enforce_fail: {{output: {{far: {{}}}}, on_finding: mask}}
  enforce_pass: {{output: {{far: {{}}}}, on_finding: mask, on_detector_failure: pass}}
  shadow_fail: {{mode: shadow, output: {{far: {{}}}}, on_finding: mask}}
  shadow_pass: {{mode: shadow, output: {{far: {{}}}}, on_finding: mask, on_detector_failure: pass}}
{more}
"""


@asynccontextmanager
async def open_docs(options: Mapping[str, Any]) -> AsyncIterator[ScriptedDataSource]:
    """One passage."""
    yield ScriptedDataSource([Document("A", "Gates open.", 0.9)])


class Voice:
    """A model: what it says in a chat, as deltas; the contents are what it says everywhere else."""

    def __init__(self, *deltas: Mapping[str, Any] | str, finish: str = "stop", waits: bool = False) -> None:
        says = deltas or PIECES
        self.deltas: list[dict[str, Any]] = [{"content": one} if isinstance(one, str) else dict(one) for one in says]
        self.finish = finish
        self.whole_message: dict[str, Any] | None = None  # in place of what the deltas come to
        self.waits = waits  # once everything is said, until whoever listens is gone
        self.asked: list[dict[str, Any]] = []
        self.is_asked = asyncio.Event()
        self.is_left = asyncio.Event()

    @property
    def contents(self) -> list[str]:
        """What it says, piece by piece."""
        return [one["content"] for one in self.deltas if one.get("content")]

    @property
    def prompt(self) -> str:
        """What it was asked last."""
        asked = self.asked[-1]
        return str(asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"])

    async def play(self, exchange: Exchange) -> None:
        """One request."""
        body = exchange.received.json if exchange.received.body else {}
        is_stream = bool(body.get("stream"))
        if exchange.received.path == "/api/chat" and not is_stream:
            said = "".join(self.contents) if body["model"] == "alone" else "gates"  # what an agent asks for itself
            await exchange.answer(json.dumps({"message": {"content": said}, "done": True}).encode())
            return
        self.asked.append(body)
        self.is_asked.set()
        if not is_stream:
            await exchange.answer(json.dumps(self._write_whole("messages" in body)).encode())
            return
        try:
            await self._speak(exchange, "messages" in body)
        except ConnectionError:
            exchange.is_over = True
        if exchange.is_over:
            self.is_left.set()

    async def _speak(self, exchange: Exchange, is_chat: bool) -> None:
        lines = exchange.received.path == "/api/chat"
        await exchange.start("application/x-ndjson" if lines else "text/event-stream")
        await exchange.chunk(*(self._write_lines() if lines else self._write_events(is_chat)))
        if self.waits:
            await exchange.wait_until_left()
            return
        await exchange.chunk(b'{"message": {"content": ""}, "done": true}\n' if lines else sse("[DONE]"))
        await exchange.end()

    def _write_lines(self) -> list[bytes]:
        return [json.dumps({"message": {"content": one}, "done": False}).encode() + b"\n" for one in self.contents]

    def _write_events(self, is_chat: bool) -> list[bytes]:
        says: list[dict[str, Any]] = [{"delta": one} for one in self.deltas]
        if not is_chat:
            says = [{"text": one} for one in self.contents]
        last: list[dict[str, Any]] = [] if self.waits else [{"delta": {}} if is_chat else {"text": ""}]
        ends = [None] * len(says) + [self.finish]
        return [
            sse({**BASE, "choices": [{"index": 0, **one, "finish_reason": end}]})
            for one, end in zip([*says, *last], ends, strict=False)
        ]

    def _write_whole(self, is_chat: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.contents) or None}
        for one in self.deltas:
            for key in ("reasoning_content", "refusal"):
                if one.get(key):
                    message[key] = message.get(key, "") + one[key]
        calls = [call for one in self.deltas for call in one.get("tool_calls", ())]
        if calls:
            joined = "".join(call["function"].get("arguments", "") for call in calls)
            call = {key: value for key, value in calls[0].items() if key != "index"}
            message["tool_calls"] = [call | {"function": {**call["function"], "arguments": joined}}]
        told = {"message": self.whole_message or message} if is_chat else {"text": message["content"]}
        return {**BASE, "choices": [{"index": 0, **told, "finish_reason": self.finish}], "usage": None}

    async def generate(self, _message: Any, _context: Context) -> Any:
        """The same for the generation endpoints."""
        return nlp.GeneratedTextResult(generated_text="".join(self.contents), finish_reason="EOS_TOKEN")

    async def generate_stream(self, _message: Any, _context: Context) -> AsyncIterator[Any]:
        """The same, streamed."""
        for piece in self.contents:
            yield nlp.GeneratedTextStreamResult(generated_text=piece)
        yield nlp.GeneratedTextStreamResult(details=nlp.TokenStreamDetails(finish_reason="EOS_TOKEN"))


class House(NamedTuple):
    """Where it listens, and who speaks behind it."""

    port: int
    grpc_port: int
    voice: Voice


@asynccontextmanager
async def open_house(
    voice: Voice | None = None,
    far: Script | None = None,
    *,
    agent_policy: str = "masked",
    more: str = "",
    patience: int = 600,
    **environ: str,
) -> AsyncIterator[House]:
    """A gateway with all of this; `far` is the detector that is called over the network."""
    voice = voice or Voice()
    methods = {
        "TextGenerationTaskPredict": voice.generate,
        "ServerStreamingTextGenerationTaskPredict": voice.generate_stream,
    }
    with TemporaryDirectory() as folder:
        async with (
            open_peer(voice.play) as model,
            open_peer(far or reply_json([[]])) as detector,
            build_nlp_server(methods).listening() as generation,
        ):
            path = Path(folder) / "config.yaml"
            named = {"model": model.port, "far": detector.port, "generation": generation, "patience": patience}
            path.write_text(CONFIG.format(**named, agent_policy=agent_policy, more=more))
            given = {"LOCKGATE_DATA_DIR": folder, **environ}
            settings = load_settings(config_path=path, flags={}, environ=given)
            async with open_gateway(settings) as opened, served(build_api_app(opened)) as port:
                place = Listener("agent", "127.0.0.1", find_free_port(), True)
                agent = build_agent_port(opened, Readiness({}), place)
                await agent.start()
                serving = asyncio.ensure_future(agent.serve(1))
                try:
                    yield House(port, place.port, voice)
                finally:
                    agent.cut()
                    await serving


# What clients ask and get.


def chat(policy: str | None = None, prompt: str = "Hello", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A request of a chat."""
    named = {} if policy is None else {"detectors": {"policy": policy}}
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}], **named, **more}


def text(policy: str | None = None, prompt: str = "Hello", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A request of a text completion."""
    named = {} if policy is None else {"detectors": {"policy": policy}}
    return {"model": "m", "stream": stream, "prompt": prompt, **named, **more}


async def post(port: int, path: str, body: Mapping[str, Any], **headers: str) -> Answer:
    """One request; underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(port, path, json.dumps(body).encode(), headers={"content-type": "application/json", **named})


def spoken(events: Sequence[Mapping[str, Any]], key: str = "content") -> str:
    """What is said in all events of a chat, or of a text completion."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join([(one["delta"].get(key) if "delta" in one else one["text"]) or "" for one in choices])


def arguments(events: Sequence[Mapping[str, Any]]) -> str:
    """The arguments of the one call of a chat."""
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return "".join([call["function"].get("arguments") or "" for call in calls])


def verifies(body: bytes, receipt: Any = None) -> bool:
    """Whether `lockgate verify` says of a saved answer that it is what was cleared."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "answer"
        path.write_bytes(body)
        given = [] if receipt is None else ["--receipt", json.dumps(receipt) if isinstance(receipt, dict) else receipt]
        options = build_parser().parse_args(["verify", str(path), *given])
        with redirect_stdout(StringIO()):
            return bool(options.run(options) == 0)
