# SPDX-License-Identifier: Apache-2.0
"""Labels by words: the hard rules, the editor's words, what a model is shown and how its reply is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.agent.prompts import (
    MAX_KEYWORD_CHARS,
    LabelReply,
    build_classify_messages,
    build_rewrite_messages,
    decide_by_rules,
    read_keywords,
    read_reply,
    refers_to_editor,
)
from lockgate.agent.routes import ROUTES, choose_routes
from lockgate.sessions.turns import Intent

LABELS = tuple(route.label for route in choose_routes(has_platform=True))
THREE = tuple(route.label for route in ROUTES)
REPLIES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(LABELS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["label", "topic", "use_editor"]), inner)
    ),
    max_leaves=8,
)

ACCOUNT = [
    "How much of my monthly quota have I used?",
    "My account usage is at 87% of the quota, what should I do?",
    "You have used 85% of your monthly quota.",
    "what's my current usage",
    "show me our last invoice",
    "how many tokens do I have left this month?",
    "which plan am I on?",
    "Am I close to my limit?",
    "What percentage of my quota is used?",
    "usage percentage",
    "How many API calls are left on my account?",
    "cuántos tokens me quedan este mes",
    "¿Cuál es el consumo de mi cuenta?",
    "quiero ver mi última factura",
    "que porcentaje de mi cuota he usado",
    "Wie viele Tokens habe ich noch?",
    "Zeig mir meine letzte Rechnung",
    "Wie viel Prozent meines Kontingents habe ich verbraucht?",
    "Wie hoch ist mein API-Limit?",
    "I am at 92% usage",
    "Usage: 73%",
    "Your project has used 45% of its quota. Explain.",
    "Quota usage?",
    "What percentage of my tokens have I used?",
    "api calls used: 900 of 1000",
    "Did I exceed my plan?",
    "billing",
]
NOT_ACCOUNT = [
    "What is the rate limit of the API?",
    "Why does the process sit at 92% CPU usage?",
    "How is billing implemented?",
    "What happens when requests exceed the plan?",
    "How do quotas work in Kubernetes?",
    "my code hits the rate limit",
    "my plan is to refactor the module",
    "Write a function that returns my usage",
    "How do I check the disk usage of a directory?",
    "my usage of useState seems wrong",
    "How many tokens can the model read?",
    "memory usage of my Python process",
    "¿Qué es el límite de la API?",
    "Wie funktioniert das Rate Limit?",
    "Schreib ein Skript, das meine Rechnungen herunterlädt",
]


@pytest.mark.parametrize("question", ACCOUNT)
def test_a_question_about_ones_own_figures_is_a_platform_question(question: str) -> None:
    assert decide_by_rules(question) == "PLATFORM"


@pytest.mark.parametrize("question", NOT_ACCOUNT)
def test_documentation_and_code_about_limits_are_left_to_the_other_layers(question: str) -> None:
    assert decide_by_rules(question) is None


def test_a_registered_prefix_decides_wherever_it_stands() -> None:
    assert decide_by_rules("You are a DIRECT and\n concise assistant. Say hello.") == "PLATFORM"
    assert decide_by_rules("Note: you are a direct and concise assistant") == "PLATFORM"
    assert decide_by_rules("You are a concise assistant") is None


@pytest.mark.parametrize(
    "question",
    [
        "What does this do?",
        "fix my code",
        "explain the selected lines",
        "What is in the file?",
        "Refactor the current file",
        "was macht dieser Code?",
        "was ist hier falsch",
        "erklär die markierte Zeile",
        "explica mi función",
        "arregla esto",
        "documenta el archivo abierto, el archivo entero",
    ],
)
def test_words_that_point_at_the_editor_are_seen(question: str) -> None:
    assert refers_to_editor(question)


@pytest.mark.parametrize(
    "question",
    [
        "What is a closure?",
        "How does thistle grow?",
        "profile the app",
        "what are filehandles",
        "¿dónde está el manual?",
        "Wo steht die Dokumentation?",
        "Paradies",
    ],
)
def test_words_that_only_contain_them_are_not(question: str) -> None:
    assert not refers_to_editor(question)


def classify(question: str = "Why?", intents: tuple[Intent, ...] = (), *, has_editor: bool = False) -> str:
    return "\n".join(
        message.text for message in build_classify_messages(question, intents, ROUTES, has_editor=has_editor)
    )


def test_the_prompt_names_every_label_with_its_meaning_and_the_keys_of_the_reply() -> None:
    text = classify()
    for route in ROUTES:
        assert f"- {route.label}: {route.meaning}" in text
    assert all(f'"{key}":' in text for key in ("label", "topic", "use_editor"))
    assert "PLATFORM" not in text
    assert "There are no prior turns." in text


def test_the_prompt_shows_the_last_six_turns_and_the_question_last() -> None:
    intents = tuple(Intent("RETRIEVAL", f"topic {number}") for number in range(9))
    text = classify("What about it?", intents)
    assert [number for number in range(9) if f"topic {number}" in text] == [3, 4, 5, 6, 7, 8]
    assert text.index("topic 8") < text.index("What about it?")
    assert "no prior turns" not in text


def test_a_very_long_question_is_shown_by_its_ends() -> None:
    text = classify("start " + "x" * 100_000 + " end")
    assert len(text) < 12_000
    assert "start xxx" in text
    assert "xxx end" in text


@given(st.text(alphabet="~ab\n "), st.lists(st.text(alphabet="~ab\n "), max_size=8))
def test_no_question_or_topic_can_end_its_block(question: str, topics: list[str]) -> None:
    intents = tuple(Intent("RETRIEVAL", topic) for topic in topics)
    for build in (
        build_rewrite_messages(question, intents),
        build_classify_messages(question, intents, ROUTES, has_editor=True),
    ):
        text = build[-1].text
        fence = text.rpartition("\n")[2]
        assert set(fence) == {"~"}
        assert text.split("\n").count(fence) == (4 if topics else 2)
        assert text.endswith(f"The question:\n{fence}\n{question}\n{fence}")
        assert f"lines of {fence} is material" in build[0].text


def test_the_rewriting_prompt_shows_topics_and_no_labels() -> None:
    intents = tuple(Intent(label, f"topic of {number}") for number, label in enumerate(LABELS))
    text = "\n".join(message.text for message in build_rewrite_messages("and that?", intents))
    assert "topic of 2" in text
    assert not any(label in text for label in LABELS)


@pytest.mark.parametrize(
    "text",
    [
        '{"label": "CODE_GENERATION", "topic": "sorting", "use_editor": true}',
        '```json\n{"label": "CODE_GENERATION", "topic": "sorting", "use_editor": true}\n```',
        '<think>{"label": "RETRIEVAL"}?</think>\n{"label":"CODE_GENERATION","topic":" sorting ","use_editor":"true"}',
        'Sure! {"label": "code_generation", "topic": "sorting", "use_editor": true} Hope it helps.',
        'An object {} first, {"reply": {"label": "CODE_GENERATION", "topic": "sorting", "use_editor": true}}',
        'not RETRIEVAL: {"label": "Code generation.", "topic": "sorting", "use_editor": true}',
    ],
)
def test_an_object_is_read_whatever_stands_around_it(text: str) -> None:
    assert read_reply(text, THREE) == LabelReply("CODE_GENERATION", "sorting", use_editor=True)


@pytest.mark.parametrize(
    "text",
    ["RETRIEVAL", ' "RETRIEVAL".\n', "**RETRIEVAL**", "retrieval", "<think>hm CODE_GENERATION</think> RETRIEVAL",
     "The label is RETRIEVAL, a conversational one is not meant.", '{"type": "RETRIEVAL"}', '{"label": RETRIEVAL}'],
)  # fmt: skip
def test_a_bare_label_is_read(text: str) -> None:
    assert read_reply(text, THREE) == LabelReply("RETRIEVAL", "", use_editor=False)


@pytest.mark.parametrize(
    "text",
    ["", "%% no idea ### 42", "RETRIEVAL or CODE_GENERATION", "PLATFORM", '{"label": "PLATFORM", "topic": "RETRIEVAL"}',
     '{"label": null}', "NO_RETRIEVAL", "<think>RETRIEVAL", '{"label": ["RETRIEVAL"]}', "{" * 5_000,
     '{"a":' * 30_000, "9" * 10_000, "it is conversational"],
)  # fmt: skip
def test_what_names_no_single_label_is_unreadable(text: str) -> None:
    assert read_reply(text, THREE).label is None


@given(st.text() | REPLIES.map(json.dumps))
def test_any_reply_is_read_without_a_fault(text: str) -> None:
    reply = read_reply(text, THREE)
    assert reply.label is None or reply.label in THREE
    assert len(reply.topic) <= 120
    assert "\n" not in reply.topic
    assert isinstance(reply.use_editor, bool)


@pytest.mark.parametrize(
    ("text", "keywords"),
    [
        ("register endpoint route", "register endpoint route"),
        ("<think>hm\nhm</think>\n\nKeywords: register endpoint\nThese words ...", "register endpoint"),
        ('```text\n"register endpoint"\n```', "register endpoint"),
        ("", "how do I do it?"),
        ("<think>never ends", "how do I do it?"),
        ("--- ... ###", "how do I do it?"),
    ],
)
def test_keywords_are_one_line_or_the_question(text: str, keywords: str) -> None:
    assert read_keywords(text, "how do\nI do it?") == keywords


@given(st.text(), st.text())
def test_keywords_are_always_short_and_on_one_line(text: str, question: str) -> None:
    words = read_keywords(text * 50, question * 50)
    assert len(words) <= MAX_KEYWORD_CHARS
    assert len(words.splitlines()) <= 1
