# SPDX-License-Identifier: Apache-2.0
"""How a streamed answer ends: with its mark and nothing behind it, well or with exactly one error before."""

from typing import Any

from tests.server.gateways import GENERIC

PASSED_ON = frozenset({400, 404, 422, 503})


def ended_well(events: list[Any]) -> list[Any]:
    """The events before the one mark at the end; none of them is an error."""
    assert events[-1] == "[DONE]", events[-2:]
    assert events.count("[DONE]") == 1
    assert [event for event in events[:-1] if "$error" in event] == []
    return events[:-1]


def ended_badly(events: list[Any], error: dict[str, Any], *, has_mark: bool = True) -> list[Any]:
    """The events before the one error, behind which only the mark stands."""
    end = [{"$error": error}, "[DONE]"] if has_mark else [{"$error": error}]
    assert events[-len(end) :] == end, events[-2:]
    rest = events[: -len(end)]
    assert [event for event in rest if event == "[DONE]" or "$error" in event] == []
    return rest


def error_of(status: int, details: str) -> dict[str, Any]:
    """What a caller reads of a service's failure under `compat: fms`: its words for a few statuses, else none."""
    return {"code": status, "details": details} if status in PASSED_ON else GENERIC


def failure(name: str, status: int = 502, words: str = "") -> dict[str, Any]:
    """What a caller reads of a service that has failed, and of what it said (D-41)."""
    how = {502: "failed", 503: "is not available", 504: "did not answer in time"}.get(status, "refused the request")
    return {"code": status, "details": f"`{name}` {how}" + (f": {words}" if words else "")}


def failure_after(name: str, answered: int, words: str = "") -> dict[str, Any]:
    """The same for a service that answered with a status: a model may refuse a request."""
    kept = {400, 422, 429, 503, 504} if name == "model" else {503, 504}
    is_told = answered in {400, 422, 429, 503} or (answered == 404 and name != "model")
    return failure(name, answered if answered in kept else 502, words if is_told else "")
