# SPDX-License-Identifier: Apache-2.0
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_FINISHED: _ClassVar[FinishReason]
    MAX_TOKENS: _ClassVar[FinishReason]
    EOS_TOKEN: _ClassVar[FinishReason]
    CANCELLED: _ClassVar[FinishReason]
    TIME_LIMIT: _ClassVar[FinishReason]
    STOP_SEQUENCE: _ClassVar[FinishReason]
    TOKEN_LIMIT: _ClassVar[FinishReason]
    ERROR: _ClassVar[FinishReason]
NOT_FINISHED: FinishReason
MAX_TOKENS: FinishReason
EOS_TOKEN: FinishReason
CANCELLED: FinishReason
TIME_LIMIT: FinishReason
STOP_SEQUENCE: FinishReason
TOKEN_LIMIT: FinishReason
ERROR: FinishReason

class Token(_message.Message):
    __slots__ = ("start", "end", "text")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    text: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class TokenizationResults(_message.Message):
    __slots__ = ("results", "token_count")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Token]
    token_count: int
    def __init__(self, results: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., token_count: _Optional[int] = ...) -> None: ...

class ChunkerTokenizationStreamResult(_message.Message):
    __slots__ = ("results", "processed_index", "start_index", "token_count", "input_start_index", "input_end_index")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUT_START_INDEX_FIELD_NUMBER: _ClassVar[int]
    INPUT_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Token]
    processed_index: int
    start_index: int
    token_count: int
    input_start_index: int
    input_end_index: int
    def __init__(self, results: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., processed_index: _Optional[int] = ..., start_index: _Optional[int] = ..., token_count: _Optional[int] = ..., input_start_index: _Optional[int] = ..., input_end_index: _Optional[int] = ...) -> None: ...

class GeneratedToken(_message.Message):
    __slots__ = ("text", "logprob", "rank")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    rank: int
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ...) -> None: ...

class GeneratedTextResult(_message.Message):
    __slots__ = ("generated_text", "generated_tokens", "finish_reason", "input_token_count", "seed", "tokens", "input_tokens")
    GENERATED_TEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    generated_text: str
    generated_tokens: int
    finish_reason: FinishReason
    input_token_count: int
    seed: int
    tokens: _containers.RepeatedCompositeFieldContainer[GeneratedToken]
    input_tokens: _containers.RepeatedCompositeFieldContainer[GeneratedToken]
    def __init__(self, generated_text: _Optional[str] = ..., generated_tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., input_token_count: _Optional[int] = ..., seed: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[GeneratedToken, _Mapping]]] = ..., input_tokens: _Optional[_Iterable[_Union[GeneratedToken, _Mapping]]] = ...) -> None: ...

class TokenStreamDetails(_message.Message):
    __slots__ = ("finish_reason", "generated_tokens", "seed", "input_token_count")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    generated_tokens: int
    seed: int
    input_token_count: int
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., generated_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., input_token_count: _Optional[int] = ...) -> None: ...

class GeneratedTextStreamResult(_message.Message):
    __slots__ = ("generated_text", "tokens", "details", "input_tokens")
    GENERATED_TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    generated_text: str
    tokens: _containers.RepeatedCompositeFieldContainer[GeneratedToken]
    details: TokenStreamDetails
    input_tokens: _containers.RepeatedCompositeFieldContainer[GeneratedToken]
    def __init__(self, generated_text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[GeneratedToken, _Mapping]]] = ..., details: _Optional[_Union[TokenStreamDetails, _Mapping]] = ..., input_tokens: _Optional[_Iterable[_Union[GeneratedToken, _Mapping]]] = ...) -> None: ...

class TokenClassificationResult(_message.Message):
    __slots__ = ("start", "end", "word", "entity", "entity_group", "score", "token_count")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    ENTITY_GROUP_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    word: str
    entity: str
    entity_group: str
    score: float
    token_count: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., word: _Optional[str] = ..., entity: _Optional[str] = ..., entity_group: _Optional[str] = ..., score: _Optional[float] = ..., token_count: _Optional[int] = ...) -> None: ...

class TokenClassificationResults(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TokenClassificationResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TokenClassificationResult, _Mapping]]] = ...) -> None: ...
