// SPDX-License-Identifier: Apache-2.0
// Vercel's AI SDK with tools and content parts: `node ai_sdk_tools.mjs BASE_URL whole|stream QUESTION`.
// Prints as openai_tools.py.
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, how, question] = process.argv.slice(2);
const { results } = JSON.parse(readFileSync(new URL("tools.json", import.meta.url)));
const calls = [];
const describe = (name, description, fields) =>
  tool({
    description,
    inputSchema: z.object(fields),
    execute: async (args) => {
      calls.push({ name, arguments: args });
      return results[name];
    },
  });
const tools = {
  find_address: describe("find_address", "Finds the address of a person.", {
    name: z.string(),
    asked_by: z.string().optional(),
  }),
  send_letter: describe("send_letter", "Sends a letter.", {
    to: z.string(),
    card: z.union([z.number(), z.string()]).optional(),
    body: z.string(),
  }),
};
const content = [{ type: "text", text: question }, { type: "text", text: "Thank you." }];
const options = {
  model: createOpenAICompatible({ name: "lockgate", baseURL, apiKey: "none" })("m"),
  instructions: "You help.",
  messages: [{ role: "user", content }],
  tools,
  stopWhen: isStepCount(8),
  maxRetries: 0,
};
let failure;
const answer = how === "stream" ? streamText({ ...options, onError: ({ error }) => (failure = error) }) : await generateText(options);
const text = await answer.text;
const finish_reason = (await answer.finishReason).replace("-", "_");
if (failure) throw failure;
console.log(JSON.stringify({ text, finish_reason, calls }));
