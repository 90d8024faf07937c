# SPDX-License-Identifier: Apache-2.0
"""The places of texts in requests for chat and text completions, as tables for `lockgate.gate.coverage`.

A key that is missing here is read as a name, with its value: a field that a server adds one day never passes unread.
"""

from lockgate.gate.coverage import FieldRule, TextKind, known, spread, technical
from lockgate.gate.messages import TOOL_ROLES

_NAME, _NUMBERS = FieldRule(), FieldRule(unreadable="numbers")
_TEXT = FieldRule(TextKind.CONTENT, json_roles=TOOL_ROLES)
_IMAGE, _AUDIO, _FILE, _REFERENCE, _SEALED = (
    FieldRule(unreadable=kind) for kind in ("image", "audio", "file", "reference", "encrypted")
)

# A JSON Schema: its keywords are known, the names of its properties are read.
_schema_keys: dict[str, FieldRule] = {}
SCHEMA = FieldRule(keys=_schema_keys)
_SCHEMAS_BY_NAME = FieldRule(others=SCHEMA)
_schema_keys |= known(
    "title description default examples enum const format pattern $ref $id $schema $comment required minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems uniqueItems minProperties "
    "maxProperties nullable deprecated readOnly writeOnly strict"
)
_schema_keys |= {"type": technical("object", "array", "string", "number", "integer", "boolean", "null")}
_schema_keys |= known(
    "items additionalProperties propertyNames contains not if then else anyOf oneOf allOf prefixItems", SCHEMA
)
_schema_keys |= known("properties patternProperties $defs definitions dependentSchemas", _SCHEMAS_BY_NAME)

# Messages.
_PART = FieldRule(
    TextKind.CONTENT,
    {
        "type": technical(
            *("text", "image_url", "input_audio", "file", "refusal", "thinking", "redacted_thinking"),
            *("input_text", "output_text", "input_image", "input_file", "image", "video_url", "audio_url"),
        ),
        "text": _TEXT,
        "refusal": _TEXT,
        "thinking": _TEXT,
        "signature": _SEALED,
        "image_url": _IMAGE,
        "image": _IMAGE,
        "video_url": _IMAGE,
        "input_audio": _AUDIO,
        "audio_url": _AUDIO,
        "file": FieldRule(keys={"file_data": _FILE, "file_id": _REFERENCE, "filename": _NAME}),
        "cache_control": FieldRule(keys={"type": technical("ephemeral"), "ttl": technical("5m", "1h")}),
    },
    json_roles=TOOL_ROLES,
)
_ARGUMENTS = FieldRule(TextKind.JSON, others=spread(TextKind.CONTENT))
_FUNCTION_CALL = FieldRule(keys={"name": _NAME, "arguments": _ARGUMENTS})
_CALL = FieldRule(
    keys={
        "id": _NAME,
        "type": technical("function", "custom"),
        "index": _NAME,
        "function": _FUNCTION_CALL,
        "custom": FieldRule(keys={"name": _NAME, "input": FieldRule(TextKind.CONTENT)}),
    }
)
_REASONING_DETAIL = spread(
    TextKind.CONTENT,
    {
        "type": technical("reasoning.text", "reasoning.summary", "reasoning.encrypted"),
        "data": _SEALED,
        "signature": _SEALED,
        "id": _NAME,
        "format": _NAME,
        "index": _NAME,
        "text": _TEXT,
        "summary": _TEXT,
    },
)
MESSAGE = FieldRule(
    keys={
        "role": technical("system", "developer", "user", "assistant", "tool", "function"),
        "content": _PART,
        "name": _NAME,
        "refusal": _TEXT,
        "reasoning_content": _TEXT,
        "reasoning": _TEXT,
        "reasoning_details": _REASONING_DETAIL,
        "tool_calls": _CALL,
        "function_call": _FUNCTION_CALL,
        "tool_call_id": _NAME,
        "audio": FieldRule(unreadable="reference"),
        "images": _IMAGE,
        "encrypted_content": _SEALED,
        "prefix": _NAME,
        "partial": _NAME,
        "annotations": _NAME,
    },
    has_role=True,
)

# Other fields of a body.
_FUNCTION = FieldRule(
    keys={"name": _NAME, "description": FieldRule(TextKind.CONTENT), "parameters": SCHEMA, "strict": _NAME}
)
_GRAMMAR = FieldRule(keys={"syntax": technical("lark", "regex"), "definition": _NAME})
_CUSTOM = FieldRule(
    keys={
        "name": _NAME,
        "description": FieldRule(TextKind.CONTENT),
        "format": FieldRule(keys={"type": technical("text", "grammar"), "grammar": _GRAMMAR}),
    }
)
_TOOL = FieldRule(keys={"type": technical("function", "custom"), "function": _FUNCTION, "custom": _CUSTOM})
_CHOSEN = FieldRule(keys={"name": _NAME})
_DOCUMENTS = spread(TextKind.CONTENT)
_DOCUMENTS.keys = dict.fromkeys(("text", "title", "content", "id", "url", "metadata", "source"), _DOCUMENTS)

BODY = FieldRule(
    keys=known(
        "model stream stream_options n max_tokens max_completion_tokens temperature top_p top_k min_p seed stop user "
        "frequency_penalty presence_penalty repetition_penalty logit_bias logprobs top_logprobs parallel_tool_calls "
        "metadata store safety_identifier prompt_cache_key best_of echo chat_template add_generation_prompt "
        "ignore_eos min_tokens keep_alive include_reasoning skip_special_tokens continue_final_message"
    )
    | {
        "messages": MESSAGE,
        "prompt": FieldRule(TextKind.CONTENT, numbers=True),
        "suffix": FieldRule(TextKind.CONTENT),
        "prompt_embeds": _NUMBERS,
        "context": _NUMBERS,
        "tools": _TOOL,
        "functions": _FUNCTION,
        "tool_choice": FieldRule(
            keys={"type": _TOOL.keys["type"], "function": _CHOSEN, "custom": _CHOSEN},
            values=frozenset(("auto", "none", "required")),
        ),
        "function_call": FieldRule(keys={"name": _NAME}, values=frozenset(("auto", "none"))),
        "response_format": FieldRule(
            keys={
                "type": technical("text", "json_object", "json_schema"),
                "json_schema": FieldRule(
                    keys={"name": _NAME, "description": FieldRule(TextKind.CONTENT), "schema": SCHEMA, "strict": _NAME}
                ),
            }
        ),
        "prediction": FieldRule(keys={"type": technical("content"), "content": _PART}),
        "documents": _DOCUMENTS,
        "stream_options": FieldRule(keys=known("include_usage include_obfuscation")),
        "modalities": technical("text", "audio"),
        "audio": FieldRule(keys={"voice": _NAME, "format": technical("wav", "aac", "mp3", "flac", "opus", "pcm16")}),
        "reasoning_effort": technical("none", "minimal", "low", "medium", "high", "xhigh"),
        "verbosity": technical("low", "medium", "high"),
        "service_tier": technical("auto", "default", "flex", "scale", "priority"),
        "guided_json": SCHEMA,
    }
)
