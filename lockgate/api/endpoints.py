# SPDX-License-Identifier: Apache-2.0
"""The table of endpoints. Routing, OpenAPI, `lockgate check`, span names, callers and CORS are derived from it."""

from lockgate.api.aggregator.format import ChatRequest
from lockgate.api.endpoint import (
    AGGREGATOR,
    JSON,
    NDJSON,
    OLLAMA,
    OPENAI,
    SSE,
    ApiEndpoint,
    CorsRule,
    Port,
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
from lockgate.api.guardrails.generation_format import Classification, GenerationDetection
from lockgate.api.ollama.format import OllamaChat, OllamaText
from lockgate.api.openai.format import Chat, ChatDetection, Text
from lockgate.api.openai.moderation_format import ModerationAnswer, ModerationRequest
from lockgate.api.openai.turn_format import AgentChat, AgentText
from lockgate.api.responses import ANSWER_EVENTS, Answer
from lockgate.compat import find_rules
from lockgate.config.refs import CHAT_PATH, CHAT_STREAM_PATH
from lockgate.config.settings import Settings
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION

CONTENT_PATH = "/api/v2/text/detection/content"
STREAM_CONTENT_PATH = "/api/v2/text/detection/stream-content"
V1_STREAM_PATH = "/api/v1/task/server-streaming-classification-with-text-generation"
MODELS_PATH = "/v1/models"
MODERATIONS_PATH = "/v1/moderations"
TRACED_CHAT_PATH = f"/trace{CHAT_STREAM_PATH}"
PAGE_PATH, PAGE_FILES_PATH = "/", "/playground/"
ABOUT_PATH = f"{PAGE_FILES_PATH}about"
_ANY: dict[str, object] = {}

_GUARDED = "A completion whose prompt and answer are read by detectors; with `stream`, server-sent events."
_OURS = "`model` is `brunix`, `agent/<name>`, a configured model, or one under a policy, `<model>@<policy>`."
_PROXIED = f"{_OURS} With `openai` configured any other goes to that server, its prompt and answer read by detectors."


def is_own(settings: Settings) -> bool:
    """Whether endpoints that the existing orchestrator lacks are served."""
    return find_rules(settings).has_extensions


def serves_clients(settings: Settings) -> bool:
    """Whether the endpoints of OpenAI's and Ollama's clients are served."""
    return is_own(settings) or bool(settings.agents)


def has_document(settings: Settings) -> bool:
    """Whether the OpenAPI document is served."""
    return is_own(settings) or settings.server.docs


def has_pages(settings: Settings) -> bool:
    """Whether the pages that show the OpenAPI document are served."""
    return settings.server.docs


def has_playground(settings: Settings) -> bool:
    """Whether the playground is served."""
    return settings.server.playground


def has_trace(settings: Settings) -> bool:
    """Whether the trace of answers is served."""
    return settings.server.trace


def _lacks_generation(settings: Settings) -> str:
    return "`generation`" if settings.generation is None else ""


def _lacks_openai(settings: Settings) -> str:
    return "`openai`" if settings.openai is None else ""


def _lacks_policies(settings: Settings) -> str:
    return "" if settings.policies else "`policies`"


def _lacks_names(settings: Settings) -> str:
    return "" if settings.agents or settings.models else "`agents` or `models`"


def _lacks_models(settings: Settings) -> str:
    return _lacks_names(settings) and _lacks_openai(settings)


ENDPOINTS: tuple[ApiEndpoint, ...] = (
    # Text generation by `model_id`.
    ApiEndpoint(
        name="classify",
        path="/api/v1/task/classification-with-text-generation",
        cors=CorsRule.AGGREGATOR,
        span="classification_with_gen",
        summary="Text by model id, with findings.",
        request=(Classification,),
        response={JSON: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS,),
        lacks=_lacks_generation,
    ),
    ApiEndpoint(
        name="classifyStream",
        path=V1_STREAM_PATH,
        cors=CorsRule.AGGREGATOR,
        span="streaming_classification_with_gen",
        summary="The same as server-sent events.",
        request=(Classification,),
        response={SSE: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS,),
        lacks=_lacks_generation,
    ),
    ApiEndpoint(
        name="generate",
        path="/api/v2/text/generation-detection",
        span="generation_with_detection",
        summary="Text, then what reviewers say of it.",
        request=(GenerationDetection,),
        response={JSON: None},
        output=(TEXT_GENERATION,),
        lacks=_lacks_generation,
    ),
    # Detections on given texts.
    ApiEndpoint(
        name="detectContent",
        path=CONTENT_PATH,
        span="text_content_detection",
        summary="Findings of every requested detector on a text, by where they start.",
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
    ApiEndpoint(
        name="completeChat",
        path="/api/v2/chat/completions-detection",
        span="chat_completions_detection",
        summary=_GUARDED,
        request=(Chat,),
        response={JSON: None, SSE: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CHAT),
        lacks=_lacks_openai,
    ),
    ApiEndpoint(
        name="completeText",
        path="/api/v2/text/completions-detection",
        span="completions_detection",
        summary=_GUARDED,
        request=(Text,),
        response={JSON: None, SSE: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_GENERATION),
        lacks=_lacks_openai,
    ),
    # What clients of OpenAI's call.
    ApiEndpoint(
        name="clientChat",
        path="/v1/chat/completions",
        format=OPENAI,
        scope=Scope.BEARER,
        span="chat_completions_detection",
        summary=f"{_PROXIED} With `stream`, server-sent events.",
        request=(Chat, AgentChat),
        response={JSON: None, SSE: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CHAT),
        exists=serves_clients,
        lacks=_lacks_models,
    ),
    ApiEndpoint(
        name="clientText",
        path="/v1/completions",
        format=OPENAI,
        scope=Scope.BEARER,
        span="completions_detection",
        summary=f"{_PROXIED} With `stream`, server-sent events.",
        request=(Text, AgentText),
        response={JSON: None, SSE: None},
        input=(TEXT_CONTENTS,),
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
        summary="What the detectors of a policy find in texts, by category. The policy is that of `policy`, else "
        "`model` if it is one or ends in `@` and one, else that of the settings. A list of parts is one input.",
        request=(ModerationRequest,),
        response={JSON: ModerationAnswer},
        input=(TEXT_CONTENTS,),
        exists=is_own,
        lacks=_lacks_policies,
    ),
    # Answers from documents.
    ApiEndpoint(
        name="answer",
        path=CHAT_PATH,
        format=AGGREGATOR,
        cors=CorsRule.AGGREGATOR,
        span="chat_answer",
        summary="An answer from the documents of many sources.",
        request=(ChatRequest,),
        response={JSON: Answer},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
    ),
    ApiEndpoint(
        name="answerStream",
        path=CHAT_STREAM_PATH,
        format=AGGREGATOR,
        cors=CorsRule.AGGREGATOR,
        span="chat_answer_stream",
        summary="The same as server-sent events, step by step. The schema is that of one event; `data` is sent as "
        "JSON. They come in the order shown: `source_complete` for each source, `token` for each piece; `done` is the "
        "last, or `error` in place of all that would follow.",
        request=(ChatRequest,),
        response={SSE: ANSWER_EVENTS},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
    ),
    # What clients of Ollama's call.
    ApiEndpoint(
        name="ollamaChat",
        path="/api/chat",
        format=OLLAMA,
        scope=Scope.BEARER,
        span="agent_chat",
        summary=f"{_OURS} One line per piece, unless `stream` is off.",
        request=(OllamaChat,),
        response={JSON: None, NDJSON: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
        exists=serves_clients,
        lacks=_lacks_names,
    ),
    ApiEndpoint(
        name="ollamaGenerate",
        path="/api/generate",
        format=OLLAMA,
        scope=Scope.BEARER,
        span="agent_generate",
        summary=f"{_OURS} One line per piece, unless `stream` is off.",
        request=(OllamaText,),
        response={JSON: None, NDJSON: None},
        input=(TEXT_CONTENTS,),
        output=(TEXT_CONTENTS, TEXT_CONTEXT_DOC),
        exists=serves_clients,
        lacks=_lacks_names,
    ),
    # Lists of models.
    ApiEndpoint(
        name="listModels",
        path=MODELS_PATH,
        method="GET",
        format=OPENAI,
        scope=Scope.BEARER,
        summary="whom a request may name",
        response=_ANY,
        exists=serves_clients,
    ),
    ApiEndpoint(
        name="showModel",
        path=f"{MODELS_PATH}/{{model}}",
        method="GET",
        format=OPENAI,
        scope=Scope.BEARER,
        response=_ANY,
        exists=serves_clients,
    ),
    ApiEndpoint(
        name="ollamaTags",
        path="/api/tags",
        method="GET",
        format=OLLAMA,
        scope=Scope.BEARER,
        summary="the same, for clients of Ollama's",
        response=_ANY,
        exists=serves_clients,
    ),
    ApiEndpoint(
        name="ollamaVersion",
        path="/api/version",
        method="GET",
        format=OLLAMA,
        scope=Scope.BEARER,
        summary="our version",
        response=_ANY,
        exists=serves_clients,
    ),
    # The process itself.
    ApiEndpoint(
        name="health",
        path="/health",
        method="GET",
        scope=Scope.PROBE,
        cors=CorsRule.AGGREGATOR,
        summary="the process is up",
        response=_ANY,
        exists=is_own,
    ),
    ApiEndpoint(
        name="ready",
        path="/ready",
        method="GET",
        scope=Scope.PROBE,
        cors=CorsRule.AGGREGATOR,
        summary="requests are taken",
        response=_ANY,
        exists=is_own,
    ),
    ApiEndpoint(
        name="document", path="/openapi.json", method="GET", scope=Scope.PROBE, response=_ANY, exists=has_document
    ),
    ApiEndpoint(
        name="docs",
        path="/docs",
        method="GET",
        scope=Scope.PROBE,
        response=_ANY,
        exists=has_pages,
    ),
    ApiEndpoint(
        name="redoc",
        path="/redoc",
        method="GET",
        scope=Scope.PROBE,
        response=_ANY,
        exists=has_pages,
    ),
    # The playground and its trace.
    ApiEndpoint(
        name="page",
        path=PAGE_PATH,
        method="GET",
        scope=Scope.PAGE,
        cors=CorsRule.NONE,
        response=_ANY,
        exists=has_playground,
    ),
    ApiEndpoint(
        name="pageFile",
        path=f"{PAGE_FILES_PATH}{{file}}",
        method="GET",
        scope=Scope.PAGE,
        cors=CorsRule.NONE,
        response=_ANY,
        exists=has_playground,
    ),
    ApiEndpoint(
        name="about",
        path=ABOUT_PATH,
        method="GET",
        cors=CorsRule.NONE,
        response=_ANY,
        exists=has_playground,
    ),
    ApiEndpoint(
        name="tracedAnswerStream",
        path=TRACED_CHAT_PATH,
        format=AGGREGATOR,
        cors=CorsRule.NONE,
        response=_ANY,
        exists=has_trace,
    ),
    # The health port.
    ApiEndpoint(name="versions", path="/health", method="GET", port=Port.HEALTH, scope=Scope.PROBE, response=_ANY),
    ApiEndpoint(name="info", path="/info", method="GET", port=Port.HEALTH, scope=Scope.PROBE, response=_ANY),
    ApiEndpoint(name="metrics", path="/metrics", method="GET", port=Port.HEALTH, scope=Scope.PROBE, response=_ANY),
)
