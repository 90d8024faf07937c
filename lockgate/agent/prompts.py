# SPDX-License-Identifier: Apache-2.0
"""Labels questions by rules, builds the prompts for an agent's models, and parses their replies.

A model that labels or rewrites a question sees the topics of earlier turns and never their answers.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.agent.routes import PLATFORM, ROUTES, Editor, Route, Routes, TurnState
from lockgate.data_files import Table, read_table
from lockgate.gate.prompt import FENCE, find_fence, flatten_name
from lockgate.gate.values import Message
from lockgate.sessions.turns import MAX_INTENTS, SYSTEM, USER, Intent, forget_reasoning, name_topic

MAX_KEYWORD_CHARS = 400
_HEAD_CHARS, _TAIL_CHARS = 6_000, 2_000  # of a long question, the rest is left out
_MAX_REPLY_CHARS = 20_000
_MAX_OBJECTS = 64  # JSON objects that are searched for in one reply
_FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)[\w-]*[ \t]*$", re.MULTILINE)
_AROUND = " \t\r\n\"'`*_.,:;!?()[]{}<>#-"
_KEYWORD_LEAD = re.compile(
    r"^(?:(?:search )?(?:keywords?|query|terms)|palabras clave|stichw[oö]rter|suchbegriffe)\s*:\s*", re.IGNORECASE
)
_FOUND = "Passages that were found for this, the best first:"
NOTHING_FOUND = "No passages were found for this. Say so; answer only what the conversation itself answers."


class Patterns(Table, frozen=True):
    """Patterns of a question: about the account in three languages, about code, about the editor."""

    english: str
    spanish: str
    german: str
    code: str
    editor: str


class Prompts(Table, frozen=True):
    """The prompts for the model that labels or rewrites a question."""

    classify: str
    has_editor: str
    no_editor: str
    rewrite: str


class LabelFile(Table, frozen=True):
    """The content of `labels.toml`."""

    platform_prefixes: tuple[str, ...]
    patterns: Patterns
    prompts: Prompts


def _compile(*patterns: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(patterns)})", re.IGNORECASE | re.VERBOSE)


_FILE = read_table(Path(__file__).with_name("labels.toml"), LabelFile)
_PROMPTS = _FILE.prompts
_ACCOUNT = _compile(_FILE.patterns.english, _FILE.patterns.spanish, _FILE.patterns.german)
_CODE = _compile(_FILE.patterns.code)
_EDITOR = _compile(_FILE.patterns.editor)


class Guess(NamedTuple):
    """A label and its confidence, from 0 to 1."""

    label: str
    confidence: float


class LabelReply(NamedTuple):
    """A model's reply about a question; the label is None if it cannot be read."""

    label: str | None
    topic: str = ""
    use_editor: bool = False


def decide_by_rules(question: str) -> str | None:
    """Returns the label if rules decide it, else None; only for agents that have the platform route."""
    is_platform = any(prefix in _flat(question).casefold() for prefix in _FILE.platform_prefixes)
    flat = _flat(_shorten(question))
    is_about_account = _ACCOUNT.search(flat) and not _CODE.search(flat)
    return PLATFORM.label if is_platform or is_about_account else None


def refers_to_editor(question: str) -> bool:
    """Whether the question refers to the text in the editor."""
    return bool(_EDITOR.search(_flat(_shorten(question))))


def build_classify_messages(
    question: str, intents: Sequence[Intent], routes: Routes, *, has_editor: bool
) -> tuple[Message, ...]:
    """Builds the messages for the model that labels, with the topics of the last turns."""
    lines = [f"{intent.label}: {_flatten(intent.topic)}" for intent in intents[-MAX_INTENTS:]]
    fence, parts = _frame("Earlier turns, type and topic, oldest first:", lines, question)
    labels = "\n".join(f"- {route.label}: {route.meaning}" for route in routes)
    editor = "<true or false>" if has_editor else "false"
    system = _PROMPTS.classify.format(labels=labels, fence=fence, editor=editor)
    hint = _PROMPTS.has_editor if has_editor else _PROMPTS.no_editor
    return Message(SYSTEM, f"{system}\n\n{hint}"), Message(USER, parts)


def read_reply(text: str, labels: Collection[str]) -> LabelReply:
    """Parses the model's reply: a JSON object with any text around it, or a label alone."""
    kept = forget_reasoning(text[:_MAX_REPLY_CHARS])
    labelled = [one for one in _find_objects(kept) if "label" in one]
    if not labelled:
        return LabelReply(_find_label(kept, labels))
    last = labelled[-1]
    label, topic = last["label"], last.get("topic")
    return LabelReply(
        _match_label(label, labels) if isinstance(label, str) else None,
        _flatten(topic) if isinstance(topic, str) else "",
        _is_yes(last.get("use_editor")),
    )


def build_rewrite_messages(question: str, intents: Sequence[Intent]) -> tuple[Message, ...]:
    """Builds the messages for the model that turns a question into keywords; they have no labels."""
    lines = [_flatten(intent.topic) for intent in intents[-MAX_INTENTS:]]
    fence, parts = _frame("Topics of earlier turns, oldest first:", lines, question)
    return Message(SYSTEM, _PROMPTS.rewrite.format(fence=fence)), Message(USER, parts)


def read_keywords(text: str, question: str) -> str:
    """The keywords in a model's reply, or the question if there are none."""
    kept = _FENCE_LINE.sub("", forget_reasoning(text[:_MAX_REPLY_CHARS]))
    lines = [line for line in (_KEYWORD_LEAD.sub("", raw.strip()) for raw in kept.splitlines()) if line]
    words = " ".join(flatten_name(lines[0]).split()).strip("\"'`* ") if lines else ""
    if not any(char.isalnum() for char in words):
        words = " ".join(question.split())
    if len(words) > MAX_KEYWORD_CHARS:
        words = words[: MAX_KEYWORD_CHARS + 1].rpartition(" ")[0] or words[:MAX_KEYWORD_CHARS]
    return words


def find_route(label: str, routes: Routes) -> Route:
    """Returns the route of a label; raises KeyError if the table does not have it."""
    return {route.label: route for route in routes}[label]


def build_final_messages(state: TurnState, routes: Routes = ROUTES) -> tuple[Message, ...]:
    """Builds the messages for the model that answers."""
    route = find_route(state["label"], routes)
    parts = _list_parts(route, state)
    fence = find_fence([text for _, text in parts])
    blocks = [f"{fence} {title.replace(FENCE, '-')}\n{text}\n{fence}" for title, text in parts]
    if route.retrieves:
        blocks.insert(0, _FOUND if state.get("documents") else NOTHING_FOUND)
    instructions = state.get("instructions", "")
    system = f"{route.prompt}\n\n{instructions}" if instructions else route.prompt
    content = "\n\n".join([*blocks, state["question"]])
    return (Message(SYSTEM, system), *state.get("history", ()), Message(USER, content))


def _list_parts(route: Route, state: TurnState) -> list[tuple[str, str]]:
    """The texts for the question with their titles: passages, editor, account."""
    parts = []
    for number, document in enumerate(state.get("documents", ()) if route.retrieves else (), 1):
        title = " ".join(flatten_name(document.title).split())
        parts.append((f"passage {number}: {title}" if title else f"passage {number}", document.text))
    if state.get("uses_editor"):
        titles = ("the open file", "the selected text", "further context")
        parts += [(title, text) for title, text in zip(titles, state.get("editor", Editor()), strict=True) if text]
    account = state.get("account", "")
    if route.uses_account and account:
        parts.append(("account details", account))
    return parts


def _frame(title: str, lines: Sequence[str], question: str) -> tuple[str, str]:
    """The fence, and a text of the earlier turns and the question, each between two fences."""
    short = _shorten(question)
    fence = find_fence((*lines, short))
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    before = f"{title}\n{fence}\n{numbered}\n{fence}" if lines else "There are no prior turns."
    return fence, f"{before}\n\nThe question:\n{fence}\n{short}\n{fence}"


def _shorten(question: str) -> str:
    if len(question) <= _HEAD_CHARS + _TAIL_CHARS:
        return question
    return f"{question[:_HEAD_CHARS]}\n[...]\n{question[-_TAIL_CHARS:]}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _flatten(topic: str) -> str:
    return name_topic(flatten_name(topic))


def _find_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, outer ones before those inside them."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        after = start + 1
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            pass
        else:
            yield found
            after = end if "label" in found else after
        start = text.find("{", after)


def _match_label(text: str, labels: Collection[str]) -> str | None:
    """The label if the text is a label alone, in quotes or not, in any case."""
    bare = "_".join(text.strip(_AROUND).upper().replace("-", " ").split())
    return bare if bare in labels else None


def _find_label(text: str, labels: Collection[str]) -> str | None:
    """The only label that a text names. Among other words case counts: "conversational" is also a word."""
    if label := _match_label(text, labels):
        return label
    named = set(re.findall(r"\w+", text)) & set(labels)
    return named.pop() if len(named) == 1 else None


def _is_yes(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.strip().casefold() in {"true", "yes"})
