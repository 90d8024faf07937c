# SPDX-License-Identifier: Apache-2.0
"""The documents that a completion brings, with which detectors of grounding compare its answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from lockgate.errors import InvalidRequest
from lockgate.gate.messages import TOOL_ROLES, all_text_of
from lockgate.gate.values import Document

FROM, FROM_TOOLS = "from", "tool_results"
NOTHING_TO_COMPARE = "NOTHING_TO_COMPARE"
NO_DOCUMENTS = "The request brought no documents. The answer was not compared with any."
_TEXTS = ("text", "content", "contents")


def take_from_tools(grounding: dict[str, Any]) -> bool:
    """Removes `from` from the detectors of grounding; returns whether results of tools are documents."""
    given = grounding.pop(FROM, None)
    if given not in (None, FROM_TOOLS):
        raise InvalidRequest(f"`detectors.grounding.{FROM}` must be `{FROM_TOOLS}`")
    for name, params in grounding.items():
        if not isinstance(params, dict):
            raise InvalidRequest(f"`detectors.grounding.{name}` must be an object")
    return given is not None


def find_documents(body: Mapping[str, Any], *, from_tools: bool) -> list[Document]:
    """Returns the documents of a body: those of `documents`, and the results of tools if these are documents.

    Blank ones are left out: nothing can be compared with them. Raises InvalidRequest for a document without a text.
    """
    given = body.get("documents")
    if not isinstance(given, list | None):
        raise InvalidRequest("`documents` must be a list")
    documents = [_read_document(place, one) for place, one in enumerate(given or ())]
    documents += _list_results(body) if from_tools else ()
    return [one for one in documents if one.text.strip()]


def _read_document(place: int, given: Any) -> Document:
    if isinstance(given, str):
        return Document("", given, 0.0)
    fields = given if isinstance(given, dict) else {}
    inner = fields.get("data")
    fields = fields | inner if isinstance(inner, dict) else fields
    texts = [fields[name] for name in _TEXTS if isinstance(fields.get(name), str)]
    if not texts:
        raise InvalidRequest(f"`documents[{place}]` must be a string, or an object with `text` or `content`")
    title = fields.get("title")
    return Document(title if isinstance(title, str) else "", "\n".join(texts), 0.0)


def _list_results(body: Mapping[str, Any]) -> Iterator[Document]:
    for message in body.get("messages") or ():
        if isinstance(message, dict) and message.get("role") in TOOL_ROLES:
            yield Document("", all_text_of(message, "\n", of_any_role=True), 0.0)
