// SPDX-License-Identifier: Apache-2.0
// The state of one request, a run, built from its events. Only this module changes a run.
// Without the trace, held text is not known, and each token event counts as a release.

import { toPoints } from "./spans.js";

const OVER = new Set(["done", "failed", "stopped", "lost"]);
const BY_NAME = {
  retrieval_start: startRetrieval,
  source_complete: endSource,
  retrieval_complete: endRetrieval,
  generation_start: startGeneration,
  token: takeToken,
  done: finish,
  error: fail,
  trace: (run, body, at) => BY_KIND[body.kind]?.(run, body, body.at_ms ?? at),
};
const BY_KIND = { documents: takeDocuments, held: takeHeld, read: takeRead, released: takeReleased };

export const isOver = (run) => OVER.has(run.phase);

export function startRun(id, request) {
  const sources = request.data_sources.map(({ slug, owner_username: owner }) => ({
    path: owner ? `${owner}/${slug}` : slug,
    status: "asking",
    documents: [],
    count: 0,
    message: "",
    at: null,
  }));
  return {
    id,
    request,
    isTraced: false,
    isReplay: false,
    phase: "asking",
    events: [],
    sources,
    held: [], // the model's whole text in code points; empty without the trace
    frames: [],
    frontiers: {},
    reported: [], // the findings of the token events, as a client gets them
    said: 0, // number of code points that were released to the client
    times: { retrievalStart: 0, retrievalEnd: null, generation: null, firstHeld: null, end: null },
    skew: null, // milliseconds that the page's clock is ahead of the server's
    answer: null, // the body of `done`
    fault: null,
  };
}

// Adds an event {name, text} that arrived `at` milliseconds after the request was sent.
export function foldEvent(run, event, at) {
  run.events.push({ name: event.name, text: event.text, at });
  let body;
  try {
    body = JSON.parse(event.text);
  } catch {
    endRun(run, "failed", at, { message: "The server sent an event that is not JSON. The raw tab shows it." });
    return;
  }
  if (event.name === "trace" && typeof body.at_ms === "number") noteSkew(run, at - body.at_ms);
  BY_NAME[event.name]?.(run, body, at - (run.skew ?? 0));
}

// Ends the run: after its last event, without one, or because the user stopped it.
export function endRun(run, phase, at, fault = null) {
  if (isOver(run)) return;
  run.phase = phase;
  run.fault = fault;
  run.times.end = at - (run.skew ?? 0);
  for (const source of run.sources) if (source.status === "asking") source.status = "left";
}

function noteSkew(run, skew) {
  if (run.skew === null) run.times.retrievalStart = Math.max(run.times.retrievalStart - skew, 0);
  run.skew = run.skew === null ? skew : Math.min(run.skew, skew);
}

function startRetrieval(run, body, at) {
  run.phase = "retrieving";
  run.times.retrievalStart = Math.max(at, 0);
}

function findSource(run, path) {
  let source = run.sources.find((one) => one.path === path);
  if (!source) {
    source = { path, status: "asking", documents: [], count: 0, message: "", at: null };
    run.sources.push(source);
  }
  return source;
}

function takeDocuments(run, body, at) {
  const source = findSource(run, body.path);
  source.documents = body.documents ?? [];
  source.count = source.documents.length;
  source.at = at;
}

function endSource(run, body, at) {
  const source = findSource(run, body.path);
  source.status = body.status;
  source.count = body.documents ?? source.count;
  source.at ??= at;
  for (const key of ["dropped", "masked", "flagged"]) source[key] = body[key] ?? 0;
}

function endRetrieval(run, body, at) {
  run.times.retrievalEnd = at;
}

function startGeneration(run, body, at) {
  run.phase = "generating";
  run.times.generation = at;
}

function takeHeld(run, body, at) {
  run.times.firstHeld ??= at;
  run.held.length = Math.min(run.held.length, body.start);
  for (const point of body.text) run.held.push(point);
}

function takeRead(run, body) {
  run.frontiers = { ...run.frontiers, ...body.frontiers };
}

function takeReleased(run, body, at) {
  const { start, end, outcome, results = [], held_ms: heldMs } = body;
  run.frames.push({ start, end, outcome, results, heldMs, at, points: null, saidStart: run.said });
}

function takeToken(run, body, at) {
  const points = toPoints(body.content ?? "");
  const frame = findFrame(run, body) ?? addFrame(run, body, points, at);
  frame.points = points;
  run.reported.push(...(body.detections ?? []));
  run.said += points.length;
  run.times.firstHeld ??= at;
}

// The release of this text, which the trace reports just before it.
function findFrame(run, body) {
  const last = run.frames.at(-1);
  return last && last.points === null && (body.start_index ?? last.start) === last.start ? last : null;
}

function addFrame(run, body, points, at) {
  const start = body.start_index ?? run.frames.at(-1)?.end ?? 0;
  const end = body.processed_index ?? start + points.length;
  const results = body.detections ?? [];
  const outcome = results.length > 0 && /█/.test(points.join("")) ? "masked" : "released";
  const frame = { start, end, outcome, results, heldMs: null, at, points: null, saidStart: run.said };
  run.frames.push(frame);
  return frame;
}

function finish(run, body, at) {
  run.answer = body;
  endRun(run, "done", at + (run.skew ?? 0));
  for (const info of body.retrieval_info ?? []) {
    const source = findSource(run, info.path);
    source.message = info.error_message ?? "";
    if (source.status === "left" && body.outcome !== "prompt_blocked") source.status = info.status;
    source.shown = listDocuments(body, info.path);
    if (source.documents.length === 0) source.documents = source.shown;
  }
  const last = run.frames.at(-1);
  if (last && body.outcome === "answer_blocked") {
    last.outcome = "blocked";
    last.kept = Math.max((body.receipt?.released?.answer ?? last.start) - last.start, 0);
  }
}

// A source's documents from the `done` event: what a client gets. `isShownMasked` is true if they hide findings.
function listDocuments(body, path) {
  const inspected = (body.detections?.documents ?? []).filter((one) => one.path === path);
  const documents = Object.entries(body.sources ?? {})
    .filter(([, one]) => one.slug === path)
    .map(([title, one]) => {
      const found = inspected.find((other) => other.title === title && other.outcome !== "dropped");
      const { outcome = "kept" } = found ?? {};
      const shown = (body.detections?.sources ?? []).find((other) => other.title === title && other.path === path);
      const results = [...allResults(found), ...allResults(shown)];
      return { title, text: one.content, score: null, outcome, results, isShownMasked: shown?.outcome === "masked" };
    });
  const dropped = inspected.filter((one) => one.outcome === "dropped");
  return [...documents, ...dropped.map((one) => ({ ...one, text: "", score: null, results: allResults(one) }))];
}

const allResults = (one) => [...(one?.title_results ?? []), ...(one?.results ?? [])];

function fail(run, body, at) {
  endRun(run, "failed", at + (run.skew ?? 0), { message: body.message ?? "", isEvent: true });
}
