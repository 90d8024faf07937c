# SPDX-License-Identifier: Apache-2.0
"""The law bites: each of these bugs in the gateway lets a marked string pass unread, and the law's cases notice it."""

from collections.abc import Callable
from typing import Any

import pytest

from lockgate.api import request_survey
from lockgate.api.openai import envelope, request_fields, stream_reader, whole_answer
from lockgate.gate import coverage
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.coverage import FieldRule
from lockgate.gate.verdicts import Action
from lockgate.guard import error_words
from lockgate.guard.finding_words import FindingWords
from lockgate.rag import sources
from tests.coverage_law.planting import plant_everywhere
from tests.coverage_law.replies import list_cases
from tests.coverage_law.requests import REQUEST_SURFACES, RequestSurface
from tests.coverage_law.test_answers import break_answers, break_findings
from tests.coverage_law.test_requests import break_headers, break_requests
from tests.coverage_law.world import World

Patch = Callable[[pytest.MonkeyPatch], None]


class _Everything(frozenset[str]):
    """Every string is a technical value."""

    def __contains__(self, _value: object) -> bool:
        return True


_PASSED = FieldRule(values=_Everything())
_PASSED.others = _PASSED


async def _say_clean(*_args: Any) -> bool:
    return True


def _let_pass(keys: Any, name: str) -> Patch:
    return lambda patch: patch.setitem(keys, name, _PASSED)


def _pass_unknown_fields(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage, "UNKNOWN", _PASSED)


def _pass_headers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(request_survey, "CREDENTIALS", _Everything())


def _pass_errors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(error_words, "_is_clean", _say_clean)


def _pass_names_of_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AnswerFields, "find_action", lambda *_: Action.ANNOTATE)


def _pass_counters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(envelope, "type_usage", lambda usage, *_: usage)


def _pass_words_of_findings(patch: pytest.MonkeyPatch) -> None:
    async def find_nothing(*_args: Any) -> set[str]:
        return set()

    patch.setattr(FindingWords, "_find_unclean", find_nothing)


def _pass_titles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sources, "_read_text", lambda document: document.text)


def _pass_calls(patch: pytest.MonkeyPatch) -> None:
    def list_nothing(*_args: Any, **_options: Any) -> tuple[()]:
        return ()

    patch.setattr(stream_reader, "list_call_texts", list_nothing)
    patch.setattr(stream_reader, "CALL_KEYS", frozenset())


def _pass_message_fields(patch: pytest.MonkeyPatch) -> None:
    original = whole_answer.WholeAnswer._replace_texts

    def keep_all(self: Any, place: int, *args: Any, **options: Any) -> dict[str, Any]:
        return {**self.choices[place]["message"], **original(self, place, *args, **options)}

    patch.setattr(whole_answer.WholeAnswer, "_replace_texts", keep_all)


REQUESTS: dict[str, tuple[Patch, str]] = {
    "the name of a message is technical": (_let_pass(request_fields.MESSAGE.keys, "name"), "proxied_chat/whole"),
    "metadata are technical": (_let_pass(request_fields.BODY.keys, "metadata"), "proxied_text/stream"),
    "a prediction is technical": (_let_pass(request_fields.BODY.keys, "prediction"), "proxied_chat/stream"),
    "descriptions of tools are technical": (_let_pass(request_fields._FUNCTION.keys, "description"), "v2_chat/whole"),
    "arguments of calls are technical": (
        _let_pass(request_fields._FUNCTION_CALL.keys, "arguments"),
        "model_chat/whole",
    ),
    "unknown fields are technical": (_pass_unknown_fields, "proxied_chat/whole"),
}
ANSWERS: dict[str, tuple[Patch, str]] = {
    "errors are not read": (_pass_errors, "proxied_chat/whole"),
    "names of answers are not read": (_pass_names_of_answers, "proxied_chat/stream"),
    "names of counters are not read": (_pass_counters, "proxied_chat/whole"),
    "titles of documents are not read": (_pass_titles, "aggregator/whole"),
    "calls of tools are no lane": (_pass_calls, "proxied_chat/stream"),
    "unknown fields of a message stay": (_pass_message_fields, "proxied_chat/whole"),
}


def _find(name: str) -> RequestSurface:
    return next(one for one in REQUEST_SURFACES if one.name == name)


@pytest.mark.parametrize("bug", REQUESTS)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bug_in_reading_requests_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    patch, name = REQUESTS[bug]
    patch(monkeypatch)
    surface = _find(name)
    assert await break_requests(world, surface, "block", plant_everywhere(surface.body), most=1)


@pytest.mark.parametrize("bug", ANSWERS)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bug_in_reading_answers_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    patch, name = ANSWERS[bug]
    patch(monkeypatch)
    surface = _find(name)
    assert await break_answers(world, surface, "mask", list_cases(surface), most=1)


@pytest.mark.asyncio(loop_scope="module")
async def test_headers_that_are_not_read_are_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _pass_headers(monkeypatch)
    assert await break_headers(world, _find("proxied_chat/whole"), "x-note")


@pytest.mark.asyncio(loop_scope="module")
async def test_words_of_findings_that_are_not_read_are_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _pass_words_of_findings(monkeypatch)
    assert await break_findings(world, _find("proxied_chat/whole"))
