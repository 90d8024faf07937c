# SPDX-License-Identifier: Apache-2.0
"""What a later prompt sees of a session."""

from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.values import Message
from lockgate.sessions.turns import (
    ASSISTANT,
    MAX_INTENTS,
    USER,
    Turn,
    count_tokens,
    forget_reasoning,
    list_intents,
    recall,
    recall_sent,
)

TURNS = st.lists(st.builds(Turn, st.text(max_size=40), st.text(max_size=40), st.just("RETRIEVAL")), max_size=30)


def test_the_last_twenty_messages_are_recalled() -> None:
    turns = [Turn(f"q{number}", f"a{number}", "RETRIEVAL") for number in range(13)]
    recalled = recall(turns, 20, 6000)
    assert [one.text for one in recalled[:2]] == ["q3", "a3"]
    assert len(recalled) == 20
    assert recalled[-1] == Message(ASSISTANT, "a12")


@given(TURNS, st.integers(0, 24), st.integers(20, 200))
def test_recalled_turns_are_the_latest_whole_and_within_the_budget(turns: list[Turn], most: int, budget: int) -> None:
    recalled = recall(turns, most, budget)
    assert len(recalled) <= most
    assert sum(count_tokens(one.text) for one in recalled) <= budget
    said = [(turn.question, turn.answer) for turn in turns[len(turns) - len(recalled) // 2 :]]
    assert [one.role for one in recalled] == [USER, ASSISTANT] * len(said)
    if len(said) > 1:
        assert [one.text for one in recalled] == [text for pair in said for text in pair]
    assert bool(recalled) is bool(turns and most > 1)


def test_the_last_turn_is_cut_rather_than_forgotten() -> None:
    turns = [Turn("before", "it", "R"), Turn("Tell all", "word " * 20_000, "R")]
    question, answer = recall(turns, 20, 6000)
    assert question.text == "Tell all"
    assert answer.text.startswith("word word")
    assert answer.text.endswith(" [...]")
    assert 5900 < count_tokens(answer.text) <= 6000


@given(st.lists(st.builds(Message, st.sampled_from([USER, ASSISTANT]), st.text(max_size=40)), max_size=30),
       st.integers(0, 24), st.integers(0, 200))  # fmt: skip
def test_what_a_client_sent_is_recalled_from_its_end(sent: list[Message], most: int, budget: int) -> None:
    recalled = recall_sent(sent, most, budget)
    assert len(recalled) <= most
    assert sum(count_tokens(one.text) for one in recalled) <= budget
    assert list(recalled) == sent[len(sent) - len(recalled) :]


def test_a_turn_that_does_not_fit_hides_those_before_it() -> None:
    turns = [Turn("short", "short", "R"), Turn("x" * 4000, "y", "R"), Turn("last", "word", "R")]
    assert [one.text for one in recall(turns, 20, 100)] == ["last", "word"]


def test_at_most_six_intents_are_told_and_never_an_answer() -> None:
    turns = [Turn(f"question {number}", "secret answer", "RETRIEVAL") for number in range(9)]
    intents = list_intents(turns)
    assert [one.topic for one in intents] == [f"question {number}" for number in range(3, 9)]
    assert len(intents) == MAX_INTENTS
    assert list_intents([Turn("q", "a", "CODE_GENERATION", topic="loops")])[0].topic == "loops"


def test_reasoning_is_forgotten() -> None:
    assert forget_reasoning("<think>hidden</think>Visible word") == "Visible word"
    assert forget_reasoning("a<think>x</think>b<THINK>y</THINK>c") == "abc"
    assert forget_reasoning("<thinking>x</thinking>\n\nok") == "ok"
    assert forget_reasoning("<think>never ends") == ""
    assert forget_reasoning("it began before</think> answer") == "answer"
    assert forget_reasoning("  plain text \n") == "  plain text \n"


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<thinking>", "</thinking>", "secret", "word ", "\n"]), max_size=12
    )
)
def test_nothing_between_the_marks_of_reasoning_stays(parts: list[str]) -> None:
    assert "needle" not in forget_reasoning("".join(parts) + "<think>needle</think>tail")
