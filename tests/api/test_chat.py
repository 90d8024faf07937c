# SPDX-License-Identifier: Apache-2.0
"""Our retrieve-and-answer API: what is refused in which words, and every message to the byte (A-7 to A-14, A-60 on)."""

import json
from typing import Any

import pytest

from lockgate.api.aggregator.format import (
    AnswerDetails,
    encode_done,
    encode_error,
    encode_error_event,
    encode_fault,
    encode_response,
    encode_step,
    read_fault,
    read_request,
)
from lockgate.backends.endpoints import Endpoint
from lockgate.errors import CheckFailed, GenerationFailed, InvalidField
from lockgate.gate.prompt import Citation
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection, Document
from lockgate.rag.answer import (
    AnswerResult,
    GenerationStarted,
    RetrievalEnded,
    RetrievalStarted,
    SourceEnded,
    Step,
    Token,
)
from lockgate.rag.sources import InspectedDocument, Retrieval, Status

SECTIONS = "input, documents, output, grounding"
FOUND = Detection(2, 5, "a@b", "mail", "pii", 0.5, "pii")
TOLD = {
    "start": 2,
    "end": 5,
    "text": "a@b",
    "detection": "mail",
    "detection_type": "pii",
    "detector_id": "pii",
    "score": 0.5,
}
PLAIN, GUARDED, CITING = AnswerDetails(), AnswerDetails(is_guarded=True), AnswerDetails(has_citations=True)


def request(**changes: Any) -> bytes:
    return json.dumps({"prompt": "q", "model": {"url": "http://h", "slug": "m"}, **changes}).encode()


def fault_of(body: bytes) -> tuple[str, str]:
    with pytest.raises(InvalidField) as caught:
        read_request(body)
    assert caught.value.status == 422
    return caught.value.field, caught.value.reason


# Requests.


def test_a_request_needs_a_prompt_and_a_model_and_has_defaults_for_the_rest() -> None:
    asked = read_request(request(unknown=1))
    assert (asked.prompt, asked.model.url, asked.model.slug, asked.data_sources) == ("q", "http://h", "m", [])
    assert (asked.max_tokens, asked.temperature, asked.similarity_threshold) == (1024, 0.7, 0.5)
    assert (asked.stream, asked.citations, asked.detectors, asked.custom_system_prompt) == (False, False, None, None)


def test_an_endpoint_has_the_tokens_of_its_owner_only() -> None:
    asked = read_request(request(endpoint_tokens={"al": "t", "": "no"}, transaction_tokens={"al": "x", "bo": "y"}))
    ref = asked.model
    assert asked.endpoint(ref) == Endpoint("http://h", "m")
    ref.owner_username, ref.tenant_name = "al", "a"
    assert asked.endpoint(ref) == Endpoint("http://h", "m", "al", "a", "t", "x")
    ref.owner_username = "bo"
    assert asked.endpoint(ref) == Endpoint("http://h", "m", "bo", "a", None, "y")


@pytest.mark.parametrize(
    ("words", "field", "reason"),
    [
        ("Object missing required field `prompt`", "prompt", "field required"),
        ("Object missing required field `slug` - at `$.model`", "model.slug", "field required"),
        ("Object missing required field `url` - at `$.data_sources[1]`", "data_sources[1].url", "field required"),
        ("Expected `str`, got `int` - at `$.prompt`", "prompt", "Expected `str`, got `int`"),
        ("Expected `int` >= 1 - at `$.top_k`", "top_k", "Expected `int` >= 1"),
        ("Expected `object`, got `array`", "", "Expected `object`, got `array`"),
        ("Expected `object`, got `array` - at `$`", "", "Expected `object`, got `array`"),
        ("Expected `str`, got `int` - at `$.tokens[...]`", "tokens[...]", "Expected `str`, got `int`"),
        ("Expected `int`, got `str` - at `key in $.tokens`", "tokens", "Expected `int`, got `str`"),
        (
            "Invalid enum value 'x' - at `$.detectors.on_finding.output`",
            "detectors.on_finding.output",
            "Invalid enum value, expected one of annotate, mask, stop, block",
        ),
        (
            "Invalid enum value 'x' - at `$.detectors.on_finding.documents`",
            "detectors.on_finding.documents",
            "Invalid enum value, expected one of flag, mask, drop",
        ),
        (
            "Object contains unknown field `x` - at `$.detectors`",
            "detectors",
            f"Object contains unknown field `x`, expected one of {SECTIONS}, on_finding, fallback, policy",
        ),
        (
            "Object contains unknown field `x` - at `$.detectors.on_finding`",
            "detectors.on_finding",
            f"Object contains unknown field `x`, expected one of {SECTIONS}",
        ),
        (
            "Object contains unknown field `a - at `$.b`` - at `$.detectors`",
            "detectors",
            f"Object contains unknown field `a - at `$.b``, expected one of {SECTIONS}, on_finding, fallback, policy",
        ),
        ("What nobody has said before", "", "What nobody has said before"),
        ("", "", ""),
    ],
)
def test_every_wording_of_the_decoder_is_told_with_its_field(words: str, field: str, reason: str) -> None:
    fault = read_fault(words)
    assert (fault.field, fault.reason) == (field, reason)


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"{}", "prompt", "field required"),
        (b'{"prompt":"q","model":{"url":"u"}}', "model.slug", "field required"),
        (request(data_sources=[{"url": "u", "slug": "s"}, {}]), "data_sources[1].url", "field required"),
        (request(prompt=""), "prompt", "Expected `str` of length >= 1"),
        (request(prompt=5), "prompt", "Expected `str`, got `int`"),
        (request(top_k=0), "top_k", "Expected `int` >= 1"),
        (request(temperature=2.5), "temperature", "Expected `float` <= 2.0"),
        (request(endpoint_tokens={"al": 5}), "endpoint_tokens[...]", "Expected `str`, got `int`"),
        (request(detectors=[]), "detectors", "Expected `object | null`, got `array`"),
        (
            request(detectors={"inputs": {}}),
            "detectors",
            f"Object contains unknown field `inputs`, expected one of {SECTIONS}, on_finding, fallback, policy",
        ),
        (
            request(detectors={"on_finding": {"x": "mask"}}),
            "detectors.on_finding",
            f"Object contains unknown field `x`, expected one of {SECTIONS}",
        ),
        (
            request(detectors={"on_finding": {"grounding": "drop"}}),
            "detectors.on_finding.grounding",
            "Invalid enum value, expected one of annotate, mask, stop, block",
        ),
        (
            request(detectors={"on_finding": {"documents": "block"}}),
            "detectors.on_finding.documents",
            "Invalid enum value, expected one of flag, mask, drop",
        ),
        (b"[]", "", "Expected `object`, got `array`"),
        (b"5", "", "Expected `object`, got `int`"),
        (b"", "", "the body is not valid JSON"),
        (b"{", "", "the body is not valid JSON"),
        (b'{"prompt":"\\ud800"}', "", "the body is not valid JSON"),
        (b'{"x":' + b"[" * 5000, "", "the body is not valid JSON"),
        (request(detector={}), "detector", "unknown field `detector`; did you mean `detectors`?"),
        (request(Detectors={}), "Detectors", "unknown field `Detectors`; did you mean `detectors`?"),
        (request(policy="p"), "policy", "unknown field `policy`; detectors and policies are named in `detectors`"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field(body: bytes, field: str, reason: str) -> None:
    assert fault_of(body) == (field, reason)


# Events.


RETRIEVAL = Retrieval(
    "al/notes",
    Status.SUCCESS,
    (Document("T", "c", 0.5, source="al/notes"),),
    None,
    4,
    (
        InspectedDocument("al/notes", "D", (FOUND,), is_dropped=True),
        InspectedDocument("al/notes", "M", (FOUND,), (FOUND,), is_masked=True),
        InspectedDocument("al/notes", "F", (FOUND,)),
    ),
)
LATE = Retrieval("bo/late", Status.TIMEOUT, error="Timed out")


@pytest.mark.parametrize(
    ("step", "told", "sent"),
    [
        (RetrievalStarted(2), GUARDED, b'event: retrieval_start\ndata: {"sources":2}\n\n'),
        (
            SourceEnded(RETRIEVAL),
            PLAIN,
            b'event: source_complete\ndata: {"path":"al/notes","status":"success","documents":4}\n\n',
        ),
        (
            SourceEnded(RETRIEVAL),
            GUARDED,
            b'event: source_complete\ndata: {"path":"al/notes","status":"success","documents":4,'
            b'"dropped":1,"masked":1,"flagged":1}\n\n',
        ),
        (
            SourceEnded(LATE),
            CITING,
            b'event: source_complete\ndata: {"path":"bo/late","status":"timeout","documents":0}\n\n',
        ),
        (
            RetrievalEnded(4, 12),
            PLAIN,
            b'event: retrieval_complete\ndata: {"total_documents":4,"time_ms":12}\n\n',
        ),
        (GenerationStarted(), GUARDED, b"event: generation_start\ndata: {}\n\n"),
        (Token("a\n\u2028ü", 0, 4), CITING, 'event: token\ndata: {"content":"a\\n\u2028ü"}\n\n'.encode()),
        (
            Token("***", 2, 5, (FOUND,)),
            GUARDED,
            b'event: token\ndata: {"content":"***","detections":[%b],"start_index":2,"processed_index":5}\n\n'
            % json.dumps(TOLD, separators=(",", ":")).encode(),
        ),
    ],
)
def test_every_step_is_one_event(step: Step, told: AnswerDetails, sent: bytes) -> None:
    assert encode_step(step, told) == sent


def test_an_error_of_a_stream_is_one_event() -> None:
    assert encode_error_event('no "answer"\n') == b'event: error\ndata: {"message":"no \\"answer\\"\\n"}\n\n'


# Answers.


def outcome() -> AnswerResult:
    known = AnswerResult()
    known.retrievals, known.ended = [LATE, RETRIEVAL], [RETRIEVAL, LATE]
    known.usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    known.retrieval_ms, known.generation_ms, known.total_ms = 1, 2, 3
    known.citations = [Citation("al/notes", 1, 9, True), Citation("x/y", 12, 15, False)]
    return known


def guarded() -> AnswerResult:
    known = outcome()
    known.found_in_prompt = [FOUND]
    known.found_in_answer = [FOUND, FOUND._replace(detector_id="facts")]
    known.grounding = ["facts"]
    known.failed_detectors = {"slow": False, "late": True}
    known.receipt.expect("pii", RequestPart.PROMPT)
    known.receipt.note_read("pii", RequestPart.PROMPT, ["q q"], 0.0015)
    known.receipt.note_finding("pii")
    known.receipt.note_released(RequestPart.PROMPT, "q q")
    return known


NAMED = {"T": {"slug": "al/notes", "content": "c"}}
GOOD = {"path": "al/notes", "documents_retrieved": 4, "status": "success", "error_message": None}
BAD = {"path": "bo/late", "documents_retrieved": 0, "status": "timeout", "error_message": "Timed out"}
REST = {
    "metadata": {"retrieval_time_ms": 1, "generation_time_ms": 2, "total_time_ms": 3},
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
CITED = {
    "citations": [
        {"path": "al/notes", "start": 1, "end": 9, "is_retrieved": True},
        {"path": "x/y", "start": 12, "end": 15, "is_retrieved": False},
    ]
}
WARNED = [
    "UNSUITABLE_INPUT",
    "UNSUITABLE_DOCUMENTS",
    "UNSUITABLE_OUTPUT",
    "DETECTOR_FAILED",
    "DETECTOR_FAILED_IN_SHADOW",
]


def test_a_whole_answer_has_exactly_the_agreed_keys_in_their_order() -> None:
    body = {"response": "Hi", "sources": NAMED, "retrieval_info": [BAD, GOOD], **REST}
    assert encode_response("Hi", outcome(), PLAIN) == json.dumps(body, separators=(",", ":")).encode()
    cited = json.dumps({**body, **CITED}, separators=(",", ":")).encode()
    assert encode_response("Hi", outcome(), CITING) == cited


def test_the_last_event_tells_the_sources_in_the_order_in_which_they_ended() -> None:
    body = {"sources": NAMED, "retrieval_info": [GOOD, BAD], **REST}
    sent = json.dumps(body, separators=(",", ":")).encode()
    assert encode_done(outcome(), PLAIN) == b"event: done\ndata: %b\n\n" % sent


def test_an_answer_of_nothing_is_told_too() -> None:
    body = json.loads(encode_response("", AnswerResult(), GUARDED))
    assert body["sources"] == body["detections"] == {}
    assert body["retrieval_info"] == body["citations"] == body["warnings"] == body["receipt"]["detectors"] == []
    assert (body["response"], body["usage"], body["outcome"]) == ("", None, "answered")


def test_a_guarded_answer_tells_what_was_found_and_read() -> None:
    body = json.loads(encode_response("Hi", guarded(), AnswerDetails(is_guarded=True)))
    assert list(body)[:5] == ["response", "sources", "retrieval_info", "metadata", "usage"]
    assert list(body)[5:] == ["citations", "outcome", "detections", "warnings", "receipt"]
    assert {"citations": body["citations"]} == CITED
    assert body["detections"] == {
        "input": [TOLD],
        "documents": [
            {"path": "al/notes", "title": "D", "outcome": "dropped", "results": [TOLD]},
            {"path": "al/notes", "title": "M", "outcome": "masked", "results": [TOLD], "title_results": [TOLD]},
            {"path": "al/notes", "title": "F", "outcome": "flagged", "results": [TOLD]},
        ],
        "output": [TOLD],
        "grounding": [{**TOLD, "detector_id": "facts"}],
    }
    assert [warning["type"] for warning in body["warnings"]] == WARNED
    assert body["warnings"][-2]["message"] == "Detector `slow` failed. The text was not checked by it."
    assert body["warnings"][-1]["message"] == (
        "Detector `late` failed. The text was not checked by it. "
        "Under `enforce` the request would have ended with an error."
    )
    assert body["receipt"].pop("digest")["frames"] == 1
    assert body["receipt"] == {
        "version": 1,
        "policy": None,
        "mode": "enforce",
        "outcome": "released",
        "covered": True,
        "lanes": ["content"],
        "released": {"prompt": 3, "documents": 0, "answer": 0},
        "detectors": [
            {
                "detector_id": "pii",
                "read": {"prompt": 3},
                "chunks": 1,
                "findings": 1,
                "time_ms": 1.5,
                "covered": True,
            }
        ],
    }


def test_the_last_event_of_a_guarded_answer_tells_the_same_as_a_whole_one() -> None:
    told = AnswerDetails(is_guarded=True)
    encode_step(Token("Hi", 0, 2), told)
    done = json.loads(encode_done(guarded(), told).removeprefix(b"event: done\ndata: "))
    whole = json.loads(encode_response("Hi", guarded(), AnswerDetails(is_guarded=True)))
    assert done.pop("retrieval_info") == whole.pop("retrieval_info")[::-1]
    assert {"response": "Hi", **done} == whole


@pytest.mark.parametrize(
    ("is_prompt_blocked", "is_answer_blocked", "word"),
    [(False, False, "answered"), (False, True, "answer_blocked"), (True, False, "prompt_blocked")],
)
def test_the_outcome_is_one_word(is_prompt_blocked: bool, is_answer_blocked: bool, word: str) -> None:
    known = outcome()
    known.is_prompt_blocked, known.is_answer_blocked = is_prompt_blocked, is_answer_blocked
    assert json.loads(encode_response("", known, GUARDED))["outcome"] == word


# Errors.


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (401, "unauthorized"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (413, "request_too_large"),
        (422, "validation_error"),
        (429, "too_many_requests"),
        (500, "internal_error"),
        (503, "unavailable"),
        (504, "timeout"),
        (599, "error"),
    ],
)
def test_an_error_is_named_by_its_status(status: int, name: str) -> None:
    assert encode_error(status, "so") == b'{"error":"%b","message":"so","details":{}}' % name.encode()


def test_an_invalid_request_is_told_with_the_field_to_blame() -> None:
    assert encode_fault(InvalidField("top_k", "too many")) == (
        b'{"error":"validation_error","message":"top_k: too many",'
        b'"details":{"fields":[{"field":"top_k","message":"too many"}]}}'
    )
    assert encode_fault(InvalidField("", "no JSON")) == (
        b'{"error":"validation_error","message":"no JSON","details":{"fields":[]}}'
    )


def test_the_failure_of_a_detector_names_it() -> None:
    error = CheckFailed("pii")
    told = json.loads(encode_fault(error))
    assert told == {"error": "check_failed", "message": error.message, "details": {"part": "pii"}}


def test_the_failure_of_the_model_is_told_with_its_path_and_time() -> None:
    error = GenerationFailed("no answer", "al/m", 12)
    assert encode_fault(error) == (
        b'{"error":"generation_failed","message":"Model generation failed: no answer",'
        b'"details":{"model_path":"al/m","latency_ms":12}}'
    )
