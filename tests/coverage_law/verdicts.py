# SPDX-License-Identifier: Apache-2.0
"""The law: the mark was refused, replaced or left out, or the receipt says which field went on unread."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lockgate.gate.sse import SseParser
from tests.coverage_law.planting import MARK
from tests.coverage_law.world import World
from tests.server.http_client import Answer


def judge_request(world: World, answer: Answer, *, is_key: bool) -> str:
    """How a request with the mark breaks the law, or nothing. An error may name a key that is refused."""
    leaks, receipt = world.find_leaks(), find_receipt(answer)
    if answer.status == 500:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if leaks and not _tells(receipt):
        return f"the mark reached {', '.join(sorted(set(leaks)))}; receipt {_describe(receipt)}"
    if answer.status >= 400 and not is_key and MARK.encode() in answer.body:
        return f"the error quotes the mark: {answer.body[:300]!r}"
    return ""


def judge_answer(answer: Answer) -> str:
    """How an answer breaks the law whose upstream sent the mark, or nothing."""
    if answer.status == 500 or b'"code":500' in answer.body:
        return f"a nameless failure: {answer.body[-300:]!r}"
    head = json.dumps(answer.headers)
    if MARK not in head and MARK not in _decode(answer):
        return ""
    receipt = find_receipt(answer)
    return "" if _tells(receipt) else f"the mark left with status {answer.status}; receipt {_describe(receipt)}"


def find_receipt(answer: Answer) -> Mapping[str, Any] | None:
    """The receipt of an answer."""
    found = [value["receipt"] for value in _list_values(answer) if isinstance(value, dict) and value.get("receipt")]
    return found[-1] if found else None


def _tells(receipt: Mapping[str, Any] | None) -> bool:
    return receipt is not None and not receipt["covered"] and bool(receipt.get("unread"))


def _describe(receipt: Mapping[str, Any] | None) -> str:
    if receipt is None:
        return "missing"
    return f"covered {receipt['covered']}, unread {receipt.get('unread')}, outcome {receipt['outcome']}"


def _decode(answer: Answer) -> str:
    """All text of the body, and all of it with the escapes of JSON resolved; pieces of a stream are joined too."""
    raw = answer.body.decode(errors="replace")
    values = list(_list_values(answer))
    pieces: dict[str, str] = {}
    for value in values:
        for path, text in _list_strings(value):
            pieces[path] = pieces.get(path, "") + text
    return "\n".join([raw, *pieces.values(), *[json.dumps(one, ensure_ascii=False) for one in values]])


def _list_strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _list_strings(inner, f"{path}/{key}")


def _list_values(answer: Answer) -> Iterator[Any]:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        texts = [one.data for one in SseParser().feed(answer.body) if one.data != "[DONE]"]
    else:
        texts = [one.decode(errors="replace") for one in answer.body.splitlines()]
    for text in texts:
        try:
            yield json.loads(text)
        except ValueError:
            yield text
