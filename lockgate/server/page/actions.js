// SPDX-License-Identifier: Apache-2.0
// Names what was done to an answer, from its last event. lockgate/cli/answer_actions.py has the same words.

const QUOTED_WORDS = 5; // in a row: fewer may be in a document and in an answer by chance
const SHADOW = { stopped: "would have stopped", blocked: "would have blocked", failed: "would have failed" };
const IS_CHANGE = / (masked|dropped)$/;

// What the receipt and the findings of the event `done` prove; `answer` is the released text.
export function nameActions(done, answer = "") {
  const receipt = done.receipt ?? {};
  const actions = receipt.mode === "shadow" ? nameShadow(receipt) : nameEnforced(done, receipt, answer);
  return [...actions, ...nameGaps(receipt)];
}

// What was not covered and what was left out, by field.
export function nameGaps(receipt) {
  const behind = (receipt.detectors ?? []).filter((one) => !one.covered).map((one) => one.detector_id);
  const gaps = [
    ["not covered", Object.keys(receipt.unread ?? {})],
    ["not covered by", behind],
    ["left out", Object.keys(receipt.dropped ?? {})],
  ];
  return gaps.filter(([, names]) => names.length > 0).map(([words, names]) => `${words}: ${names.join(", ")}`);
}

// The colour of an action's badge.
export function kindOfAction(action) {
  if (action.startsWith("shadow:")) return action.endsWith("changed nothing") ? "released" : "masked";
  if (/^(released|document flagged)$/.test(action)) return action === "released" ? "released" : "flagged";
  return / (masked|flagged)$|^masked$|^left out|not removed/.test(action) ? "masked" : "blocked";
}

function nameEnforced(done, receipt, answer) {
  const found = done.detections ?? {};
  const outcome = receipt.outcome ?? "released";
  const documents = found.documents ?? [];
  const end = nameEnd(done, outcome);
  const masked = outcome === "masked" ? nameMasked(found) : [];
  const actions = [...end, ...masked, ...nameDocuments(documents)];
  const explained = { released: actions, masked: actions.filter((one) => IS_CHANGE.test(one)) }[outcome] ?? end;
  return [...(explained.length > 0 ? [] : [outcome]), ...actions, ...nameInjection(done, documents, answer)];
}

function nameEnd(done, outcome) {
  if (done.outcome === "prompt_blocked") return ["prompt blocked"];
  if (done.outcome === "answer_blocked") return [outcome === "stopped" ? "stopped" : "answer blocked"];
  return [];
}

function nameDocuments(documents) {
  return ["dropped", "masked", "flagged"]
    .map((word) => [word, documents.filter((one) => one.outcome === word).length])
    .filter(([, number]) => number > 0)
    .map(([word, number]) => `${number === 1 ? "document" : `${number} documents`} ${word}`);
}

// The texts with a finding whose value is hidden: it did not leave.
function nameMasked(found) {
  const isHidden = (one) => /^█+$/.test(one.text ?? "");
  const answer = [...(found.output ?? []), ...(found.grounding ?? [])];
  return [
    ...((found.input ?? []).some(isHidden) ? ["prompt masked"] : []),
    ...(answer.some(isHidden) ? ["answer masked"] : []),
    ...((found.sources ?? []).some((one) => one.outcome === "masked") ? ["shown source masked"] : []),
  ];
}

// Whether a document with an injection was left as it was, and whether the answer repeats words of it.
function nameInjection(done, documents, answer) {
  const injected = documents.filter((one) => one.outcome === "flagged" && isInjected(one));
  if (injected.length === 0 || done.outcome !== "answered") return [];
  const isObeyed = injected.some((one) => repeats(answer, findText(done, one)));
  return [`injection ${isObeyed ? "obeyed" : "not removed"}: no guard was on`];
}

function isInjected(document) {
  const found = [...(document.results ?? []), ...(document.title_results ?? [])];
  return found.some((one) => one.detection_type === "prompt_injection");
}

function findText(done, document) {
  const shown = done.sources?.[document.title];
  return shown?.slug === document.path ? shown.content ?? "" : "";
}

const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];

// Whether some words of the text are in the answer in the same order, without others between them.
function repeats(answer, text) {
  const said = ` ${wordsOf(answer).join(" ")} `;
  const words = wordsOf(text);
  return words.some((_, start) => {
    const run = words.slice(start, start + QUOTED_WORDS);
    return run.length === QUOTED_WORDS && said.includes(` ${run.join(" ")} `);
  });
}

function nameShadow(receipt) {
  if (receipt.outcome === "masked") return [`shadow: would have ${guessChange(receipt)}`];
  return [`shadow: ${SHADOW[receipt.outcome] ?? "would have changed nothing"}`];
}

// What the detectors with findings read: in shadow the findings are not reported.
function guessChange(receipt) {
  const parts = (receipt.detectors ?? []).filter((one) => one.findings > 0).map((one) => Object.keys(one.read));
  if (!parts.some((one) => one.includes("documents"))) return "masked";
  return `masked${parts.every((one) => one.join() === "documents") ? "" : ","} or dropped a document`;
}
