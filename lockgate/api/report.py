# SPDX-License-Identifier: Apache-2.0
"""What `lockgate check` says about endpoints: which exist, what they lack, and which detectors they can use."""

from collections.abc import Sequence

from lockgate.api.endpoint import ApiEndpoint, Port, Scope
from lockgate.api.endpoints import ENDPOINTS, STREAM_CONTENT_PATH, V1_STREAM_PATH
from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.gate.values import WHOLE_TEXT_CHUNKER

Row = tuple[str, ...]


def list_endpoints(settings: Settings) -> list[Row]:
    """One row for each endpoint of the API that this configuration has, below a row of titles."""
    rows = [_describe(settings, one) for one in ENDPOINTS if _is_listed(one) and one.exists(settings)]
    return [("path", "served", "input detectors", "output detectors"), *rows]


def _is_listed(one: ApiEndpoint) -> bool:
    """Whether this is an endpoint of the API, described in its document, and not one about the process."""
    return bool(one.summary) and one.port is Port.API and one.scope is not Scope.PROBE


def _describe(settings: Settings, one: ApiEndpoint) -> Row:
    lacking = one.lacks(settings)
    inputs = _name_detectors(settings, one.input, is_held_stream=one.path == STREAM_CONTENT_PATH)
    outputs = _name_detectors(settings, one.output, is_held_stream=one.path == V1_STREAM_PATH)
    return (one.path, f"needs {lacking}" if lacking else "yes", inputs, outputs)


def _name_detectors(settings: Settings, types: Sequence[str], *, is_held_stream: bool) -> str:
    """The detectors of these types, but for those that `compat: fms` refuses on a stream that holds its text."""
    refuses = is_held_stream and not find_rules(settings).allows_whole_text
    names = [
        name
        for name, part in settings.detectors.items()
        if part.type in types and not (refuses and part.chunker_id == WHOLE_TEXT_CHUNKER)
    ]
    return ", ".join(names) or "-"
