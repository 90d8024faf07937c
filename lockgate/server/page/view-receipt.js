// SPDX-License-Identifier: Apache-2.0
// Shows the receipt: the outcome, what each detector read, whether it covered everything, and whether the text fits.

import { badge, buildTable, byId, copyButton, el, hint, keep } from "./dom.js";
import { canCheck, fitsDigest } from "./digest.js";
import { isOver } from "./fold.js";
import { count, formatMs } from "./status.js";
import { toneOf } from "./view-text.js";

const OUTCOMES = {
  released: "nothing was changed",
  masked: "some text was masked, or a document was dropped; the rest was released",
  stopped: "the answer ended at a finding",
  blocked: "the question or the answer was withheld",
  failed: "a detector failed",
};
const PARTS = { prompt: "Question", documents: "Documents", answer: "Answer" };

export function renderReceipt({ run, about }) {
  const receipt = run?.answer?.receipt ?? null;
  const key = receipt ? `receipt ${run.id}` : describeLack(run);
  keep(byId("receipt"), key, () =>
    receipt ? [buildFacts(run, receipt), buildReaders(receipt, about), buildRaw(receipt)] : hint(key),
  );
}

function describeLack(run) {
  if (!run) return "Every guarded answer ends with a receipt. It says what each detector read, and if that was all.";
  if (!isOver(run)) return "The receipt follows the last released text.";
  if (run.phase !== "done") return "An answer that breaks off has no receipt.";
  return "No detector read this answer, so there is no receipt. Choose a policy or detectors.";
}

function buildFacts(run, { outcome, covered, policy, mode, released, digest }) {
  const shadow = mode === "shadow" ? " (shadow: the outcome if the policy were enforced)" : "";
  const left = Object.entries(PARTS).map(([part, word]) => `${word.toLowerCase()} ${released?.[part] ?? 0}`);
  const facts = {
    Outcome: [badge(outcome, outcome, "receipt-outcome"), ` ${OUTCOMES[outcome] ?? ""}${shadow}`],
    Covered: covered
      ? [badge("yes", "kept", "receipt-covered"), " every detector read all released text of its parts"]
      : [badge("no", "failed", "receipt-covered"), " a detector did not read all released text"],
    Policy: `${policy ?? "none"}, mode ${mode}`,
    Released: `${left.join(", ")} characters`,
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

// Hashes the received text and compares it with the digest, as any client can.
function buildCheck(run, digest) {
  const node = el("span", { className: "hint", testid: "digest-check" });
  const texts = run.frames.map((frame) => (frame.points ?? []).join(""));
  if (canCheck()) {
    fitsDigest(texts, digest).then((fits) => {
      if (fits === null) return;
      node.textContent = `Checked here: ${describeFit(fits, digest.frames)}`;
      node.dataset.fits = fits;
    });
  }
  return node;
}

function describeFit(fits, frames) {
  if (!fits) return "the text on this page is not the cleared text.";
  return frames === 0 ? "no text was released." : "the text on this page is the cleared text.";
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
