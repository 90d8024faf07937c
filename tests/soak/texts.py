# SPDX-License-Identifier: Apache-2.0
"""Texts for long runs, drawn from a seed, and the laws that every streamed answer about them must obey."""

import json
import random
from collections import Counter
from typing import Any, NamedTuple

DETECTORS: dict[str, Any] = {"words": {}, "pii": {}, "secrets": {}}
CONFIG = """
detectors:
  words: {embedded: keywords, chunker_id: word, options: {keywords: [teapot, 茶, straße]}}
  pii: {embedded: pii, chunker_id: sentence}
  secrets: {embedded: secrets, chunker_id: paragraph}
server: {host: 127.0.0.1}
"""
_PHRASES = (
    "The parcel is at the depot and will be brought tomorrow. ",
    "Write to ana.ruiz@example.org before noon! ",
    "Das Café in der Straße schließt um acht. ",
    "她喜歡喝茶。今天下雨嗎？",
    "Call +1 415 555 2671 or ask for the teapot. ",
    "यह एक वाक्य है। दूसरा वाक्य। ",
    "😀👩‍👩‍👧 Emoji and é combining marks… ",
    "The fee was charged to card 4111 1111 1111 1111. ",
    "Server 192.168.0.17 answered; nothing else did. ",
    "An end of paragraph.\n\n",
    "a-word-without-any-space-that-goes-on-and-on-and-on ",
)


class Sample(NamedTuple):
    """A text, the lines in which it is sent, and what the unary endpoint finds in it."""

    text: str
    pieces: tuple[str, ...]
    findings: Counter[str]


class LawBroken(Exception):
    """A received line breaks a law."""


def draw_text(rng: random.Random, phrases: int) -> str:
    """Some phrases in any order."""
    return "".join(rng.choices(_PHRASES, k=phrases))


def cut_text(rng: random.Random, text: str) -> tuple[str, ...]:
    """The text in pieces of 1 to 160 characters."""
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, 160)
        pieces.append(text[at : at + size])
        at += size
    return tuple(pieces)


class Checker:
    """Takes the received lines of one stream in order and raises LawBroken at the first that is wrong."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._left = Counter(sample.findings)
        self._end = 0

    def take(self, raw: bytes) -> None:
        """One line."""
        line = json.loads(raw)
        if list(line) != ["detections", "processed_index", "start_index"]:
            raise LawBroken(f"not an answer line: {raw[:200]!r}")
        start, end = line["start_index"], line["processed_index"]
        if start != self._end or end <= start:
            raise LawBroken(f"the line from {start} to {end} does not follow {self._end}")
        for found in line["detections"]:
            self._take_finding(found, start, end)
        self._end = end

    def finish(self) -> None:
        """The stream has ended."""
        if self._end != len(self._sample.text):
            raise LawBroken(f"{self._end} of {len(self._sample.text)} characters came back")
        if missing := +self._left:
            raise LawBroken(f"findings never came: {list(missing)[:3]}")

    def _take_finding(self, found: dict[str, Any], start: int, end: int) -> None:
        key = json.dumps(found)
        self._left[key] -= 1
        if self._left[key] < 0:
            raise LawBroken(f"unexpected or repeated finding: {key}")
        if not start <= found["start"] < end:
            raise LawBroken(f"{key} did not come with the first line that overlaps it, but with {start} to {end}")
        if self._sample.text[found["start"] : found["end"]] != found["text"]:
            raise LawBroken(f"{key} does not stand there")
