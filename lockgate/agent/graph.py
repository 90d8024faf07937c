# SPDX-License-Identifier: Apache-2.0
"""The agent's graphs, both built from the table of routes: the whole one, and the one that ends before the answer.

    start -> classify -> reformulate -> retrieve -> generate | generate_code -> end
                  \\----------------------------------> respond_conversational -> end

LangGraph runs them; it is imported when the first one is built.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypedDict

from lockgate.agent.prompts import (
    Guess,
    build_classify_messages,
    build_final_messages,
    build_rewrite_messages,
    decide_by_rules,
    read_keywords,
    read_reply,
    refers_to_editor,
)
from lockgate.agent.routes import FALLBACK, PLATFORM, ROUTES, Editor, Routes, TurnState
from lockgate.errors import ConfigError, TurnFailed, UpstreamError
from lockgate.gate.values import Document, Message
from lockgate.index.fusion import Query
from lockgate.sessions.turns import Intent, name_topic
from lockgate.telemetry import LogEvent, agent_step, count_unreadable_label, limit_calls, log_event, name_causes

__all__ = ["Graphs", "Tools", "build_final_messages", "build_graph", "build_graphs", "build_prepare_graph"]

CALLER, RULES, EMBEDDING, MODEL = "caller", "rules", "embedding", "model"  # the layers that decide a label, in order
_TOO_SLOW = "the answer could not be prepared in time"
CLASSIFY, REFORMULATE, RETRIEVE = "classify", "reformulate", "retrieve"


async def _give_no_answer(state: TurnState) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions and values that the nodes use in one run. Only the whole graph calls `answer`."""

    ask: Callable[[Sequence[Message]], Awaitable[str]]
    search: Callable[[Query], Awaitable[tuple[Document, ...]]]
    until: float  # the deadline of the preparation, by the loop's clock
    guess: Callable[[str], Awaitable[Guess | None]] | None = None
    start_embedding: Callable[[], None] | None = None  # called when the question will be searched for
    intents: tuple[Intent, ...] = ()
    answer: Callable[[TurnState], Awaitable[str]] = _give_no_answer


Work = Callable[[TurnState, Tools], Awaitable[TurnState]]


class _Runtime(Protocol):
    @property
    def context(self) -> Tools: ...


class _GraphState(TypedDict):
    """The graph's state, under one key: every further key would cost time at every step."""

    turn: TurnState


class Graph(Protocol):
    """A graph that can be run."""

    async def ainvoke(self, state: _GraphState, /, *, context: Tools) -> _GraphState:
        """The final state."""


class Graphs(NamedTuple):
    """The graph that prepares answers, and a context in which its runs are not traced."""

    prepare: Graph
    untraced: Callable[[], AbstractContextManager[Any]]

    async def run(self, state: TurnState, tools: Tools) -> TurnState:
        """The final state of a run. No tracing service gets any of it, even if environment variables ask so."""
        with self.untraced():
            return (await self.prepare.ainvoke({"turn": state}, context=tools))["turn"]


def build_graphs(routes: Routes = ROUTES) -> Graphs:
    """Builds the graph of these routes; raises ConfigError if LangGraph is not installed."""
    try:
        from langsmith import tracing_context
    except ImportError as error:
        raise ConfigError("an agent needs LangGraph: pip install 'lockgate[agent]'", source="agents") from error
    return Graphs(build_prepare_graph(routes), partial(tracing_context, enabled=False))


def build_graph(routes: Routes = ROUTES) -> Any:
    """Builds the whole graph, which prepares and answers."""
    return _assemble(routes, ends_before_answer=False)


def build_prepare_graph(routes: Routes = ROUTES) -> Any:
    """Builds the same graph, but every edge to a step that answers leads to the end."""
    return _assemble(routes, ends_before_answer=True)


def _assemble(routes: Routes, *, ends_before_answer: bool) -> Any:
    from langgraph.graph import END, START, StateGraph

    steps = [route.step for route in routes]
    graph = StateGraph(_GraphState, context_schema=Tools)
    nodes = _build_nodes(routes)
    for name, node in nodes.items():
        if name not in steps or not ends_before_answer:
            graph.add_node(name, node)
    ends: Mapping[str, str] = dict.fromkeys(steps, END) if ends_before_answer else {step: step for step in steps}
    graph.add_edge(START, CLASSIFY)
    ways = {one.label: REFORMULATE if one.retrieves else one.step for one in routes}
    leads: dict[Hashable, str] = {name: ends.get(name, name) for name in ways.values()}
    graph.add_conditional_edges(CLASSIFY, partial(_route, ways), leads)
    graph.add_edge(REFORMULATE, RETRIEVE)
    answering = {one.label: one.step for one in routes if one.retrieves}
    leads = {step: ends[step] for step in answering.values()}
    graph.add_conditional_edges(RETRIEVE, partial(_route, answering), leads)
    if not ends_before_answer:
        for step in steps:
            graph.add_edge(step, END)
    return graph.compile()


async def _route(ways: Mapping[str, str], state: _GraphState) -> str:  # LangGraph runs a sync one in a thread
    return ways[state["turn"]["label"]]


def _build_nodes(routes: Routes) -> dict[str, Callable[..., Awaitable[_GraphState]]]:
    preparing: dict[str, Work] = {
        CLASSIFY: partial(_classify, routes),
        REFORMULATE: _reformulate,
        RETRIEVE: _retrieve,
    }
    nodes = {name: _build_step(name, work) for name, work in preparing.items()}
    return nodes | {route.step: partial(_answer, route.step) for route in routes}


def _build_step(name: str, work: Work) -> Callable[..., Awaitable[_GraphState]]:
    """The node of a preparing step, which ends at the deadline."""

    async def run(state: _GraphState, runtime: _Runtime) -> _GraphState:
        turn, tools = state["turn"], runtime.context
        with agent_step(name):
            limit_calls(tools.until)
            try:
                async with asyncio.timeout_at(tools.until) as limit:
                    return {"turn": {**turn, **await work(turn, tools)}}
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TurnFailed(_TOO_SLOW, status=504) from None
            finally:
                limit_calls(None)

    return run


async def _answer(step: str, state: _GraphState, runtime: _Runtime) -> _GraphState:
    with agent_step(step):
        return {"turn": {**state["turn"], "answer": await runtime.context.answer(state["turn"])}}


async def _classify(routes: Routes, state: TurnState, tools: Tools) -> TurnState:
    """The label of the first layer that finds one."""
    question, editor = state["question"], state.get("editor", Editor())
    has_editor = any(editor)
    if declared := state.get("declared"):
        return _label(declared, CALLER, question, uses_editor=has_editor)
    uses_editor = has_editor and refers_to_editor(question)
    labels = [route.label for route in routes]
    if PLATFORM.label in labels and (by_rule := decide_by_rules(question)) is not None:
        return _label(by_rule, RULES, question, uses_editor=uses_editor)
    guess = await tools.guess(question) if tools.guess is not None else None
    if guess is not None and guess.label in labels:
        return _label(guess.label, EMBEDDING, question, uses_editor=uses_editor, confidence=guess.confidence)
    text = await tools.ask(build_classify_messages(question, tools.intents, routes, has_editor=has_editor))
    reply = read_reply(text, labels)
    if reply.label is None:
        count_unreadable_label()
    found = _label(reply.label or FALLBACK, MODEL, question, uses_editor=has_editor and reply.use_editor)
    return {**found, "topic": reply.topic or found["topic"]}


def _label(label: str, layer: str, question: str, *, uses_editor: bool, confidence: float | None = None) -> TurnState:
    return {
        "label": label,
        "layer": layer,
        "confidence": confidence,
        "topic": name_topic(question),
        "uses_editor": uses_editor,
    }


async def _reformulate(state: TurnState, tools: Tools) -> TurnState:
    """Returns the keywords to search for; if the model fails, the question: the answer will report the failure."""
    question = state["question"]
    if tools.start_embedding is not None:
        tools.start_embedding()
    try:
        text = await tools.ask(build_rewrite_messages(question, tools.intents))
    except UpstreamError as error:
        log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=REFORMULATE, reason=name_causes(error))
        return {"keywords": question}
    return {"keywords": read_keywords(text, question)}


async def _retrieve(state: TurnState, tools: Tools) -> TurnState:
    return {"documents": await tools.search(Query(state["question"], state["keywords"]))}
