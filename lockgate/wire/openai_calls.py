# SPDX-License-Identifier: Apache-2.0
"""Tool calls as a policy reads them: what a model wants to call with, as texts of their own.

A call has one text: the arguments of a function, which are JSON, or the input of a custom tool, which is not. Names and
ids are passed on as they are. Decides nothing about what is found.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.core.arguments import ArgumentsReader
from lockgate.core.release import Release
from lockgate.core.verdicts import Verdict

TOOL_CALLS, FUNCTION_CALL = "tool_calls", "function_call"
_KINDS = (("function", "arguments"), ("custom", "input"))


class CallText(NamedTuple):
    """The text of one call, or a piece of it: which call, of which kind, and what it says."""

    place: int | None  # None: the one call of clients that know only one
    kind: str
    key: str
    text: str

    @property
    def field(self) -> str:
        """How findings and lanes name it."""
        name = FUNCTION_CALL if self.place is None else f"{TOOL_CALLS}/{self.place}"
        return f"{name}/{self.key}"

    def build(self, text: str) -> dict[str, Any]:
        """The part of a delta that says this."""
        if self.place is None:
            return {FUNCTION_CALL: {self.key: text}}
        return {TOOL_CALLS: [{"index": self.place, self.kind: {self.key: text}}]}


def list_call_texts(message: Mapping[str, Any]) -> Iterable[CallText]:
    """The texts of the calls in a message or a delta."""
    single = message.get(FUNCTION_CALL)
    if isinstance(single, Mapping) and isinstance(single.get("arguments"), str):
        yield CallText(None, "", "arguments", single["arguments"])
    calls = message.get(TOOL_CALLS)
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, Mapping):
            place = call.get("index", at)
            for kind, key in _KINDS:
                inner = call.get(kind)
                if isinstance(inner, Mapping) and isinstance(inner.get(key), str) and isinstance(place, int):
                    yield CallText(place, kind, key, inner[key])


def with_texts(message: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The calls of a message with other texts, by field; of a call without one the text is empty."""
    told: dict[str, Any] = {}
    single = message.get(FUNCTION_CALL)
    if isinstance(single, Mapping):
        field = CallText(None, "", "arguments", "").field
        told[FUNCTION_CALL] = {**single, "arguments": texts.get(field, "")}
    calls = message.get(TOOL_CALLS)
    if isinstance(calls, list):
        told[TOOL_CALLS] = [_with_text(call, at, texts) for at, call in enumerate(calls) if isinstance(call, Mapping)]
    return told


def _with_text(call: Mapping[str, Any], at: int, texts: Mapping[str, str]) -> dict[str, Any]:
    place = call.get("index", at)
    told = dict(call)
    for kind, key in _KINDS:
        inner = call.get(kind)
        if isinstance(inner, Mapping) and isinstance(place, int):
            told[kind] = {**inner, key: texts.get(CallText(place, kind, key, "").field, "")}
    return told


def says_more(calls: Mapping[str, Any]) -> bool:
    """Whether calls without their texts still say something, as the first piece of a call does with its name."""
    parts: Sequence[Any] = [calls.get(FUNCTION_CALL), *(calls.get(TOOL_CALLS) or ())]
    return any(_names(part) for part in parts if isinstance(part, Mapping))


def _names(part: Mapping[str, Any]) -> bool:
    inner = [part[kind] for kind, _ in _KINDS if isinstance(part.get(kind), Mapping)]
    texts = ("arguments", "input")
    own = [value for key, value in part.items() if key not in ("index", "function", "custom", *texts)]
    return any(own) or any(value for one in inner for key, value in one.items() if key not in texts)


class CallReader:
    """One call's text: what detectors read of it, and what may leave of it."""

    __slots__ = ("_arguments", "call")

    def __init__(self, call: CallText) -> None:
        self.call = call
        self._arguments = ArgumentsReader() if call.key == "arguments" else None

    def feed(self, text: str) -> str:
        """What there is to read of a piece."""
        return text if self._arguments is None else self._arguments.feed(text)

    def release(self, release: Release, verdict: Verdict | None, said: str) -> str:
        """What of a release may leave, as the model would have said it; `said` is what a plain text says there.

        An escape that never came to its end stands for no character: nobody has to read it.
        """
        if self._arguments is None:
            return said
        length = release.end - release.start
        kept, masks = (length, ()) if verdict is None else (verdict.kept, verdict.masks)
        is_over = release.is_final and kept == length
        upto = release.start + kept + (len(self._arguments.finish()) if is_over else 0)
        return self._arguments.release(upto, masks, is_final=is_over)
