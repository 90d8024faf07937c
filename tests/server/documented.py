# SPDX-License-Identifier: Apache-2.0
"""Compares what was answered with the types by which the table of endpoints documents it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lockgate.api.endpoint import JSON, NDJSON, SSE, ApiEndpoint
from lockgate.api.endpoints import find_endpoint
from lockgate.gate.sse import SseParser
from tests.server.http_client import Answer


def find_undocumented(path: str, answer: Answer) -> list[str]:
    """What in an answer is not as its documented type encodes it."""
    endpoint = find_endpoint(path)
    faults = []
    for kind, value in list_values(endpoint, answer):
        if kind is None:
            faults.append(f"no type: {value}")
            continue
        try:
            encoded = json.loads(msgspec.json.encode(msgspec.convert(value, kind)))
        except msgspec.ValidationError as error:
            faults.append(f"{kind.__name__}: {error}: {value}")
            continue
        faults += [f"{kind.__name__}: {place}" for place in find_differences(value, encoded)]
    return [f"{path} {answer.status} {fault}" for fault in faults]


def list_values(endpoint: ApiEndpoint, answer: Answer) -> Iterator[tuple[Any, Any]]:
    """The JSON values of an answer, each with its documented type."""
    error, media = endpoint.format.error, answer.headers["content-type"].partition(";")[0]
    kind = endpoint.response.get(media)
    if media == SSE:
        for one in SseParser().feed(answer.body):
            named = kind[one.event] if isinstance(kind, Mapping) else error if one.event == "error" else kind
            if one.data != "[DONE]":
                value = json.loads(one.data)
                yield error if "error" in value else named, value
    elif media == NDJSON:
        for line in answer.body.splitlines():
            value = json.loads(line)
            yield error if "error" in value or "code" in value else kind, value
    elif media == JSON:
        is_error = answer.status >= 400 and endpoint.name != "ready"
        yield error if is_error else kind, json.loads(answer.body)


def find_differences(value: Any, encoded: Any, place: str = "") -> Iterator[str]:
    """The places where a value and its encoding differ."""
    if isinstance(value, dict) and isinstance(encoded, dict):
        for key in value.keys() | encoded.keys():
            if key not in encoded:
                yield f"{place}.{key} is not documented"
            elif key not in value:
                yield f"{place}.{key} is missing"
            else:
                yield from find_differences(value[key], encoded[key], f"{place}.{key}")
    elif isinstance(value, list) and isinstance(encoded, list) and len(value) == len(encoded):
        for one, other in zip(value, encoded, strict=True):
            yield from find_differences(one, other, f"{place}[]")
    elif value != encoded:
        yield f"{place} is {value!r}, documented as {encoded!r}"
