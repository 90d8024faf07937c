// SPDX-License-Identifier: Apache-2.0
// Shows times since the question: sources, the first token, and for each frame when it arrived, how long it was held
// and when it was released.

import { byId, el, hint, keep } from "./dom.js";
import { sideOf } from "./state.js";
import { formatMs } from "./status.js";

const MAX_WORDS = 40;
const MAX_FRAMES = 60; // only the last frames of an answer are drawn

export function renderTimeline(state) {
  const { run } = state;
  const side = sideOf(state);
  const rows = run ? listRows(run, side) : [];
  keep(byId("timeline"), JSON.stringify([rows, run?.times.end, side]), () =>
    rows.length === 0 && !run?.answer
      ? hint("Retrieval, first token, and how long each frame was held.")
      : buildChart(run, rows, side),
  );
}

function listRows(run, side) {
  const { retrievalStart, generation } = run.times;
  const isClient = side === "client";
  const first = isClient ? (run.frames[0]?.at ?? null) : run.times.firstHeld;
  const rows = run.sources
    .filter(({ at }) => at !== null)
    .map(({ path, at }) => ({ kind: "source", name: path, from: Math.min(retrievalStart, at), to: at }))
    .map((row) => ({ ...row, words: [formatMs(row.to)] }));
  if (generation !== null && first !== null) {
    const name = isClient && run.isTraced ? "first text" : "first token";
    rows.push({ kind: "model", name, from: generation, to: first, words: [formatMs(first)] });
  }
  const more = run.frames.length - MAX_FRAMES;
  if (more > 0) rows.push({ kind: "rest", name: `${more} more frames`, from: 0, to: 0, words: [] });
  const frames = run.frames.slice(-MAX_FRAMES).map((frame) => (isClient ? { ...frame, heldMs: null } : frame));
  return [...rows, ...frames.map((frame, index) => frameRow(frame, Math.max(more, 0) + index))];
}

function frameRow(frame, index) {
  const came = Math.max(frame.at - (frame.heldMs ?? 0), 0);
  const text = shorten((frame.points ?? []).join("").trim());
  const left = `${formatMs(came)} → ${formatMs(frame.at)}`;
  const words = frame.heldMs === null ? [`released ${formatMs(frame.at)}`] : [left, `held ${formatMs(frame.heldMs)}`];
  if (frame.outcome !== "released") words.push(frame.outcome);
  return { kind: `frame ${frame.outcome}`, name: `${index + 1}. ${text}`, from: came, to: frame.at, words };
}

const shorten = (text) => {
  const points = Array.from(text);
  return points.length > MAX_WORDS ? `${points.slice(0, MAX_WORDS - 1).join("")}…` : text;
};

function buildChart(run, rows, side) {
  const end = run.answer?.metadata?.total_time_ms ?? run.times.end;
  const scale = Math.max(1, end ?? 0, ...rows.map((row) => row.to));
  const label = { "aria-label": "Times of the request" };
  const list = el("ol", { className: "chart", tabIndex: 0, ...label }, rows.map((row) => buildRow(row, scale)));
  return [buildAxis(scale), list, buildTotal(run, end, side)];
}

function buildTotal(run, end, side) {
  const total = typeof end === "number" ? ["Total ", el("strong", { textContent: formatMs(end) }), ". "] : [];
  const frames = side === "client" ? "when they were released" : "arrived → released, and how long they were held";
  const key = run.frames.length > 0 ? `Frames: ${frames}.` : "";
  const words = el("span", { className: "hint", textContent: key });
  return el("p", { className: "total", testid: "timeline-total" }, total, words);
}

function buildAxis(scale) {
  const ticks = [0, 0.5, 1].map((share) => el("span", { textContent: formatMs(scale * share) }));
  return el("div", { className: "axis", "aria-hidden": "true" }, ticks);
}

function buildRow(row, scale) {
  const bar = el("span", { className: "span" });
  bar.style.left = `${(100 * row.from) / scale}%`;
  bar.style.width = `${Math.max((100 * (row.to - row.from)) / scale, 0.6)}%`;
  return el(
    "li",
    { className: `t-${row.kind}`, testid: `timeline-${row.kind.split(" ")[0]}` },
    el("span", { className: "name", textContent: row.name }),
    el("span", { className: "lane", "aria-hidden": "true" }, bar),
    el("span", { className: "words" }, row.words.map((word) => el("span", { textContent: word }))),
  );
}
