// SPDX-License-Identifier: Apache-2.0
// Connects the page: user actions change the state, and the state is rendered.

import { createAnnouncer } from "./announce.js";
import { fetchAbout, streamAnswer } from "./api.js";
import { byId } from "./dom.js";
import { explainError, explainKey, explainTrace } from "./faults.js";
import { endRun, foldEvent, isOver, startRun } from "./fold.js";
import { replayEvents } from "./replay.js";
import { buildRequest, detectorsFor } from "./requests.js";
import { createState, createStore } from "./state.js";
import { connectTabs } from "./tabs.js";
import { connectTheme } from "./theme.js";
import { renderAnswer } from "./view-answer.js";
import { connectDetect, renderDetect } from "./view-detect.js";
import { renderForm } from "./view-form.js";
import { renderFrontiers } from "./view-frontiers.js";
import { connectRaw, renderRaw } from "./view-raw.js";
import { renderReceipt } from "./view-receipt.js";
import { renderSources } from "./view-sources.js";
import { sourceId } from "./view-text.js";
import { renderTimeline } from "./view-timeline.js";
import { watchMarks } from "./view-tip.js";

const store = createStore(createState());
const announce = createAnnouncer();
let tab = "ask";
let stopper = null;
let runs = 0;

const actions = {
  chooseSources: (sources) => changeForm({ sources }),
  chooseDetectors: (section, ids) => changeForm({ detectors: { ...store.state.form.detectors, [section]: ids } }),
  chooseAction: (section, word) => changeForm({ actions: { ...store.state.form.actions, [section]: word } }),
  trySample,
};

function changeForm(changes) {
  store.update({ form: { ...store.state.form, ...changes } });
}

function render(state) {
  byId("key-form").hidden = !state.needsKey;
  renderForm(state, actions);
  renderAnswer(state);
  if (tab === "ask") {
    renderFrontiers(state);
    renderSources(state);
    renderTimeline(state);
    renderReceipt(state);
  }
  if (tab === "detect") renderDetect(store);
  if (tab === "raw") renderRaw(state);
  announce(state);
}

// Loading the server's policies, models and sources.

async function load() {
  try {
    const about = await fetchAbout(store.state.key);
    const form = { ...store.state.form, ...choose(about) };
    const able = detectorsFor("output", about.detectors).map((one) => one.id);
    const detection = { ...store.state.detection, chosen: able };
    const traceNote = about.trace ? "" : explainTrace(404);
    store.update({ about, form, detection, traceNote, needsKey: false, problem: null });
  } catch (error) {
    const needsKey = error.status === 401;
    store.update({ needsKey, problem: needsKey ? explainKey(store.state.key) : explainError(error) });
    if (needsKey) requestAnimationFrame(() => byId("key").focus());
  }
}

function choose(about) {
  return {
    policy: about.policies[0]?.name ?? "",
    model: about.models[0]?.id ?? "",
    sources: about.sources.map((one) => one.id),
  };
}

// Asking and stopping.

function trySample(sample) {
  const { about, run } = store.state;
  if (run && !isOver(run)) {
    stop();
    endRun(run, "stopped", run.events.at(-1)?.at ?? 0); // at once, else `ask` would not start the next run
  }
  const sources = sample.sources?.length > 0 ? sample.sources : about.sources.map((one) => one.id);
  byId("question").value = sample.question;
  changeForm({ question: sample.question, policy: sample.policy ?? "", sources });
  ask();
}

async function ask() {
  const { state } = store;
  if (!state.form.model || (state.run && !isOver(state.run))) return;
  if (state.form.question.trim() === "") {
    byId("question").focus();
    return;
  }
  const run = startRun((runs += 1), buildRequest(state.form));
  const started = performance.now();
  stopper = new AbortController();
  store.update({ run, problem: null, side: nextSide() });
  store.show(); // at once, so that the previous answer is not mistaken for this one
  showAnswer();
  await follow(run, started, stopper.signal);
  store.update();
}

// The model's text is shown for one run only; a choice of the client's side stays.
const nextSide = () => (store.state.side === "client" ? "client" : "live");

// On a narrow page the answer is below the form: scroll to it.
function showAnswer() {
  const box = byId("answer-title").getBoundingClientRect();
  if (box.top < 0 || box.bottom > innerHeight * 0.8) byId("answer-title").closest("section").scrollIntoView();
}

async function follow(run, started, signal) {
  const { key, about } = store.state;
  const elapsed = () => performance.now() - started;
  const noteTrace = (isTraced, status) => {
    run.isTraced = isTraced;
    store.update({ traceNote: isTraced ? "" : explainTrace(status) });
  };
  try {
    for await (const event of streamAnswer(run.request, { key, token: about.trace, signal, noteTrace })) {
      if (isOver(run)) return;
      foldEvent(run, event, elapsed());
      store.update();
    }
    endRun(run, "lost", elapsed());
  } catch (error) {
    if (error.name === "AbortError") endRun(run, "stopped", elapsed());
    else endRun(run, "failed", elapsed(), explainError(error));
    if (error.status === 401) store.update({ needsKey: true });
  }
}

// Shows a finished run again, slowly.
async function replay() {
  const { run: seen } = store.state;
  if (!seen || !isOver(seen)) return;
  const run = startRun((runs += 1), seen.request);
  Object.assign(run, { isTraced: seen.isTraced, isReplay: true });
  stopper = new AbortController();
  store.update({ run, side: nextSide() });
  store.show();
  showAnswer();
  for await (const event of replayEvents(seen.events, stopper.signal)) {
    foldEvent(run, event, event.at);
    store.update();
  }
  endRun(run, seen.phase, seen.events.at(-1)?.at ?? 0, seen.fault);
  store.update();
}

function stop() {
  const { run } = store.state;
  if (!run || isOver(run)) return;
  const hadFocus = document.activeElement === byId("stop");
  stopper.abort();
  store.update();
  if (hadFocus) byId("ask").focus();
}

// User actions.

function connectForm(closeTip) {
  const question = byId("question");
  question.addEventListener("input", () => changeForm({ question: question.value }));
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  });
  byId("stop").addEventListener("click", stop);
  byId("replay").addEventListener("click", replay);
  byId("policy").addEventListener("change", (event) => changeForm({ policy: event.target.value }));
  byId("model").addEventListener("change", (event) => changeForm({ model: event.target.value }));
  byId("sides").addEventListener("change", (event) => {
    closeTip(); // it may have a value that the other side hides
    store.update({ side: event.target.value });
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    store.update({ key: byId("key").value });
    load();
  });
}

// Moves from a citation to its source and opens the source's first document that was not dropped.
function followCitation(event) {
  const link = event.target.closest?.("a.cite");
  const source = link && byId(sourceId(link.dataset.path));
  if (!source) return;
  event.preventDefault();
  for (const one of document.querySelectorAll(".source.cited")) one.classList.remove("cited");
  source.classList.add("cited");
  source.querySelector("details:not([data-outcome=dropped])")?.setAttribute("open", "");
  source.scrollIntoView({ block: "nearest" });
  source.focus({ preventScroll: true });
}

function connect() {
  const closeTip = watchMarks();
  connectTheme();
  connectForm(closeTip);
  connectDetect(store);
  connectRaw(store);
  connectTabs((name) => {
    tab = name;
    store.update();
  });
  document.addEventListener("click", followCitation);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !closeTip()) stop();
  });
  store.subscribe(render);
}

connect();
store.update();
load();
