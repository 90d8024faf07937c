// SPDX-License-Identifier: Apache-2.0
// The form: question, samples, policy or the detectors of each section, model and sources.

import { byId, el, hint, keep, setText } from "./dom.js";
import { ACTIONS, SECTIONS, detectorsFor } from "./requests.js";
import { isOver } from "./fold.js";
import { toneOf } from "./view-text.js";

const TITLES = {
  input: "Question",
  documents: "Documents",
  output: "Answer",
  grounding: "Grounding",
};

const NO_MODEL = "This server has no exposed model: add expose: true to one of `models` in the settings.";

export function renderForm(state, actions) {
  const { about, form } = state;
  const isBusy = state.run !== null && !isOver(state.run);
  byId("ask").setAttribute("aria-disabled", isBusy || !about || about.models.length === 0);
  byId("stop").disabled = !isBusy;
  if (!about) return;
  setText(byId("version"), about.version ?? "");
  setText(byId("subtitle"), about.title || "Playground");
  renderSelects(about, form);
  renderSamples(about, actions);
  renderChecks(byId("sources"), about.sources, form.sources, "source", actions.chooseSources);
  renderSections(about, form, actions);
  const model = about.models.find((one) => one.id === form.model);
  const note = model ? model.note ?? "" : NO_MODEL;
  setText(byId("model-note"), note.replace(/^./u, (letter) => letter.toUpperCase()));
}

function renderSelects(about, form) {
  keep(byId("policy"), JSON.stringify(about.policies), () => [
    ...about.policies.map((one) => new Option(one.mode === "shadow" ? `${one.name} (shadow)` : one.name, one.name)),
    new Option("No policy: choose detectors", ""),
  ]);
  keep(byId("model"), JSON.stringify(about.models), () =>
    about.models.map((one) => new Option(one.name && one.name !== one.id ? `${one.id}: ${one.name}` : one.id, one.id)),
  );
  if (byId("policy").value !== form.policy) byId("policy").value = form.policy;
  if (byId("model").value !== form.model) byId("model").value = form.model;
}

function renderSamples(about, actions) {
  byId("samples-card").hidden = about.samples.length === 0;
  keep(byId("samples"), JSON.stringify(about.samples), () =>
    about.samples.map((sample, index) => {
      const button = el(
        "button",
        { type: "button", className: "sample", testid: `sample-${index + 1}`, title: sample.question },
        el("strong", { textContent: sample.title }),
        el("span", { textContent: sample.shows }),
      );
      button.addEventListener("click", () => actions.trySample(sample));
      return el("li", {}, button);
    }),
  );
}

// Check boxes for ids; `choose` gets the checked ones.
export function renderChecks(node, items, chosen, prefix, choose) {
  keep(node, JSON.stringify(items), () =>
    items.length === 0
      ? el("span", { className: "hint", textContent: "none configured" })
      : items.map((item) => buildCheck(item, prefix, () => choose(readChecks(node)))),
  );
  for (const box of node.querySelectorAll("input")) box.checked = chosen.includes(box.value);
}

function buildCheck(item, prefix, changed) {
  const box = el("input", { type: "checkbox", value: item.id, testid: `${prefix}-${item.id}` });
  box.addEventListener("change", changed);
  return el("label", { className: "check" }, box, el("span", { textContent: item.id }));
}

const readChecks = (node) => [...node.querySelectorAll("input:checked")].map((box) => box.value);

function renderSections(about, form, actions) {
  const node = byId("policy-sections");
  const policy = about.policies.find((one) => one.name === form.policy);
  keep(node, form.policy || "none", () => (policy ? describePolicy(policy, about) : buildSections(form, actions)));
  if (policy) return;
  for (const section of SECTIONS) {
    const checks = node.querySelector(`.section-${section} .checks`);
    const able = detectorsFor(section, about.detectors);
    const choose = (ids) => actions.chooseDetectors(section, ids);
    renderChecks(checks, able, form.detectors[section] ?? [], `detector-${section}`, choose);
  }
}

function describePolicy(policy, about) {
  const rows = SECTIONS.filter((section) => Object.keys(policy[section] ?? {}).length > 0).map((section) =>
    el("div", {}, el("dt", { textContent: TITLES[section] }), el("dd", {}, listActions(policy[section], about))),
  );
  const notes = [
    policy.mode === "shadow" ? "Shadow: detectors read and report everything; no text is changed or held." : "",
    policy.speculative ? "The model starts while detectors still read the question." : "",
  ].filter(Boolean);
  return [el("dl", { className: "policy", testid: "policy-summary" }, rows), ...notes.map(hint)];
}

function listActions(section, about) {
  return Object.entries(section).map(([id, action]) => {
    const who = el("span", { className: `who ${toneOf(about, id)}`, textContent: id });
    return el("span", { className: "pairing" }, who, ` ${action}`);
  });
}

function buildSections(form, actions) {
  return SECTIONS.map((section) => {
    const label = `${TITLES[section]}: action on a finding`;
    const select = el("select", { "aria-label": label, testid: `action-${section}` });
    select.append(...ACTIONS[section].map((word) => new Option(word, word)));
    select.value = form.actions[section] ?? ACTIONS[section][0];
    select.addEventListener("change", () => actions.chooseAction(section, select.value));
    return el(
      "fieldset",
      { className: `section section-${section}` },
      el("legend", { textContent: TITLES[section] }),
      el("div", { className: "checks" }),
      el("div", { className: "on-finding" }, el("span", { className: "hint", textContent: "on a finding" }), select),
    );
  });
}
