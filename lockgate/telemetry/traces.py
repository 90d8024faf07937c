# SPDX-License-Identifier: Apache-2.0
"""Trace: where in a W3C trace we are. Reads and writes its headers; records nothing, needs no library."""

import os
import re
from typing import NamedTuple

Headers = list[tuple[str, str]]
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_PRINTABLE = re.compile(r"[ -~]{1,512}")
_SAMPLED = "01"


class Trace(NamedTuple):
    """A place in a trace: ids in lower-case hex, flags as two digits, and what vendors carry along."""

    trace_id: str
    span_id: str
    flags: str = _SAMPLED
    state: str = ""

    def headers(self) -> Headers:
        """What a service must be told to continue from here (G-188: the state also when empty)."""
        return [("traceparent", f"00-{self.trace_id}-{self.span_id}-{self.flags}"), ("tracestate", self.state)]

    def child(self) -> "Trace":
        """A new place below this one."""
        return Trace(self.trace_id, _new_span_id(), self.flags, self.state)


def new_trace() -> Trace:
    """The first place of a new trace."""
    return Trace(os.urandom(16).hex(), _new_span_id())


def read_trace(parent: str, state: str = "") -> Trace | None:
    """The place that a caller names, if it names one; of a broken state only the place is kept."""
    found = _PARENT.fullmatch(parent)
    if found is None or (found[1] == "00" and len(parent) > 55):
        return None
    flags = _SAMPLED if int(found[4], 16) & 1 else "00"
    return Trace(found[2], found[3], flags, state if _PRINTABLE.fullmatch(state) else "")


def _new_span_id() -> str:
    return os.urandom(8).hex()
