// SPDX-License-Identifier: Apache-2.0
// Function calling with the openai package for Node: `node openai_tools.mjs BASE_URL whole|stream QUESTION`.
// Its own loop, `runTools`, calls the tools. Prints as openai_tools.py.
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { ContentFilterFinishReasonError } from "openai/error";

const [baseURL, how, question] = process.argv.slice(2);
const { schemas, results } = JSON.parse(readFileSync(new URL("tools.json", import.meta.url)));
const calls = [];
const tools = schemas.map(({ type, function: described }) => ({
  type,
  function: {
    ...described,
    parse: JSON.parse,
    function: (args) => {
      calls.push({ name: described.name, arguments: args });
      return results[described.name];
    },
  },
}));
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const content = [{ type: "text", text: question }, { type: "text", text: "Thank you." }];
const messages = [{ role: "system", content: "You help." }, { role: "user", content }];
const runner = client.chat.completions.runTools({ model: "m", messages, tools, stream: how === "stream" });
const print = (text, finish_reason) => console.log(JSON.stringify({ text, finish_reason, calls }));
try {
  const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0];
  print(message.content, finish_reason);
} catch (error) {
  // So this package reports the reason `content_filter`; it hands over no text then.
  if (!(error instanceof ContentFilterFinishReasonError)) throw error;
  print(null, "content_filter");
}
