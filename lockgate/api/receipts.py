# SPDX-License-Identifier: Apache-2.0
"""Receipts as they are sent, and which texts of a message their digest covers (docs/receipts.md).

Writers of answers and `lockgate verify` list the frames of a message with the same functions.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from lockgate.gate.receipts import ALGORITHM, FrameChain, Receipt

VERSION: Final = 1
METADATA_KEY: Final = "lockgate-receipt"  # in gRPC metadata
ANSWER_LANE: Final = "answer"
_TEXT_KEYS = ("reasoning_content", "reasoning", "content", "refusal")
_CALL_KEYS = (("function", ("name", "arguments")), ("custom", ("name", "input")))
_TOP = (
    ("thinking", "thinking"),
    ("generated_text", "generated_text"),
    ("content", ANSWER_LANE),
    ("response", ANSWER_LANE),
    ("text", ANSWER_LANE),
)
_TOP_KEYS = frozenset({"message", *[key for key, _ in _TOP]})


class ReceiptReleased(msgspec.Struct):
    """Released characters, by part; `sources`: the documents that the answer shows; `fields`: names of the request."""

    prompt: int
    documents: int
    answer: int
    sources: int | msgspec.UnsetType = msgspec.UNSET
    fields: int | msgspec.UnsetType = msgspec.UNSET


class ReceiptDetector(msgspec.Struct):
    """What one detector read: characters by part. `failed`: it failed, and text went on without its check.

    `cached_chars`: those of the characters that it had read for an earlier request.
    """

    detector_id: str
    read: dict[Literal["prompt", "fields", "documents", "answer", "sources"], int]
    chunks: int
    findings: int
    time_ms: float
    covered: bool
    cached_chars: int | msgspec.UnsetType = msgspec.UNSET
    failed: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class ReceiptDigest(msgspec.Struct):
    """The digest of all released frames."""

    algorithm: str
    frames: int
    value: str


class ReceiptBody(msgspec.Struct):
    """What each detector read, whether all released text was read, the outcome, and the digest.

    `unread` counts, by field, values that went on unread; `dropped` those that were left out of the answer.
    `prompt_sent_to` has the paths of the sources and of the model that got the prompt.
    """

    version: int
    policy: str | None
    mode: Literal["enforce", "shadow"]
    outcome: Literal["released", "masked", "stopped", "blocked", "failed"]
    covered: bool
    lanes: list[Literal["content", "reasoning", "tool_arguments"]]
    released: ReceiptReleased
    detectors: list[ReceiptDetector]
    digest: ReceiptDigest
    unread: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    dropped: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    prompt_sent_to: list[str] | msgspec.UnsetType = msgspec.UNSET


def build_receipt(receipt: Receipt, chain: FrameChain | None = None) -> dict[str, Any]:
    """The receipt as JSON values, after the last frame; `chain` is used in place of its own."""
    chain = receipt.chain if chain is None else chain
    body: dict[str, Any] = {
        "version": VERSION,
        "policy": receipt.policy or None,
        "mode": "shadow" if receipt.is_shadow else "enforce",
        "outcome": receipt.outcome.name.lower(),
        "covered": receipt.is_covered,
        "lanes": list(receipt.lanes),
        "released": {part.value: count for part, count in receipt.released.items()},
        "detectors": [
            {
                "detector_id": one.detector_id,
                "read": {part.value: count for part, count in one.chars.items()},
                "chunks": one.chunks,
                "findings": one.findings,
                "time_ms": round(one.seconds * 1000, 2),
                "covered": one.is_covered,
            }
            | ({"cached_chars": one.cached} if one.cached else {})
            | ({"failed": True} if one.has_failed else {})
            for one in receipt.list_reads()
        ],
        "digest": {"algorithm": ALGORITHM, "frames": chain.frames, "value": chain.value},
    }
    for name, counts in (("unread", receipt.unread), ("dropped", receipt.dropped)):
        if counts:
            body[name] = dict(counts)
    if receipt.prompt_sent_to is not None:
        body["prompt_sent_to"] = list(receipt.prompt_sent_to)
    return body


def encode_receipt(receipt: Receipt) -> str:
    """The receipt as JSON that gRPC metadata can carry: printable ASCII, in one line."""
    return json.dumps(build_receipt(receipt), separators=(",", ":")).replace("\x7f", "\\u007f")


class AnswerAccount(NamedTuple):
    """The report at the end of an answer: receipt, pseudonyms if requested, findings that no event reports."""

    receipt: Receipt | None = None
    pseudonyms: Mapping[str, str] | None = None
    detections: Mapping[str, Any] = MappingProxyType({})

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the texts of an event to the digest."""
        if self.receipt is not None:
            add_frames(self.receipt.chain, event)

    def tell(self) -> dict[str, Any]:
        """The fields to send after the last frame."""
        fields: dict[str, Any] = {"detections": dict(self.detections)} if self.detections else {}
        if self.receipt is not None:
            fields["receipt"] = build_receipt(self.receipt)
        return fields if self.pseudonyms is None else fields | {"pseudonyms": dict(self.pseudonyms)}


NO_ACCOUNT = AnswerAccount()


def describe_failure(name: str, *, ends: bool) -> tuple[str, str]:
    """Code and text of the warning about a failed detector; `ends`: under `enforce` it ends the request."""
    text = f"Detector `{name}` failed. The text was not checked by it."
    if ends:
        return "DETECTOR_FAILED_IN_SHADOW", f"{text} Under `enforce` the request would have ended with an error."
    return "DETECTOR_FAILED", text


# Texts that the digest covers.


def add_frames(chain: FrameChain, event: Mapping[str, Any]) -> None:
    """Add the texts that `list_frames` finds to the chain; quick for a chat delta with only content."""
    text = _find_only_content(event)
    if text is not None:
        chain.add("0/content", text)
        return
    for lane, found in list_frames(event):
        chain.add(lane, found)


def list_frames(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The texts of any message or event that is sent, each after its lane, in the order of the digest."""
    frames: list[tuple[str, str]] = []
    for index, choice in _list_objects(event.get("choices")):
        for key in ("delta", "message"):  # also where a choice has both
            if isinstance(choice.get(key), dict):
                _list_texts(frames, f"{index}/", choice[key])
        _keep(frames, f"{index}/text", choice.get("text"))
    for key, lane in _TOP:
        _keep(frames, lane, event.get(key))
    message = event.get("message")
    if isinstance(message, dict):
        _keep(frames, "thinking", message.get("thinking"))
        _keep(frames, ANSWER_LANE, message.get("content"))
    return frames


def _find_only_content(event: Mapping[str, Any]) -> str | None:
    """The content of the first choice if the message has no other text; else None."""
    choices = event.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    choice: dict[str, Any] = choices[0]
    delta, index = choice.get("delta"), choice.get("index")
    if type(index) is not int or index or "message" in choice or "text" in choice:
        return None
    if type(delta) is not dict or len(delta) > 2 or (len(delta) == 2 and "role" not in delta):
        return None
    text = delta.get("content")
    return text if type(text) is str and _TOP_KEYS.isdisjoint(event) else None


def _list_texts(frames: list[tuple[str, str]], prefix: str, message: dict[str, Any]) -> None:
    for key in _TEXT_KEYS:
        text = message.get(key)
        if key == "content" and isinstance(text, list):
            for part in text:
                _keep(frames, prefix + key, part.get("text") if isinstance(part, dict) else None)
        else:
            _keep(frames, prefix + key, text)
    _list_call(frames, f"{prefix}function_call/", message.get("function_call"), ("name", "arguments"))
    for index, call in _list_objects(message.get("tool_calls")):
        for kind, keys in _CALL_KEYS:
            _list_call(frames, f"{prefix}tool_calls/{index}/", call.get(kind), keys)


def _list_call(frames: list[tuple[str, str]], prefix: str, call: Any, keys: tuple[str, ...]) -> None:
    if isinstance(call, dict):
        for key in keys:
            _keep(frames, prefix + key, call.get(key))


def _keep(frames: list[tuple[str, str]], lane: str, text: Any) -> None:
    if isinstance(text, str) and text:
        frames.append((lane, text))


def _list_objects(value: Any) -> Iterable[tuple[int, dict[str, Any]]]:
    """The objects of a list, each after its `index` or else its position."""
    for place, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, dict):
            index = one.get("index")
            yield index if type(index) is int else place, one
