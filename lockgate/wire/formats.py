# SPDX-License-Identifier: Apache-2.0
"""Formats: the readers and writers of requests and answers that a compatibility mode may replace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.core.release import Release
from lockgate.core.values import Detection
from lockgate.wire.classification import CLASSIFICATION, TextEvents
from lockgate.wire.guardrails import encode_line
from lockgate.wire.openai import Asked, read_chat_completion, read_text_completion
from lockgate.wire.openai_answers import Dialect, WholeAnswer, build_blocked
from lockgate.wire.openai_events import RelayedEvents
from lockgate.wire.openai_guarded import GuardedEvents
from lockgate.wire.shapes import Shape


@dataclass(frozen=True, slots=True)
class Formats:
    """Readers and writers of one gateway. The defaults are Lockgate's own."""

    classification: Shape[Any] = CLASSIFICATION
    text_events: type[TextEvents] = TextEvents
    encode_line: Callable[[Release], bytes] = encode_line
    read_chat: Callable[[bytes], Asked] = read_chat_completion
    read_text: Callable[[bytes], Asked] = read_text_completion
    whole_answer: type[WholeAnswer] = WholeAnswer
    relayed_events: type[RelayedEvents] = RelayedEvents
    guarded_events: type[GuardedEvents] = GuardedEvents
    build_blocked: Callable[[Dialect, Asked, Sequence[Detection], int], dict[str, Any]] = build_blocked
