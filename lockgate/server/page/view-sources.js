// SPDX-License-Identifier: Apache-2.0
// Shows the sources in the order of the request, each with its documents once it has answered.

import { badge, byId, el, hint, keep, syncList } from "./dom.js";
import { piecesOfText, describeAction, describeReason } from "./reading.js";
import { sideOf } from "./state.js";
import { count, formatMs } from "./status.js";
import { buildPieces, formatScore, quoteText, sourceId, toneOf } from "./view-text.js";

const WORDS = {
  asking: "searching…",
  success: "",
  error: "failed",
  timeout: "took too long",
  left: "not waited for",
};

export function renderSources(state) {
  const { run, about } = state;
  const node = byId("sources-panel");
  if (!run || run.sources.length === 0) {
    const words = run ? "No source was chosen." : "Documents appear here as their sources answer.";
    keep(node, words, () => hint(words));
    return;
  }
  if (node.keptKey !== undefined) {
    node.keptKey = undefined;
    node.replaceChildren();
  }
  const isClient = sideOf(state) === "client";
  const sources = run.sources.map((one) => (isClient ? { ...one, documents: one.shown ?? [] } : one));
  syncList(node, sources, (source) => keyOf(run, source), (source) => buildSource(run, source, about));
}

function keyOf(run, { path, status, message, documents }) {
  return JSON.stringify([run.id, path, status, message, documents.map((one) => [one.title, one.outcome, one.text])]);
}

function buildSource(run, source, about) {
  const state = source.status === "success" ? count(source.count, "document") : WORDS[source.status] ?? source.status;
  const { path, status } = source;
  const when = [state, source.at === null ? "" : formatMs(source.at)].filter(Boolean).join(" · ");
  const head = el(
    "div",
    { className: "source-head" },
    el("h3", { textContent: path }),
    el("span", { className: "hint", textContent: when }),
  );
  const node = el("article", { className: `source ${status}`, id: sourceId(path), tabIndex: -1 }, head);
  Object.assign(node.dataset, { testid: `result-${path}`, path, status });
  if (source.status === "error" || source.status === "timeout") node.append(buildFailure(source));
  node.append(...source.documents.map((one) => buildDocument(run, one, about)));
  return node;
}

function buildFailure(source) {
  const words = source.message || "It returned no documents.";
  const advice = "The answer is made without it. Check that it is running, or deselect it.";
  const textContent = `${words.replace(/[^.!?]$/, "$&.")} ${advice}`;
  return el("p", { className: "source-fault", testid: "source-error", textContent });
}

function buildDocument(run, one, about) {
  const describeFate = (finding) => describeAction(run, about, finding.detector_id, "documents");
  const { title, score, outcome } = one;
  const summary = el(
    "summary",
    {},
    el("span", { className: "title", textContent: title || "Without a title" }),
    typeof score === "number" ? el("span", { className: "score", textContent: formatScore(score) }) : null,
    badge(outcome),
    one.isShownMasked ? badge("shown masked", "masked") : null,
  );
  const body = outcome === "dropped"
    ? hint("Its text never reached the model.")
    : el("p", { className: "text" }, buildPieces(piecesOfText(one.text, placed(one)), { about, describeFate }));
  const node = el("details", { className: "document", testid: "document", data: { outcome } }, summary, body);
  node.open = outcome !== "kept";
  if (one.results.length > 0) node.append(buildReasons(one.results, about));
  return node;
}

// The findings whose place in the present text is certain.
function placed(one) {
  const points = Array.from(one.text);
  return one.results.filter(({ start, end, text }) => {
    const there = points.slice(start, end).join("");
    return there === text || /^█+$/.test(there);
  });
}

function buildReasons(results, about) {
  const rows = results.map((one) =>
    el(
      "li",
      {},
      el("span", { className: `who ${toneOf(about, one.detector_id)}`, textContent: one.detector_id }),
      ` ${one.detection}, score ${formatScore(one.score)}`,
      describeReason(one) ? `: ${describeReason(one)}` : "",
      one.text ? quoteText(one.text) : null,
    ),
  );
  return el("ul", { className: "reasons" }, rows);
}
