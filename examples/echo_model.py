# SPDX-License-Identifier: Apache-2.0
"""A model for a laptop: it has the OpenAI API and repeats your message, word by word. No key, no weights.

    python examples/echo_model.py [PORT [HOST]]        127.0.0.1:8000 by default

The model `broken` breaks off after four words. In streams the model `thinking` thinks aloud before it speaks, and with
`tools` all of them call the first one, with what you said as `text`. Needs nothing but Python.
"""

import contextlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PACE_S = float(os.environ.get("PACE_S", "0.05"))  # between two words
BASE = {"id": "echo-1", "created": 1_700_000_000, "model": "echo"}


class EchoModel(BaseHTTPRequestHandler):
    """Handles one connection."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Answer requests until the client closes the connection."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Answer /health and every other path."""
        self._send_json({"status": "HEALTHY"})

    def do_POST(self) -> None:
        """Answer /v1/chat/completions, /v1/completions and /tokenize."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_chat = "messages" in asked
        text = _read_text(asked["messages"][-1].get("content")) if is_chat else asked["prompt"]
        words = [f"{word} " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]
        if self.path == "/tokenize":
            self._send_json({"count": len(words)})
        elif asked.get("stream"):
            self._stream(_say(words, asked, is_chat=is_chat), asked["model"], is_chat=is_chat)
        else:
            said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            usage = {"prompt_tokens": len(words), "total_tokens": 2 * len(words), "completion_tokens": len(words)}
            kind = "chat.completion" if is_chat else "text_completion"
            choice = {"index": 0, **said, "finish_reason": "stop"}
            self._send_json({**BASE, "object": kind, "choices": [choice], "usage": usage})

    def _stream(self, pieces: list[dict[str, Any]], model: str, *, is_chat: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        for number, said in enumerate(pieces):
            if model == "broken" and number == 4:
                self._send_event({"error": {"message": "out of memory", "type": "server_error", "code": 503}})
                break
            choice = {"index": 0, **said, "finish_reason": said.get("finish_reason")}
            self._send_event({**BASE, "object": kind, "choices": [choice]})
            time.sleep(PACE_S)
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
        """Write no log."""


def _say(words: list[str], asked: dict[str, Any], *, is_chat: bool) -> list[dict[str, Any]]:
    """The choices of a stream, the last of which ends it."""
    if not is_chat:
        return [*({"text": word} for word in words), {"text": "", "finish_reason": "stop"}]
    if asked.get("tools"):
        return [*({"delta": delta} for delta in _call(words, asked)), {"delta": {}, "finish_reason": "tool_calls"}]
    thoughts = [{"reasoning_content": f"They said {''.join(words)}."}] if asked["model"] == "thinking" else []
    deltas = [*thoughts, *({"content": word} for word in words)]
    return [*({"delta": delta} for delta in deltas), {"delta": {}, "finish_reason": "stop"}]


def _call(words: list[str], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The pieces of a tool call, cut in the middle of words."""
    name = asked["tools"][0]["function"]["name"]
    begun = {"index": 0, "id": "call-1", "type": "function", "function": {"name": name, "arguments": ""}}
    text = json.dumps({"text": "".join(words)})
    parts = [{"index": 0, "function": {"arguments": text[at : at + 6]}} for at in range(0, len(text), 6)]
    return [{"tool_calls": [one]} for one in (begun, *parts)]


def _read_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


if __name__ == "__main__":
    given = sys.argv[1:]
    host, port = given[1] if len(given) > 1 else "127.0.0.1", int(given[0]) if given else 8000
    try:
        server = ThreadingHTTPServer((host, port), EchoModel)
    except OSError as error:
        sys.exit(f"echo model: {host}:{port}: {error.strerror}; give another port")
    print(f"echo model at http://{host}:{port}/v1, a word every {PACE_S:g} s (PACE_S)", file=sys.stderr)
    server.serve_forever()
