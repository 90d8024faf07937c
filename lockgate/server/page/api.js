// SPDX-License-Identifier: Apache-2.0
// Sends requests to the server of this page, and to no other. The key is kept in memory only.

import { SseParser } from "./sse.js";
import { STREAM_PATH } from "./requests.js";

const CONTENT_PATH = "/api/v2/text/detection/content";

// A failed request. `status` is 0 if there was no response.
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const headersFor = (key) => (key ? { "X-Lockgate-Key": key } : {});

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "");
  }
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response) {
  let message = "";
  try {
    const text = await response.text();
    message = text;
    const body = JSON.parse(text);
    const words = [body.message, body.details, body.error?.message, body.error];
    message = words.find((one) => typeof one === "string") ?? "";
  } catch {
    // A body that is not JSON is shown unchanged.
  }
  return new ApiError(response.status, message.slice(0, 1000), response.headers.get("retry-after"));
}

export async function fetchAbout(key) {
  const response = await send("/playground/about", { headers: headersFor(key) });
  return response.json();
}

function post(path, body, headers, signal) {
  const all = { "Content-Type": "application/json", ...headers };
  return send(path, { method: "POST", headers: all, body: JSON.stringify(body), signal });
}

// Yields the events of an answer, each {name, text}, with trace events if there is a token. Calls `noteTrace` with
// whether the stream is traced, and with the status of a refused trace or null.
export async function* streamAnswer(request, { key, token, signal, noteTrace }) {
  const response = await openStream(request, { key, token, signal, noteTrace });
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await readPiece(reader);
      yield* parser.feed(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function readPiece(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { done: true }; // the connection broke: the caller notices that the last event is missing
  }
}

async function openStream(request, { key, token, signal, noteTrace }) {
  if (token) {
    try {
      const headers = { ...headersFor(key), "X-Lockgate-Trace": token };
      const response = await post(`/trace${STREAM_PATH}`, request, headers, signal);
      noteTrace(true, null);
      return response;
    } catch (error) {
      if (error.status !== 403 && error.status !== 404) throw error;
      noteTrace(false, error.status);
    }
  } else {
    noteTrace(false, null);
  }
  return post(STREAM_PATH, request, headersFor(key), signal);
}

export async function detect(content, detectors, { key, signal }) {
  const response = await post(CONTENT_PATH, { content, detectors }, headersFor(key), signal);
  return response.json();
}
