# SPDX-License-Identifier: Apache-2.0
"""The child process that runs llama.cpp: reads and writes lines of JSON, and ends when its input ends."""

import ctypes
import json
import os
import queue
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from lockgate.models.gguf import Clean, build_cleaner, read_marks

BATCH_TOKENS = 8  # of a prompt, read at once; the model can be stopped between two batches
SEED = 1
BEAT_S = 1.0
_BATCHES_AFTER_STOP = 2  # the running one, and one that may begin before llama.cpp receives the stop
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")

Reply = Mapping[str, Any]
Messages = Sequence[Mapping[str, str]]


class Stopped(Exception):
    """The parent has stopped the answer."""


class EngineRefusal(Exception):
    """llama.cpp cannot answer the request; the message is its reason."""


class EngineCommands:
    """The parent's commands, read in a thread, so that a stop arrives while text is generated."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines
        self.asks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stopped = 0  # the number of the last request that was stopped

    def listen(self) -> None:
        """Reads commands to the end of the input, then ends this process."""
        with suppress(ValueError, OSError):
            for line in self._lines:
                command = json.loads(line)
                if "stop" in command:
                    self.stopped = command["stop"]
                else:
                    self.asks.put(command)
        os._exit(0)


class Heartbeat:
    """Sends a sign of life every second while a long prompt is read and no text comes."""

    def __init__(self, send: Callable[[Reply], None], number: int) -> None:
        self._send = send
        self._number = number
        self._sent_at = time.monotonic()

    def give(self) -> None:
        """Called for each batch and each token."""
        now = time.monotonic()
        if now - self._sent_at > BEAT_S:
            self._sent_at = now
            self._send({"id": self._number, "beat": True})


class Engine:
    """A loaded model. Its cache keeps the shared beginning of prompts, and nothing else."""

    def __init__(self, server: Any, clean: Clean) -> None:
        self._server = server
        self._clean = clean
        self._opening: Messages | None = None  # the messages in the model's cache

    def answer(self, ask: Mapping[str, Any], take: Callable[[str], None], is_stopped: Callable[[], bool]) -> Reply:
        """Passes the answer's pieces to `take` and returns how it ended. Raises Stopped or EngineRefusal."""
        messages = [{"role": one["role"], "content": self._clean(one["content"])} for one in ask["messages"]]
        opening = messages[: ask.get("opening", 0)]
        self.open(opening, is_stopped)
        end: dict[str, Any] = {"end": "stop"}

        def receive(event: Mapping[str, Any]) -> None:
            for choice in event.get("choices", ()):
                if text := choice["delta"].get("content"):
                    take(text)
                end["end"] = choice["finish_reason"] or end["end"]
            if usage := event.get("usage"):
                end["usage"] = {name: usage[name] for name in _COUNTERS}

        self._run({"messages": messages, "cache_prompt": bool(opening), **ask["options"]}, receive, is_stopped)
        return end

    def open(self, opening: Messages, is_stopped: Callable[[], bool]) -> None:
        """Makes the model read the beginning, always in the same steps: other batches may round to another token."""
        known, self._opening = self._opening, None
        if not opening:
            return
        body: dict[str, Any] = {"messages": opening, "add_generation_prompt": False, "max_tokens": 1}
        for is_cached in (True,) if known == opening else (False, True):
            self._run({**body, "cache_prompt": is_cached}, lambda _event: None, is_stopped)
        self._opening = opening

    def _run(
        self, body: Mapping[str, Any], receive: Callable[[Mapping[str, Any]], None], is_stopped: Callable[[], bool]
    ) -> None:
        """Runs one request. llama.cpp calls back for each batch of the prompt and for each token."""
        refusal = ""

        def watch(line: str) -> bool:
            nonlocal refusal
            if is_stopped():
                return True
            event = json.loads(line)
            if "error" in event:
                refusal = str(event["error"].get("message") or "no reason given")
            else:
                receive(event)
            return False

        whole = {"temperature": 0.0, "top_k": 1, "seed": SEED, **body}
        whole |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
        self._server.handle_chat_completions(json.dumps(whole), watch)
        if is_stopped():
            for _ in range(_BATCHES_AFTER_STOP):
                self._server.handle_metrics()  # llama.cpp answers this between two batches
            raise Stopped
        if refusal:
            raise EngineRefusal(refusal)


def load_engine(plan: Mapping[str, Any]) -> Engine:
    """Loads the model; raises any error of llama.cpp."""
    path = Path(plan["path"])
    clean = build_cleaner(read_marks(path))
    try:
        import xllamacpp
    except ImportError as error:
        hint = " (on Debian: apt-get install libgomp1)" if "libgomp" in str(error) else ""
        raise ImportError(f"{error}{hint}") from error

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = plan["context_tokens"]
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.n_parallel = 1
    params.cpuparams_batch.n_threads = plan["threads"]
    params.cpuparams.n_threads = max(1, plan["threads"] - 1)  # one core is left for the readers of the text
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.cache_ram_mib = params.n_ctx_checkpoints = 0  # keep nothing of a request
    params.fit_params = params.warmup = params.ui = params.endpoint_slots = False
    params.endpoint_metrics = True  # an answer shows that the model is idle
    params.verbosity = -1
    params.n_threads_http = 1
    with tempfile.TemporaryDirectory(prefix="lockgate-") as folder:
        # llama.cpp always listens: so give it a private socket and a random key.
        params.hostnames = [f"{folder}/llama.sock"]
        params.api_keys = [secrets.token_hex()]
        try:
            server = xllamacpp.Server(params)
        except RuntimeError:  # its message blames parameters for any cause
            raise ValueError("llama.cpp cannot use it") from None
    engine = Engine(server, clean)
    engine.open([{"role": one["role"], "content": clean(one["content"])} for one in plan["opening"]], lambda: False)
    return engine


def serve(engine: Engine, commands: EngineCommands, send: Callable[[Reply], None]) -> None:
    """Answers one request after the other until the process ends."""
    while True:
        ask = commands.asks.get()
        number = ask["ask"]

        def take(text: str, number: int = number) -> None:
            send({"id": number, "text": text})

        beat = Heartbeat(send, number)

        def is_stopped(number: int = number, beat: Heartbeat = beat) -> bool:
            beat.give()
            return commands.stopped >= number

        try:
            end = engine.answer(ask, take, is_stopped)
        except Stopped:
            end = {"end": "stopped"}
        except EngineRefusal as refusal:
            end = {"refused": str(refusal)}
        send({"id": number, **end})


def main() -> int:
    """Runs the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    if sys.platform == "linux":  # elsewhere this process ends with its input
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    out = _take_output()

    def send(reply: Reply) -> None:
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()

    lines = sys.stdin.buffer
    first = lines.readline()
    if not first:
        return 0
    commands = EngineCommands(lines)
    threading.Thread(target=commands.listen, daemon=True).start()
    try:
        engine = load_engine(json.loads(first))
    except Exception as error:  # the parent reports it
        send({"failed": f"{error}" or type(error).__name__})
        raise SystemExit(1) from error
    send({"ready": True})
    serve(engine, commands, send)
    return 0


def _take_output() -> IO[bytes]:
    """Returns standard output for replies only; what libraries print is dropped."""
    out = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return out


if __name__ == "__main__":
    sys.exit(main())
