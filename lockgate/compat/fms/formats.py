# SPDX-License-Identifier: Apache-2.0
"""The readers and writers of the Rust orchestrator's API."""

from lockgate.api.formats import Formats
from lockgate.api.guardrails.format import encode_line
from lockgate.compat.fms.completions import FmsEventWriter, FmsWholeAnswer, build_blocked
from lockgate.compat.fms.generation import PLAIN_CLASSIFICATION, FmsTextEvents
from lockgate.compat.fms.requests import read_plain_chat, read_plain_text
from lockgate.gate.release import Release


def encode_relative_line(release: Release) -> bytes:
    """One line of a stream-content answer: spans count from the text of the line."""
    return encode_line(release, release.start)


FORMATS = Formats(
    classification=PLAIN_CLASSIFICATION,
    text_events=FmsTextEvents,
    encode_line=encode_relative_line,
    read_chat=read_plain_chat,
    read_text=read_plain_text,
    whole_answer=FmsWholeAnswer,
    event_writer=FmsEventWriter,
    build_blocked=build_blocked,
)
