# SPDX-License-Identifier: Apache-2.0
"""A LangChain agent with tools: `python langchain_tools.py BASE_URL whole|stream QUESTION`.

Prints as openai_tools.py.
"""

import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from tools import RESULTS


@tool
def find_address(name: str, asked_by: str = "") -> str:
    """Finds the address of a person."""
    return RESULTS["find_address"]


@tool
def send_letter(to: str, body: str, card: int | str = "") -> str:
    """Sends a letter."""
    return RESULTS["send_letter"]


def run(agent: Any, asked: Any, how: str) -> list[Any]:
    """All messages of the conversation."""
    if how == "whole":
        return agent.invoke(asked)["messages"]
    states = [state for mode, state in agent.stream(asked, stream_mode=["messages", "values"]) if mode == "values"]
    return states[-1]["messages"]


def main(base_url: str, how: str, question: str) -> None:
    """Runs the agent once."""
    model = ChatOpenAI(base_url=base_url, api_key="none", model="m", max_retries=0, streaming=how == "stream")
    agent = create_agent(model, [find_address, send_letter], system_prompt="You help.")
    parts = [{"type": "text", "text": question}, {"type": "text", "text": "Thank you."}]
    messages = run(agent, {"messages": [HumanMessage(content=parts)]}, how)
    said = [one for one in messages if isinstance(one, AIMessage)]
    assert not any(one.invalid_tool_calls for one in said), said
    calls = [{"name": call["name"], "arguments": call["args"]} for one in said for call in one.tool_calls]
    reason = said[-1].response_metadata["finish_reason"]
    print(json.dumps({"text": said[-1].text, "finish_reason": reason, "calls": calls}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
