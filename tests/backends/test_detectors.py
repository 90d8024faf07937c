# SPDX-License-Identifier: Apache-2.0
"""The detector API: what is asked, what is understood, what is refused (G-49, G-109, G-111, G-112, G-114)."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.backends import detector_format as wire
from lockgate.gate.values import Claim, Conversation, Detection, Generated, Subject

MINIMAL = {"start": 1, "end": 3, "detection": "Name", "detection_type": "pii", "score": 1}


def read_one(source: str = "abcdef", **changes: Any) -> Detection:
    result = {key: value for key, value in {**MINIMAL, **changes}.items() if value != "absent"}
    [[found]] = wire.read_contents(json.dumps([[result]]).encode(), [source])
    return found


def test_contents_are_asked_with_parameters_in_their_order() -> None:
    body = wire.encode_contents(["a", "ü"], {"z": 1, "a": None})
    assert body == '{"contents":["a","ü"],"detector_params":{"z":1,"a":null}}'.encode()


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        (Generated("p", "t"), b'{"prompt":"p","generated_text":"t","detector_params":{}}'),
        (
            Claim("c", "docs", ("d1", "d2")),
            b'{"content":"c","context_type":"docs","context":["d1","d2"],"detector_params":{}}',
        ),
        (Conversation([{"role": "user"}]), b'{"messages":[{"role":"user"}],"tools":[],"detector_params":{}}'),
    ],
)
def test_a_subject_is_asked_about_in_the_words_of_its_endpoint(subject: Subject, body: bytes) -> None:
    assert wire.encode_subject(subject, {}) == body


def test_a_chat_leaves_as_it_is_without_the_nulls_of_its_messages_and_tools() -> None:
    part = {"type": "image_url", "text": None, "image_url": {"url": "u", "detail": None}}
    message = {"role": "user", "content": [part], "name": None, "unknown": 1}
    tool = {"type": "function", "function": {"name": "f", "strict": None, "parameters": {"default": None}}}
    sent = json.loads(wire.encode_subject(Conversation([message], [tool]), {}))
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}], "unknown": 1}
    ]
    assert sent["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {"default": None}}}]


def test_a_missing_text_is_filled_from_the_offsets_in_code_points() -> None:
    assert read_one("a😀ü", start=1, end=3).text == "😀ü"
    [[found]] = wire.read_contents_as_sent(json.dumps([[{**MINIMAL, "end": 99}]]).encode(), ["ab"])
    assert found == Detection(1, 99, "b", "Name", "pii", 1.0)


def test_as_sent_a_given_text_is_never_touched() -> None:
    body = json.dumps([[{**MINIMAL, "text": "something else"}]]).encode()
    assert wire.read_contents_as_sent(body, ["abcdef"])[0][0].text == "something else"


@pytest.mark.parametrize(
    ("source", "changes", "fault"),
    [
        ("abc", {"start": 3, "end": 4}, "result 3..4 lies outside its text of 3 characters"),
        ("abc", {"start": 1, "end": 99}, "result 1..99 lies outside its text of 3 characters"),
        ("abc", {"start": 1, "end": 1}, "result 1..1 is empty"),
        ("", {"start": 0, "end": 1}, "result 0..1 lies outside its text of 0 characters"),
        ("abc", {"text": "ab"}, "the `text` of result 1..3 is not what stands there; offsets count code points"),
        ("äbc", {"start": 2, "end": 4}, "result 2..4 lies outside its text of 3 characters"),
    ],
)
def test_a_result_that_is_not_at_its_place_is_refused(source: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace(".", r"\.")):
        read_one(source, **changes)


def test_only_an_empty_text_may_have_an_empty_result() -> None:
    assert read_one("", start=0, end=0).text == ""


@pytest.mark.parametrize("key", ["evidence", "metadata"])
@pytest.mark.parametrize("value", ["absent", None, {}])
def test_no_evidence_and_no_metadata_may_be_written_in_any_way(key: str, value: Any) -> None:
    found = read_one(**{key: value})
    assert (found.evidence, found.metadata) == ((), None)


def test_unknown_keys_and_the_detectors_own_id_are_ignored() -> None:
    assert read_one(detector_id="theirs", evidences=[1], more={}) == read_one()


def test_evidence_has_two_levels_and_no_unknown_keys() -> None:
    inner = {"name": "i", "value": "v", "score": 1, "evidence": [{"name": "too deep"}]}
    evidence = [
        {"name": "n", "value": None, "score": 0.5, "more": 1, "evidence": [inner]},
        {"name": "m", "evidence": {}},
    ]
    assert read_one(evidence=evidence).evidence == (
        {"name": "n", "score": 0.5, "evidence": [{"name": "i", "value": "v", "score": 1.0}]},
        {"name": "m"},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"start": -1}, {"start": 1.5}, {"start": "1"}, {"start": True}, {"end": 0}, {"end": 2**70}, {"end": None},
        {"start": "absent"}, {"detection": "absent"}, {"detection_type": None}, {"score": "0.5"}, {"score": None},
        {"evidence": [{}]}, {"evidence": {"name": "n"}}, {"metadata": []}, {"text": 5},
    ],
)  # fmt: skip
def test_results_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_one(**changes)


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"[null]", b'[[{"start":NaN}]]', b"[[", b"[" * 5000, b"\xff"])
def test_bodies_that_do_not_fit_are_refused(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        wire.read_contents(body, ["a"])


def test_a_score_too_large_for_a_number_is_refused() -> None:
    body = json.dumps([[MINIMAL]]).replace('"score": 1', '"score": 1e999').encode()
    with pytest.raises(ValueError, match="out of range"):
        wire.read_contents(body, ["abc"])


def test_refusals_hold_nothing_of_the_text() -> None:
    body = json.dumps([[{**MINIMAL, "start": "my secret text"}]]).encode()
    with pytest.raises(ValueError, match=r"start") as refused:
        wire.read_contents(body, ["my secret text"])
    assert "secret" not in str(refused.value)


def test_each_text_must_have_its_list() -> None:
    result = json.dumps([[MINIMAL], [], [MINIMAL]]).encode()
    for texts in (["abc"], ["abc", "abc"], ["abc"] * 4):
        with pytest.raises(ValueError, match=f"3 lists of results for {len(texts)} texts"):
            wire.read_contents(result, texts)


def test_as_sent_lists_that_lack_are_empty_and_surplus_ones_ignored() -> None:
    result = json.dumps([[MINIMAL], [], [MINIMAL]]).encode()
    assert [len(one) for one in wire.read_contents_as_sent(result, ["a", "b", "c", "d", "e"])] == [1, 0, 1, 0, 0]
    assert [len(one) for one in wire.read_contents_as_sent(result, ["a"])] == [1]
    assert wire.read_contents_as_sent(b"[]", ["a"]) == [[]]


@pytest.mark.parametrize("body", [b"[]", b"[[]]", b"[[],[],[],[]]", b"{}", b"", b"[[],[],[]", b'"abc"'])
def test_an_answer_for_several_is_read_only_if_it_is_certain_whose_each_list_is(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.read_shared_contents(body, [["a"], ["b", "c"]])


@pytest.mark.parametrize("wrong", ['[{"start":1}]', "{}", "null", "1", '[{"start":3,"end":1}]', '["\xff"]'])
def test_a_list_that_does_not_fit_is_the_fault_of_its_own_part_alone(wrong: str) -> None:
    fits = json.dumps([MINIMAL])
    body = f"[{fits},{wrong},{fits}]".encode("latin-1")
    first, second, third = wire.read_shared_contents(body, [["abc"], ["x"], ["abcdef"]])
    assert isinstance(first, list)
    assert isinstance(third, list)
    assert (first[0][0].text, third[0][0].text) == ("bc", "bc")
    assert isinstance(second, Exception)


def test_plain_results_have_no_place() -> None:
    body = b'[{"detection":"Yes","detection_type":"risk","score":1,"metadata":{"b":1,"a":2},"text":"x","start":"?"}]'
    assert wire.read_results(body) == [Detection(0, 0, "", "Yes", "risk", 1.0, metadata={"b": 1, "a": 2})]
    with pytest.raises(ValueError, match=r"."):
        wire.read_results(b"[[]]")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"code":422,"message":"m","more":1}', (422, "m")),
        (b'{"code":99,"message":"m"}', (500, "m")),
        (b'{"code":1000,"message":"m"}', (500, "m")),
        (b'{"code":70000,"message":"m"}', (500, "")),
        (b'{"code":-1,"message":"m"}', (500, "")),
        (b'{"code":"422","message":"m"}', (500, "")),
        (b'{"code":422}', (500, "")),
        (b'{"code":422,"message":null}', (500, "")),
        (b'{"detail":"m"}', (500, "")),
        (b"<html>", (500, "")),
        (b"[" * 5000, (500, "")),
        (b"", (500, "")),
    ],
)
def test_the_code_of_an_error_body_counts_if_it_is_a_status(body: bytes, expected: tuple[int, str]) -> None:
    assert wire.read_refusal(500, body) == expected


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scores = st.floats(0, 1)
evidence = st.fixed_dictionaries({"name": texts}, optional={"value": texts, "score": scores})
deep_evidence = st.fixed_dictionaries(
    {"name": texts}, optional={"value": texts, "evidence": st.lists(evidence, min_size=1, max_size=2)}
)
SOURCE = "aä😀\n" * 30
findings = st.builds(
    lambda start, length, *rest: Detection(start, start + length, SOURCE[start : start + length], *rest),
    st.integers(0, 60),
    st.integers(1, 60),
    texts,
    texts,
    scores,
    st.just(""),
    st.lists(deep_evidence, max_size=2).map(tuple),
    st.none() | st.dictionaries(texts, st.integers(0, 9) | texts, min_size=1, max_size=2),
)


@given(st.lists(st.lists(findings, max_size=3), max_size=3))
def test_what_a_server_writes_a_client_reads(found: list[list[Detection]]) -> None:
    assert wire.read_contents(wire.encode_found_contents(found), [SOURCE] * len(found)) == found
    parts = [[SOURCE], [SOURCE] * (len(found) - 1)][: len(found)]
    assert wire.read_shared_contents(wire.encode_found_contents(found), parts) == [found[:1], found[1:]][: len(parts)]
    for of_text in found:
        plain = [one._replace(start=0, end=0, text="") for one in of_text]
        assert wire.read_results(wire.encode_found_results(of_text)) == plain


@given(texts, texts, st.dictionaries(texts, st.integers() | texts, max_size=3))
def test_what_a_client_asks_a_server_understands(one: str, other: str, params: dict[str, Any]) -> None:
    asked = msgspec.json.decode(wire.encode_contents([one, other], params), type=wire.ContentsRequest)
    assert (asked.contents, asked.detector_params) == ([one, other], params)
    pairs: list[
        tuple[Subject, type[wire.GenerationRequest | wire.ChatDetectionRequest | wire.ContextDetectionRequest]]
    ] = [
        (Generated(one, other), wire.GenerationRequest),
        (Conversation([{"role": one}], [{"type": other}]), wire.ChatDetectionRequest),
        (Claim(one, "url", [other]), wire.ContextDetectionRequest),
    ]
    for subject, shape in pairs:
        request = msgspec.json.decode(wire.encode_subject(subject, params), type=shape)
        assert wire.to_subject(request) == subject
        assert request.detector_params == params


def test_an_error_is_written_as_it_is_read() -> None:
    assert wire.encode_refusal(422, "bad") == b'{"code":422,"message":"bad"}'
    assert wire.read_refusal(500, wire.encode_refusal(422, "bad")) == (422, "bad")
