// SPDX-License-Identifier: Apache-2.0
// Derives from a run what the page shows: findings, their actions, and the text on both sides of the gate. Does not
// change the run or the page.

import { findCitations, placeSpans, splitText, toPoints } from "./spans.js";

const DONE_WORDS = {
  annotate: "reported, text unchanged",
  flag: "flagged",
  mask: "masked",
  stop: "answer stopped here",
  block: "withheld",
  drop: "document dropped",
};
const INPUT_WORDS = { block: "question blocked", stop: "question blocked", mask: "masked before retrieval and model" };
const DEFAULT_WORDS = { input: "block", documents: "drop", output: "annotate", grounding: "annotate" };

// How far the gate has decided; `leftEnd` is how far text was released. They differ if text was withheld.
export const releasedEnd = (run) => run.frames.at(-1)?.end ?? 0;

export const releasedText = (run) => run.frames.flatMap((frame) => frame.points ?? []).join("");

export function leftEnd(run) {
  const last = run.frames.at(-1);
  return last?.outcome === "blocked" ? last.start + (last.kept ?? 0) : releasedEnd(run);
}

const hasPlace = (one) => Number.isInteger(one.start) && one.end > one.start;
const keyOf = (one) => `${one.detector_id}:${one.start}:${one.end}:${one.detection}`;

// All findings of the answer, in order and without duplicates: for the client's side those that a client gets, else the
// trace's, whose texts are not hidden.
export function listFindings(run, side) {
  const byKey = new Map();
  const reported = run.answer?.detections ?? {};
  const first = side === "client" ? run.reported : run.frames.flatMap((frame) => frame.results);
  for (const one of [...first, ...(reported.output ?? []), ...(reported.grounding ?? [])]) {
    if (!byKey.has(keyOf(one))) byKey.set(keyOf(one), one);
  }
  return [...byKey.values()].sort((one, other) => one.start - other.start);
}

// The action for a detector's findings in this request.
export function actionOf(run, about, section, detector) {
  const asked = run.request.detectors ?? {};
  const policy = about?.policies?.find((one) => one.name === asked.policy);
  return policy?.[section]?.[detector] ?? asked.on_finding?.[section] ?? (policy ? "annotate" : DEFAULT_WORDS[section]);
}

export function isShadow(run, about) {
  const policy = about?.policies?.find((one) => one.name === run.request.detectors?.policy);
  return policy?.mode === "shadow";
}

export function sectionOf(run, about, detector) {
  const asked = run.request.detectors ?? {};
  const policy = about?.policies?.find((one) => one.name === asked.policy);
  return policy?.grounding?.[detector] || asked.grounding?.[detector] ? "grounding" : "output";
}

export function describeAction(run, about, detector, section = sectionOf(run, about, detector)) {
  const action = actionOf(run, about, section, detector);
  const words = (section === "input" ? INPUT_WORDS[action] : null) ?? DONE_WORDS[action] ?? "reported";
  return isShadow(run, about) ? `only reported (mode enforce: ${words})` : words;
}

// The detector's reasons for a finding, as one line.
export function describeReason(finding) {
  const { reason, reasons, rule, best, scores, ...rest } = finding.metadata ?? {};
  const words = [reason, ...(Array.isArray(reasons) ? reasons : [reasons])].filter(Boolean).map(String);
  for (const one of finding.evidence ?? []) words.push(describeEvidence(one));
  if (best) words.push(`nearest sentence: “${best}”`);
  if (rule) words.push(`rule ${rule}`);
  if (scores && typeof scores === "object") words.push(describeScores(scores));
  for (const [key, value] of Object.entries(rest)) words.push(`${key.replaceAll("_", " ")} ${describeValue(value)}`);
  return [...new Set(words.filter(Boolean))].join("; ");
}

function describeEvidence(one) {
  if (typeof one !== "object" || one === null) return String(one);
  const inner = (one.evidence ?? []).map(describeEvidence);
  const words = [[one.name, one.value].filter(Boolean).join(": "), ...inner].filter(Boolean);
  return words.join(", ");
}

function describeScores(scores) {
  const top = Object.entries(scores).filter(([, value]) => typeof value === "number");
  const best = top.sort((one, other) => other[1] - one[1]).slice(0, 3);
  return best.map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ");
}

const describeValue = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

export const pathsOf = (run) => new Set(run.sources.map((source) => source.path));

// The pieces of a released frame, as the client or as the gate sees it. Each piece may have `findings`, a
// `citation`, and `isFallback` or `isWithheld`.
export function piecesOfFrame(run, frame, findings, side) {
  const placed = findings
    .filter((one) => hasPlace(one) && one.start < frame.end && frame.start < one.end)
    .map((one) => ({ ...one, began: one.start < frame.start, goesOn: one.end > frame.end }));
  return side === "gate" ? gatePieces(run, frame, placed) : clientPieces(run, frame, placed);
}

function gatePieces(run, frame, findings) {
  const points = run.held.slice(frame.start, frame.end);
  const { keptEnd } = placeSpans(frame, frame.points ?? [], points, findings);
  const withheldFrom = frame.outcome === "blocked" ? frame.start + keptEnd : frame.end;
  const cited = findCitations(points, pathsOf(run)).map((one) => shift(one, frame.start));
  return splitText(points, [...findings, ...cited], [withheldFrom], frame.start).map((piece) => ({
    ...sort(piece),
    isWithheld: piece.start >= withheldFrom,
  }));
}

function clientPieces(run, frame, findings) {
  const points = frame.points ?? [];
  const original = run.held.length >= frame.end ? run.held.slice(frame.start, frame.end) : null;
  const { spans, keptEnd } = placeSpans(frame, points, original, findings);
  const cited = citationsIn(run, frame);
  return splitText(points, [...spans, ...cited], [keptEnd]).map((piece) => ({
    ...sort(piece),
    isFallback: frame.outcome === "blocked" && piece.start >= keptEnd,
  }));
}

// The citations that `done` reports; before it, those found in the text by the paths of the sources.
function citationsIn(run, frame) {
  const reported = run.answer?.citations;
  if (!reported) return findCitations(frame.points ?? [], pathsOf(run));
  return reported.map((one) => shift({ ...one, start: one.start - 1, end: one.end + 1 }, -frame.saidStart));
}

const shift = (span, by) => ({ ...span, start: span.start + by, end: span.end + by });

function sort(piece) {
  const citation = piece.over.find((span) => span.path !== undefined) ?? null;
  return { ...piece, citation, findings: piece.over.filter((span) => span.path === undefined) };
}

// The held text, cut at every frontier in it.
export function piecesOfHeld(run) {
  const from = releasedEnd(run);
  return splitText(run.held.slice(from), [], Object.values(run.frontiers), from);
}

// The pieces of a text that did not pass the gate: a question, a document, a pasted text.
export function piecesOfText(text, findings) {
  return splitText(toPoints(text), findings.filter(hasPlace)).map(sort);
}
