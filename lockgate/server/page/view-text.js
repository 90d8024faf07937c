// SPDX-License-Identifier: Apache-2.0
// Shows text with findings and citations. A finding is a mark that the keyboard reaches; its name follows it, so it
// does not depend on colour.

import { buildTable, el } from "./dom.js";
import { describeReason } from "./reading.js";

const TONES = 8;

// The colour class of a detector, the same on the whole page.
export function toneOf(about, detector) {
  const index = (about?.detectors ?? []).findIndex((one) => one.id === detector);
  return `d${(index < 0 ? TONES - 1 : index) % TONES}`;
}

export const sourceId = (path) => `source-${encodeURIComponent(path)}`;

// Builds nodes for pieces of text. `describeFate` describes the action on a finding.
export function buildPieces(pieces, { about, describeFate = () => "" }) {
  const seen = new Set();
  return pieces.map((piece, index) => {
    const next = pieces[index + 1]?.findings ?? [];
    const ends = piece.findings.filter((one) => !one.goesOn && !next.some((other) => isSame(one, other)));
    const begins = piece.findings.some((one) => !one.began && !seen.has(nameOf(one)));
    for (const one of piece.findings) seen.add(nameOf(one));
    return buildPiece(piece, { about, describeFate, begins, ends });
  });
}

const nameOf = (one) => `${one.detector_id}:${one.detection}:${one.start}:${one.end}`;
const isSame = (one, other) => nameOf(one) === nameOf(other);

function buildPiece(piece, marks) {
  const inner = piece.citation ? buildCitation(piece) : document.createTextNode(piece.text);
  if (piece.findings.length === 0) return inner;
  const { about, describeFate, begins, ends } = marks;
  const first = piece.findings[0];
  const node = el("mark", { className: `finding ${toneOf(about, first.detector_id)}`, testid: "finding" }, inner);
  node.dataset.detector = first.detector_id;
  node.dataset.detection = first.detection;
  if (ends.length > 0) node.dataset.label = ends.map((one) => one.detector_id).join(", ");
  if (/^█+$/.test(piece.text)) node.dataset.masked = "true";
  if (begins) node.tabIndex = 0;
  node.details = piece.findings.map((finding) => ({ finding, fate: describeFate(finding) }));
  node.setAttribute("aria-describedby", "tip");
  return node;
}

function buildCitation(piece) {
  const { path, is_retrieved: isKnown = true } = piece.citation;
  const textContent = piece.text;
  if (!isKnown) return el("span", { className: "cite unknown", title: "Not a source of this answer", textContent });
  return el("a", { className: "cite", href: `#${sourceId(path)}`, textContent, testid: "citation", data: { path } });
}

// The findings as a table, with the same facts as a mark's tooltip.
export function buildFindingsTable(findings, { about, describeFate = null, caption }) {
  const heads = ["Detector", "Found", "Text", "Score", "Reason", ...(describeFate ? ["Action"] : [])];
  const rows = findings.map((one) => [
    el("span", { className: `who ${toneOf(about, one.detector_id)}`, textContent: one.detector_id }),
    one.detection,
    quoteText(one.text),
    formatScore(one.score),
    describeReason(one) || "–",
    ...(describeFate ? [describeFate(one)] : []),
  ]);
  return buildTable("findings", caption, heads, rows);
}

// The text of a finding, or a note that the server hides it.
export function quoteText(text) {
  if (!text) return "–";
  if (!/^█+$/.test(text)) return el("q", { textContent: text });
  return el("span", { className: "hint", textContent: `hidden, ${text.length} characters` });
}

export const formatScore = (score) => (typeof score === "number" ? score.toFixed(2) : "–");
