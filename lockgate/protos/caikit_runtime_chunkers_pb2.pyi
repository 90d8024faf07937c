# SPDX-License-Identifier: Apache-2.0
from lockgate.protos import caikit_data_model_nlp_pb2 as _caikit_data_model_nlp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ChunkerTokenizationTaskRequest(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class BidiStreamingChunkerTokenizationTaskRequest(_message.Message):
    __slots__ = ("text_stream", "input_index_stream")
    TEXT_STREAM_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDEX_STREAM_FIELD_NUMBER: _ClassVar[int]
    text_stream: str
    input_index_stream: int
    def __init__(self, text_stream: _Optional[str] = ..., input_index_stream: _Optional[int] = ...) -> None: ...
