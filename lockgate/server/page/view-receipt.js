// SPDX-License-Identifier: Apache-2.0
// Shows the receipt: the outcome, what each detector read, whether it covered everything, and whether the text fits.

import { nameActions, nameGaps } from "./actions.js";
import { badge, buildTable, byId, copyButton, el, hint, keep } from "./dom.js";
import { canCheck, fitsDigest } from "./digest.js";
import { isOver } from "./fold.js";
import { releasedText } from "./reading.js";
import { count, formatMs } from "./status.js";
import { toneOf } from "./view-text.js";

const PARTS = { prompt: "Question", documents: "Documents", answer: "Answer" };
const MORE_PARTS = { fields: "Fields", sources: "Shown sources" };

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

// The parts that every receipt has, and those of this one.
function partsOf({ released }) {
  const more = Object.entries(MORE_PARTS).filter(([part]) => part in released);
  return { ...PARTS, ...Object.fromEntries(more) };
}

function buildFacts(run, receipt) {
  const { outcome, covered, policy, mode, released, digest } = receipt;
  const words = Object.entries(partsOf(receipt)).map(([part, word]) => `${word.toLowerCase()} ${released[part] ?? 0}`);
  const actions = nameActions(run.answer, releasedText(run));
  const facts = {
    Outcome: [badge(outcome, outcome, "receipt-outcome"), ` ${actions.filter((one) => one !== outcome).join("; ")}`],
    Covered: covered
      ? [badge("yes", "kept", "receipt-covered"), " every detector read all released text of its parts"]
      : [badge("no", "failed", "receipt-covered"), ` ${nameGaps({ ...receipt, dropped: {} }).join("; ")}`],
    ...listCounts(receipt),
    Policy: `${policy ?? "none"}, mode ${mode}`,
    Released: `${words.join(", ")} characters`,
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

// The fields that only some receipts have.
function listCounts({ unread, dropped, prompt_sent_to: sentTo, detectors }) {
  const cached = detectors.reduce((sum, one) => sum + (one.cached_chars ?? 0), 0);
  return {
    ...(unread ? { Unread: writeCounts(unread, "receipt-unread") } : {}),
    ...(dropped ? { "Left out": writeCounts(dropped, "receipt-dropped") } : {}),
    ...(sentTo ? { "Prompt to": writeWords(sentTo.join(", ") || "no service", "receipt-sent") } : {}),
    ...(cached > 0 ? { Cached: `${count(cached, "character")} read for an earlier request` } : {}),
  };
}

const writeWords = (textContent, testid) => el("span", { textContent, testid });

const writeCounts = (counts, testid) =>
  writeWords(Object.entries(counts).map(([field, number]) => `${field}: ${number}`).join(", "), testid);

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
  const parts = partsOf(receipt);
  const heads = ["Detector", ...Object.values(parts), "Chunks", "Findings", "Time", "Covered"];
  const rows = receipt.detectors.map((one) => [
    el("span", { className: `who ${toneOf(about, one.detector_id)}`, textContent: one.detector_id }),
    ...Object.keys(parts).map((part) => String(one.read[part] ?? "–")),
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
