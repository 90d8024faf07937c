# SPDX-License-Identifier: Apache-2.0
"""The model's answer as bytes: one packet per message, several in one, or cuts anywhere, with pauses between them."""

import json
import random
from typing import Any, NamedTuple

from tests.soak.policies.plans import Plan

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Packet(NamedTuple):
    """Bytes that are sent at once, and the pause before them."""

    pause_s: float
    raw: bytes


def write_script(plan: Plan, longest_s: float) -> list[Packet]:
    """The whole answer of the model, within about so many seconds."""
    rng = random.Random(plan.seed)
    parts = [HEAD, *(write_event(rng, message) for message in plan.messages), chunk(b"data: [DONE]\n\n"), END]
    if plan.is_broken:
        parts = parts[: rng.randint(1, len(parts) - 3)]
    packets = _cut(rng, parts)
    pause_s = rng.uniform(0, longest_s) / len(packets)
    return [Packet(rng.uniform(0, 2 * pause_s) if rng.random() < 0.6 else 0.0, packet) for packet in packets]


def write_event(rng: random.Random, message: dict[str, Any]) -> bytes:
    """A message as a chunk of the answer; characters as they are or as escapes of JSON."""
    raw = json.dumps(message, ensure_ascii=rng.random() < 0.3, separators=(",", ":"))
    end = "\r\n" if rng.random() < 0.1 else "\n"
    return chunk(f"data: {raw}{end}{end}".encode())


def chunk(body: bytes) -> bytes:
    """Some bytes of the answer."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _cut(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    """As they are; or one behind the other and cut anywhere, inside characters too."""
    if rng.random() < 0.5:
        return parts
    raw, packets, at = b"".join(parts), [], 0
    largest = rng.choice((300, 1500, 6000, 50_000))
    while at < len(raw):
        size = rng.randint(1, largest)
        packets.append(raw[at : at + size])
        at += size
    return packets
