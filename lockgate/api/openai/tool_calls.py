# SPDX-License-Identifier: Apache-2.0
"""Tool calls as a policy reads them. A call has one text: a function's arguments (JSON) or a custom tool's input.

Content that was asked for as JSON is read like arguments, so that it stays JSON.
"""

import json
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from lockgate.gate.arguments import ArgumentsDecoder, ArgumentsReader, Numbers
from lockgate.gate.release import Release
from lockgate.gate.verdicts import Verdict

TOOL_CALLS, FUNCTION_CALL = "tool_calls", "function_call"
_FUNCTION, _CUSTOM = ("function", "arguments"), ("custom", "input")
_KINDS = (_FUNCTION, _CUSTOM)
_TEXT_KEYS = ("arguments", "input")
_LABELS = ("id", "type", "name")  # of a call; its first piece has them
_KNOWN_KEYS = ("index", *_LABELS)  # unknown ones may show the text


class CallText(NamedTuple):
    """The text of one call, or a piece of it: which call, of which kind, and the text."""

    place: int | None  # None: the single `function_call` of older clients
    kind: str
    key: str
    text: str

    @property
    def field(self) -> str:
        """Its name in findings and lanes."""
        name = FUNCTION_CALL if self.place is None else f"{TOOL_CALLS}/{self.place}"
        return f"{name}/{self.key}"

    @property
    def is_json(self) -> bool:
        """Whether it is JSON: the arguments of a function, or content that was asked for as JSON."""
        return self.key != "input"

    def build(self, text: str) -> dict[str, Any]:
        """The part of a delta that holds this text."""
        if not self.kind:
            return {self.key: text}
        if self.place is None:
            return {FUNCTION_CALL: {self.key: text}}
        return {TOOL_CALLS: [{"index": self.place, self.kind: {self.key: text}}]}


JSON_CONTENT = CallText(None, "", "content", "")


def split_calls(delta: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The calls of a delta one by one, each as a separate delta."""
    for place, call in _list_calls(delta):
        if place is None:
            yield {FUNCTION_CALL: call["function"]}
        else:
            yield {TOOL_CALLS: [{**call, "index": place}]}


def list_call_texts(message: Mapping[str, Any], *, is_whole: bool = False) -> Iterable[CallText]:
    """The texts of the calls in a message or a delta; of a call that has only its name the text is empty.

    In a whole message a call's place is that in the list, not its index.
    """
    for place, call in _list_calls(message, is_whole=is_whole):
        kinds = [one for one in _KINDS if isinstance(call.get(one[0]), Mapping)]
        for kind, key in kinds or [_CUSTOM if call.get("type") == "custom" else _FUNCTION]:
            inner = call.get(kind)
            text = inner.get(key) if isinstance(inner, Mapping) else None
            if text is not None and not isinstance(text, str):  # some models give arguments as an object
                text = json.dumps(text, ensure_ascii=False)
            yield CallText(place, kind, key, text or "")


def with_texts(
    message: Mapping[str, Any],
    texts: Mapping[str, str],
    *,
    hides: bool,
    is_whole: bool = False,
    without: Container[int | None] = (),
) -> dict[str, Any]:
    """The calls of a message with other texts, by field; of a call without one the text is empty.

    `hides`: unknown fields of a call may show hidden text, so they are left out. Calls at places in `without` are too.
    """
    written: dict[str, Any] = {}
    if isinstance(message.get(TOOL_CALLS), list):
        written[TOOL_CALLS] = []
    for place, call in _list_calls(message, is_whole=is_whole):
        if place in without:
            continue
        one = {key: value for key, value in call.items() if not hides or key in _KNOWN_KEYS}
        for kind, key in _KINDS:
            inner = call.get(kind)
            if isinstance(inner, Mapping):
                kept = {name: value for name, value in inner.items() if not hides or name == "name"}
                one[kind] = {**kept, key: texts.get(CallText(place, kind, key, "").field, "")}
            else:
                one.pop(kind, None)
        if place is None:
            written = {FUNCTION_CALL: one["function"], **written}
        else:
            written[TOOL_CALLS].append(one)
    return written


def keep_calls_with_text(calls: Mapping[str, Any]) -> dict[str, Any]:
    """The calls of a message that have a text."""
    kept: dict[str, Any] = {}
    single, listed = calls.get(FUNCTION_CALL), calls.get(TOOL_CALLS) or ()
    if single and _has_text({"function": single}):
        kept[FUNCTION_CALL] = single
    if with_text := [call for call in listed if _has_text(call)]:
        kept[TOOL_CALLS] = with_text
    return kept


def _has_text(call: Mapping[str, Any]) -> bool:
    return any((call.get(kind) or {}).get(key) for kind, key in _KINDS)


def _list_calls(
    message: Mapping[str, Any], *, is_whole: bool = False
) -> Iterable[tuple[int | None, Mapping[str, Any]]]:
    """The calls with their places: the index, else the position in the list; None for a `function_call`."""
    single, calls = message.get(FUNCTION_CALL), message.get(TOOL_CALLS)
    if isinstance(single, Mapping):
        yield None, {"function": single}
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, Mapping):
            place = call.get("index")
            yield place if type(place) is int and not is_whole else at, call


def list_labels(message: Mapping[str, Any], *, is_whole: bool = False) -> Iterable[tuple[int | None, str, Any]]:
    """The ids and names of the calls in a message or a delta: the call's place, which of both, and its value."""
    for place, call in _list_calls(message, is_whole=is_whole):
        inner = [call[kind] for kind, _ in _KINDS if isinstance(call.get(kind), Mapping)]
        for part in (call, *inner):
            yield from [(place, key, part[key]) for key in ("id", "name") if part.get(key)]


def has_name(call: Mapping[str, Any]) -> bool:
    """Whether a piece of a call has the name of its tool, as only the first piece has."""
    return any((call.get(kind) or {}).get("name") for kind, _ in _KINDS)


def take_labels(call: Mapping[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The delta of one call without the labels that an earlier piece had; adds the new ones to `known`."""

    def keep_new(part: Mapping[str, Any]) -> dict[str, Any]:
        new = {key: value for key, value in part.items() if key not in _LABELS or (value and key not in known)}
        known.update({key: new[key] for key in _LABELS if key in new})
        return new

    if FUNCTION_CALL in call:
        return {FUNCTION_CALL: keep_new(call[FUNCTION_CALL])}
    [one] = call[TOOL_CALLS]
    kinds = {kind: keep_new(one[kind]) for kind, _ in _KINDS if isinstance(one.get(kind), Mapping)}
    return {TOOL_CALLS: [{**keep_new(one), **kinds}]}


def says_more(delta: Mapping[str, Any]) -> bool:
    """Whether calls hold more than their texts, as the first piece of a call holds its name."""
    for _, call in _list_calls(delta):
        own = {key: value for key, value in call.items() if key not in ("index", "function", "custom")}
        parts = [own] + [call[kind] for kind, _ in _KINDS if isinstance(call.get(kind), Mapping)]
        if any(value for part in parts for key, value in part.items() if key not in _TEXT_KEYS):
            return True
    return False


class CallReader:
    """One call's text: what detectors read of it and, if it is held, what may be sent of it."""

    __slots__ = ("_arguments", "call")

    def __init__(self, call: CallText, numbers: Numbers | None = None, *, is_held: bool = True) -> None:
        self.call = call
        self._arguments: ArgumentsReader | ArgumentsDecoder | None = None
        if call.is_json:
            self._arguments = ArgumentsReader(numbers) if is_held else ArgumentsDecoder()

    @property
    def held(self) -> int:
        """Characters kept here."""
        return self._arguments.held if isinstance(self._arguments, ArgumentsReader) else 0

    def feed(self, text: str) -> str:
        """The text in a piece for detectors to read."""
        return text if self._arguments is None else self._arguments.feed(text)

    def release(self, release: Release, verdict: Verdict | None, text: str) -> str:
        """What may be sent of a release, escaped as the model wrote it; plain text is returned as `text`.

        An escape that was never completed stands for no character, so no detector has to read it.
        """
        if not isinstance(self._arguments, ArgumentsReader):
            return text
        length = release.end - release.start
        kept, masks = (length, ()) if verdict is None else (verdict.kept, verdict.masks)
        is_over = release.is_final and kept == length
        upto = release.start + kept + (len(self._arguments.finish()) if is_over else 0)
        return self._arguments.release(upto, masks, is_final=is_over)
