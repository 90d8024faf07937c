# SPDX-License-Identifier: Apache-2.0
"""The laws of a guarded chat stream, and the judge of one that was played.

The judge knows the plan, what the client heard and what the services saw; it shares no code with the server. Offsets
count code points from the start of a choice's text.
"""

import json
from collections import Counter
from typing import Any, NamedTuple

from tests.soak.streams.client import Event, Heard
from tests.soak.streams.peers import Record
from tests.soak.streams.plans import USAGE, Plan, poison_in
from tests.soak.streams.words import EYES

MODEL_CLOSES_S = 1.0  # the bound for every single stream of a busy server; the figure for p99 is measured elsewhere


class Violation(NamedTuple):
    """A law that was broken."""

    law: str
    stream: str
    words: str

    def __str__(self) -> str:
        return f"{self.stream}: {self.law}: {self.words}"


class _Broken(Exception):
    def __init__(self, law: str, words: str) -> None:
        super().__init__(law, words)
        self.law = law
        self.words = words


def judge(plan: Plan, heard: Heard, record: Record, closes_s: float = MODEL_CLOSES_S) -> list[Violation]:
    """Everything that is wrong with a stream; nothing is looked at behind the first event that breaks a law."""
    judge_of_one = _Judge(plan, heard, record, closes_s)
    violations = []
    for look in (judge_of_one.look_at_events, judge_of_one.look_at_readings, judge_of_one.look_at_model):
        try:
            look()
        except _Broken as broken:
            violations.append(Violation(broken.law, plan.id, broken.words))
    return violations


class _Judge:
    def __init__(self, plan: Plan, heard: Heard, record: Record, closes_s: float) -> None:
        self._plan = plan
        self._heard = heard
        self._record = record
        self._closes_s = closes_s
        self._lanes = [_Lane(plan, index) for index in range(len(plan.choices))]
        self._usages = 0
        self._has_final = False
        self._has_report = False
        self._is_guarded = bool(plan.holders)
        self._read_at = _read_times(plan, record)

    def look_at_events(self) -> None:
        heard = self._heard
        said = "" if self._record.model_done_at else ", and the model has not said all"
        _require(heard.end != "late", "ends", f"the stream hangs after {len(heard.events)} events{said}")
        if heard.end == "left" and not heard.status:
            return
        _require(heard.status == 200, "ends", f"HTTP status {heard.status}: {heard.rest[:200]!r}")
        _require("content-type: text/event-stream" in heard.head, "ends", "not an event stream")
        events = list(heard.events)
        if heard.end != "left":
            self._look_at_end(events)
        elif events and events[-1].text == "[DONE]":
            events.pop()
        for number, event in enumerate(events):
            _require(event.text != "[DONE]", "done", "events follow [DONE]")
            _require(not self._has_final, "final", "events follow the final event")
            self._take(event, is_last=number == len(events) - 1)
        self._look_at_whole(events)

    def _look_at_end(self, events: list[Event]) -> None:
        heard = self._heard
        _require(bool(events) and events[-1].text == "[DONE]", "done", "the stream did not end with [DONE]")
        _require(heard.end == "complete" and not heard.rest, "done", f"behind [DONE]: {heard.end} {heard.rest[:100]!r}")
        events.pop()

    def _take(self, event: Event, is_last: bool) -> None:
        value = json.loads(event.text)
        if event.name == "error":
            self._take_error(value, is_last)
            return
        _require(event.name == "", "shape", f"an event named {event.name}")
        _require(value.get("model") == self._plan.model, "shape", f"another stream's event: {value.get('model')}")
        self._usages += value.get("usage") is not None
        _require(value.get("usage") in (None, USAGE), "usage", f"not the model's usage: {value.get('usage')}")
        choices = value["choices"]
        if not choices:
            self._take_final(value)
            return
        _require(len(choices) == 1, "shape", f"{len(choices)} choices in one event")
        index = choices[0]["index"]
        _require(0 <= index < len(self._lanes), "shape", f"an event of choice {index}")
        self._lanes[index].take(choices[0], value, event.at, self._is_guarded, self._read_at)

    def _take_error(self, value: dict[str, Any], is_last: bool) -> None:
        fault = self._plan.fault
        _require(fault is not None, "error", f"nothing failed, and the client is told {value}")
        _require(is_last, "error", "events follow the error")
        if fault is not None:
            _require(value.get("code") == fault.code, "error", f"{fault.service} failed with {fault.code}: {value}")
        _require(list(value) == ["code", "details"] and isinstance(value["details"], str), "error", f"shape: {value}")
        is_named = fault is not None and value["details"].startswith(f"`{fault.name}` ")
        _require(is_named, "error", f"the service that failed is not named: {value}")

    def _take_final(self, value: dict[str, Any]) -> None:
        """The event without choices: usage, and what the detectors of the whole text found."""
        if "detections" not in value:
            _require(value.get("usage") is not None, "final", "an event without choices that says nothing")
            self._has_final = self._is_guarded
            return
        self._has_final = self._has_report = True
        _require(bool(self._plan.trailers), "final", "detections without a choice, and nobody reads the whole text")
        for entry in value["detections"].get("output", []):
            self._lanes[entry["choice_index"]].take_trailing(entry["results"])
        has_found = any(lane.has_trailing for lane in self._lanes)
        _require(_warns(value) == has_found, "warning", f"found: {has_found}, and: {value.get('warnings')}")

    def _look_at_whole(self, events: list[Event]) -> None:
        has_error = bool(events) and events[-1].name == "error"
        is_complete = self._heard.end == "complete" and not has_error
        if self._plan.fault is not None and self._heard.end == "complete":
            _require(has_error, "error", f"{self._plan.fault.service} failed, and the client was not told")
        for lane in self._lanes:
            lane.look_at_findings()
        if not is_complete:
            return
        _require(self._has_report or not self._plan.trailers, "final", "no report of those that read the whole text")
        for lane in self._lanes:
            lane.look_at_whole()
        _require(self._usages == self._plan.wants_usage, "usage", f"sent {self._usages} times")

    def look_at_readings(self) -> None:
        """A detector is shown the text of the stream, each piece of it once."""
        for (detector, index), places in _placed(self._plan, self._record).items():
            upto = 0
            text = self._plan.choices[index].text
            for start, end in sorted(places):
                _require(start >= upto, "read once", f"{detector} read {text[start:end]!r} of choice {index} twice")
                upto = end

    def look_at_model(self) -> None:
        """The model is asked once, and left alone when nobody listens."""
        record = self._record
        is_certain = self._heard.end != "left"
        _require(is_certain <= record.model_requests <= 1, "model", f"asked {record.model_requests} times")
        if self._heard.end == "left" and record.model_requests:
            silent_at = record.model_closed_at or record.model_done_at or float("inf")
            took = silent_at - self._heard.ended_at
            _require(took <= self._closes_s, "model stops", f"silent only {took:.2f} s after the client had left")


class _Lane:
    """One choice as the client sees it."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._choice = plan.choices[index]
        self._text = plan.sent(index)
        self._upto = 0
        self._last_start = 0
        self._expected = _expect(plan.holders, self._choice.text)
        self._found: Counter[tuple[str, int, int]] = Counter()
        self._trailing: Counter[tuple[str, int, int]] = Counter()
        self._calls: list[dict[str, Any]] = []
        self._tokens: list[dict[str, Any]] = []
        self._token_ends = _token_ends(plan, index)
        self._finish: str | None = None
        self._poison_at = self._find_poison()

    @property
    def has_trailing(self) -> bool:
        return bool(self._trailing)

    def take(
        self,
        choice: dict[str, Any],
        value: dict[str, Any],
        at: float,
        is_guarded: bool,
        read_at: dict[tuple[str, int], list[float]],
    ) -> None:
        where = f"choice {self._index} at {self._upto}"
        delta = choice["delta"]
        _require(self._finish is None, "finish", f"{where}: an event follows the finish reason")
        text = delta.get("content") or ""
        start, end = self._upto, self._upto + len(text)
        _require(self._text[start:end] == text, "text", f"{where}: {text[:60]!r}, said: {self._text[start:end][:60]!r}")
        self._upto = end
        self._last_start = start if text else self._last_start
        if is_guarded:
            _require(delta.get("role") == "assistant", "role", f"{where}: {delta.get('role')}")
            is_something = text or delta.get("tool_calls") or choice.get("finish_reason")
            _require(bool(is_something), "shape", f"{where}: an event that says nothing")
            self._take_detections(value, start, end)
            self._look_at_readers(start, end, at, read_at)
        else:
            _require("detections" not in value, "shape", f"{where}: detections though nobody holds text")
        self._take_calls(delta.get("tool_calls") or [], where)
        self._take_tokens((choice.get("logprobs") or {}).get("content") or [], where)
        self._finish = choice.get("finish_reason")

    def take_trailing(self, results: list[dict[str, Any]]) -> None:
        for found in results:
            self._trailing[self._key(found)] += 1

    def look_at_findings(self) -> None:
        due = Counter({found for found in self._expected if found[1] < self._upto})
        lost = due - self._found
        _require(not lost, "finding lost", f"choice {self._index}: {self._show(lost)} of {self._upto} characters")

    def look_at_whole(self) -> None:
        where = f"choice {self._index}"
        _require(
            self._upto == len(self._choice.text), "text", f"{where}: {self._upto} of {len(self._choice.text)} came"
        )
        _require(self._finish == self._choice.finish, "finish", f"{where}: {self._finish}")
        calls = [piece.tool_call for piece in self._choice.pieces if piece.tool_call is not None]
        _require(self._calls == calls, "tool calls", f"{where}: {self._calls}")
        tokens = [piece.logprob for piece in self._choice.pieces if piece.logprob is not None]
        _require(self._tokens == tokens, "logprobs", f"{where}: {len(self._tokens)} of {len(tokens)}")
        expected = Counter(_expect(self._plan.trailers, self._choice.text))
        lost, more = expected - self._trailing, self._trailing - expected
        _require(not lost, "finding lost", f"{where}, at the end: {self._show(lost)}")
        _require(not more, "finding twice", f"{where}, at the end: {self._show(more)}")

    def _take_detections(self, value: dict[str, Any], start: int, end: int) -> None:
        where = f"choice {self._index} at {start}"
        entries = value.get("detections", {}).get("output", [])
        if start == end and not entries:
            _require("warnings" not in value, "warning", f"{where}: {value.get('warnings')}")
            return
        _require(len(entries) == 1, "offsets", f"{where}: {len(entries)} entries")
        entry = entries[0]
        _require(entry["choice_index"] == self._index, "offsets", f"{where}: entry of choice {entry['choice_index']}")
        claimed = (entry.get("start_index"), entry.get("processed_index"))
        _require(claimed == (start, end), "offsets", f"{where}: {claimed} for {start} to {end}")
        for found in entry["results"]:
            self._take_finding(found, start, end)
        _require(_warns(value) == bool(entry["results"]), "warning", f"{where}: {value.get('warnings')}")

    def _take_finding(self, found: dict[str, Any], start: int, end: int) -> None:
        key = self._key(found)
        self._found[key] += 1
        where = f"choice {self._index}, {start} to {end}: {found}"
        _require(key in self._expected, "finding wrong", where)
        _require(self._found[key] == 1, "finding twice", where)
        _require(start <= key[1] < end, "finding place", where)

    def _key(self, found: dict[str, Any]) -> tuple[str, int, int]:
        key = (found["detector_id"], found["start"], found["end"])
        said = self._choice.text[key[1] : key[2]]
        _require(found["text"] == said, "finding wrong", f"choice {self._index}: {found} stands not there: {said!r}")
        return key

    def _look_at_readers(self, start: int, end: int, at: float, read_at: dict[tuple[str, int], list[float]]) -> None:
        """Every character that has left was read before by every detector that holds."""
        _require(end <= self._poison_at, "held", f"choice {self._index}: text left that nobody can have read: {end}")
        for name in self._plan.holders:
            if not EYES[name].is_remote or start == end:
                continue
            times = read_at[name, self._index][start:end]
            late = [n for n, when in enumerate(times, start) if when > at and not self._text[n].isspace()]
            _require(
                not late, "held", f"choice {self._index}: {start} to {end} left, and {name} had not read {late[:3]}"
            )

    def _take_calls(self, calls: list[dict[str, Any]], where: str) -> None:
        if calls:
            before = 0
            for piece in self._choice.pieces:
                if piece.tool_call is not None:
                    break
                before += len(piece.text)
            is_next = self._upto == before or self._last_start < before < self._upto
            _require(is_next, "tool calls", f"{where}: not behind the text before them, which ends at {before}")
        self._calls += calls

    def _take_tokens(self, tokens: list[dict[str, Any]], where: str) -> None:
        """With the event that releases the last character of the message that brought them."""
        self._tokens += tokens
        due = sum(end <= self._upto for end in self._token_ends)
        _require(len(self._tokens) == due, "logprobs", f"{where}: {len(self._tokens)} came, {due} are due")

    def _find_poison(self) -> int:
        """Behind which nothing may leave: what the failing service has to read before."""
        fault = self._plan.fault
        if fault is None or fault.service.startswith("model"):
            return len(self._text)
        if fault.service in EYES and not EYES[fault.service].holds:
            return len(self._text)
        return poison_in(self._choice.text)

    def _show(self, findings: Counter[tuple[str, int, int]]) -> str:
        return ", ".join(f"{name} {a}-{b} {self._choice.text[a:b]!r}" for name, a, b in list(findings)[:3])


def _expect(detectors: list[str], text: str) -> set[tuple[str, int, int]]:
    return {(name, a, b) for name in detectors for a, b in EYES[name].find(text)}


def _token_ends(plan: Plan, index: int) -> list[int]:
    ends, upto = [], 0
    for piece in plan.choices[index].pieces:
        upto += len(piece.text)
        if piece.logprob is not None:
            ends.append(upto)
    return ends


def _placed(plan: Plan, record: Record) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Where in which choice each answered piece of text stands."""
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for detector, text, _ in record.answers:
        index, start = _place(plan, detector, text)
        places.setdefault((detector, index), []).append((start, start + len(text)))
    return places


def _place(plan: Plan, detector: str, text: str) -> tuple[int, int]:
    found = [(n, choice.text.find(text)) for n, choice in enumerate(plan.choices) if text and text in choice.text]
    _require(len(found) == 1, "read once", f"{detector} read {text!r}, which stands at {len(found)} places")
    return found[0]


def _read_times(plan: Plan, record: Record) -> dict[tuple[str, int], list[float]]:
    """When each character of each choice had been read by each remote detector."""
    times = {
        (name, index): [float("inf")] * len(choice.text)
        for name in plan.detectors
        for index, choice in enumerate(plan.choices)
    }
    for detector, text, at in record.answers:
        try:
            index, start = _place(plan, detector, text)
        except _Broken:
            continue  # reported elsewhere
        times[detector, index][start : start + len(text)] = [at] * len(text)
    return times


def _warns(value: dict[str, Any]) -> bool:
    return "UNSUITABLE_OUTPUT" in [warning["type"] for warning in value.get("warnings") or []]


def _require(holds: bool, law: str, words: str) -> None:
    if not holds:
        raise _Broken(law, words)
