// SPDX-License-Identifier: Apache-2.0
// The raw tab: the exact events with their arrival times, and the request as a shell command.

import { byId, copyButton, el, setText, syncList } from "./dom.js";
import { STREAM_PATH, buildCurl, buildRequest } from "./requests.js";
import { sideOf } from "./state.js";

export function connectRaw(store) {
  byId("curl-copy").append(copyButton("Copy the command", () => byId("raw-curl").textContent));
  byId("events-copy").append(copyButton("Copy the events", () => writeEvents(store.state)));
  byId("hide-trace").addEventListener("change", (event) => store.update({ raw: { hidesTrace: event.target.checked } }));
}

// The client's side never shows the trace.
const hidesTrace = (state) => state.raw.hidesTrace || sideOf(state) === "client";

function listEvents(state) {
  const { run } = state;
  const events = (run?.events ?? []).map((event, index) => ({ ...event, key: `${run.id}:${index}` }));
  return events.filter((event) => event.name !== "trace" || !hidesTrace(state));
}

// The events as server-sent events, without their arrival times.
function writeEvents(state) {
  return listEvents(state)
    .map((event) => `event: ${event.name}\n${event.text.split("\n").map((line) => `data: ${line}\n`).join("")}\n`)
    .join("");
}

export function renderRaw(state) {
  const question = state.form.question || "Your question";
  const request = state.run?.request ?? buildRequest({ ...state.form, question });
  setText(byId("raw-curl"), buildCurl(location.origin, STREAM_PATH, request, state.key !== ""));
  const box = byId("hide-trace");
  box.checked = hidesTrace(state);
  box.disabled = state.run !== null && sideOf(state) === "client";
  syncList(byId("raw-events"), listRows(state), (event) => event.key, buildEvent);
}

function listRows(state) {
  const events = listEvents(state);
  return events.length > 0 ? events : [{ key: "none", isNone: true }];
}

function buildEvent(event) {
  if (event.isNone) return el("li", { className: "hint", textContent: "No request was sent yet." });
  return el(
    "li",
    { className: event.name === "trace" ? "event trace" : "event", testid: "raw-event", data: { event: event.name } },
    el("span", { className: "at", textContent: `${event.at.toFixed(0)} ms` }),
    el("span", { className: "event-name", textContent: event.name }),
    el("code", { textContent: event.text }),
  );
}
