# SPDX-License-Identifier: Apache-2.0
from lockgate.protos import caikit_data_model_caikit_nlp_pb2 as _caikit_data_model_caikit_nlp_pb2
from lockgate.protos import caikit_data_model_nlp_pb2 as _caikit_data_model_nlp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TextGenerationTaskRequest(_message.Message):
    __slots__ = ("text", "max_new_tokens", "min_new_tokens", "truncate_input_tokens", "decoding_method", "top_k", "top_p", "typical_p", "temperature", "repetition_penalty", "max_time", "exponential_decay_length_penalty", "stop_sequences", "seed", "preserve_input_text", "input_tokens", "generated_tokens", "token_logprobs", "token_ranks", "include_stop_sequence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODING_METHOD_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_DECAY_LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESERVE_INPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_RANKS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    max_new_tokens: int
    min_new_tokens: int
    truncate_input_tokens: int
    decoding_method: str
    top_k: int
    top_p: float
    typical_p: float
    temperature: float
    repetition_penalty: float
    max_time: float
    exponential_decay_length_penalty: _caikit_data_model_caikit_nlp_pb2.ExponentialDecayLengthPenalty
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    preserve_input_text: bool
    input_tokens: bool
    generated_tokens: bool
    token_logprobs: bool
    token_ranks: bool
    include_stop_sequence: bool
    def __init__(self, text: _Optional[str] = ..., max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., truncate_input_tokens: _Optional[int] = ..., decoding_method: _Optional[str] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., temperature: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_time: _Optional[float] = ..., exponential_decay_length_penalty: _Optional[_Union[_caikit_data_model_caikit_nlp_pb2.ExponentialDecayLengthPenalty, _Mapping]] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ..., preserve_input_text: _Optional[bool] = ..., input_tokens: _Optional[bool] = ..., generated_tokens: _Optional[bool] = ..., token_logprobs: _Optional[bool] = ..., token_ranks: _Optional[bool] = ..., include_stop_sequence: _Optional[bool] = ...) -> None: ...

class ServerStreamingTextGenerationTaskRequest(_message.Message):
    __slots__ = ("text", "max_new_tokens", "min_new_tokens", "truncate_input_tokens", "decoding_method", "top_k", "top_p", "typical_p", "temperature", "repetition_penalty", "max_time", "exponential_decay_length_penalty", "stop_sequences", "seed", "preserve_input_text", "input_tokens", "generated_tokens", "token_logprobs", "token_ranks", "include_stop_sequence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODING_METHOD_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_DECAY_LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESERVE_INPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_RANKS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    max_new_tokens: int
    min_new_tokens: int
    truncate_input_tokens: int
    decoding_method: str
    top_k: int
    top_p: float
    typical_p: float
    temperature: float
    repetition_penalty: float
    max_time: float
    exponential_decay_length_penalty: _caikit_data_model_caikit_nlp_pb2.ExponentialDecayLengthPenalty
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    preserve_input_text: bool
    input_tokens: bool
    generated_tokens: bool
    token_logprobs: bool
    token_ranks: bool
    include_stop_sequence: bool
    def __init__(self, text: _Optional[str] = ..., max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., truncate_input_tokens: _Optional[int] = ..., decoding_method: _Optional[str] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., temperature: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_time: _Optional[float] = ..., exponential_decay_length_penalty: _Optional[_Union[_caikit_data_model_caikit_nlp_pb2.ExponentialDecayLengthPenalty, _Mapping]] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ..., preserve_input_text: _Optional[bool] = ..., input_tokens: _Optional[bool] = ..., generated_tokens: _Optional[bool] = ..., token_logprobs: _Optional[bool] = ..., token_ranks: _Optional[bool] = ..., include_stop_sequence: _Optional[bool] = ...) -> None: ...

class TokenizationTaskRequest(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class TokenClassificationTaskRequest(_message.Message):
    __slots__ = ("text", "threshold")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    text: str
    threshold: float
    def __init__(self, text: _Optional[str] = ..., threshold: _Optional[float] = ...) -> None: ...
