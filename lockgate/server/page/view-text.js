// SPDX-License-Identifier: Apache-2.0
// Text with findings and citations in it. A finding is a mark that can be reached by keyboard; its name stands behind
// it, so that colour is never its only mark.

import { buildTable, el } from "./dom.js";
import { tellReason } from "./reading.js";

const TONES = 8;

// Each detector has its tone on the whole page.
export function toneOf(about, detector) {
  const index = (about?.detectors ?? []).findIndex((one) => one.id === detector);
  return `d${(index < 0 ? TONES - 1 : index) % TONES}`;
}

export const sourceId = (path) => `source-${encodeURIComponent(path)}`;

// Nodes for pieces of text. `tell` says what became of a finding.
export function buildPieces(pieces, { about, tell = () => "" }) {
  const seen = new Set();
  return pieces.map((piece, index) => {
    const next = pieces[index + 1]?.findings ?? [];
    const ends = piece.findings.filter((one) => !one.goesOn && !next.some((other) => isSame(one, other)));
    const begins = piece.findings.some((one) => !one.began && !seen.has(nameOf(one)));
    for (const one of piece.findings) seen.add(nameOf(one));
    return buildPiece(piece, { about, tell, begins, ends });
  });
}

const nameOf = (one) => `${one.detector_id}:${one.detection}:${one.start}:${one.end}`;
const isSame = (one, other) => nameOf(one) === nameOf(other);

function buildPiece(piece, marks) {
  const inner = piece.citation ? buildCitation(piece) : document.createTextNode(piece.text);
  if (piece.findings.length === 0) return inner;
  const { about, tell, begins, ends } = marks;
  const first = piece.findings[0];
  const node = el("mark", { className: `finding ${toneOf(about, first.detector_id)}`, testid: "finding" }, inner);
  node.dataset.detector = first.detector_id;
  node.dataset.detection = first.detection;
  if (ends.length > 0) node.dataset.label = ends.map((one) => one.detector_id).join(", ");
  if (/^█+$/.test(piece.text)) node.dataset.masked = "true";
  if (begins) node.tabIndex = 0;
  node.details = piece.findings.map((finding) => ({ finding, fate: tell(finding) }));
  node.setAttribute("aria-describedby", "tip");
  return node;
}

function buildCitation(piece) {
  const { path, is_retrieved: isKnown = true } = piece.citation;
  const textContent = piece.text;
  if (!isKnown) return el("span", { className: "cite unknown", title: "No such source was asked", textContent });
  return el("a", { className: "cite", href: `#${sourceId(path)}`, textContent, testid: "citation", data: { path } });
}

// The findings as a table: what a mark shows when it is pointed at.
export function buildFindingsTable(findings, { about, tell = null, caption }) {
  const heads = ["Detector", "Found", "Text", "Score", "Why", ...(tell ? ["Became"] : [])];
  const rows = findings.map((one) => [
    el("span", { className: `who ${toneOf(about, one.detector_id)}`, textContent: one.detector_id }),
    one.detection,
    quoteText(one.text),
    formatScore(one.score),
    tellReason(one) || "–",
    ...(tell ? [tell(one)] : []),
  ]);
  return buildTable("findings", caption, heads, rows);
}

// What was found; where the server hides it, that it does.
export function quoteText(text) {
  if (!text) return "–";
  if (!/^█+$/.test(text)) return el("q", { textContent: text });
  return el("span", { className: "hint", textContent: `hidden, ${text.length} characters` });
}

export const formatScore = (score) => (typeof score === "number" ? score.toFixed(2) : "–");
