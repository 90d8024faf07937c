# SPDX-License-Identifier: Apache-2.0
"""Request bodies: what is taken, and the exact words for what is not (rules G-27 to G-30, G-44, G-74).

The words and positions of the examples are those of serde_json with serde_path_to_error, run on the same bodies.
"""

import json
from typing import Annotated, Any

import msgspec
import pytest

from lockgate.api.openai import format as openai
from lockgate.api.openai.turn_format import AgentChat
from lockgate.api.shapes import Shape
from lockgate.errors import InvalidRequest, UnreadableBody
from tests.api.sample_shapes import (
    CHAT,
    CLASSIFICATION,
    CONTENT,
    CONTEXT,
    KEPT,
    LINE,
    NUMBERS,
    Content,
    Numbers,
    free,
    refusal,
)

NOT_JSON = "Failed to parse the request body as JSON: "


def test_a_good_body_becomes_its_message() -> None:
    body = b' {"detectors": {"pii": {"threshold": 0.8}}, "content": "Gr\\u00fc\xc3\x9fe"}\n'
    assert CONTENT.decode(body) == Content("Grüße", {"pii": {"threshold": 0.8}})


def test_a_line_may_leave_out_the_detectors_or_say_null() -> None:
    assert LINE.decode_line(b'{"content":"x"}') == LINE.decode_line(b'{"content":"x","detectors":null}')


@pytest.mark.parametrize(
    ("shape", "body", "text"),
    [
        (CONTENT, b"{}", "missing field `content` at line 1 column 2"),
        (CONTENT, b'{"content":"x"}', "missing field `detectors` at line 1 column 15"),
        (
            CLASSIFICATION,
            b'{"guardrail_config":{"input":{}}}',
            "guardrail_config.input: missing field `models` at line 1 column 31",
        ),
        (CHAT, b'{"detectors":{},"messages":[{}]}', "messages[0]: missing field `role` at line 1 column 30"),
        (
            CONTENT,
            b'{"content":"x","extra":1}',
            "extra: unknown field `extra`, expected `content` or `detectors` at line 1 column 22",
        ),
        (
            CLASSIFICATION,
            b'{"x":1}',
            "x: unknown field `x`, expected one of `model_id`, `inputs`, `guardrail_config`, `text_gen_parameters`"
            " at line 1 column 4",
        ),
        (KEPT, b'{"x":1}', "x: unknown field `x`, expected `raw` at line 1 column 4"),
        (CONTENT, b'{"content":5}', "content: invalid type: integer `5`, expected a string at line 1 column 12"),
        (CONTENT, b'{"content":\n  5}', "content: invalid type: integer `5`, expected a string at line 2 column 3"),
        (CONTENT, b'{"detectors":null}', "detectors: invalid type: null, expected a map at line 1 column 17"),
        (
            CONTENT,
            b'{"detectors": {"pii": null}}',
            "detectors.pii: invalid type: null, expected a map at line 1 column 26",
        ),
        (
            CHAT,
            b'{"messages":["x"]}',
            'messages[0]: invalid type: string "x", expected struct Message at line 1 column 16',
        ),
        (
            CONTEXT,
            b'{"context_type":"web"}',
            "context_type: unknown variant `web`, expected `docs` or `url` at line 1 column 21",
        ),
        (CONTENT, b'{"content":"x","content":"y"}', "duplicate field `content` at line 1 column 24"),
        (
            CHAT,
            b'{"messages":[{"role":"u"},{"role":"u","role":"v"}]}',
            "messages[1]: duplicate field `role` at line 1 column 44",
        ),
        (
            CHAT,
            b'{"messages":[{"role":"u","content":5}]}',
            "messages[0].content: data did not match any variant of untagged enum Content at line 1 column 37",
        ),
        (
            CHAT,
            b'{"messages":[{"role":"u","content":[{"type":"x"}]}]}',
            "messages[0].content: data did not match any variant of untagged enum Content at line 1 column 50",
        ),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_in_the_words_of_the_reference(
    shape: Shape[Any], body: bytes, text: str
) -> None:
    fault = refusal(shape, body)
    assert (type(fault), fault.status, fault.message) == (InvalidRequest, 422, text)


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (b"null", "null"),
        (b"true", "boolean `true`"),
        (b"-7", "integer `-7`"),
        (b"1.0", "floating point `1.0`"),
        (b"1e-5", "floating point `0.00001`"),
        (b"1e20", "floating point `1e20`"),
        (b"18446744073709551616", "floating point `1.8446744073709552e19`"),
        (b"[1]", "sequence"),
        (b'{"a":1}', "map"),
    ],
)
def test_a_value_of_the_wrong_type_is_described(value: bytes, described: str) -> None:
    fault = refusal(CONTENT, b'{"content":' + value + b"}")
    assert fault.message.startswith(f"content: invalid type: {described}, expected a string at line 1 column ")


def test_a_string_of_the_wrong_type_is_shown_in_rusts_debug_form() -> None:
    fault = refusal(CONTENT, '"a\\"b\\\\\\n\\u0000\\u001b\u0301é"'.encode())
    assert fault.message.startswith(
        'invalid type: string "a\\"b\\\\\\n\\0\\u{1b}\\u{301}é", expected struct Content at'
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"small":-1}', "small: invalid value: integer `-1`, expected u32"),
        (b'{"small":4294967296}', "small: invalid value: integer `4294967296`, expected u32"),
        (b'{"small":1.5}', "small: invalid type: floating point `1.5`, expected u32"),
        (b'{"small":1.0}', "small: invalid type: floating point `1.0`, expected u32"),
        (
            b'{"large":18446744073709551616}',
            "large: invalid type: floating point `1.8446744073709552e19`, expected u64",
        ),
        (b'{"signed":9223372036854775808}', "signed: invalid value: integer `9223372036854775808`, expected i64"),
        (b'{"real":"1"}', 'real: invalid type: string "1", expected f64'),
        (b'{"flag":1}', "flag: invalid type: integer `1`, expected a boolean"),
        (b'{"signs":[1,"2"]}', 'signs[1]: invalid type: string "2", expected i64'),
        (b'{"signs":{}}', "signs: invalid type: map, expected a sequence"),
    ],
)
def test_numbers_are_refused_by_the_name_of_their_type(body: bytes, text: str) -> None:
    assert refusal(NUMBERS, body).message.startswith(text + " at line 1 column ")


def test_numbers_within_their_bounds_are_taken() -> None:
    body = b'{"small":4294967295,"large":18446744073709551615,"signed":-9223372036854775808,"real":3,"flag":true}'
    assert NUMBERS.decode(body) == Numbers(2**32 - 1, 2**64 - 1, -(2**63), 3.0, True)


def test_the_outermost_struct_may_be_given_another_name() -> None:
    assert refusal(CLASSIFICATION, b"5").message.startswith(
        "invalid type: integer `5`, expected struct ClassificationRequest at"
    )


def test_the_first_fault_in_the_document_is_the_one_that_is_told() -> None:
    assert refusal(CONTENT, b'{"extra":1,"content":5}').message.startswith("extra: unknown field")
    assert refusal(CONTENT, b'{"content":5,"extra":1}').message.startswith("content: invalid type")
    assert refusal(CONTENT, b'{"content":5,]').status == 422
    assert refusal(CONTENT, b'{"content":"x",]').status == 400


SYNTAX = [
    (b"", "EOF while parsing a value at line 1 column 0"),
    (b" \n ", "EOF while parsing a value at line 2 column 1"),
    (b"{", "EOF while parsing an object at line 1 column 1"),
    (b'{"content"', "EOF while parsing an object at line 1 column 10"),
    (b'{"content" "x"}', "expected `:` at line 1 column 12"),
    (b'{"content":', "content: EOF while parsing a value at line 1 column 11"),
    (b'{"content":"x"', "EOF while parsing an object at line 1 column 14"),
    (b'{"content":"x" 1}', "expected `,` or `}` at line 1 column 16"),
    (b'{"content":"x",}', "trailing comma at line 1 column 16"),
    (b'{"content":"x",', "EOF while parsing a value at line 1 column 15"),
    (b"{content:1}", "key must be a string at line 1 column 2"),
    (b'{"content":"abc', "content: EOF while parsing a string at line 1 column 15"),
    (b'{"content":"a\\', "content: EOF while parsing a string at line 1 column 14"),
    (b'{"content":"a\\q"}', "content: invalid escape at line 1 column 15"),
    (b'{"content":"\\u1', "content: EOF while parsing a string at line 1 column 15"),
    (b'{"content":"\\u12x4"}', "content: invalid escape at line 1 column 18"),
    (b'{"content":"\\ud800"}', "content: unexpected end of hex escape at line 1 column 19"),
    (b'{"content":"\\ud800\\n"}', "content: unexpected end of hex escape at line 1 column 20"),
    (b'{"content":"\\ud800', "content: EOF while parsing a string at line 1 column 18"),
    (b'{"content":"\\udc00"}', "content: lone leading surrogate in hex escape at line 1 column 18"),
    (b'{"content":"\\ud800\\u0041"}', "content: lone leading surrogate in hex escape at line 1 column 24"),
    (
        b'{"content":"a\x00"}',
        "content: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 14",
    ),
    (b'{"content":"\xff"}', "content: invalid unicode code point at line 1 column 13"),
    (b'{"content":nul}', "content: expected ident at line 1 column 15"),
    (b'{"content":tru', "content: EOF while parsing a value at line 1 column 14"),
    (b'{"content":-}', "content: invalid number at line 1 column 13"),
    (b'{"content":01}', "content: invalid number at line 1 column 13"),
    (b'{"content":1.}', "content: invalid number at line 1 column 14"),
    (b'{"content":1e}', "content: invalid number at line 1 column 14"),
    (b'{"content":1e999}', "content: number out of range at line 1 column 16"),
    (b'{"content":NaN}', "content: expected value at line 1 column 12"),
    (b'{"detectors":{"a":{"b":[1,]}}}', "detectors.a.b: trailing comma at line 1 column 27"),
    (b'{"detectors":{"a":{"b":[1 2]}}}', "detectors.a.b: expected `,` or `]` at line 1 column 27"),
    (b'{"detectors":{"a":{"b":[', "detectors.a.b: EOF while parsing a list at line 1 column 24"),
    (b'{"detectors":{"a":{"b":[1,', "detectors.a.b: EOF while parsing a value at line 1 column 26"),
    (b'{"detectors":{"a":{', "detectors.a.?: EOF while parsing an object at line 1 column 19"),
    (
        b'{"detectors":{"a":{"b":[true,{"c":1,2:3}]}}}',
        "detectors.a.b[1].?: key must be a string at line 1 column 37",
    ),
    (b'{"detectors":{"a":{"b":[0,1,2,3,[],{},x]}}}', "detectors.a.b[6]: expected value at line 1 column 39"),
    (b'{"content":"x","detectors":{}} x', "trailing characters at line 1 column 32"),
    (b"\xef\xbb\xbf{}", "expected value at line 1 column 1"),
    (b'{\n"content":"x",\n  "detectors" 5}', "expected `:` at line 3 column 15"),
]


@pytest.mark.parametrize(("body", "text"), SYNTAX)
def test_a_body_that_is_not_json_is_refused_with_the_words_of_its_parser(body: bytes, text: str) -> None:
    fault = refusal(CONTENT, body)
    assert (type(fault), fault.status, fault.message) == (UnreadableBody, 400, NOT_JSON + text)


def test_an_enum_that_is_no_string_counts_as_bad_json() -> None:
    assert (
        refusal(CONTEXT, b'{"context_type":5}').message == NOT_JSON + "context_type: expected value at line 1 column 17"
    )
    assert refusal(CONTEXT, b'{"context_type":{}}').status == 422


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (
            b'{"detectors":{"a":{}},"content":"x", "extra":1}',
            "unknown field `extra`, expected `detectors` or `content` at line 1 column 44",
        ),
        (b'{"detectors":{"a":5}}', "invalid type: integer `5`, expected a map at line 1 column 19"),
        (b'{"detectors":{}}', "missing field `content` at line 1 column 16"),
        (b'{"content":"x"} {}', "trailing characters at line 1 column 17"),
    ],
)
def test_a_bad_line_of_a_stream_is_refused_without_a_path_or_a_prefix(line: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LINE.decode_line(line)
    assert (caught.value.status, caught.value.message) == (422, text)


@pytest.mark.parametrize(
    "body",
    [
        b'{"content":"x","detectors":{},"content":"y"}',
        b'{"content":"x","detectors":{},"\\u0063ontent":"y"}',
        b'{"content":"x","detectors":{},"conten\\u0074":"y"}',
        b'{"content":"\\u0022content\\u0022:","detectors":{},"content" :"y"}',
    ],
)
def test_a_field_written_twice_is_refused_however_it_is_spelled(body: bytes) -> None:
    assert refusal(CONTENT, body).message.startswith("duplicate field `content` at line 1 column ")


def test_a_key_repeated_in_a_map_is_taken_and_the_last_one_counts() -> None:
    assert CONTENT.decode(free(b'{"content":1,"content":2}')).detectors == {"a": {"b": {"content": 2}}}
    assert CONTENT.decode(b'{"content":"x","detectors":{"a":{},"a":{"b":1}}}').detectors == {"a": {"b": 1}}


def test_a_text_that_speaks_of_the_fields_is_no_repetition() -> None:
    text = 'the "content": twice, "content" : and "detectors"'
    assert CONTENT.decode(json.dumps({"content": text, "detectors": {"content": {}}}).encode()).content == text


def test_a_field_repeated_in_one_of_many_structs_is_found() -> None:
    good = b'{"role":"u","name":"n"}'
    body = b'{"detectors":{},"messages":[' + b",".join([good] * 5 + [b'{"role":"u","name":"n","name":"m"}']) + b"]}"
    assert refusal(CHAT, body).message.startswith("messages[5]: duplicate field `name`")
    assert len(CHAT.decode(body.replace(b',"name":"m"', b"")).messages) == 6


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b"[0,", b"]")])
def test_containers_may_go_127_deep_and_no_deeper(brackets: tuple[bytes, bytes]) -> None:
    deepest = 127 - 3
    opening, closing = brackets
    assert CONTENT.decode(free(opening * deepest + b"1" + closing * deepest))
    fault = refusal(CONTENT, free(opening * (deepest + 1) + b"1" + closing * (deepest + 1)))
    assert fault.status == 400
    assert "recursion limit exceeded at line 1 column" in fault.message


def test_many_containers_that_are_not_deep_are_taken() -> None:
    assert CONTENT.decode(free(b'[["]\\\\"],{"[":"\\"["}' + b",[{}]" * 500 + b"]"))


def test_an_integer_too_long_for_a_double_is_refused_in_free_places_too() -> None:
    assert CONTENT.decode(free(b"1" + b"0" * 308))
    assert "detectors.a.b: number out of range" in refusal(CONTENT, free(b"1" + b"0" * 309)).message


@pytest.mark.parametrize("value", [b'"\xff"', b"1e999", b'"\\ud800"', b'{"\xff":1}'])
def test_parts_that_are_only_passed_on_must_be_sound_json_too(value: bytes) -> None:
    assert refusal(KEPT, b'{"raw":' + value + b"}").status == 400
    assert refusal(NUMBERS, b'{"unknown":' + value + b"}").status == 400


def test_a_fault_that_only_the_type_itself_knows_still_gets_a_text() -> None:
    class Picky(msgspec.Struct):
        def __post_init__(self) -> None:
            raise ValueError("never")

    fault = refusal(Shape(Picky), b"{}")
    assert (fault.status, fault.message) == (422, "invalid value, expected struct Picky")


@pytest.mark.parametrize(
    "type_",
    [
        bytes,
        Annotated[str, msgspec.Meta(min_length=1)],
        Annotated[list[int], msgspec.Meta(max_length=3)],
        dict[int, int],
    ],
)
def test_a_type_whose_rules_have_no_words_in_the_reference_is_refused_at_once(type_: Any) -> None:
    with pytest.raises(TypeError, match="a request body cannot hold"):
        Shape(type_)


@pytest.mark.parametrize(
    ("type_", "body", "expected"),
    [
        (openai.Chat, {"model": "m", "messages": ["x"]}, "struct Message"),
        (openai.ChatDetection, {"detectors": {}, "messages": ["x"]}, "struct Message"),
        (AgentChat, {"model": "m", "messages": [], "stream_options": "x"}, "struct StreamOptions"),
    ],
)
def test_a_field_of_an_endpoint_keeps_the_reference_s_name(type_: type[Any], body: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=f'invalid type: string "x", expected {expected} at line 1'):
        Shape(type_).decode(json.dumps(body).encode())
