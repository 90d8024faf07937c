# SPDX-License-Identifier: Apache-2.0
"""Bodies of chat and text completions as the Rust orchestrator takes them: no policies, and typos are not refused."""

from functools import partial

import msgspec

from lockgate.api.guardrails.format import DetectorMap
from lockgate.api.openai.format import ChatFields, TextFields, read_request
from lockgate.api.shapes import Shape


class Detectors(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors of a request."""

    input: DetectorMap = {}
    output: DetectorMap = {}


class PlainChat(ChatFields):
    """Body of chat completions."""

    detectors: Detectors = msgspec.field(default_factory=Detectors)


class PlainText(TextFields):
    """Body of text completions."""

    detectors: Detectors = msgspec.field(default_factory=Detectors)


read_plain_chat = partial(read_request, Shape(PlainChat), refuses_typos=False)
read_plain_text = partial(read_request, Shape(PlainText), refuses_typos=False)
