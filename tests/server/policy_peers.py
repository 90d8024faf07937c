# SPDX-License-Identifier: Apache-2.0
"""A gateway with policies, before models that say a secret in every field they have; and readers of its answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import Context, Record, build_nlp_server
from tests.contracts.http_peers import Exchange, Peer, Script, open_peer, reply_json, stream
from tests.server.gateways import BASE, CHAT, V1, V1_STREAM, chunk, gateway, sse, text_in
from tests.server.http_client import Answer

TEXT_SAID = "The key is bluebird. Guard it."
PIECES = ["The key", " is blue", "bird. Guard", " it."]
HIDDEN = "█" * 8
WITHHELD = "This answer was withheld."
LEAVES = {
    "watch": TEXT_SAID,
    "mask": f"The key is {HIDDEN}. Guard it.",
    "stop": WITHHELD,  # the finding stands in the first sentence
    "block": WITHHELD,
    "blank": "",
}
CUT_OFF = ("stop", "block", "blank")
FAILED = "Detector `far` failed. The text was not checked by it."


def config(model: int, far: int, generation: int) -> str:
    """`far` and `talk` are read by a remote detector, the others here."""
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model}, request_timeout: 600}}}}
generation: {{provider: nlp, service: {{hostname: 127.0.0.1, port: {generation}}}}}
detectors:
  key: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [bluebird]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [bluebird]}}}}
  far:
    type: text_contents
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: 127.0.0.1, port: {far}, request_timeout: 600}}
  talk:
    type: text_chat
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: 127.0.0.1, port: {far}, request_timeout: 600}}
policies:
  watch: {{output: {{key: {{}}}}}}
  mask: {{output: {{key: {{}}}}, on_finding: mask}}
  stop: {{output: {{key: {{}}}}, on_finding: stop}}
  block: {{output: {{key: {{}}}}, on_finding: block}}
  blank: {{output: {{key: {{}}}}, on_finding: block, fallback: ""}}
  whole: {{output: {{whole: {{}}}}, on_finding: mask}}
  far: {{output: {{far: {{}}}}, on_finding: mask}}
  farblock: {{output: {{far: {{}}}}, on_finding: block}}
  lenient: {{output: {{far: {{}}, key: {{}}}}, on_finding: mask, on_detector_failure: pass}}
  strict: {{output: {{far: {{}}, key: {{}}}}, on_finding: mask, on_detector_failure: fail}}
  inmask: {{input: {{key: {{}}}}, on_finding: mask}}
  inblock: {{input: {{key: {{}}}}, on_finding: block, fallback: Ask me something else.}}
  inlenient: {{input: {{far: {{}}, key: {{}}}}, on_finding: block, on_detector_failure: pass}}
"""


def logprobs_of(text: str, is_chat: bool) -> dict[str, Any]:
    """They name the tokens."""
    if is_chat:
        return {"content": [{"token": text, "logprob": -1.0, "bytes": None, "top_logprobs": []}], "refusal": None}
    return {"tokens": [text], "token_logprobs": [-1.0], "top_logprobs": [{text: -1.0}], "text_offset": [0]}


async def speak(exchange: Exchange) -> None:
    """A model that says TEXT_SAID in every field it has."""
    asked = exchange.received.json
    is_chat, n = "messages" in asked, asked.get("n", 1)
    if not asked.get("stream"):
        message = {
            "role": "assistant",
            "content": TEXT_SAID,
            "reasoning_content": "So.",
            "annotations": ["bluebird"],
        }
        told = {"message": message} if is_chat else {"text": TEXT_SAID}
        extra = {"logprobs": logprobs_of("bluebird", is_chat), "finish_reason": "stop", "words": ["bluebird"]}
        choices = [{"index": index, **told, **extra} for index in range(n)]
        await exchange.answer(json.dumps({**BASE, "choices": choices, "usage": None}).encode())
        return
    messages = [chunk(role="assistant")]
    for index in range(n):
        messages += [message_of(piece, index, is_chat) for piece in PIECES]
        messages.append(message_of("", index, is_chat, "stop"))
    await stream(sse(*messages, "[DONE]"))(exchange)


def message_of(text: str, index: int, is_chat: bool, finish: str | None = None) -> dict[str, Any]:
    """A message of a stream."""
    told: dict[str, Any] = {"delta": {"content": text, "note": "bluebird"}} if is_chat else {"text": text}
    extra = {"logprobs": logprobs_of(text or "bluebird", is_chat), "finish_reason": finish, "words": ["bluebird"]}
    return {**BASE, "choices": [{"index": index, **told, **extra}]}


async def generate(_message: Any, _context: Context) -> Any:
    """The same of a generation server."""
    token = nlp.GeneratedToken(text="bluebird")
    return nlp.GeneratedTextResult(generated_text=TEXT_SAID, tokens=[token], finish_reason="EOS_TOKEN")


async def generate_stream(_message: Any, _context: Context) -> AsyncIterator[Any]:
    """The same, streamed."""
    for piece in PIECES:
        yield nlp.GeneratedTextStreamResult(generated_text=piece, tokens=[nlp.GeneratedToken(text=piece)])
    details = nlp.TokenStreamDetails(finish_reason="EOS_TOKEN", generated_tokens=9)
    yield nlp.GeneratedTextStreamResult(details=details, tokens=[nlp.GeneratedToken(text="bluebird")])


class Peers(NamedTuple):
    """What stands behind the gateway."""

    model: Peer
    far: Peer
    generation: Record


@asynccontextmanager
async def before(model: Script = speak, far: Script | None = None, **methods: Any) -> AsyncIterator[tuple[int, Peers]]:
    """The port of the gateway, and what stands behind it; `methods` are those of the generation server."""
    behaviours = {
        "TextGenerationTaskPredict": generate,
        "ServerStreamingTextGenerationTaskPredict": generate_stream,
    } | methods
    server = build_nlp_server(behaviours)
    async with (
        open_peer(model) as openai,
        open_peer(far or reply_json([[]])) as detector,
        server.listening() as generation,
        gateway(config(openai.port, detector.port, generation)) as port,
    ):
        yield port, Peers(openai, detector, server.record)


def request(path: str, policy: str, *, is_stream: bool, prompt: str = "Hello", **more: Any) -> dict[str, Any]:
    """A request that names a policy."""
    if path in (V1, V1_STREAM):
        return {"model_id": "m", "inputs": prompt, "guardrail_config": {"policy": policy}, **more}
    asked: dict[str, Any] = {"model": "m", "stream": is_stream, "detectors": {"policy": policy}, **more}
    if path == CHAT:
        return asked | {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}]}
    return asked | {"prompt": prompt}


def text_of(path: str, value: dict[str, Any]) -> str:
    """The text of a whole answer."""
    if path == V1:
        return str(value["generated_text"])
    (choice,) = value["choices"]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


def said(path: str, events: list[Any]) -> str:
    """The text of a stream."""
    if path == CHAT:
        return text_in(events)
    if path == V1_STREAM:
        return "".join(event["generated_text"] for event in events)
    return "".join(choice["text"] for event in events for choice in event["choices"])


def finishes(path: str, events: list[Any]) -> list[str]:
    """Every reason to finish that a stream tells."""
    choices = [event if path == V1_STREAM else choice for event in events for choice in event.get("choices", [event])]
    return [one["finish_reason"] for one in choices if one.get("finish_reason")]


def check_hidden(answer: Answer) -> None:
    """Nothing tells what was found, whole or in parts."""
    for word in (b"blue", b"bird"):
        assert word not in answer.body
