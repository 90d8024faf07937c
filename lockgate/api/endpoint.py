# SPDX-License-Identifier: Apache-2.0
"""One endpoint: path, wire format, permitted callers, types of requests and responses."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from lockgate.api.aggregator.format import AnswerFault
from lockgate.api.aggregator.format import encode_error as encode_chat_error
from lockgate.api.guardrails.format import ErrorAnswer
from lockgate.api.guardrails.format import encode_error as encode_guardrails_error
from lockgate.api.ollama.format import OllamaFault
from lockgate.api.ollama.format import encode_error as encode_ollama_error
from lockgate.api.openai.answer_types import ClientError
from lockgate.api.openai.format import encode_client_error
from lockgate.config.settings import Settings
from lockgate.server.exchange import ErrorEncoder

JSON = "application/json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"

_STATUSES = {
    "400": "not JSON, or a detector that this endpoint cannot use",
    "401": "the caller is not known",
    "403": "the caller may not use this policy or model",
    "404": "no such detector",
    "413": "larger than the limits allow",
    "415": "wrong content type",
    "422": "wrong shape, or a rule is broken",
    "429": "the caller's share is used up, or the model gets too many requests",
    "500": "a bug",
    "502": "an upstream service failed (in a stream this is an event)",
    "503": "too many requests at once, or an upstream service is not available",
    "504": "the request, or an upstream service, took longer than its limit",
}
_ANSWER_STATUSES = {
    "400": "the model gave no answer (in a stream this is an event), or a detector that cannot read this",
    "401": "the caller is not known",
    "403": "the caller may not use this policy or model",
    "404": "no such detector",
    "413": "larger than the limits allow",
    "422": "not JSON, wrong content type, wrong shape, or a rule is broken",
    "429": "the caller's share is used up",
    "500": "a bug",
    "502": "a detector or a chunker failed (in a stream this is an event)",
    "503": "too many requests at once, or a detector or a chunker is not available",
    "504": "the request, a detector or a chunker took longer than its limit",
}


class WireFormat(NamedTuple):
    """How endpoints of one format encode errors, and their type and statuses in the OpenAPI document."""

    encode_error: ErrorEncoder
    error: Any
    statuses: Mapping[str, str]


GUARDRAILS = WireFormat(encode_guardrails_error, ErrorAnswer, _STATUSES)
OPENAI = WireFormat(encode_client_error, ClientError, _STATUSES)
OLLAMA = WireFormat(encode_ollama_error, OllamaFault, _STATUSES)
AGGREGATOR = WireFormat(encode_chat_error, AnswerFault, _ANSWER_STATUSES)


class HealthAnswer(msgspec.Struct):
    """The process is up."""

    status: str
    service: str


class ReadyAnswer(msgspec.Struct):
    """Whether requests are accepted, and which services were not reached yet."""

    status: str
    checks: dict[str, str]


class Port(enum.Enum):
    """Where an endpoint is served."""

    API = enum.auto()
    HEALTH = enum.auto()


class Scope(enum.Enum):
    """Who may call. Only `KEY` and `BEARER` identify callers, count towards limits and are logged."""

    KEY = enum.auto()  # callers, by X-Lockgate-Key or certificate
    BEARER = enum.auto()  # also by a bearer token
    PAGE = enum.auto()  # anyone: files of the playground
    PROBE = enum.auto()  # anyone, however busy the process is


class CorsRule(enum.Enum):
    """Which web pages may call: those listed in `aggregator` and `server`, those in `server` alone, or none."""

    AGGREGATOR = enum.auto()
    SERVER = enum.auto()
    NONE = enum.auto()


ANY_VALUE = "{}"  # stands for any value of a path's variable


@dataclass(frozen=True, kw_only=True)
class ApiEndpoint:
    """One endpoint. Without `summary` it is not in the OpenAPI document."""

    name: str  # operation id, and key of the handler
    path: str  # may end in `{variable}`
    method: str = "POST"
    port: Port = Port.API
    format: WireFormat = GUARDRAILS
    scope: Scope = Scope.KEY
    cors: CorsRule = CorsRule.SERVER
    span: str = ""  # name in traces
    summary: str = ""
    request: tuple[Any, ...] = ()  # types of the body
    request_media: str = JSON
    response: Mapping[str, Any] = field(default_factory=dict)  # by media type; of named events by name
    statuses: tuple[str, ...] = ()  # of errors; empty: all of the format
    input: tuple[str, ...] = ()  # types of detectors that requests may name
    output: tuple[str, ...] = ()
    exists: Callable[[Settings], bool] = lambda _: True
    lacks: Callable[[Settings], str] = lambda _: ""  # the missing section that it needs

    @property
    def prefix(self) -> str:
        """The part of the path before its variable."""
        return self.path.partition("{")[0]

    @property
    def is_template(self) -> bool:
        """Whether the path ends in a variable."""
        return "{" in self.path

    @cached_property
    def is_open(self) -> bool:
        """Whether anyone may call, without a key and without counting as an open request."""
        return self.scope in (Scope.PAGE, Scope.PROBE)

    @cached_property
    def is_correlated(self) -> bool:
        """Whether requests have a correlation id."""
        return self.format is AGGREGATOR or self.scope is Scope.PROBE

    @property
    def takes_policy(self) -> bool:
        """Whether the path is also served below each policy's name."""
        return self.format is OPENAI
