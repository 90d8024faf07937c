// SPDX-License-Identifier: Apache-2.0
// Shows the answer at the gate: released text is solid, held text is grey, and markers show the frontiers.

import { kindOfAction, nameActions } from "./actions.js";
import { badge, byId, el, keep, setText, syncList } from "./dom.js";
import { explainEvent, explainLoss } from "./faults.js";
import { isOver } from "./fold.js";
import {
  describeAction,
  listFindings,
  piecesOfFrame,
  piecesOfHeld,
  piecesOfText,
  releasedEnd,
  releasedText,
} from "./reading.js";
import { sideOf } from "./state.js";
import { describeStatus } from "./status.js";
import { buildFindingsTable, buildPieces, toneOf } from "./view-text.js";

const PARTS = new WeakMap(); // the last pieces of each frame

export function renderAnswer(state) {
  const { run } = state;
  renderStatus(state);
  renderFault(state);
  renderAsked(state);
  renderText(state);
  renderNote(state);
  renderFindings(state);
  byId("sides").hidden = !run;
  byId("replay").hidden = !run || !isOver(run) || !run.isTraced || run.held.length === 0;
  for (const radio of byId("sides").querySelectorAll("input")) {
    radio.checked = radio.value === sideOf(state);
    radio.disabled = radio.value !== "client" && run !== null && !run.isTraced;
  }
  setText(byId("trace-note"), state.traceNote);
  setText(byId("answer-model"), describeModel(state));
}

// The name of the model and its note.
function describeModel({ run, about }) {
  const model = about?.models.find((one) => one.id === run?.request.model.slug);
  if (!model || (run.held.length === 0 && run.said === 0)) return "";
  return `Written by ${model.name || model.id}${model.note ? ` (${model.note.replace(/\.$/, "")})` : ""}.`;
}

function renderStatus(state) {
  const { run, about } = state;
  const node = byId("status");
  node.dataset.phase = run?.phase ?? "idle";
  setText(node, describeStatus(run, about, sideOf(state)));
  const actions = run?.answer?.receipt ? nameActions(run.answer, releasedText(run)) : [];
  keep(byId("outcome-badge"), JSON.stringify(actions), () =>
    actions.map((action) => badge(action, kindOfAction(action), "action")),
  );
}

function renderFault({ run, problem }) {
  const fault = run ? explainFault(run) : null;
  keep(byId("error"), JSON.stringify(fault), () => (fault ? buildFault(fault) : null));
  keep(byId("problem"), JSON.stringify(problem), () => (problem ? buildFault(problem, "problem") : null));
}

function explainFault(run) {
  if (run.phase === "lost") return explainLoss();
  if (run.fault?.isEvent) return explainEvent(run.fault.message);
  if (run.fault?.title) return run.fault;
  return run.fault ? { title: "The answer could not be read", words: run.fault.message, advice: "Ask again." } : null;
}

export function buildFault({ title, words, advice }, kind = "error") {
  return el(
    "div",
    { className: "fault", data: { kind } },
    el("strong", { textContent: title }),
    words ? el("p", { textContent: words }) : null,
    el("p", { className: "advice", textContent: advice }),
  );
}

// The question, if a detector found something in it.
function renderAsked(state) {
  const { run, about } = state;
  const found = run?.answer?.detections?.input ?? [];
  const isClient = sideOf(state) === "client";
  keep(byId("asked"), `${found.length}${isClient}${run?.request.prompt}`, () => {
    if (found.length === 0) return null;
    const describeFate = (one) => describeAction(run, about, one.detector_id, "input");
    const isBlocked = run.answer.outcome === "prompt_blocked";
    const { prompt } = run.request;
    const pieces = piecesOfText(prompt, found.filter(isInPrompt));
    const reveal = (one) => (isClient || !isInPrompt(one) ? one : { ...one, text: readBack(prompt, one) });
    const shown = found.map(reveal);
    return [
      el("p", { className: "field", textContent: isBlocked ? "Your question was blocked" : "Found in your question" }),
      el("p", { className: "asked", testid: "asked" }, buildPieces(pieces, { about, describeFate })),
      buildFindingsTable(shown, { about, describeFate, caption: "Findings in the question" }),
    ];
  });
}

const isInPrompt = (one) => !one.field; // else its place is in another text of the request

// The server hides found text; the page can show it, since the user wrote the question.
const readBack = (text, { start, end }) => Array.from(text).slice(start, end).join("");

function renderText(state) {
  const { run, about } = state;
  const side = sideOf(state);
  const node = byId("answer");
  const findings = run ? listFindings(run, side) : [];
  const describeFate = (one) => describeAction(run, about, one.detector_id);
  const frames = run ? run.frames.filter((frame) => frame.points !== null || frame.end > frame.start) : [];
  const parts = frames.map((frame) => recallPart(run, frame, findings, side));
  const held = run ? listHeld(run, side) : null;
  const items = [...parts, ...(held ? [held] : [])];
  syncList(
    node,
    items,
    (item) => item.key ?? "held",
    (item) => (item.frame ? buildFrame(item, { about, describeFate }) : el("span", { className: "tail" })),
    (child, item) => item.frame || fillHeld(child, item, about),
  );
  node.dataset.side = side;
  noteHeld(node, run, held);
  node.classList.toggle("over", run !== null && isOver(run));
  node.hidden = items.length === 0 && (run === null || isOver(run));
  byId("intro").hidden = run !== null;
  byId("legend").hidden = side === "client" || items.length === 0;
}

// Stores the largest amount of held text shown at one time, for tests: it may be visible for a moment only.
function noteHeld(node, run, held) {
  const shown = held && !held.isWithheld ? run.held.length - releasedEnd(run) : 0;
  const before = node.dataset.run === String(run?.id) ? Number(node.dataset.mostHeld) : 0;
  Object.assign(node.dataset, { run: run?.id ?? "", mostHeld: Math.max(shown, before) });
}

// The pieces of a frame, rebuilt only if they may have changed: an answer may have thousands of frames.
function recallPart(run, frame, findings, side) {
  const mark = [side, findings.length, run.answer !== null, frame.points?.length, frame.outcome].join();
  const known = PARTS.get(frame);
  if (known?.mark === mark) return known;
  const pieces = piecesOfFrame(run, frame, findings, side);
  const cuts = pieces.map((piece) => [piece.start, piece.findings.length, piece.citation?.path, kindOf(piece)]);
  const part = { mark, frame, pieces, key: JSON.stringify([run.id, frame.start, side, frame.outcome, cuts]) };
  PARTS.set(frame, part);
  return part;
}

function buildFrame({ frame, pieces }, marks) {
  const { outcome } = frame;
  const node = el("span", { className: `frame ${outcome}`, testid: "released", data: { outcome } });
  for (const [kind, group] of groupByKind(pieces)) {
    const nodes = buildPieces(group, marks);
    node.append(...(kind === "plain" ? nodes : [el("span", { className: kind, testid: kind }, nodes)]));
  }
  return node;
}

const kindOf = (piece) => (piece.isFallback ? "fallback" : piece.isWithheld ? "withheld" : "plain");

function groupByKind(pieces) {
  const groups = new Map();
  for (const piece of pieces) groups.set(kindOf(piece), [...(groups.get(kindOf(piece)) ?? []), piece]);
  return groups;
}

// The held text, which the client's side never shows. After the end of the run it was withheld: only the gate's side
// shows it.
function listHeld(run, side) {
  if (side === "client" || run.held.length <= releasedEnd(run)) return null;
  if (isOver(run)) return side === "gate" ? { pieces: piecesOfHeld(run), isWithheld: true } : null;
  return { pieces: piecesOfHeld(run), isWithheld: false, frontiers: run.frontiers };
}

function fillHeld(node, { pieces, isWithheld, frontiers = {} }, about) {
  const kind = isWithheld ? "withheld" : "held";
  const nodes = pieces.flatMap((piece) => [
    ...listMarkers(frontiers, piece.start, about),
    el("span", { className: kind, testid: kind, textContent: piece.text }),
  ]);
  node.replaceChildren(...nodes, ...listMarkers(frontiers, pieces.at(-1).end, about));
}

function listMarkers(frontiers, place, about) {
  return Object.entries(frontiers)
    .filter(([, position]) => position === place)
    .map(([id]) => buildMarker(id, toneOf(about, id)));
}

function buildMarker(id, tone) {
  const title = `${id} has read up to here`;
  return el("span", { className: `marker ${tone}`, "aria-hidden": "true", title, data: { detector: id } });
}

function renderNote(state) {
  const { run } = state;
  setText(byId("answer-note"), run ? describeNote(run, sideOf(state)) : "");
}

function describeNote(run, side) {
  const left = run.held.length - releasedEnd(run);
  const isBlocked = run.frames.some((frame) => frame.outcome === "blocked");
  if (!isOver(run) || side === "client" || (left <= 0 && !isBlocked)) return "";
  return side === "gate"
    ? "Struck through: text that was held and not released."
    : "Some text was held and not released. “What the model wrote” shows it.";
}

function renderFindings(state) {
  const { run, about } = state;
  const side = sideOf(state);
  const findings = run ? listFindings(run, side) : [];
  const places = findings.map((one) => [one.detector_id, one.start, one.end]);
  const key = JSON.stringify([run?.id, side, places]);
  keep(byId("findings"), key, () => {
    if (findings.length === 0) return null;
    const describeFate = (one) => describeAction(run, about, one.detector_id);
    return buildFindingsTable(findings, { about, describeFate, caption: "Findings in the answer" });
  });
}
