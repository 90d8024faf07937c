# SPDX-License-Identifier: Apache-2.0
"""A chat with the ollama package: `python ollama_chat.py HOST MODEL whole|stream QUESTION`.

Prints one JSON object: the text, and how it ended.
"""

import json
import sys

import ollama


def main(host: str, model: str, how: str, question: str) -> None:
    """Asks once."""
    messages = [{"role": "user", "content": question}]
    with ollama.Client(host) as client:
        if how == "stream":
            parts = list(client.chat(model=model, messages=messages, stream=True))
        else:
            parts = [client.chat(model=model, messages=messages)]
    text = "".join(one.message.content or "" for one in parts)
    print(json.dumps({"text": text, "done": parts[-1].done, "done_reason": parts[-1].done_reason}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
