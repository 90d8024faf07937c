// SPDX-License-Identifier: Apache-2.0
// The receipt for people: what was done, who read what, whether that was everything, and whether the text fits it.

import { badge, buildTable, byId, copyButton, el, hint, keep } from "./dom.js";
import { canCheck, fitsDigest } from "./digest.js";
import { isOver } from "./fold.js";
import { count, formatMs } from "./status.js";
import { toneOf } from "./view-text.js";

const OUTCOMES = {
  released: "nothing was changed",
  masked: "some text was hidden, or a document was left out; the rest went on",
  stopped: "the answer ended at a finding",
  blocked: "the question or the answer was withheld",
  failed: "a detector gave no answer",
};
const PARTS = { prompt: "Question", documents: "Documents", answer: "Answer" };

export function renderReceipt({ run, about }) {
  const receipt = run?.answer?.receipt ?? null;
  const key = receipt ? `receipt ${run.id}` : tellLack(run);
  keep(byId("receipt"), key, () =>
    receipt ? [buildFacts(run, receipt), buildReaders(receipt, about), buildRaw(receipt)] : hint(key),
  );
}

function tellLack(run) {
  if (!run) return "Every guarded answer ends with one: what each detector read, and whether that was all that left.";
  if (!isOver(run)) return "It is written when the last text has left.";
  if (run.phase !== "done") return "An answer that breaks off has no receipt.";
  return "No detector read this answer, so there is no receipt. Choose a policy or detectors.";
}

function buildFacts(run, { outcome, covered, policy, mode, released, digest }) {
  const shadow = mode === "shadow" ? " (shadow: this is what would have been done)" : "";
  const left = Object.entries(PARTS).map(([part, word]) => `${word.toLowerCase()} ${released?.[part] ?? 0}`);
  const facts = {
    Outcome: [badge(outcome, outcome, "receipt-outcome"), ` ${OUTCOMES[outcome] ?? ""}${shadow}`],
    Covered: covered
      ? [badge("yes", "kept", "receipt-covered"), " every detector read all that left of its parts"]
      : [badge("no", "failed", "receipt-covered"), " something left that not every detector read"],
    Policy: `${policy ?? "none"}, mode ${mode}`,
    Left: `${left.join(", ")} characters`,
    Digest: [
      `${digest.algorithm}, ${count(digest.frames, "frame")}`,
      el("code", { className: "digest", textContent: digest.value }),
      buildCheck(run, digest),
    ],
  };
  const rows = Object.entries(facts).map(([name, value]) =>
    el("div", {}, el("dt", { textContent: name }), el("dd", {}, value)),
  );
  return el("dl", { className: "facts" }, rows);
}

// The page does what any client can: it hashes what came and compares.
function buildCheck(run, digest) {
  const node = el("span", { className: "hint", testid: "digest-check" });
  const texts = run.frames.map((frame) => (frame.points ?? []).join(""));
  if (canCheck()) {
    fitsDigest(texts, digest).then((fits) => {
      if (fits === null) return;
      node.textContent = `Checked here: ${tellFit(fits, digest.frames)}`;
      node.dataset.fits = fits;
    });
  }
  return node;
}

function tellFit(fits, frames) {
  if (!fits) return "the text on this page is not what was cleared.";
  return frames === 0 ? "no text left." : "the text on this page is what was cleared.";
}

function buildReaders(receipt, about) {
  const heads = ["Detector", ...Object.values(PARTS), "Chunks", "Findings", "Time", "Covered"];
  const rows = receipt.detectors.map((one) => [
    el("span", { className: `who ${toneOf(about, one.detector_id)}`, textContent: one.detector_id }),
    ...Object.keys(PARTS).map((part) => String(one.read[part] ?? "–")),
    String(one.chunks),
    String(one.findings),
    formatMs(one.time_ms),
    one.failed ? "no: it failed" : one.covered ? "yes" : "no",
  ]);
  return buildTable("readers", "Characters that each detector read", heads, rows);
}

function buildRaw(receipt) {
  const text = JSON.stringify(receipt, null, 2);
  const json = el("pre", { textContent: text, tabIndex: 0 });
  const details = el("details", { className: "json" }, el("summary", { textContent: "As JSON" }), json);
  return el("div", { className: "row spread" }, details, copyButton("Copy the receipt", () => text));
}
