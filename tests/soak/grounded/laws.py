# SPDX-License-Identifier: Apache-2.0
"""The laws of a streamed grounded answer, and the judge of one that was played.

The judge knows the plan, what the client heard and what the endpoints saw; it shares no code with the server.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.soak.grounded.peers import Call
from tests.soak.grounded.plans import HANGING, MAIL, TAG, USAGE, ChatPlan, Endpoint, tag_of, title_of
from tests.soak.streams.client import Heard
from tests.soak.streams.laws import Violation

FALLBACK = "This answer was withheld."  # of a policy that names none

CLOSES_S = 1.0  # the bound for every single call of a busy server; the figure for p99 is measured beside it
_FAILED = "Model generation failed"


class Told(NamedTuple):
    """One event."""

    name: str
    value: dict[str, Any]


class _Broken(Exception):
    def __init__(self, law: str, words: str) -> None:
        super().__init__(law, words)
        self.law = law
        self.words = words


def judge(plan: ChatPlan, heard: Heard, calls: Sequence[Call], closes_s: float = CLOSES_S) -> list[Violation]:
    """Everything that is wrong with a request; nothing is looked at behind the first event that breaks a law."""
    judge_of_one = _Judge(plan, heard, calls, closes_s)
    violations = []
    for look in (judge_of_one.look_at_events, judge_of_one.look_at_calls, judge_of_one.look_for_others):
        try:
            look()
        except _Broken as broken:
            violations.append(Violation(broken.law, plan.id, broken.words))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            violations.append(Violation("shape", plan.id, f"{type(error).__name__}: {error}"))
    return violations


class _Judge:
    def __init__(self, plan: ChatPlan, heard: Heard, calls: Sequence[Call], closes_s: float) -> None:
        self._plan = plan
        self._heard = heard
        self._calls = calls
        self._closes_s = closes_s
        self._has_left = heard.end == "left"

    # What the client heard.

    def look_at_events(self) -> None:
        heard = self._heard
        _require(heard.end != "late", "ends", f"the stream hangs after {len(heard.events)} events")
        if self._has_left and not heard.status:
            return
        _require(heard.status == 200, "ends", f"HTTP status {heard.status}: {heard.rest[:200]!r}")
        _require("content-type: text/event-stream" in heard.head, "ends", "not an event stream")
        events = [Told(event.name, json.loads(event.text)) for event in heard.events]
        ends = [event.name for event in events if event.name in ("done", "error")]
        if not self._has_left:
            is_last = bool(events) and events[-1].name in ("done", "error")
            _require(len(ends) == 1 and is_last, "end", f"it ends with {[event.name for event in events[-3:]]}")
            _require(heard.end == "complete" and not heard.rest, "end", f"behind it: {heard.end} {heard.rest[:100]!r}")
        self._look_at_order([event.name for event in events])
        self._look_at_retrieval(events)
        self._look_at_tokens([event.value for event in events if event.name == "token"], is_whole="done" in ends)
        if events and events[-1].name == "error":
            self._look_at_error(events[-1].value)
        elif events and events[-1].name == "done":
            self._look_at_done(events[-1].value)

    def _look_at_order(self, names: list[str]) -> None:
        expected = ["retrieval_start", *["source_complete"] * len(self._plan.sources)]
        expected += ["retrieval_complete", "generation_start"]
        is_ended = bool(names) and names[-1] in ("done", "error")
        told = [name for name in (names[:-1] if is_ended else names) if name != "token"]
        first = names.index("token") if "token" in names else len(names)
        _require(first >= len(told), "order", f"a token among the first events: {names[: first + 2]}")
        _require(told == expected[: len(told)], "order", f"events: {told}")
        if is_ended and self._plan.guard == "block":
            _require("generation_start" not in told, "order", "the prompt was blocked, and the model was asked")
        elif is_ended:
            _require(told == expected, "order", f"it ended after {told[-1:]}")
        if names[-1:] == ["done"] and self._plan.guard != "block":
            _require("token" in names, "order", "an answer without a token")

    def _look_at_retrieval(self, events: list[Told]) -> None:
        sources = {source.path: source for source in self._plan.sources}
        count = 0
        for event in events:
            value = event.value
            if event.name == "retrieval_start":
                _require(value == {"sources": len(sources)}, "sources", f"{len(sources)} were named: {value}")
            elif event.name == "source_complete":
                source = sources.pop(value["path"], None)
                _require(source is not None, "sources", f"told of {value['path']}, which is none or was told before")
                assert source is not None
                _require(value["status"] in source.statuses(), "sources", f"{source.way or 'whole'}: {value}")
                expected = 0 if source.way else len(source.texts)
                _require(value["documents"] == expected, "sources", f"{expected} documents: {value}")
                count += expected
            elif event.name == "retrieval_complete":
                _require(value["total_documents"] == count, "sources", f"{count} documents: {value}")

    def _look_at_tokens(self, tokens: list[dict[str, Any]], *, is_whole: bool) -> None:
        plan = self._plan
        text = "".join([token["content"] for token in tokens])
        expected = FALLBACK if plan.guard == "block" else plan.answer()
        if is_whole:
            _require(text == expected, "text", f"{text[:200]!r} is not {expected[:200]!r}")
        _require(expected.startswith(text), "text", f"{text[:200]!r} does not begin {expected[:200]!r}")
        at = 0
        for token in tokens if plan.guard else ():
            _require(token["start_index"] == at, "offsets", f"{token['start_index']} does not follow {at}")
            at = token["processed_index"]
        of_model = 0 if plan.guard == "block" else len(text)  # the fallback is not the model's text
        _require(not plan.guard or at == of_model, "offsets", f"{at} of {of_model} characters")
        found = sum([len(token["detections"]) for token in tokens if plan.guard])
        wanted = len(MAIL.findall(plan.model.text[:at])) if plan.guard else 0
        _require(found == wanted, "findings", f"{found} findings told, {wanted} made")

    def _look_at_error(self, value: dict[str, Any]) -> None:
        has_failed = bool(self._plan.model.way) and self._plan.guard != "block"
        _require(has_failed, "error", f"the model did not fail: {value}")
        _require(str(value.get("message")).startswith(_FAILED), "error", f"{value}")

    def _look_at_done(self, value: dict[str, Any]) -> None:
        plan = self._plan
        if plan.guard == "block":
            types = [one["type"] for one in value["warnings"]]
            _require(types[:1] == ["UNSUITABLE_INPUT"], "done", f"the prompt was blocked: {types}")
            return
        _require(not plan.model.way, "error", f"the model failed ({plan.model.way}), and the client was not told")
        _require(value["usage"] == USAGE, "done", f"not the model's usage: {value['usage']}")
        told = sorted([(one["slug"], one["content"]) for one in value["sources"].values()])
        kept = sorted([(source.path, plan.shown(text)) for source, text in plan.kept()])
        _require(told == kept, "documents", f"{len(told)} documents told, {len(kept)} kept, or others")
        found = Counter(one["title"] for one in value.get("detections", {}).get("sources", ()) for _ in one["results"])
        wanted = Counter(title for title, text in plan.titled() for _ in MAIL.findall(text) if plan.hides)
        _require(found == wanted, "findings", f"in the documents {found} told, {wanted} made")
        if plan.guard:
            self._look_at_receipt(value["receipt"])
        paths = sorted([one["path"] for one in value["retrieval_info"]])
        _require(paths == sorted([one.path for one in plan.sources]), "documents", f"retrieval_info: {paths}")

    def _look_at_receipt(self, receipt: dict[str, Any]) -> None:
        plan = self._plan
        *sources, model = receipt["prompt_sent_to"]
        reached = {one.path for one in plan.sources if one.way != "refused"}
        sure = {one.path for one in plan.sources if one.way not in ("refused", *HANGING)}
        _require(sure <= set(sources) <= reached, "receipt", f"the prompt was sent to {sources}, not to {reached}")
        _require(model.endswith(plan.model.slug), "receipt", f"the prompt was sent to {model} last")
        _require(receipt["covered"] is True and "unread" not in receipt, "receipt", f"not all was read: {receipt}")
        shown = sum([len(f"{title}\n\n{text}") for title, text in plan.titled()]) if plan.hides else 0
        _require(receipt["released"].get("sources", 0) == shown, "receipt", f"{shown} shown: {receipt['released']}")

    # What the endpoints saw.

    def look_at_calls(self) -> None:
        plan = self._plan
        asked = [call.slug for call in self._calls]
        self._look_at_repeated()
        if not self._has_left:
            wanted = {one.slug for one in plan.endpoints() if one.way != "refused"}
            late = {one.slug for one in plan.endpoints() if one.way in HANGING}  # the time may be over before it hears
            if plan.guard != "block":
                is_right = wanted - late <= set(asked) <= wanted
                _require(is_right, "calls", f"asked: {asked}, wanted: {sorted(wanted)}")
        _require(plan.guard != "block" or plan.model.slug not in asked, "calls", "the model got a blocked prompt")
        endpoints = {endpoint.slug: endpoint for endpoint in plan.endpoints()}
        for call in self._calls:
            self._look_at_call(call, endpoints[call.slug])

    def _look_at_repeated(self) -> None:
        """Only what an endpoint lost unread is sent again: once, the same, and nothing that costs a fee."""
        by_slug: dict[str, list[Call]] = {}
        for call in self._calls:
            by_slug.setdefault(call.slug, []).append(call)
        may_repeat = {one.slug for one in self._plan.endpoints() if one.way in ("reset", "closed")}
        for slug, (first, *others) in by_slug.items():
            is_right = slug in may_repeat and len(others) == 1 and first.fee is None and others[0].body == first.body
            _require(not others or is_right, "calls", f"{slug} was asked {1 + len(others)} times")

    def _look_at_call(self, call: Call, endpoint: Endpoint) -> None:
        plan, owner = self._plan, endpoint.owner or ""
        token = f"Bearer {plan.tokens[owner]}" if owner in plan.tokens else None
        _require(call.authorization == token, "tokens", f"{call.slug} of {owner} got {call.authorization}")
        _require(call.fee == plan.fees.get(owner), "tokens", f"{call.slug} of {owner} got {call.fee}")
        _require(call.correlation_id == plan.id, "calls", f"another correlation id: {call.correlation_id}")
        limit_at = self._heard.ended_at + self._closes_s
        is_over = 0 < call.ended_at <= limit_at
        _require(is_over, "open", f"{call.slug} ({endpoint.way or 'whole'}) went on: {call.ended_at - limit_at:.3f} s")
        if call.slug == plan.model.slug:
            self._look_at_prompt(call.body["messages"][-1]["content"])
        else:
            _require(call.body["messages"] == plan.prompt, "prompt", f"another question: {call.body['messages']}")

    def _look_at_prompt(self, prompt: str) -> None:
        kept = self._plan.kept()
        counted = prompt.count("<document index=")
        _require(counted == len(kept), "prompt", f"{counted} documents in the prompt, {len(kept)} kept")
        titles = [title_of(one, place) for one in self._plan.sources for place in range(len(one.texts))]
        named = [title for title in titles if f"<title>{title}</title>" in prompt]
        _require(len(named) == len(kept), "prompt", f"{len(named)} titles in the prompt, {len(kept)} documents kept")
        _require(self._plan.prompt in prompt, "prompt", "the question is not in it")

    def look_for_others(self) -> None:
        """Nothing of another request, neither here nor there."""
        own = {tag_of(self._plan.number)}
        said = [event.text for event in self._heard.events] + [json.dumps(call.body) for call in self._calls]
        others = set(TAG.findall(" ".join(said))) - own
        _require(not others, "mixed", f"there is something of {sorted(others)[:3]}")


def _require(holds: bool, law: str, words: str) -> None:
    if not holds:
        raise _Broken(law, words)
