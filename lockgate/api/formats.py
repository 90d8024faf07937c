# SPDX-License-Identifier: Apache-2.0
"""Formats: the readers and writers of requests and answers that a compatibility mode may replace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockgate.api.guardrails.format import encode_line
from lockgate.api.guardrails.generation_format import CLASSIFICATION, TextEvents
from lockgate.api.openai.events import EventWriter
from lockgate.api.openai.format import CompletionRequest, read_chat_completion, read_text_completion
from lockgate.api.openai.whole_answer import WholeAnswer
from lockgate.api.shapes import Shape
from lockgate.gate.release import Release


@dataclass(frozen=True, slots=True)
class Formats:
    """Readers and writers of one gateway. The defaults are Lockgate's own."""

    classification: Shape[Any] = CLASSIFICATION
    text_events: type[TextEvents] = TextEvents
    encode_line: Callable[[Release], bytes] = encode_line
    read_chat: Callable[[bytes], CompletionRequest] = read_chat_completion
    read_text: Callable[[bytes], CompletionRequest] = read_text_completion
    whole_answer: type[WholeAnswer] = WholeAnswer
    event_writer: type[EventWriter] = EventWriter
    relays: bool = True  # a stream that no detector reads is forwarded byte for byte
