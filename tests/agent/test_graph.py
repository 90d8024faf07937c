# SPDX-License-Identifier: Apache-2.0
"""Both graphs are one table (B-5 to B-9, B-60)."""

import subprocess
import sys
from typing import Any

import pytest

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.graph import build_final_messages, build_graph, build_prepare_graph
from lockgate.agent.routes import (
    CODE_GENERATION,
    CONVERSATIONAL,
    MAIN,
    PLATFORM,
    RETRIEVAL,
    ROUTES,
    Route,
    choose_routes,
)
from lockgate.agent.turns import Memory
from lockgate.gate.values import Message
from lockgate.sessions.turns import Turn
from lockgate.testing import MemorySessionStore
from tests.agent.agents import KEY, AskedModel, build_agent, build_main, converse, is_classifying

HAIKU = Route("POETRY", "write_poem", MAIN, True, "a wish for a poem", "You write poems.")
QUERIES = {
    "RETRIEVAL": ("What is the port?", "Explain sessions.", "¿Qué es un puerto?\nSegunda línea."),
    "CODE_GENERATION": ("Write a loop.", "Fix my function ```x()```", "Translate this to SQL"),
    "CONVERSATIONAL": ("Thanks!", "Say that again, shorter.", "日本語で"),
}


def edges_of(graph: Any) -> set[tuple[str, str]]:
    return {(one.source, one.target) for one in graph.get_graph().edges}


@pytest.mark.parametrize("routes", [ROUTES, choose_routes(has_platform=True), (*ROUTES, HAIKU)])
def test_the_prepare_graph_is_the_whole_graph_up_to_the_answer(routes: tuple[Route, ...]) -> None:
    steps = {route.step for route in routes}
    whole, prepare = edges_of(build_graph(routes)), edges_of(build_prepare_graph(routes))
    cut = {(source, "__end__" if target in steps else target) for source, target in whole if source not in steps}
    assert prepare == cut
    assert {source for source, _ in whole} >= steps


def test_the_three_routes_are_those_of_the_contract() -> None:
    assert edges_of(build_graph()) == {
        ("__start__", "classify"),
        ("classify", "reformulate"),
        ("classify", "respond_conversational"),
        ("reformulate", "retrieve"),
        ("retrieve", "generate"),
        ("retrieve", "generate_code"),
        ("generate", "__end__"),
        ("generate_code", "__end__"),
        ("respond_conversational", "__end__"),
    }


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("has_history", [True, False])
@pytest.mark.parametrize(("label", "query"), [(label, query) for label, all_of in QUERIES.items() for query in all_of])
async def test_both_methods_send_the_same_messages(
    label: str, query: str, *, has_history: bool, declared: bool
) -> None:
    seen = []
    for is_stream in (True, False):
        store = MemorySessionStore()
        if has_history:
            async with store.hold(KEY):
                await store.append(KEY, Turn("What is a lock?", "A gate.", "RETRIEVAL", "locks"))
                await store.append(KEY, Turn("Show one.", "```gate()```", "CODE_GENERATION"))
        main, talk = build_main(label), AskedModel(lambda _: ["ok"])
        agent = build_agent(main=main, conversational=talk, memory=Memory(store))
        _, facts = await converse(
            agent, AgentQuestion(query, KEY, label=label if declared else "", is_stream=is_stream)
        )
        seen.append((main.asked, talk.asked, facts.label, facts.layer, facts.topic, facts.documents))
    assert seen[0] == seen[1]
    final = (seen[0][1] if label == "CONVERSATIONAL" else seen[0][0])[-1]
    assert (Message("assistant", "A gate.") in final) is has_history
    assert final[-1].text.endswith(query)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_route_that_is_added_to_the_table_is_followed_everywhere(*, is_stream: bool) -> None:
    main = build_main("POETRY", ["old ", "pond"])
    agent = build_agent((*ROUTES, HAIKU), main=main)
    pieces, facts = await converse(agent, AgentQuestion("A poem about ports", is_stream=is_stream))
    assert "".join(pieces) == "old pond"
    assert (facts.label, facts.passages) == ("POETRY", 2)
    assert main.asked[-1][0] == Message("system", HAIKU.prompt)
    classifying = next(one for one in main.asked if is_classifying(one))
    assert "POETRY" in "".join(message.text for message in classifying)
    assert HAIKU.meaning in "".join(message.text for message in classifying)


async def test_the_first_phase_generates_nothing() -> None:
    main = build_main()
    agent = build_agent(main=main)
    async with agent.open(AgentQuestion("What is the port?")) as turn:
        await anext(turn.pieces)
        assert main.streamed == [False, False, True]  # a label, keywords, and then the answer


@pytest.mark.parametrize(
    ("route", "slot"), [(RETRIEVAL, "main"), (CODE_GENERATION, "main"), (CONVERSATIONAL, "talk"), (PLATFORM, "talk")]
)
async def test_the_label_decides_who_answers(route: Route, slot: str) -> None:
    models = {"main": build_main(), "talk": AskedModel(lambda _: ["talk"])}
    agent = build_agent(choose_routes(has_platform=True), main=models["main"], conversational=models["talk"])
    await converse(agent, AgentQuestion("My question", label=route.label))
    assert [name for name, model in models.items() if model.asked and model.streamed[-1]] == [slot]
    assert models[slot].asked[-1][0].text == route.prompt


def test_the_exported_prompt_builder_is_the_only_one() -> None:
    from lockgate.agent import prompts

    assert build_final_messages is prompts.build_final_messages


def test_nothing_heavy_is_loaded_without_an_agent() -> None:
    heavy = "langgraph, numpy, onnxruntime, asyncpg, pypdf"
    code = (
        "import sys, lockgate.cli.main, lockgate.server.run, lockgate.server.routes; "
        f"print([n for n in '{heavy}'.split(', ') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
