# SPDX-License-Identifier: Apache-2.0
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentRequest(_message.Message):
    __slots__ = ("query", "session_id", "editor_content", "selected_text", "extra_context", "user_info", "query_type")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EDITOR_CONTENT_FIELD_NUMBER: _ClassVar[int]
    SELECTED_TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    USER_INFO_FIELD_NUMBER: _ClassVar[int]
    QUERY_TYPE_FIELD_NUMBER: _ClassVar[int]
    query: str
    session_id: str
    editor_content: str
    selected_text: str
    extra_context: str
    user_info: str
    query_type: str
    def __init__(self, query: _Optional[str] = ..., session_id: _Optional[str] = ..., editor_content: _Optional[str] = ..., selected_text: _Optional[str] = ..., extra_context: _Optional[str] = ..., user_info: _Optional[str] = ..., query_type: _Optional[str] = ...) -> None: ...

class AgentResponse(_message.Message):
    __slots__ = ("text", "avap_code", "is_final")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AVAP_CODE_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    avap_code: str
    is_final: bool
    def __init__(self, text: _Optional[str] = ..., avap_code: _Optional[str] = ..., is_final: _Optional[bool] = ...) -> None: ...

class EvalRequest(_message.Message):
    __slots__ = ("category", "limit", "index")
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    category: str
    limit: int
    index: str
    def __init__(self, category: _Optional[str] = ..., limit: _Optional[int] = ..., index: _Optional[str] = ...) -> None: ...

class EvalResponse(_message.Message):
    __slots__ = ("status", "questions_evaluated", "elapsed_seconds", "judge_model", "faithfulness", "answer_relevancy", "context_recall", "context_precision", "global_score", "verdict", "details")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_EVALUATED_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JUDGE_MODEL_FIELD_NUMBER: _ClassVar[int]
    FAITHFULNESS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_RELEVANCY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_RECALL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PRECISION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SCORE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    status: str
    questions_evaluated: int
    elapsed_seconds: float
    judge_model: str
    faithfulness: float
    answer_relevancy: float
    context_recall: float
    context_precision: float
    global_score: float
    verdict: str
    details: _containers.RepeatedCompositeFieldContainer[QuestionDetail]
    def __init__(self, status: _Optional[str] = ..., questions_evaluated: _Optional[int] = ..., elapsed_seconds: _Optional[float] = ..., judge_model: _Optional[str] = ..., faithfulness: _Optional[float] = ..., answer_relevancy: _Optional[float] = ..., context_recall: _Optional[float] = ..., context_precision: _Optional[float] = ..., global_score: _Optional[float] = ..., verdict: _Optional[str] = ..., details: _Optional[_Iterable[_Union[QuestionDetail, _Mapping]]] = ...) -> None: ...

class QuestionDetail(_message.Message):
    __slots__ = ("id", "category", "question", "answer_preview", "n_chunks")
    ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_PREVIEW_FIELD_NUMBER: _ClassVar[int]
    N_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    category: str
    question: str
    answer_preview: str
    n_chunks: int
    def __init__(self, id: _Optional[str] = ..., category: _Optional[str] = ..., question: _Optional[str] = ..., answer_preview: _Optional[str] = ..., n_chunks: _Optional[int] = ...) -> None: ...
