# SPDX-License-Identifier: Apache-2.0
"""What a client saw, in one shape for all wire formats. This is what the table compares."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from lockgate.gate.sse import SseParser
from tests.server.http_client import Answer

ANSWERED, CUT_OFF = "answered", "cut off"
PSEUDONYM = "<pseudonym>"
_LANES = {"content": "content", "refusal": "refusal", "reasoning_content": "reasoning", "reasoning": "reasoning"}


class Finding(NamedTuple):
    """One finding as it is reported beside the text; `where` is a section, or a lane of the output."""

    where: str
    detector_id: str
    start: int
    end: int
    text: str


@dataclass
class Seen:
    """The aspects of a cell."""

    text: dict[str, str]  # released, by lane; of further choices with their number
    findings: list[Finding]
    outcome: str  # of each choice; or the error with its status
    model: str  # whether it was asked, and whether it read the finding
    receipt: dict[str, Any] | None  # mode, outcome, covered
    released: dict[str, int] | None  # of the receipt: characters by part
    detectors: list[dict[str, Any]] | None  # of the receipt, in its order


ASPECTS = tuple(one.name for one in fields(Seen))


def read_answer(answer: Answer) -> tuple[list[Any], str]:
    """The JSON values of an HTTP answer, and the status of its error if there was one."""
    if answer.headers["content-type"] != "text/event-stream":
        values = [json.loads(line) for line in answer.body.splitlines()]
        error = "" if answer.status == 200 else str(answer.status)
    else:
        events = [one for one in SseParser().feed(answer.body) if one.data != "[DONE]"]
        values = [json.loads(one.data) for one in events]
        error = next((_find_status(json.loads(one.data)) for one in events if one.event == "error"), "")
    failed = [value for value in values if "error" in value]
    return values, error or next((_find_status(value) for value in failed), "")


def _find_status(value: Mapping[str, Any]) -> str:
    """The status that an error event tells."""
    told = value.get("error")
    code = value.get("code") or (told.get("code") if isinstance(told, Mapping) else None)
    return str(code or "without a status")


def read_seen(values: Sequence[Any], error: str, prompts: Sequence[str], secret: str) -> Seen:
    """All aspects, of the values of one answer and the prompts of the model."""
    names: Mapping[str, str] = next((value["pseudonyms"] for value in values if value.get("pseudonyms")), {})
    text = {lane: _rename(said, names) for lane, said in collect_text(values).items()}
    findings = [one._replace(text=_rename(one.text, names)) for value in values for one in list_findings(value)]
    outcome = f"error {error}" if error else find_outcome(values)
    receipt = next((value["receipt"] for value in values if value.get("receipt")), None)
    model = describe_prompts(prompts, secret)
    return Seen(text, sorted(set(findings)), outcome, model, *split_receipt(receipt))


def _rename(text: str, names: Mapping[str, str]) -> str:
    for name in names:
        text = text.replace(name, PSEUDONYM)
    return text


def describe_prompts(prompts: Sequence[str], secret: str) -> str:
    """Whether the model was asked, and whether it read the secret."""
    if not prompts:
        return "not asked"
    return "asked with the finding" if any(secret in prompt for prompt in prompts) else "asked"


# The text.


def collect_text(values: Sequence[Any]) -> dict[str, str]:
    """All released text by lane; lanes without text are left out."""
    lanes: dict[str, str] = {}
    for value in values:
        for lane, said in _list_texts(value):
            lanes[lane] = lanes.get(lane, "") + said
    return {lane: said for lane, said in lanes.items() if said}


def _list_texts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for choice in value.get("choices") or ():
        number = f"{choice['index']}/" if choice["index"] else ""
        yield from ((f"{number}{lane}", said) for lane, said in _list_lanes(choice))
    for key in ("generated_text", "content", "response", "text"):
        yield "content", value.get(key) or ""
    yield "reasoning", value.get("thinking") or ""
    if isinstance(message := value.get("message"), Mapping):
        yield "reasoning", message.get("thinking") or ""
        yield "content", message.get("content") or ""


def _list_lanes(choice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "content", choice.get("text") or ""
    message = choice.get("delta") or choice.get("message") or {}
    yield from ((lane, message.get(key) or "") for key, lane in _LANES.items())
    for call in message.get("tool_calls") or ():
        yield "tool_arguments", call["function"].get("arguments") or ""


# The findings.


def list_findings(value: Mapping[str, Any]) -> Iterator[Finding]:
    """Those that one JSON value reports."""
    reported = value.get("detections") or value.get("token_classification_results")
    if not isinstance(reported, Mapping):  # a `token` event of the aggregator: its `done` event reports all of them
        return
    for section, found in reported.items():
        for one in found or ():
            where = _find_place(section, one)
            yield from (_read_finding(where, result) for result in one.get("results", [one]))


def _find_place(section: str, one: Mapping[str, Any]) -> str:
    name = str(one.get("field") or section)
    name = "reasoning" if name == "reasoning_content" else "tool_arguments" if "/arguments" in name else name
    return f"{one['choice_index']}/{name}" if one.get("choice_index") else name


def _read_finding(where: str, one: Mapping[str, Any]) -> Finding:
    return Finding(where, one["detector_id"], one["start"], one["end"], one["text"] if "text" in one else one["word"])


# The end.


def find_outcome(values: Sequence[Any]) -> str:
    """How each choice ended."""
    ends: dict[int, str] = {}
    for value in values:
        reason = value.get("finish_reason") or value.get("done_reason") or value.get("outcome")
        if reason is not None:
            ends[0] = reason
        for choice in value.get("choices") or ():
            if choice.get("finish_reason"):
                ends[choice["index"]] = choice["finish_reason"]
    return ", ".join(_describe_end(reason) for _, reason in sorted(ends.items())) or "no end"


def _describe_end(reason: str) -> str:
    return CUT_OFF if reason in ("content_filter", "prompt_blocked", "answer_blocked") else ANSWERED


Parts = tuple[dict[str, Any] | None, dict[str, int] | None, list[dict[str, Any]] | None]


def split_receipt(receipt: Mapping[str, Any] | None) -> Parts:
    """A receipt in three parts, without what surfaces may differ in: times, digest, lanes, chunks, documents, names."""
    if receipt is None:
        return None, None, None
    kept = ("detector_id", "read", "findings", "covered", "failed")
    detectors = [{key: one[key] for key in kept if key in one} for one in receipt["detectors"]]
    detectors = [{**one, "read": _leave_out_shown(one["read"])} for one in detectors]
    told = {key: receipt[key] for key in ("mode", "outcome", "covered")}
    return told, _leave_out_shown(receipt["released"]), detectors


def _leave_out_shown(counts: Mapping[str, int]) -> dict[str, int]:
    return {part: count for part, count in counts.items() if part not in ("sources", "fields")}
