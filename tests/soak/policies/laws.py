# SPDX-License-Identifier: Apache-2.0
"""The laws of a stream under a policy, and the judge of one that was played.

The judge knows the plan and what the client heard. What must arrive it builds from the plan alone.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.soak.policies.digests import Events, find_accepted, list_texts, verify, verify_as_server
from tests.soak.policies.expected import (
    BLOCK,
    Told,
    build_parts,
    compare,
    is_read,
    list_findings,
    list_masks,
)
from tests.soak.policies.lanes import Lane
from tests.soak.policies.marks import CODE, TAG
from tests.soak.policies.plans import OLD_CALL, OLD_PLACE, USAGE, Plan
from tests.soak.policies.settings import REMOTE
from tests.soak.streams.client import Heard
from tests.soak.streams.laws import Violation

WINDOW = 6  # so many characters of a match in a row are no accident
_LANE_OF = {
    "content": "content",
    "refusal": "content",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "tool_calls": "tool_arguments",
    OLD_CALL: "tool_arguments",
}
_ABOUT_FINDINGS = ("detections.evidence", "detections.metadata")
_UNREAD_KEYS = frozenset({"digest", "pseudonyms", "id"})  # they hold random characters, or what was asked for


class Broken(Exception):
    """A law is broken."""

    def __init__(self, law: str, words: str) -> None:
        super().__init__(law, words)
        self.law = law
        self.words = words


def require(holds: bool, law: str, words: str) -> None:
    """This must be so."""
    if not holds:
        raise Broken(law, words)


class Played(NamedTuple):
    """A stream that was played: what arrived, and the prompt that the model was given."""

    plan: Plan
    heard: Heard
    prompt: str


def judge(played: Played) -> list[Violation]:
    """Everything that is wrong with a stream."""
    plan = played.plan
    violations: list[Violation] = []
    try:
        events = read_events(played.heard, fails=plan.fails)
    except Broken as broken:
        return [Violation(broken.law, plan.id, broken.words)]
    looking = _Judge(played, events)
    for look in looking.looks_at_failure() if plan.fails else looking.looks():
        try:
            look()
        except Broken as broken:
            violations.append(Violation(broken.law, plan.id, broken.words))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            violations.append(Violation("shape", plan.id, f"{look.__name__}: {type(error).__name__}: {error}"))
    return violations


def read_events(heard: Heard, *, fails: bool = False) -> Events:
    """The events of an answer that ended as it must, without the mark at its end and the error that may be due."""
    require(heard.end != "late", "ends", f"the stream hangs after {len(heard.events)} events")
    require(heard.status == 200, "ends", f"HTTP status {heard.status}: {heard.rest[:300]!r}")
    told = [place for place, event in enumerate(heard.events) if event.name]
    wanted = [len(heard.events) - 2] if fails else []
    require(told == wanted, "error", f"events with names at {told}, not {wanted}: {heard.events[-2:]}")
    ends = [place for place, event in enumerate(heard.events) if event.text == "[DONE]"]
    require(ends == [len(heard.events) - 1], "done", f"[DONE] at {ends} of {len(heard.events)} events")
    require(heard.end == "complete" and not heard.rest, "done", f"behind it: {heard.end} {heard.rest[:100]!r}")
    return [json.loads(event.text) for event in heard.events[:-1] if not event.name]


class Entry(NamedTuple):
    """A finding as it was told."""

    start: int
    end: int
    detector: str
    text: str


class _Judge:
    def __init__(self, played: Played, events: Events) -> None:
        plan = played.plan
        self._plan = plan
        self._prompt = played.prompt
        self._policy = plan.policy
        self._events = events
        self._lanes = {f"{lane.choice}/{lane.field}": lane for lane in plan.lanes}
        self._texts = gather_texts(events)

    def looks(self) -> Sequence[Callable[[], None]]:
        """All laws of a stream that came to its end."""
        return (
            self.look_at_lanes,
            self.look_at_calls,
            self.look_at_ends,
            self.look_at_findings,
            self.look_at_receipt,
            self.look_for_leaks,
            self.tamper,
        )

    def looks_at_failure(self) -> Sequence[Callable[[], None]]:
        """Those of one that a detector's failure has ended."""
        return self.look_at_beginnings, self.look_for_leaks

    def look_at_beginnings(self) -> None:
        """Of each lane arrives a beginning of what may, and there is no receipt."""
        for name, text in self._texts.items():
            if name in self._lanes:
                whole = "".join([part.text or "" for part in build_parts(self._lanes[name], self._policy)])
                require(whole.startswith(text), "text", f"{name}: {text[-80:]!r} of {whole!r}")
        receipts = [event for event in self._events if "receipt" in event]
        require(not receipts, "receipt", f"there is one though a detector failed: {receipts}")

    def look_at_lanes(self) -> None:
        """Of each lane arrives what may, and nothing else."""
        told = self._events[-1].get("pseudonyms") if self._events else None
        asks_names = self._plan.wants_names
        require((told is not None) == asks_names, "names", f"asked for names: {asks_names}, told: {told}")
        known = _invert(told) if told is not None else None
        used: dict[str, str] = {}
        texts = {**self._texts, "prompt": self._prompt}
        for name, lane in [*self._lanes.items(), ("prompt", self._plan.prompt)][: len(self._plan.texts)]:
            found = compare(build_parts(lane, self._policy), texts.get(name, ""), known)
            if isinstance(found, tuple):
                raise Broken(
                    found[0] if lane is not self._plan.prompt else "prompt",
                    f"{name} under {self._policy.name}: {found[1]}",
                )
            for value, made_up in found.items():
                require(used.setdefault(value, made_up) == made_up, "names", f"{value!r} has two names")
            if name.endswith("arguments") and lane.is_json:
                json.loads(self._texts.get(name, ""))
        require(len(set(used.values())) == len(used), "names", f"two values have one name: {used}")
        if known is not None:
            require(known == used, "names", f"told {known}, used {used}")
        calls = {f"{call.choice}/{call.lane}/name" for call in self._plan.calls}
        others = set(self._texts) - set(self._lanes) - calls
        require(not others, "text", f"lanes that nobody spoke in: {others}")

    def look_at_calls(self) -> None:
        """Every call is named once, with its id, before its text."""
        told: Counter[tuple[int, int, str, str, str]] = Counter()
        named: set[tuple[int, int]] = set()
        for event in self._events:
            for choice in event["choices"]:
                delta = choice.get("delta") or {}
                old = [{"index": OLD_PLACE, "type": OLD_CALL, **delta}] if delta.get(OLD_CALL) else []
                for call in [*(delta.get("tool_calls") or ()), *old]:
                    place = choice["index"], call["index"]
                    kind = call.get("type", "")
                    if kind and call[kind].get("name"):
                        told[*place, call.get("id", ""), kind, call[kind]["name"]] += 1
                        named.add(place)
                    require(place in named, "calls", f"call {place} says something before it is named")
        wanted = Counter((one.choice, one.place, one.id, one.kind, one.name) for one in self._plan.calls)
        require(told == wanted, "calls", f"told {told}, wanted {wanted}")

    def look_at_ends(self) -> None:
        """Every choice ends once, as the model ended it, behind its text; the usage is told once."""
        ends: dict[int, str] = {}
        for event in self._events:
            for choice in event["choices"]:
                index, finish = choice["index"], choice.get("finish_reason")
                require(index not in ends, "finish", f"choice {index} goes on behind its end")
                if finish is not None:
                    ends[index] = finish
        wanted = dict(enumerate(self._plan.finishes))
        require(ends == wanted, "finish", f"{ends} is not {wanted}")
        usages = [event["usage"] for event in self._events if event.get("usage") is not None]
        require(usages == [USAGE] * self._plan.wants_usage, "usage", f"{usages}")

    def look_at_findings(self) -> None:
        """Every finding is told once, at its place, without what it found if that is hidden; all text is accounted."""
        upto: dict[str, int] = {}
        told: dict[str, list[Entry]] = {}
        for entry in _list_entries(self._events):
            name = f"{entry['choice_index']}/{entry.get('field', 'content' if self._plan.is_chat else 'text')}"
            start, since = entry["start_index"], upto.get(name, 0)
            require(self._may_skip(name, since, start), "offsets", f"{name}: {start} follows {since}")
            upto[name] = entry["processed_index"]
            for one in entry["results"]:
                told.setdefault(name, []).append(Entry(one["start"], one["end"], one["detector_id"], one["text"]))
        for name, lane in self._lanes.items():
            is_told = is_read(lane, self._policy) and not self._policy.is_shadow
            size = len(lane.plain) if is_told else 0
            require(self._may_skip(name, upto.get(name, 0), size), "offsets", f"{name}: {upto.get(name, 0)} of {size}")
            wanted = [_as_entry(one, lane, self) for one in list_findings(lane, self._policy)] if is_told else []
            require(sorted(told.get(name, [])) == sorted(wanted), "findings", f"{name}: {_differ(told, name, wanted)}")

    def _may_skip(self, name: str, since: int, upto: int) -> bool:
        """Whether nothing need be told between these: where a mask is written once, its rest makes no event."""
        if since == upto or name not in self._lanes:
            return since == upto
        masks = self.masks_of(self._lanes[name]) if self._policy.mask != "block" else []
        return since < upto and any(start < since and upto <= end for start, end in masks)

    def masks_of(self, lane: Lane) -> list[tuple[int, int]]:
        """What is hidden of a lane."""
        return [(mask.start, mask.end) for mask in list_masks(lane, self._policy)]

    def look_at_receipt(self) -> None:
        """The last event has the receipt; it fits the text, and its figures fit the plan."""
        places = [place for place, event in enumerate(self._events) if "receipt" in event]
        require(places == [len(self._events) - 1], "receipt", f"receipts at {places} of {len(self._events)}")
        receipt = self._events[-1]["receipt"]
        require(verify(self._events, receipt), "digest", f"it does not fit: {receipt['digest']}")
        require(verify_as_server(self._events, receipt), "digest", f"the server's own check says no: {receipt}")
        look_at_figures(self._plan, receipt)

    def look_for_leaks(self) -> None:
        """Nothing of a match stands anywhere in the answer."""
        if self._policy.is_shadow:
            return
        said = "\0".join([one for event in self._events for one in _list_strings(event)])
        for lane in self._plan.texts:
            plain = lane.plain
            for start, end in self.masks_of(lane):
                leaked = find_leak(plain[start:end], said, self._plan)
                require(not leaked, "leak", f"{leaked!r} of {plain[start:end]!r} in {lane.choice}/{lane.field}")

    def tamper(self) -> None:
        """No copy that was tampered with passes."""
        receipt = self._events[-1].get("receipt")
        if receipt is None:
            return
        accepted, _ = find_accepted(self._events, receipt, self._plan.seed)
        require(not accepted, "tampered", f"accepted: {accepted}")


def look_at_figures(plan: Plan, receipt: Mapping[str, Any]) -> None:
    """Who read how much, and what was done."""
    policy = plan.policy
    read = [lane for lane in plan.texts if is_read(lane, policy)]
    found = [one for lane in read for one in list_findings(lane, policy)]
    outcome = "masked" if any(one.label for one in found) else "released"
    prompt = {"prompt": len(plan.prompt.plain)} if policy.reads_prompt else {}
    size = sum(len(lane.plain) for lane in read if lane is not plan.prompt)
    unread, dropped = list_left_out(plan, [(one, lane.plain) for lane in read for one in list_findings(lane, policy)])
    wanted = {
        "version": 1,
        "policy": policy.name,
        "mode": "shadow" if policy.is_shadow else "enforce",
        "outcome": outcome,
        "covered": not unread,
        "lanes": list(policy.lanes) if plan.is_chat else ["content"],
        "unread": unread,
        "dropped": dropped,
        "released": {"prompt": 0, "documents": 0, "answer": size} | prompt,
    }
    told = {key: receipt.get(key, {}) for key in wanted} | {"released": without_names(receipt["released"])}
    require(told == wanted, "figures", f"{told} is not {wanted}")
    counts = Counter(one.detector for one in found)
    readers = receipt["detectors"]
    figures = {one["detector_id"]: (without_names(one["read"]), one["findings"], one["covered"]) for one in readers}
    expected = {name: ({"answer": size} | prompt, counts[name], True) for name in policy.readers}
    require(figures == expected, "figures", f"{figures} is not {expected}")


def list_left_out(plan: Plan, found: Sequence[tuple[Told, str]]) -> tuple[dict[str, int], dict[str, int]]:
    """What of the answer goes on unread, and what is dropped, as receipts call it: each field once.

    Of what distant detectors say about their findings each word is dropped in which they find the same again.
    """
    policy = plan.policy
    hides = policy.action == "mask" and not policy.is_shadow
    choices = [choice for message in plan.messages for choice in message["choices"]]
    told = {key for choice in choices for key, value in (choice.get("delta") or {}).items() if value}
    unread = {key for key in told if _LANE_OF.get(key, policy.lanes[0]) not in policy.lanes}
    unknown = {f"choices[].{key}" for choice in choices for key in ("logprobs", "words") if choice.get(key)}
    unknown |= {"choices[].message.annotations"} & {f"choices[].message.{key}" for key in told}
    if hides:  # the name of a field that is not well known may be what is hidden
        dropped = {name.replace("words", "other"): 1 for name in unknown}
        said = [plain[one.start : one.end] for one, plain in found if one.detector in REMOTE]
        again = sum(bool(CODE.search(words) or TAG.search(words)) for words in said)
        return dict.fromkeys(unread, 1), dropped | dict.fromkeys(_ABOUT_FINDINGS if again else (), again)
    return dict.fromkeys(unread | unknown, 1), {}


def without_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by part, but for the names and ids of the request."""
    return {part: count for part, count in counts.items() if part != "fields"}


def gather_texts(events: Events) -> dict[str, str]:
    """What was said in each lane; both names of reasoning are one."""
    texts: dict[str, list[str]] = {}
    for event in events:
        for text in list_texts(event):
            name = text.lane + "_content" if text.lane.endswith("/reasoning") else text.lane
            texts.setdefault(name, []).append(text.words)
    return {name: "".join(parts) for name, parts in texts.items()}


def find_leak(value: str, said: str, plan: Plan) -> str:
    """A piece of a hidden value that stands in the answer and that the plan does not say elsewhere in the clear."""
    size = min(WINDOW, len(value))
    for at in range(len(value) - size + 1):
        piece = value[at : at + size]
        if piece in said and not is_said_in_the_clear(piece, plan):
            return piece
    return ""


def is_said_in_the_clear(piece: str, plan: Plan) -> bool:
    """Whether it is said where nothing is hidden: in a lane that nobody reads, or in a mark that nobody looks for."""
    for lane in plan.texts:
        masks = list_masks(lane, plan.policy)
        borders = [0, *(at for mask in masks for at in (mask.start, mask.end)), len(lane.plain)]
        if any(piece in lane.plain[low:high] for low, high in zip(borders[::2], borders[1::2], strict=True)):
            return True
    return False


def _list_strings(value: Any) -> Iterator[str]:
    """All strings in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _UNREAD_KEYS:
                yield from _list_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_strings(item)


def _list_entries(events: Events) -> Iterator[dict[str, Any]]:
    for event in events:
        yield from (event.get("detections") or {}).get("output", ())


def _as_entry(one: Told, lane: Lane, looking: _Judge) -> Entry:
    is_hidden = any(start < one.end and one.start < end for start, end in looking.masks_of(lane))
    text = BLOCK * (one.end - one.start) if is_hidden else lane.plain[one.start : one.end]
    return Entry(one.start, one.end, one.detector, text)


def _differ(told: Mapping[str, list[Entry]], name: str, wanted: list[Entry]) -> str:
    got, due = Counter(told.get(name, [])), Counter(wanted)
    return f"told and not wanted {list((got - due).elements())}, wanted and not told {list((due - got).elements())}"


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    """Names by value; two names for one value break the law."""
    values = {value: name for name, value in names.items()}
    require(len(values) == len(names), "names", f"one value has two names: {names}")
    return values
