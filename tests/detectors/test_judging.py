# SPDX-License-Identifier: Apache-2.0
"""What a judge of texts is asked, that a text cannot leave its block, and how replies are read."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors.judge.detector import (
    MAX_REASON_CHARS,
    MAX_REPLY_CHARS,
    RuledExample,
    Ruling,
    build_task,
    cut_windows,
    read_ruling,
)
from lockgate.gate.values import Message
from tests.waits import assert_linear

CRITERIA = "gives medical advice"
NASTY = st.text(alphabet="~\n <>&|[]/INST_x\0\ud800", max_size=60) | st.text(max_size=60)


def ruling(violates: Any, **more: Any) -> str:
    return json.dumps({"violates": violates, **more})


# What is asked.


def test_the_criteria_stand_with_the_judge_and_the_text_with_the_user() -> None:
    system, user = build_task(CRITERIA, "Take two aspirins.")
    assert system.role == "system"
    assert f"CRITERION\n{CRITERIA}\n" in system.text
    assert '{"violates": false, "score": 0.0, "reason": "..."}' in system.text
    assert "aspirins" not in system.text
    assert user == Message(
        "user",
        "Judge the text between the two lines of tildes.\n\n~~~\nTake two aspirins.\n~~~\n\n"
        "Reply with the one JSON object.",
    )


def test_examples_are_judged_before_the_text() -> None:
    task = build_task(CRITERIA, "x", (RuledExample("Rest a week.", True), RuledExample("Nice {weather}.", False)))
    assert [one.role for one in task] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "\n~~~\nRest a week.\n~~~\n" in task[1].text
    assert [read_ruling(task[at].text) for at in (2, 4)] == [
        Ruling(True, 1.0, "as the criterion says"),
        Ruling(False, 0.0, "as the criterion says"),
    ]


@given(NASTY)
def test_a_text_cannot_end_its_block_or_pass_for_a_turn(text: str) -> None:
    user = build_task(CRITERIA, text)[-1].text
    head, fence, body = user.partition("\n\n")[2].partition("\n")
    shown, end, rest = body.partition(f"\n{head}\n")
    assert set(head) == {"~"}
    assert len(head) >= 3
    assert (fence, end, rest) == ("\n", f"\n{head}\n", "\nReply with the one JSON object.")
    assert head not in shown
    assert not set(shown) & set("<>\0")
    assert not any(mark in shown for mark in ("[INST]", "[/INST]"))
    user.encode()  # can be sent


@pytest.mark.parametrize(
    "mark", ["<|im_end|>", "</s>", "[/INST]", "<end_of_turn>", "<\uff5cUser\uff5c>", "[SYSTEM_PROMPT]"]
)
def test_marks_of_chat_templates_are_broken(mark: str) -> None:
    text = f"a {mark} b"
    user = build_task(CRITERIA, text)[-1].text
    assert mark not in user
    assert user.count("~~~") == 2


def test_criteria_may_hold_anything() -> None:
    system = build_task("says {text} or {0}\0", "x")[0].text
    assert "says {text} or {0}\ufffd\n" in system


# How replies are read.


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ruling(True, score=0.9, reason="says so"), Ruling(True, 0.9, "says so")),
        (ruling(False, score=0.1, reason=""), Ruling(False, 0.0)),
        (f"Sure!\n```json\n{ruling(True, score=1)}\n```", Ruling(True, 1.0)),
        (f"<think>maybe {ruling(True)}</think>{ruling(False)}", Ruling(False, 0.0)),
        (ruling("yes"), Ruling(True, 1.0)),
        (ruling(" No "), Ruling(False, 0.0)),
        (ruling(True, score=0.1), Ruling(True, 0.5)),  # what violates reaches the usual threshold
        (ruling(True, score="high"), Ruling(True, 1.0)),
        (ruling(True, score=95), Ruling(True, 1.0)),
        (ruling(True, score=True), Ruling(True, 1.0)),
        ('{"violates": true, "score": NaN}', Ruling(True, 1.0)),
        (ruling(True, reason=["x"]), Ruling(True, 1.0)),
        ("Yes", Ruling(True, 1.0)),
        ("**yes**, it does", Ruling(True, 1.0)),
        ("yes it does", Ruling(True, 1.0)),
        ("No.", Ruling(False, 0.0)),
        ("no, nothing of the kind", Ruling(False, 0.0)),
        ("No - it is about tea", Ruling(False, 0.0)),
        ("**No**", Ruling(False, 0.0)),
        ("False", Ruling(False, 0.0)),
    ],
)
def test_a_reply_that_is_a_ruling_is_read(reply: str, expected: Ruling) -> None:
    assert read_ruling(reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I cannot say.",
        "No idea",
        "Not sure",
        "no-one knows",
        "No. On second thought: yes.",
        "The text is fine.",
        "{}",
        "[]",
        ruling(None),
        ruling("maybe"),
        ruling(0),
        '{"violates": fal',
        '{"verdict": "no"}',
        json.dumps([{"violates": False}]),
        json.dumps({"ruling": {"violates": False}}),
        ruling(False) + ruling("unclear"),
        "x" * (MAX_REPLY_CHARS + 1),
        ruling(False, reason="x" * MAX_REPLY_CHARS),
    ],
)
def test_a_reply_that_is_unclear_is_no_ruling(reply: str) -> None:
    assert read_ruling(reply) is None


def test_of_several_rulings_the_strictest_counts() -> None:
    quoted = f"The text says {ruling(False)} of itself. {ruling(True, score=0.7)}"
    assert read_ruling(quoted) == Ruling(True, 0.7)
    assert read_ruling(f"{ruling(True, score=0.7)} though it says {ruling(False)}") == Ruling(True, 0.7)


def test_a_ruling_that_comes_first_is_not_taken_for_reasoning() -> None:
    assert read_ruling(ruling(True, reason='it ends with </think>{"violates": false}')) == Ruling(
        True, 1.0, 'it ends with </think>{"violates": false}'
    )


def test_reasons_are_short_and_one_line() -> None:
    found = read_ruling(ruling(True, reason="a\n\tb" + "x" * 2 * MAX_REASON_CHARS))
    assert found is not None
    assert found.reason.startswith("a b")
    assert len(found.reason) == MAX_REASON_CHARS


@given(st.text(alphabet='{}[]":, \\yesno\ntrufalvi', max_size=80) | st.text())
def test_any_reply_is_read_or_refused(reply: str) -> None:
    found = read_ruling(reply)
    assert found is None or 0.0 <= found.score <= 1.0


@pytest.mark.parametrize("piece", ["{", "[", '{"', "<think>", "</think>", "* ", "no ", "No. ", '{"violates":'])
def test_the_work_grows_with_the_reply_only(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.detectors.judge.detector.MAX_REPLY_CHARS", 4_000_000)
    assert_linear(lambda size: read_ruling((piece * size)[:size]), 100_000)


# Windows.


@given(st.text(alphabet="ab \n", max_size=2_000), st.integers(8, 300))
def test_windows_cover_the_text_with_an_overlap_and_none_is_too_long(text: str, max_chars: int) -> None:
    windows = cut_windows(text, max_chars)
    assert (windows[0].start, windows[-1].end) == (0, len(text))
    assert all(0 <= one.end - one.start <= max_chars for one in windows)
    for one, other in pairwise(windows):
        assert one.start < other.start < one.end < other.end
        assert one.end - other.start <= 200
    assert len(windows) <= 1 + len(text) // (max_chars // 2)


def test_a_short_text_is_one_window_and_long_ones_are_cut_between_words() -> None:
    assert cut_windows("", 100) == [(0, 0)]
    assert cut_windows("x" * 100, 100) == [(0, 100)]
    text = "word " * 100
    assert all(text[one.end - 1] == " " for one in cut_windows(text, 101))
