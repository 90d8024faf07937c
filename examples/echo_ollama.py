# SPDX-License-Identifier: Apache-2.0
"""An Ollama server for a laptop, without weights: enough to see an agent at work. Needs nothing but Python.

    python examples/echo_ollama.py [PORT [HOST]]        127.0.0.1:11434 by default

It accepts any model name. It labels questions by a few words, leaves out short words to get keywords, and answers with
the sentence of the passages that has most words of the question. Without passages it repeats its last answer. As a
judge of answers it says yes to everything.
"""

import contextlib
import json
import os
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PACE_S = float(os.environ.get("PACE_S", "0.05"))  # between two words
PASSAGE = re.compile(r"^(~{3,}) passage \d+.*\n(?P<text>(?s:.*?))\n\1$", re.MULTILINE)
FENCED = re.compile(r"^(~{3,})\n(?P<text>(?s:.*?))\n\1$", re.MULTILINE)
TALK = re.compile(r"\b(?:thanks?|thank you|hello|shorter|again|rephrase|summar\w+|translate|did I)\b", re.IGNORECASE)
CODE = re.compile(r"\b(?:write|code|script|snippet|function|example of)\b", re.IGNORECASE)


class EchoOllama(BaseHTTPRequestHandler):
    """Handles one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each word leaves at once

    def handle(self) -> None:
        """Answer requests until the client closes the connection."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Answer /api/version. There is no list of models: any name works."""
        if self.path == "/api/version":
            self._send({"version": "0.0.0"})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """Answer /api/chat."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = reply(asked["messages"])
        words = re.findall(r"\s*\S+", text)
        counts = {"done_reason": "stop", "prompt_eval_count": count_words(asked["messages"]), "eval_count": len(words)}
        if not asked.get("stream", True):
            self._send({**line(asked["model"], text), "done": True, **counts})
            return
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for word in words:
            self._chunk({**line(asked["model"], word), "done": False})
            time.sleep(PACE_S)
        self._chunk({**line(asked["model"], ""), "done": True, **counts})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, value: dict[str, object]) -> None:
        body = json.dumps(value).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))

    def _send(self, value: dict[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


def line(model: str, text: str) -> dict[str, object]:
    """One line of an answer, or all of it."""
    return {"model": model, "message": {"role": "assistant", "content": text}}


def reply(messages: list[dict[str, str]]) -> str:
    """Return the model's answer."""
    task, last = messages[0]["content"], messages[-1]["content"]
    if task.startswith("You sort questions"):
        return label(last_fenced(last))
    if task.startswith("You turn a question into keywords"):
        return " ".join(words_of(last_fenced(last)))
    if task.startswith("You are a strict and fair judge"):
        return approve(last)
    if last.startswith("No passages were found"):
        return "I found nothing about that."
    passages = [*PASSAGE.finditer(last)]
    if not passages:
        return remember(messages)
    return quote(last[passages[-1].end() :], [found["text"] for found in passages])


def label(question: str) -> str:
    """The label of a question, in the format that the prompt asks for."""
    name = "CONVERSATIONAL" if TALK.search(question) else "CODE_GENERATION" if CODE.search(question) else "RETRIEVAL"
    return json.dumps({"label": name, "topic": " ".join(words_of(question)), "use_editor": False})


def approve(task: str) -> str:
    """A verdict for each passage, or one if the judge is asked about statements."""
    count = task.count('"passage":') if "For each passage" in task else 1
    verdicts = [{"passage": number, "verdict": "yes"} for number in range(1, count + 1)]
    return json.dumps({"verdicts": verdicts})


def quote(question: str, passages: list[str]) -> str:
    """The sentence with most words of the question; of several the first."""
    wanted = set(words_of(question))
    sentences = [one for text in passages for one in re.split(r"(?<=[.!?])\s+|\n\n+", text)]
    best = max(sentences, key=lambda one: len(wanted & set(words_of(one))))
    return " ".join(best.split()) if wanted & set(words_of(best)) else "The passages do not say."


def remember(messages: list[dict[str, str]]) -> str:
    """The last answer of the conversation."""
    said = [one["content"] for one in messages[:-1] if one["role"] == "assistant"]
    return f"I said: {said[-1].removeprefix('I said: ')}" if said else "We have not spoken before."


def last_fenced(text: str) -> str:
    """The text between the last two fences."""
    return next((found["text"] for found in reversed([*FENCED.finditer(text)])), text)


def words_of(text: str) -> list[str]:
    """The longer words, in lower case, without a final s."""
    return [word.lower().removesuffix("s") for word in re.findall(r"\w{4,}", text)]


def count_words(messages: list[dict[str, str]]) -> int:
    """Count words as tokens."""
    return sum(len(one["content"].split()) for one in messages)


if __name__ == "__main__":
    given = sys.argv[1:]
    host, port = given[1] if len(given) > 1 else "127.0.0.1", int(given[0]) if given else 11434
    try:
        server = ThreadingHTTPServer((host, port), EchoOllama)
    except OSError as error:
        sys.exit(f"echo ollama: {host}:{port}: {error.strerror}; give another port")
    print(f"echo ollama at http://{host}:{port}, a word every {PACE_S:g} s (PACE_S)", file=sys.stderr)
    server.serve_forever()
