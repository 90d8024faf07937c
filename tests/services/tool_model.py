# SPDX-License-Identifier: Apache-2.0
"""A model with the OpenAI API that calls tools in several turns, whole and streamed, and remembers what it was sent.

With tools it first asks for two addresses at once, then sends a letter, then answers. Without tools it answers at once.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER_MARK, RESULT_MARK, MODEL_MARK = "uma@example.org", "ana@example.org", "boss@example.org"
CARD = 4111111111111111
ANSWER = f"Write to {MODEL_MARK} for more. That is all."
LOOK_UP: dict[str, Any] = {"name": "Ana", "asked_by": MODEL_MARK}
LETTER: dict[str, Any] = {"to": MODEL_MARK, "card": CARD, "body": f'Hello "Ana",\nask {MODEL_MARK} \\ or me.'}
_BASE = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
_PIECE = 5  # characters of a streamed piece

Message = dict[str, Any]


class ToolModel(ThreadingHTTPServer):
    """The server. `asked` has the body of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.asked: list[Message] = []

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.server_address[1])


@contextlib.contextmanager
def serving() -> Iterator[ToolModel]:
    """A model that listens until the end of the block."""
    with ToolModel() as model:
        thread = threading.Thread(target=model.serve_forever)
        thread.start()
        try:
            yield model
        finally:
            model.shutdown()
            thread.join()


def answer(asked: Message) -> Message:
    """The message that the model answers."""
    turns = sum(1 for one in asked["messages"] if one.get("tool_calls"))
    if not asked.get("tools") or turns >= 2:
        return {"role": "assistant", "content": ANSWER}
    calls: list[tuple[str, Message]] = [("find_address", LOOK_UP), ("find_address", {"name": "Ben"})]
    if turns:
        calls = [("send_letter", LETTER)]
    made = [_call(f"call_{turns}_{number}", name, arguments) for number, (name, arguments) in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": made}


def _call(key: str, name: str, arguments: Mapping[str, Any]) -> Message:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def cut(message: Message) -> Iterator[Message]:
    """The deltas of a message, its texts in small pieces."""
    yield {"role": "assistant", "content": None if "tool_calls" in message else ""}
    for piece in _pieces(message["content"] or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ToolModel

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        self._send_json({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "me"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        if self.path == "/tokenize":
            self._send_json({"count": 9})
            return
        message = answer(asked)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        if asked.get("stream"):
            self._stream(message, reason)
        else:
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            self._send_json({**_BASE, "object": "chat.completion", "choices": [choice], "usage": _USAGE})

    def _stream(self, message: Message, reason: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        chunk = {**_BASE, "object": "chat.completion.chunk"}
        for delta in cut(message):
            self._send_event({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        self._send_event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        self._send_event({**chunk, "choices": [], "usage": _USAGE})
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, value: object) -> None:
        event = b"data: %b\n\n" % (value if isinstance(value, str) else json.dumps(value)).encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Writes no log."""
