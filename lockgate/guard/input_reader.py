# SPDX-License-Identifier: Apache-2.0
"""Reads the texts of a request, and judges the findings of each text in its place.

Contents are masked or, in the result of a tool, replaced by the fallback. A name, key or id cannot be masked: a finding
there refuses the request.
"""

import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from lockgate.errors import InvalidRequest
from lockgate.gate.arguments import ArgumentsReader
from lockgate.gate.coverage import Path, TextKind, describe
from lockgate.gate.input_texts import CheckedInput, Input, InputText, Slice, list_runs
from lockgate.gate.messages import TOOL_ROLES
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import Action, Mask, apply_masks, hide, judge_whole, mask_part
from lockgate.guard.detectors import ActiveGuard
from lockgate.guard.policy import Meter, Policy
from lockgate.guard.stream import detect_slices
from lockgate.task_groups import run_together

_Call = Callable[[], Coroutine[Any, Any, list[Detection]]]


class InputReader:
    """Reads the texts of one request."""

    def __init__(self, given: Input, policy: Policy, meter: Meter) -> None:
        self._given = given
        self._texts = given.texts or [InputText(one.start, one.text, one.text) for one in given.slices]
        self._policy = policy
        self._meter = meter
        self._detect = partial(
            detect_slices, max_open=policy.max_open, max_cuts=policy.max_cuts, trusts_chunks=policy.trusts_chunks
        )

    async def read(self, *, can_mask: bool = True) -> CheckedInput:
        """Returns what may go on of the input; raises InvalidRequest for a finding that cannot be masked."""
        given, calls = self._given, self._list_calls()
        found = [one for of_call in await run_together(calls, len(calls)) for one in of_call] if calls else []
        if not found:
            return CheckedInput(given.text)
        if given.has_runs or given.own_slices:  # some texts are read twice
            unique = {(one.start, one.end, one.detector_id, one.detection): one for one in found}
            found = sorted(unique.values(), key=lambda one: one.start)
        elif len(calls) > 1:
            found.sort(key=lambda one: one.start)
        return InputJudge(given, self._policy, self._meter).judge(found, can_mask=can_mask)

    def changes_nothing(self) -> bool:
        """Returns whether texts are read that the check never changes, so that the model need not wait for it."""
        policy = self._policy
        if not policy.input or policy.masks_input:
            return False
        if not policy.replaces_tool_results or policy.is_shadow:
            return True
        return not any(one.role in TOOL_ROLES and one.kind is not TextKind.NAME for one in self._texts)

    def note_sent(self, checked: CheckedInput) -> None:
        """Counts the texts that go on, and what of them no detector has read."""
        given, receipt, policy = self._given, self._meter.receipt, self._policy
        for one in self._texts:
            note = receipt.note_withheld if one.path in checked.replaced else receipt.note_released
            note(one.part, one.text)
            if policy.has_roles and not self._choose(one.role):
                receipt.note_unread(f"{describe(one.path, given.table, has_positions=False)} ({one.role})")
        for field in given.unread:
            receipt.note_unread(field)

    def _list_calls(self) -> list[_Call]:
        """Returns the reads: texts of one part and role together, by the detectors that read them."""
        policy, given, meter = self._policy, self._given, self._meter
        groups: dict[tuple[RequestPart, str], list[Slice]] = {}
        for one in self._texts:
            groups.setdefault((one.part, one.role if policy.has_roles else ""), []).append(Slice(one.start, one.text))
        calls: list[_Call] = []
        for (part, role), slices in groups.items():
            calls += self._list_reads(part, role, slices)
        for run in list_runs(self._texts) if given.has_runs else ():
            if len(run) > 1:
                joined = Slice(run[0].start, "".join([one.text for one in run]))
                meter.receipt.note_withheld(run[0].part, joined.text)
                calls += self._list_reads(run[0].part, run[0].role if policy.has_roles else "", [joined])
        if given.own_slices:
            own = tuple([one for one in policy.input if not policy.for_input.trusts(one.guard.id)])
            calls.append(partial(self._detect, given.own_slices, meter.watch(own, RequestPart.PROMPT)))
        return calls

    def _list_reads(self, part: RequestPart, role: str, slices: Sequence[Slice]) -> list[_Call]:
        """Returns the reads of some texts: one of detectors whose readings requests share, one of the others."""
        policy, calls = self._policy, list[_Call]()
        guards = tuple(policy.input)
        if policy.has_roles or self._given.own_slices:
            guards = self._choose(role)
            self._exempt(guards, part, slices)
        shared: tuple[ActiveGuard, ...] = ()
        if policy.cached_reads is not None:
            shared = tuple([one for one in guards if one.guard.shares_readings]) if policy.unshared else guards
        if shared:
            calls.append(partial(self._read_cached, f"{part} {role}", slices, shared, part))
        if len(shared) < len(guards):
            others = tuple([one for one in guards if one not in shared])
            calls.append(partial(self._detect, slices, self._meter.watch(others, part)))
        return calls

    async def _read_cached(
        self, readers: str, slices: Sequence[Slice], guards: Sequence[ActiveGuard], part: RequestPart
    ) -> list[Detection]:
        """Returns the findings in texts; a text that an earlier request had is not read again."""
        cached, meter = self._policy.cached_reads, self._meter
        assert cached is not None
        found: list[Detection] = []
        unknown: list[Slice] = []
        for start, text in slices:
            known = cached.find(readers, text)
            if known is None:
                unknown.append(Slice(start, text))
            else:
                for one in guards:
                    meter.receipt.note_cached(one.guard.id, part, text)
                found += [_move(one, start) for one in known]
        if not unknown:
            return found
        new = await self._detect(unknown, meter.watch(guards, part))
        for start, text in () if meter.failed_detectors else unknown:
            own = [one for one in new if start <= one.start < start + len(text)] if new else ()
            cached.keep(readers, text, [_move(one, -start) for one in own])
        return found + new

    def _choose(self, role: str) -> tuple[ActiveGuard, ...]:
        """Returns the detectors of texts of this role, with their thresholds for it."""
        policy = self._policy
        chosen = [one.for_role(role) for one in policy.input if one.reads_role(role)]
        if self._given.own_slices:
            chosen = [one for one in chosen if policy.for_input.trusts(one.guard.id)]
        return tuple(chosen)

    def _exempt(self, guards: Sequence[ActiveGuard], part: RequestPart, slices: Sequence[Slice]) -> None:
        """Notes the texts that the other detectors need not read."""
        reading = {one.guard.id for one in guards}
        for one in self._policy.input:
            for piece in () if one.guard.id in reading else slices:
                self._meter.receipt.note_exempt(one.guard.id, part, piece.text)


def _move(found: Detection, by: int) -> Detection:
    return found._replace(start=found.start + by, end=found.end + by)


class InputJudge:
    """Applies the actions of a policy to the findings in the texts of one request."""

    def __init__(self, given: Input, policy: Policy, meter: Meter) -> None:
        self._given = given
        self._policy = policy
        self._meter = meter
        self._reported: list[Detection] = []
        self._masks: list[Mask] = []
        self._changes: dict[Path, str] = {}
        self._replaced: set[Path] = set()
        self._is_blocked = False
        self._unmaskable: Path | None = None  # the place of a finding that would have to be masked

    def judge(self, found: Sequence[Detection], *, can_mask: bool) -> CheckedInput:
        """Returns what may go on of the input."""
        policy, given = self._policy, self._given
        whole = [(InputText(0, given.text, given.text),)]
        for run in list_runs(given.texts) if given.texts else whole:
            own = [one for one in found if run[0].start <= one.start < run[-1].start + len(run[-1].text)]
            if own:
                self._judge_run(run, own)
        if policy.for_input.is_shadow:
            return CheckedInput(given.text, raw=found)
        is_blocked = self._is_blocked or bool(self._masks and not can_mask)
        is_refused = not is_blocked and any(one.detector_id in policy.refusing for one in found)
        if is_blocked or is_refused:
            return CheckedInput(given.text, self._reported, found, is_blocked=True, is_refused=is_refused)
        if self._unmaskable is not None:
            self._meter.receipt.note_action(Action.BLOCK)
            place = describe(self._unmaskable, given.table)
            raise InvalidRequest(f"`{place}` has text that the policy does not let pass, and it cannot be masked")
        text = given.text if given.texts else apply_masks(0, given.text, self._masks)
        return CheckedInput(
            text, self._reported, found, self._masks, changes=self._changes, replaced=frozenset(self._replaced)
        )

    def _judge_run(self, run: Sequence[InputText], found: Sequence[Detection]) -> None:
        """Judges texts that continue each other; most often it is one text."""
        measures, start, first = self._policy.for_input, run[0].start, run[0]
        is_replaced = self._is_replaced(first, found)
        noted = measures._replace(action=Action.MASK, actions={}) if is_replaced else measures
        self._meter.note_findings(found, noted, first.part)
        if measures.is_shadow:
            return
        if is_replaced:
            self._reported += [hide(one) for one in found if measures.trusts(one.detector_id)]
            self._replace(run, measures.fallback)
            return
        text, local = "".join([one.text for one in run]), [_move(one, -start) for one in found]
        verdict = judge_whole(text, local, measures, self._meter.names)
        self._reported += [_move(one, start) for one in verdict.detections]
        self._is_blocked |= verdict.is_blocked
        if verdict.masks and first.kind is TextKind.NAME:
            self._unmaskable = self._unmaskable or first.path
        elif verdict.masks:
            self._mask(run, [mask._replace(start=mask.start + start, end=mask.end + start) for mask in verdict.masks])

    def _is_replaced(self, first: InputText, found: Sequence[Detection]) -> bool:
        """Returns whether the text is the result of a tool that gives way to the fallback."""
        if first.role not in TOOL_ROLES or first.kind is TextKind.NAME or not self._policy.replaces_tool_results:
            return False
        return self._policy.for_input.strictest([one.detector_id for one in found]) >= Action.STOP

    def _replace(self, run: Sequence[InputText], fallback: str) -> None:
        for one in run:
            text = "" if one.joins else fallback
            self._changes[one.path] = json.dumps(text, ensure_ascii=False) if one.kind is TextKind.JSON else text
            self._replaced.add(one.path)

    def _mask(self, run: Sequence[InputText], masks: Sequence[Mask]) -> None:
        self._masks += masks
        for one in run:
            is_json = one.kind is TextKind.JSON
            masked = self._mask_json(one, masks) if is_json else mask_part(one.start, one.text, masks)
            if masked != one.raw:
                self._changes[one.path] = masked

    def _mask_json(self, one: InputText, masks: Sequence[Mask]) -> str:
        """Returns the JSON of a text with its masks; it stays JSON."""
        reader = ArgumentsReader(self._meter.names.make_number)
        reader.feed(one.raw)
        reader.finish()
        own = [mask._replace(start=mask.start - one.start, end=mask.end - one.start) for mask in masks]
        return reader.release(len(one.text), own, is_final=True)
