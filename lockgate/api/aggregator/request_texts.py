# SPDX-License-Identifier: Apache-2.0
"""The texts of a question that detectors read under a policy: all strings that reach a source or the model.

Credentials go to their owners only, and the host in a `url` is an address: neither is read.
"""

from lockgate.api.aggregator.format import ChatRequest, EndpointRef
from lockgate.gate.coverage import FieldRule, FieldText, Path, Survey, TextKind, known
from lockgate.gate.input_texts import Input, build_input
from lockgate.rag.answer import GroundedQuestion, list_question_texts

_CONTENT = FieldRule(TextKind.CONTENT)
_REF = FieldRule(keys={**known("url slug tenant_name owner_username"), "query_override": _CONTENT})
_PLACES = FieldRule(
    keys={
        "prompt": _CONTENT,
        "custom_system_prompt": _CONTENT,
        "messages": FieldRule(keys={"content": _CONTENT}),
        "model": _REF,
        "data_sources": _REF,
        "headers": FieldRule(keys=known("x-correlation-id")),
    }
)


def build_question_input(question: GroundedQuestion, request: ChatRequest, correlation_id: str) -> Input:
    """The input of a question; `correlation_id` is that of the client, if it sent one."""
    texts = list_question_texts(question)
    refs: list[tuple[Path, EndpointRef]] = [] if request.retrieval_only else [(("model",), request.model)]
    refs += [(("data_sources", place), ref) for place, ref in enumerate(request.data_sources)]
    for path, ref in refs:
        values = {"url": ref.url.partition("://")[2].partition("/")[2], "slug": ref.slug}
        values |= {"tenant_name": ref.tenant_name or "", "owner_username": ref.owner_username or ""}
        texts += [FieldText((*path, name), value, TextKind.NAME) for name, value in values.items() if value]
    if correlation_id:
        texts.append(FieldText(("headers", "x-correlation-id"), correlation_id, TextKind.NAME))
    return build_input(Survey(texts, []), _PLACES, question.guarding.refuses_unreadable, question.prompt)
