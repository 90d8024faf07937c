// SPDX-License-Identifier: Apache-2.0
// A chat with the ollama package for Node: `node ollama_chat.mjs HOST MODEL whole|stream QUESTION`. Prints as ollama_chat.py.
import { Ollama } from "ollama";

const [host, model, how, question] = process.argv.slice(2);
const asked = { model, messages: [{ role: "user", content: question }] };
const client = new Ollama({ host });
const parts = [];
if (how === "stream") for await (const part of await client.chat({ ...asked, stream: true })) parts.push(part);
else parts.push(await client.chat(asked));
const { done, done_reason } = parts.at(-1);
console.log(JSON.stringify({ text: parts.map((part) => part.message.content).join(""), done, done_reason }));
