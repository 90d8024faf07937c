# SPDX-License-Identifier: Apache-2.0
"""The readers and writers of the Rust orchestrator's API: lenient requests, and events made of whole messages."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from lockgate.api.formats import Formats
from lockgate.api.guardrails.format import DetectorMap, MaskList, encode_line
from lockgate.api.guardrails.generation_format import Parameters, TextEvents
from lockgate.api.openai.format import ChatFields, TextFields, read_request
from lockgate.api.shapes import Shape
from lockgate.compat.fms.completions import FmsEventWriter, FmsWholeAnswer, MessageLog
from lockgate.gate.release import Release
from lockgate.gate.values import Frame


class Detectors(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors of a request."""

    input: DetectorMap = {}
    output: DetectorMap = {}


class PlainChatRequest(ChatFields):
    """Body of chat completions."""

    detectors: Detectors = msgspec.field(default_factory=Detectors)


class PlainTextRequest(TextFields):
    """Body of text completions."""

    detectors: Detectors = msgspec.field(default_factory=Detectors)


class InputGuards(msgspec.Struct):
    """The detectors of the prompt; unknown fields are ignored."""

    models: DetectorMap
    masks: MaskList | None = None


class OutputGuards(msgspec.Struct):
    """The detectors of the answer; unknown fields are ignored."""

    models: DetectorMap


class GuardrailConfig(msgspec.Struct):
    """The detectors of a request; unknown fields are ignored."""

    input: InputGuards | None = None
    output: OutputGuards | None = None


class PlainClassification(msgspec.Struct, forbid_unknown_fields=True):
    """Body of both classification endpoints."""

    model_id: str
    inputs: str
    guardrail_config: GuardrailConfig | None = None
    text_gen_parameters: Parameters | None = None


class FmsTextEvents(TextEvents):
    """Each event carries the fields of the messages that the chunker names for its chunk; spans count from its text."""

    _counts_from_event = True

    def __init__(self, *, is_guarded: bool, hides: bool = False) -> None:
        super().__init__(is_guarded=is_guarded, hides=hides)
        self._ledger = MessageLog()

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """Keeps the message for its events; returns it as one frame."""
        if self._is_guarded:
            self._ledger.add(self._count, message)
        return super().to_frames(message)

    def _pass_silent(self, release: Release) -> list[dict[str, Any]]:
        """No event: messages without text leave only with a chunk."""
        return []

    def _fields_of(self, release: Release) -> dict[str, Any]:
        """The fields of the messages that the chunker names for its chunk (G-145)."""
        first, last = release.inputs
        messages = self._ledger.take(first, last)
        if not messages:
            return {"input_token_count": 0, "tokens": []}
        counted = messages[0] if first == 0 else messages[-1]
        event: dict[str, Any] = {}
        for key in ("finish_reason", "generated_token_count"):
            if key in messages[-1]:
                event[key] = messages[-1][key]
        event |= {"seed": counted["seed"]} if "seed" in counted else {}
        event["input_token_count"] = counted.get("input_token_count", 0)
        event["tokens"] = [token for message in messages for token in message.get("tokens", ())]
        inputs = _input_tokens(messages) if first == 0 else messages[-1].get("input_tokens")
        return event | ({} if inputs is None else {"input_tokens": inputs})


def _input_tokens(messages: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """The input tokens of the second message, else of the first."""
    if len(messages) < 2:
        return list(messages[0].get("input_tokens", ()))
    return messages[1].get("input_tokens") or messages[0].get("input_tokens")


FORMATS = Formats(
    classification=Shape(PlainClassification),
    text_events=FmsTextEvents,
    encode_line=lambda release: encode_line(release, release.start),  # spans count from the text of the line
    read_chat=partial(read_request, Shape(PlainChatRequest), refuses_typos=False),
    read_text=partial(read_request, Shape(PlainTextRequest), refuses_typos=False),
    whole_answer=FmsWholeAnswer,
    event_writer=FmsEventWriter,
    relays=False,
)
