# SPDX-License-Identifier: Apache-2.0
"""Answers of configured models in formats that have only text and reasoning, from messages in OpenAI's format."""

from collections.abc import Iterable
from typing import Any

from lockgate.api.guarded_answer import AnswerWriter
from lockgate.api.openai.deltas import CONTENT, REASONING
from lockgate.api.openai.envelope import FILTERED, asks_for_json
from lockgate.api.openai.format import UNSUITABLE_INPUT, UNSUITABLE_OUTPUT, CompletionRequest, to_results
from lockgate.api.openai.tool_calls import JSON_CONTENT, CallReader
from lockgate.api.openai.turn_fields import TurnWriter
from lockgate.api.openai.whole_answer import input_entries
from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict, put_fallback
from lockgate.guard.policy import Meter
from lockgate.guard.request import InputBlocked

_LANES = (CONTENT, REASONING)
_ENDS = frozenset({"stop", "length", FILTERED})  # other reasons mean `stop` here
_MAX_HELD_CHARS = 1_048_576  # of JSON whose end is not known
_NO_PLACE = ("refusal", "tool_calls", "function_call", "annotations", "audio")  # of a message, in these formats
_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")


class OllamaWriter(AnswerWriter):
    """Writes the first choice of an answer: its texts as they are released, and at its end what was found.

    `hides`: text with findings must not be sent. Content that was asked for as JSON then stays JSON.
    """

    def __init__(self, writer: TurnWriter, request: CompletionRequest, *, hides: bool = False) -> None:
        super().__init__()
        self._writer = writer
        self._request = request
        self.is_stream = request.is_stream
        self._is_json = hides and asks_for_json(request.body)
        self._json: CallReader | None = None
        self._count = 0
        self._texts: dict[str, list[str]] = {name: [] for name in _LANES}  # of a whole answer
        self._said: set[str] = set()
        self._found: dict[str, list[Detection]] = {name: [] for name in _LANES}
        self._end = "stop"
        self._usage: dict[str, int] | None = None
        self._has_begun = False

    def bind(self, meter: Meter, *, with_names: bool) -> None:
        """Report at the end what the meter records."""
        super().bind(meter, with_names=with_names)
        if self._is_json:
            self._json = CallReader(JSON_CONTENT, meter.names.make_number)

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The texts of the first choice, each in its lane."""
        number, self._count = self._count, self._count + 1
        usage = message.get("usage")
        if isinstance(usage, dict):
            self._usage = {key: usage[key] for key in _COUNTERS if type(usage.get(key)) is int}
        for choice in message["choices"][:1]:
            part = choice.get("delta") or choice.get("message") if isinstance(choice, dict) else None
            if not isinstance(part, dict):
                part = {}
            if not isinstance(part.get(CONTENT), str | None):
                raise BrokeProtocol("openai", "the content of a choice of the answer is no text")
            reason = choice.get("finish_reason") if isinstance(choice, dict) else None
            if isinstance(reason, str) and not self.is_blocked:
                self._end = reason if reason in _ENDS else "stop"
            return self._list_frames(number, part)
        return []

    def _list_frames(self, number: int, part: dict[str, Any]) -> list[Frame]:
        receipt = self.account.receipt
        for key in _NO_PLACE if receipt is not None else ():
            if part.get(key) and receipt is not None and key not in receipt.dropped:
                receipt.note_left_out(key)
        thought, text = part.get(REASONING) or part.get("reasoning"), part.get(CONTENT)
        if text and self._json is not None:
            text = self._json.feed(text)
            if self._json.held > _MAX_HELD_CHARS:
                raise HeldTooMuch(f"more than {_MAX_HELD_CHARS} characters wait for a detector")
        frames = [Frame(number, thought, 1)] if isinstance(thought, str) and thought else []
        return [*frames, Frame(number, text)] if text else frames

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """A piece of a text."""
        field = _LANES[release.choice]
        self._found[field] += release.detections
        text, ending = release.text, ""
        if verdict is not None and verdict.is_blocked:
            self.is_blocked, self._end = True, FILTERED
            text, ending = verdict.body, verdict.ending.removeprefix("\n")
        if self._json is not None and field == CONTENT:
            text = self._json.release(release, verdict, text)
        said = self._say(text, field)
        return said + self._say(put_fallback(ending, has_left=CONTENT in self._said))

    def finish(self) -> bytes:
        """The end of a stream, or the whole answer."""
        writer, begun = self._writer, self._begin()
        outputs = [
            {"choice_index": 0} | ({} if name == CONTENT else {"field": name}) | {"results": to_results(found)}
            for name, found in self._found.items()
            if found
        ]
        found = {"input": input_entries(self._request, self.found_in_prompt), "output": outputs}
        writer.account = self.account._replace(detections={key: value for key, value in found.items() if value})
        writer.warnings = [
            *([UNSUITABLE_INPUT] if self.found_in_prompt else []),
            *([UNSUITABLE_OUTPUT] if outputs else []),
            *self.warnings,
        ]
        if self.is_stream:
            return begun + writer.finish(end=self._end, usage=self._usage)
        text, thought = ["".join(self._texts[name]) for name in _LANES]
        return writer.write_whole(text, end=self._end, usage=self._usage, thought=thought)

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that is blocked: the fallback."""
        self.found_in_prompt, self._end = blocked.input.found, FILTERED
        return self._say(fallback) + self.finish()

    def _say(self, text: str, field: str = CONTENT) -> bytes:
        if not text:
            return b""
        self._said.add(field)
        if not self.is_stream:
            self._texts[field].append(text)
            return b""
        begun = self._begin()
        return begun + (self._writer.add(text) if field == CONTENT else self._writer.add_thought(text))

    def _begin(self) -> bytes:
        """The bytes before the first piece of a stream, once."""
        if self._has_begun or not self.is_stream:
            return b""
        self._writer.account, self._has_begun = self.account, True
        return self._writer.begin()
