# SPDX-License-Identifier: Apache-2.0
"""The messages that reach the model."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.agent.prompts import NOTHING_FOUND, build_final_messages, find_route
from lockgate.agent.routes import (
    CODE_GENERATION,
    CONVERSATIONAL,
    PLATFORM,
    RETRIEVAL,
    ROUTES,
    Editor,
    Route,
    TurnState,
    choose_routes,
)
from lockgate.gate.values import Document, Message

DOCUMENTS = (Document("Ports", "The port is 8033.", 0.5), Document("", "Say <b> & ~~~ here.", 0.4))


def ask(label: str, **rest: object) -> tuple[Message, ...]:
    state: TurnState = {"question": "Which port?", "label": label, **rest}  # type: ignore[typeddict-item]
    return build_final_messages(state, choose_routes(has_platform=True))


@pytest.mark.parametrize("route", [RETRIEVAL, CODE_GENERATION])
def test_passages_stand_before_the_question_as_they_are(route: Route) -> None:
    system, user = ask(route.label, documents=DOCUMENTS)
    assert system == Message("system", route.prompt)
    assert user.text.endswith("\n\nWhich port?")
    assert "passage 1: Ports\nThe port is 8033.\n" in user.text
    assert "passage 2\nSay <b> & ~~~ here.\n" in user.text


def test_without_passages_the_model_is_told_so() -> None:
    assert NOTHING_FOUND in ask("RETRIEVAL")[-1].text
    assert NOTHING_FOUND not in ask("CONVERSATIONAL")[-1].text


def test_the_conversation_route_is_given_no_passages() -> None:
    assert ask("CONVERSATIONAL", documents=DOCUMENTS) == (
        Message("system", CONVERSATIONAL.prompt),
        Message("user", "Which port?"),
    )


def test_history_stands_between_the_system_and_the_question() -> None:
    history = (Message("user", "q1"), Message("assistant", "a1"))
    assert ask("CONVERSATIONAL", history=history)[1:3] == history


def test_the_application_adds_to_the_system_message() -> None:
    assert (
        ask("RETRIEVAL", instructions="Speak like a pirate.")[0].text == f"{RETRIEVAL.prompt}\n\nSpeak like a pirate."
    )


def test_editor_context_is_used_only_where_it_is_meant() -> None:
    editor = Editor("whole file", "selected lines", "more")
    assert "whole file" not in ask("CODE_GENERATION", editor=editor, uses_editor=False)[-1].text
    told = ask("CODE_GENERATION", editor=editor, uses_editor=True)[-1].text
    assert [told.index(text) for text in editor] == sorted(told.index(text) for text in editor)


def test_account_details_reach_the_platform_route_alone() -> None:
    assert "dev_id" in ask("PLATFORM", account='{"dev_id": 7}')[-1].text
    assert "dev_id" not in ask("RETRIEVAL", account='{"dev_id": 7}')[-1].text


def test_the_platform_route_is_there_only_when_it_is_switched_on() -> None:
    assert choose_routes(has_platform=False) == ROUTES
    with pytest.raises(KeyError):
        find_route(PLATFORM.label, ROUTES)


@given(
    st.lists(
        st.lists(st.sampled_from(["~", "~~~", "\n", "a", " ", "passage 1", "`"]), max_size=12).map("".join),
        min_size=1,
        max_size=4,
    ),
    st.text(alphabet="~\nab ", max_size=20),
)
def test_no_passage_can_end_its_block_or_begin_another(texts: list[str], title: str) -> None:
    documents = tuple(Document(title, text, 0.1) for text in texts)
    told = ask("RETRIEVAL", documents=documents)[-1].text
    opening = re.search(r"^(~{3,}) passage 1", told, re.MULTILINE)
    assert opening is not None
    fence = opening[1]
    blocks = re.findall(rf"^{fence}(?!~) (passage \d+[^\n]*)\n(.*?)\n{fence}(?!~)$", told, re.MULTILINE | re.DOTALL)
    assert [text for _, text in blocks] == texts
    assert told.count(fence) == 2 * len(texts)
