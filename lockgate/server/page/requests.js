// SPDX-License-Identifier: Apache-2.0
// Builds the request's body from the form, and the same request as a shell command.

export const SECTIONS = ["input", "documents", "output", "grounding"];
export const ACTIONS = {
  input: ["block", "mask", "annotate"],
  documents: ["drop", "mask", "flag"],
  output: ["annotate", "mask", "stop", "block"],
  grounding: ["annotate", "mask", "stop", "block"],
};
const TYPES = { input: "text_contents", documents: "text_contents", output: "text_contents" };

export const STREAM_PATH = "/api/v1/chat/stream";

const typesOf = (detector) => [detector.type ?? []].flat().flatMap((type) => type.split(/[\s,]+/));

// The detectors whose type fits a section.
export function detectorsFor(section, detectors) {
  const wanted = TYPES[section] ?? "text_context_doc";
  return detectors.filter((one) => typesOf(one).includes(wanted));
}

const refer = (slug) => ({ url: "lockgate:", slug });

export function buildRequest(form) {
  const request = { prompt: form.question, model: refer(form.model), data_sources: form.sources.map(refer) };
  const detectors = form.policy ? { policy: form.policy } : chooseDetectors(form);
  if (detectors) request.detectors = detectors;
  return { ...request, citations: true, similarity_threshold: 0.35, temperature: 0 };
}

function chooseDetectors(form) {
  const chosen = {};
  const actions = {};
  for (const section of SECTIONS) {
    const ids = form.detectors[section] ?? [];
    if (ids.length === 0) continue;
    chosen[section] = Object.fromEntries(ids.map((id) => [id, {}]));
    actions[section] = form.actions[section] ?? ACTIONS[section][0];
  }
  return Object.keys(chosen).length > 0 ? { ...chosen, on_finding: actions } : null;
}

const quote = (word) => `'${word.replaceAll("'", "'\\''")}'`;

// The ordinary request, without the trace. The key is not written into it: the shell takes it from a variable.
export function buildCurl(origin, path, body, hasKey) {
  const lines = [`curl -sN ${quote(origin + path)}`, "-H 'content-type: application/json'"];
  if (hasKey) lines.push('-H "X-Lockgate-Key: $LOCKGATE_KEY"');
  lines.push(`-d ${quote(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}
