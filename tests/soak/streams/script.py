# SPDX-License-Identifier: Apache-2.0
"""The model's answer as bytes on the wire: written in any way that the standards allow, cut anywhere, with pauses."""

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.soak.streams.plans import Plan

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@dataclass(frozen=True)
class Script:
    """Packets, each with the pause before it, and what becomes of the connection: kept, closed or reset."""

    packets: list[tuple[float, bytes]]
    end: str = "keep"


def write_script(plan: Plan) -> Script:
    """The whole answer of the model."""
    rng = random.Random(plan.seed)
    fault = plan.fault.service if plan.fault is not None else ""
    if plan.fault is not None and fault == "model status":
        return Script([(rng.uniform(0, 0.02), refuse(plan.fault.said))])
    is_chunked = fault in ("model cut", "model reset") or rng.random() < 0.8
    body = [_write_event(rng, message) for _, message in plan.messages[: _upto(plan)]]
    if fault == "model error" and plan.fault is not None:
        body.append(_write_event(rng, {"error": {"message": "out of luck", "type": "x", "code": plan.fault.said}}))
    elif not fault.startswith("model") and (not is_chunked or rng.random() < 0.95):
        body.append(b"data: [DONE]\n\n")
    head = _HEAD + (b"transfer-encoding: chunked\r\n\r\n" if is_chunked else b"connection: close\r\n\r\n")
    whole = [head, *(_chunk(event) if is_chunked else event for event in body)]
    if is_chunked and fault not in ("model cut", "model reset"):
        whole.append(b"0\r\n\r\n")
    end = "reset" if fault == "model reset" else "keep" if is_chunked and fault != "model cut" else "close"
    longest_s = 4.0 if plan.leave is not None else 1.5  # time enough to leave in the middle
    return Script(_cut(rng, whole, longest_s), end)


def refuse(status: int) -> bytes:
    """An answer of an OpenAI-compatible server that does not serve."""
    body = json.dumps({"error": {"message": "not today", "type": "x", "param": None, "code": status}}).encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _upto(plan: Plan) -> int:
    is_model = plan.fault is not None and plan.fault.service.startswith("model")
    return plan.fault.at if is_model and plan.fault is not None else len(plan.messages)


def _write_event(rng: random.Random, message: dict[str, Any]) -> bytes:
    raw = json.dumps(message, ensure_ascii=rng.random() < 0.5, separators=(",", ":") if rng.random() < 0.8 else None)
    end = rng.choice(("\n", "\n", "\n", "\r\n"))
    lines = [f"data: {raw}" if rng.random() < 0.9 else f"data:{raw}", ""]
    if rng.random() < 0.05:
        lines.insert(0, rng.choice((": ping", "event: message", "id: 7", ":")))
    return "".join(line + end for line in lines).encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _cut(rng: random.Random, whole: list[bytes], longest_s: float) -> list[tuple[float, bytes]]:
    """Packets: one per event, or several events in one, or cuts anywhere, inside characters too."""
    if rng.random() < 0.5:
        packets = whole
    else:
        raw, packets, at = b"".join(whole), [], 0
        largest = rng.choice((40, 200, 1000, 8000))
        while at < len(raw):
            size = rng.randint(1, largest)
            packets.append(raw[at : at + size])
            at += size
    pause_s = rng.uniform(longest_s / 6, longest_s) / len(packets)
    return [(rng.uniform(0, 2 * pause_s) if rng.random() < 0.7 else 0.0, packet) for packet in packets]
