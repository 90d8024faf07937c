# SPDX-License-Identifier: Apache-2.0
"""The table of endpoints and its lookup by path. Routing, OpenAPI, CORS and `lockgate check` use it."""

import re
from collections.abc import Sequence
from functools import partial

from lockgate.api.aggregator.format import ANSWER_EVENTS, Answer, ChatRequest
from lockgate.api.endpoint import (
    AGGREGATOR,
    JSON,
    NDJSON,
    OLLAMA,
    OPENAI,
    SSE,
    ApiEndpoint,
    CorsRule,
    HealthAnswer,
    Port,
    ReadyAnswer,
    Scope,
)
from lockgate.api.guardrails.format import (
    ContentAnswer,
    ContentEvent,
    ContentLine,
    ContentRequest,
    ContextRequest,
    GeneratedRequest,
    PlainAnswer,
)
from lockgate.api.guardrails.generation_format import (
    Classification,
    ClassifiedText,
    GenerationDetection,
    ReviewedGeneration,
)
from lockgate.api.ollama.format import OllamaAnswer, OllamaChat, OllamaModels, OllamaText, OllamaVersion
from lockgate.api.openai.answer_types import CompletionAnswer, ModelEntry, ModelList
from lockgate.api.openai.format import Chat, ChatDetection, Text
from lockgate.api.openai.moderations import ModerationAnswer, ModerationRequest
from lockgate.api.openai.turn_format import AgentChat, AgentText
from lockgate.compat import find_rules
from lockgate.config.refs import AGENT_METHODS, AGENT_SERVICE, CHAT_PATH, CHAT_STREAM_PATH, TRACE_PREFIX
from lockgate.config.settings import Settings
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION, WHOLE_TEXT_CHUNKER

CONTENT_PATH = "/api/v2/text/detection/content"
STREAM_CONTENT_PATH = "/api/v2/text/detection/stream-content"
V1_STREAM_PATH = "/api/v1/task/server-streaming-classification-with-text-generation"
MODELS_PATH = "/v1/models"
MODERATIONS_PATH = "/v1/moderations"
TRACED_CHAT_PATH = f"{TRACE_PREFIX}{CHAT_STREAM_PATH}"
PAGE_PATH, PAGE_FILES_PATH = "/", "/playground/"
ABOUT_PATH = f"{PAGE_FILES_PATH}about"

_GUARDED = "A completion whose prompt and answer are read by detectors; with `stream`, server-sent events."
_OURS = "`model` is `brunix`, `agent/<name>`, a configured model, or one under a policy, `<model>@<policy>`."
_PROXIED = f"{_OURS} With `openai` configured any other goes to that server, its prompt and answer read by detectors."
_completion = partial(
    ApiEndpoint,
    response={JSON: CompletionAnswer, SSE: CompletionAnswer},
    input=(TEXT_CONTENTS,),
)
_answer = partial(
    ApiEndpoint,
    format=AGGREGATOR,
    cors=CorsRule.AGGREGATOR,
    request=(ChatRequest,),
    input=(TEXT_CONTENTS,),
    output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
)
_get = partial(ApiEndpoint, method="GET")
_probe = partial(_get, scope=Scope.PROBE)
OTHER = ApiEndpoint(name="", path="")  # stands for a path that is not in the table
_POLICY_PATH = re.compile(r"/(?!api/)([^/]+)(/v1/.*)", re.DOTALL)
Row = tuple[str, ...]


def is_own(settings: Settings) -> bool:
    """Whether endpoints that the existing orchestrator lacks are served."""
    return find_rules(settings).has_extensions


def serves_clients(settings: Settings) -> bool:
    """Whether the endpoints for OpenAI and Ollama clients are served."""
    return is_own(settings) or bool(settings.agents)


def has_pages(settings: Settings) -> bool:
    """Whether the pages that show the OpenAPI document are served."""
    return settings.server.docs


def _lacks_generation(settings: Settings) -> str:
    return "`generation`" if settings.generation is None else ""


def _lacks_openai(settings: Settings) -> str:
    return "`openai`" if settings.openai is None else ""


def _lacks_names(settings: Settings) -> str:
    return "" if settings.agents or settings.models else "`agents` or `models`"


def _lacks_models(settings: Settings) -> str:
    return _lacks_names(settings) and _lacks_openai(settings)


_text_generation = partial(
    ApiEndpoint,
    cors=CorsRule.AGGREGATOR,
    request=(Classification,),
    input=(TEXT_CONTENTS,),
    output=(TEXT_CONTENTS,),
    lacks=_lacks_generation,
)
_ollama = partial(
    ApiEndpoint,
    format=OLLAMA,
    scope=Scope.BEARER,
    summary=f"{_OURS} One line per piece, unless `stream` is off.",
    response={JSON: OllamaAnswer, NDJSON: OllamaAnswer},
    input=(TEXT_CONTENTS,),
    output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
    exists=serves_clients,
    lacks=_lacks_names,
)
_list = partial(_get, scope=Scope.BEARER, exists=serves_clients)
_state = partial(_probe, cors=CorsRule.AGGREGATOR, exists=is_own)
_page = partial(_get, cors=CorsRule.NONE, exists=lambda settings: settings.server.playground)


ENDPOINTS: tuple[ApiEndpoint, ...] = (
    # Text generation by `model_id`.
    _text_generation(
        name="classify",
        path="/api/v1/task/classification-with-text-generation",
        span="classification_with_gen",
        summary="Generated text, with findings.",
        response={JSON: ClassifiedText},
    ),
    _text_generation(
        name="classifyStream",
        path=V1_STREAM_PATH,
        span="streaming_classification_with_gen",
        summary="The same as server-sent events.",
        response={SSE: ClassifiedText},
    ),
    ApiEndpoint(
        name="generate",
        path="/api/v2/text/generation-detection",
        span="generation_with_detection",
        summary="Generated text, and findings on it and its prompt.",
        request=(GenerationDetection,),
        response={JSON: ReviewedGeneration},
        output=(TEXT_GENERATION,),
        lacks=_lacks_generation,
    ),
    # Detections on given texts.
    ApiEndpoint(
        name="detectContent",
        path=CONTENT_PATH,
        span="text_content_detection",
        summary="Findings of every requested detector on a text, ordered by start.",
        request=(ContentRequest,),
        response={JSON: ContentAnswer},
        input=(TEXT_CONTENTS,),
    ),
    ApiEndpoint(
        name="streamContent",
        path=STREAM_CONTENT_PATH,
        span="streaming_content_detection",
        summary="One line of text in, one line out for each part that every requested detector has read. Full duplex: "
        "answers come while the request is still being sent. An error after the start is the last line.",
        request=(ContentLine,),
        request_media=NDJSON,
        response={NDJSON: ContentEvent},
        statuses=("401", "415", "429", "503"),
        input=(TEXT_CONTENTS,),
    ),
    ApiEndpoint(
        name="detectChat",
        path="/api/v2/text/detection/chat",
        span="chat_detection",
        summary="Findings on a chat, in the order of the detectors.",
        request=(ChatDetection,),
        response={JSON: PlainAnswer},
        input=(TEXT_CHAT,),
    ),
    ApiEndpoint(
        name="detectContext",
        path="/api/v2/text/detection/context",
        span="context_docs_detection",
        summary="Findings on a text beside its context.",
        request=(ContextRequest,),
        response={JSON: PlainAnswer},
        input=(TEXT_CONTEXT_DOC,),
    ),
    ApiEndpoint(
        name="detectGenerated",
        path="/api/v2/text/detection/generated",
        span="detection_on_generation",
        summary="Findings on a prompt and its answer.",
        request=(GeneratedRequest,),
        response={JSON: PlainAnswer},
        input=(TEXT_GENERATION,),
    ),
    # Completions of an OpenAI-compatible server.
    _completion(
        name="completeChat",
        path="/api/v2/chat/completions-detection",
        span="chat_completions_detection",
        summary=_GUARDED,
        request=(Chat,),
        output=(TEXT_CONTENTS, TEXT_CHAT),
        lacks=_lacks_openai,
    ),
    _completion(
        name="completeText",
        path="/api/v2/text/completions-detection",
        span="completions_detection",
        summary=_GUARDED,
        request=(Text,),
        output=(TEXT_CONTENTS, TEXT_GENERATION),
        lacks=_lacks_openai,
    ),
    # Endpoints for OpenAI clients.
    _completion(
        name="clientChat",
        path="/v1/chat/completions",
        format=OPENAI,
        scope=Scope.BEARER,
        span="chat_completions_detection",
        summary=f"{_PROXIED} With `stream`, server-sent events.",
        request=(Chat, AgentChat),
        output=(TEXT_CONTENTS, TEXT_CHAT),
        exists=serves_clients,
        lacks=_lacks_models,
    ),
    _completion(
        name="clientText",
        path="/v1/completions",
        format=OPENAI,
        scope=Scope.BEARER,
        span="completions_detection",
        summary=f"{_PROXIED} With `stream`, server-sent events.",
        request=(Text, AgentText),
        output=(TEXT_CONTENTS, TEXT_GENERATION),
        exists=serves_clients,
        lacks=_lacks_models,
    ),
    ApiEndpoint(
        name="moderate",
        path=MODERATIONS_PATH,
        format=OPENAI,
        scope=Scope.BEARER,
        span="moderation",
        summary="The findings of a policy's detectors in texts, by category. The policy is `policy`, else the one that "
        "`model` names, alone or after `@`, else that of the settings. A list of parts is one input.",
        request=(ModerationRequest,),
        response={JSON: ModerationAnswer},
        input=(TEXT_CONTENTS,),
        exists=is_own,
        lacks=lambda settings: "" if settings.policies else "`policies`",
    ),
    # Answers from documents.
    _answer(
        name="answer",
        path=CHAT_PATH,
        span="chat_answer",
        summary="An answer from the documents of many sources.",
        response={JSON: Answer},
    ),
    _answer(
        name="answerStream",
        path=CHAT_STREAM_PATH,
        span="chat_answer_stream",
        summary="The same as server-sent events, step by step. The schema is that of one event; `data` is sent as "
        "JSON. They come in the order shown: `source_complete` for each source, `token` for each piece; `done` is the "
        "last, or `error` in place of all that would follow.",
        response={SSE: ANSWER_EVENTS},
    ),
    # Endpoints for Ollama clients.
    _ollama(
        name="ollamaChat",
        path="/api/chat",
        span="agent_chat",
        request=(OllamaChat,),
    ),
    _ollama(
        name="ollamaGenerate",
        path="/api/generate",
        span="agent_generate",
        request=(OllamaText,),
    ),
    # Lists of models.
    _list(
        name="listModels",
        path=MODELS_PATH,
        format=OPENAI,
        summary="models that a request may name",
        response={JSON: ModelList},
    ),
    _list(name="showModel", path=f"{MODELS_PATH}/{{model}}", format=OPENAI, response={JSON: ModelEntry}),
    _list(
        name="ollamaTags",
        path="/api/tags",
        format=OLLAMA,
        summary="the same, for Ollama clients",
        response={JSON: OllamaModels},
    ),
    _list(
        name="ollamaVersion",
        path="/api/version",
        format=OLLAMA,
        summary="the version of Lockgate",
        response={JSON: OllamaVersion},
    ),
    # The process itself.
    _state(name="health", path="/health", summary="the process is up", response={JSON: HealthAnswer}),
    _state(name="ready", path="/ready", summary="requests are taken", response={JSON: ReadyAnswer}),
    _probe(
        name="document",
        path="/openapi.json",
        exists=lambda settings: is_own(settings) or settings.server.docs,
    ),
    _probe(name="docs", path="/docs", exists=has_pages),
    _probe(name="redoc", path="/redoc", exists=has_pages),
    # The playground and its trace.
    _page(name="page", path=PAGE_PATH, scope=Scope.PAGE),
    _page(name="pageFile", path=f"{PAGE_FILES_PATH}{{file}}", scope=Scope.PAGE),
    _page(name="about", path=ABOUT_PATH),
    ApiEndpoint(
        name="tracedAnswerStream",
        path=TRACED_CHAT_PATH,
        format=AGGREGATOR,
        cors=CorsRule.NONE,
        exists=lambda settings: settings.server.trace,
    ),
    # The health port.
    _probe(name="versions", path="/health", port=Port.HEALTH),
    _probe(name="info", path="/info", port=Port.HEALTH),
    _probe(name="metrics", path="/metrics", port=Port.HEALTH),
)
_BY_PATH = {one.path: one for one in reversed(ENDPOINTS)}  # of two ports the first: both have one scope
_TEMPLATES = tuple(one for one in ENDPOINTS if one.is_template)


def split_policy(path: str) -> tuple[str, str] | None:
    """Split `/<policy>/v1/...` into policy and path; None for any other path."""
    found = _POLICY_PATH.fullmatch(path)
    return None if found is None else (found[1], found[2])


def put_under(policy: str, path: str) -> str:
    """The path below the name of a policy; empty if `split_policy` would not undo it."""
    under = f"/{policy}{path}"
    return under if split_policy(under) == (policy, path) else ""


def find_endpoint(path: str) -> ApiEndpoint:
    """The endpoint of a path, or OTHER."""
    if (under := split_policy(path)) is not None:
        found = _find(under[1])
        return found if found.takes_policy else OTHER
    return _find(path)


def find_cors(path: str) -> CorsRule:
    """Which web pages may call a path, also if no endpoint has it."""
    found = find_endpoint(path)
    if found is OTHER and path.startswith("/api/v1/"):
        return CorsRule.AGGREGATOR
    return found.cors


def _find(path: str) -> ApiEndpoint:
    found = _BY_PATH.get(path)
    if found is not None:
        return found
    return next((one for one in _TEMPLATES if path.startswith(one.prefix) and path != one.prefix), OTHER)


def list_guarded_paths() -> list[str]:
    """The paths on which a model answers and policies can be required, those of the agent's gRPC methods among them."""
    return [*[one.path for one in ENDPOINTS if one.output], *[f"/{AGENT_SERVICE}/{name}" for name in AGENT_METHODS]]


def list_endpoints(settings: Settings) -> list[Row]:
    """A row of titles, then one for each API endpoint that these settings enable."""
    documented = [one for one in ENDPOINTS if one.summary and one.port is Port.API and one.scope is not Scope.PROBE]
    rows = [_describe_row(settings, one) for one in documented if one.exists(settings)]
    return [("path", "served", "input detectors", "output detectors"), *rows]


def _describe_row(settings: Settings, one: ApiEndpoint) -> Row:
    lacking = one.lacks(settings)
    inputs = _name_detectors(settings, one.input, is_held_stream=one.path == STREAM_CONTENT_PATH)
    outputs = _name_detectors(settings, one.output, is_held_stream=one.path == V1_STREAM_PATH)
    return (one.path, f"needs {lacking}" if lacking else "yes", inputs, outputs)


def _name_detectors(settings: Settings, types: Sequence[str], *, is_held_stream: bool) -> str:
    """The detectors of these types, without those that `compat: fms` refuses on a stream that holds its text."""
    refuses = is_held_stream and not find_rules(settings).allows_whole_text
    names = [
        name
        for name, part in settings.detectors.items()
        if part.type in types and not (refuses and part.chunker_id == WHOLE_TEXT_CHUNKER)
    ]
    return ", ".join(names) or "-"
