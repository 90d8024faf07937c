# SPDX-License-Identifier: Apache-2.0
"""Answers of configured models in formats that have only text, from messages in OpenAI's format."""

from collections.abc import Iterable
from typing import Any

from lockgate.api.guarded_answer import AnswerWriter
from lockgate.api.openai.envelope import FILTERED
from lockgate.api.openai.format import UNSUITABLE_INPUT, UNSUITABLE_OUTPUT, CompletionRequest, to_results
from lockgate.api.openai.turn_fields import TurnWriter
from lockgate.api.openai.whole_answer import input_entries
from lockgate.errors import BrokeProtocol
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict
from lockgate.guard.request import InputBlocked


class OllamaWriter(AnswerWriter):
    """Writes the first choice of an answer: its text as it is released, and at its end what was found."""

    def __init__(self, writer: TurnWriter, request: CompletionRequest) -> None:
        super().__init__()
        self._writer = writer
        self._request = request
        self.is_stream = request.is_stream
        self._count = 0
        self._pieces: list[str] = []  # of a whole answer
        self._found: list[Detection] = []
        self._end = "stop"
        self._usage: dict[str, int] | None = None
        self._has_begun = False

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The text of the first choice."""
        number, self._count = self._count, self._count + 1
        self._usage = message.get("usage") or self._usage
        for choice in message["choices"][:1]:
            part = choice.get("delta") or choice.get("message") if isinstance(choice, dict) else None
            text = part.get("content") if isinstance(part, dict) else ""
            if not isinstance(text, str | None):
                raise BrokeProtocol("openai", "the content of a choice of the answer is no text")
            self._end = choice.get("finish_reason") or self._end if isinstance(choice, dict) else self._end
            if text:
                return [Frame(number, text)]
        return []

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """A piece of the answer."""
        self._found += release.detections
        if verdict is not None and verdict.is_blocked:
            self.is_blocked, self._end = True, FILTERED
        return self._say(release.text)

    def finish(self) -> bytes:
        """The end of a stream, or the whole answer."""
        writer, begun = self._writer, self._begin()
        outputs = [{"choice_index": 0, "results": to_results(self._found)}] if self._found else []
        found = {"input": input_entries(self._request, self.found_in_prompt), "output": outputs}
        writer.account = self.account._replace(detections={key: value for key, value in found.items() if value})
        writer.warnings = [
            *([UNSUITABLE_INPUT] if self.found_in_prompt else []),
            *([UNSUITABLE_OUTPUT] if self._found else []),
            *self.warnings,
        ]
        if self.is_stream:
            return begun + writer.finish(end=self._end, usage=self._usage)
        return writer.write_whole("".join(self._pieces), end=self._end, usage=self._usage)

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that is blocked: the fallback."""
        self.found_in_prompt, self._end = blocked.input.found, FILTERED
        return self._say(fallback) + self.finish()

    def _say(self, text: str) -> bytes:
        if not self.is_stream:
            self._pieces.append(text)
            return b""
        return self._begin() + self._writer.add(text) if text else b""

    def _begin(self) -> bytes:
        """The bytes before the first piece of a stream, once."""
        if self._has_begun or not self.is_stream:
            return b""
        self._writer.account, self._has_begun = self.account, True
        return self._writer.begin()
