// SPDX-License-Identifier: Apache-2.0
// Shows how far the model, each detector and the gate are in the answer. The gate releases up to the slowest detector.

import { byId, el, setText, syncList } from "./dom.js";
import { isOver } from "./fold.js";
import { leftEnd } from "./reading.js";
import { sideOf } from "./state.js";
import { toneOf } from "./view-text.js";

export function renderFrontiers(state) {
  const { run, about } = state;
  const node = byId("frontiers");
  const rows = run && sideOf(state) !== "client" && run.held.length > 0 ? listRows(run, about) : [];
  node.hidden = rows.length === 0;
  syncList(node, rows, (row) => row.key, buildRow, updateRow);
}

function listRows(run, about) {
  const total = run.held.length;
  const chunks = new Map((about?.detectors ?? []).map((one) => [one.id, one.chunker]));
  const readers = Object.entries(run.frontiers).map(([id, place]) => ({
    key: id,
    testid: `frontier-${id}`,
    name: id,
    unit: describeUnit(chunks.get(id)),
    tone: toneOf(about, id),
    place: Math.min(place, total),
    words: "read",
    total,
  }));
  const model = { unit: isOver(run) ? "" : "writing", place: total, words: "received" };
  const gate = { unit: "up to the slowest", place: leftEnd(run), words: "released" };
  return [
    { key: "·model", testid: "came", name: "model", tone: "model", total, ...model },
    ...readers,
    { key: "·gate", testid: "gate", name: "gate", tone: "gate", total, ...gate },
  ];
}

function describeUnit(chunker) {
  if (!chunker) return "";
  return chunker.startsWith("whole") ? "whole text" : `by ${chunker.replace(/_?chunker$/, "")}`;
}

function buildRow(row) {
  const bar = el("div", { className: "bar" });
  const label = `${row.name}: characters ${row.words}`;
  const track = el("div", { className: "track", role: "meter", "aria-label": label }, bar);
  track.setAttribute("aria-valuemin", "0");
  return el(
    "div",
    { className: `frontier-row ${row.tone}`, testid: row.testid },
    el("span", { className: "frontier-name", textContent: row.name }),
    el("span", { className: "frontier-unit" }),
    track,
    el("span", { className: "frontier-place" }),
  );
}

function updateRow(node, row) {
  const [, unit, track, place] = node.children;
  node.dataset.position = row.place;
  setText(unit, row.unit);
  setText(place, `${row.place} ${row.words}`);
  track.setAttribute("aria-valuenow", row.place);
  track.setAttribute("aria-valuemax", row.total);
  track.firstChild.style.width = `${row.total > 0 ? (100 * row.place) / row.total : 0}%`;
}
