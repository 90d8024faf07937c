# SPDX-License-Identifier: Apache-2.0
"""Function calling in several turns with the openai package: `python openai_tools.py BASE_URL whole|stream QUESTION`.

Prints one JSON object: the last text, the reason to finish, and every call with its arguments as they were received.
"""

import json
import sys
from typing import Any

from openai import OpenAI
from tools import RESULTS, SCHEMAS


def ask_whole(client: OpenAI, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """The assistant's message and the reason to finish."""
    choice = client.chat.completions.create(model="m", messages=messages, tools=SCHEMAS).choices[0]
    return choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True), choice.finish_reason


def ask_stream(client: OpenAI, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """The same, put together from a stream as tutorials do it."""
    text, calls, reason = "", {}, ""
    for chunk in client.chat.completions.create(model="m", messages=messages, tools=SCHEMAS, stream=True):
        if not chunk.choices:
            continue
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            call = calls.setdefault(
                part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] += part.id or ""
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message | ({"tool_calls": list(calls.values())} if calls else {}), reason


def main(base_url: str, how: str, question: str) -> None:
    """Talks until the model calls no more tools."""
    parts = [{"type": "text", "text": question}, {"type": "text", "text": "Thank you."}]
    messages: list[Any] = [{"role": "system", "content": "You help."}, {"role": "user", "content": parts}]
    made = []
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        while True:
            message, reason = (ask_stream if how == "stream" else ask_whole)(client, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                made.append({"name": name, "arguments": arguments})
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULTS[name]})
    print(json.dumps({"text": message["content"], "finish_reason": reason, "calls": made}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
