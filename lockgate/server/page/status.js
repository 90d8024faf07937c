// SPDX-License-Identifier: Apache-2.0
// Describes the status of a run in one sentence.

import { isOver } from "./fold.js";
import { releasedEnd } from "./reading.js";

const BY_PHASE = {
  asking: () => "Sending the question…",
  retrieving: describeRetrieval,
  generating: describeGeneration,
  done: describeEnd,
  failed: () => "The request failed.",
  stopped: () => "You stopped it. Lockgate stops the model; held text is not released.",
  lost: () => "The connection was lost.",
};

export function describeStatus(run, about, side = "live") {
  if (!run) return about ? describeOffer(about) : "Waiting for the server…";
  const words = BY_PHASE[run.phase](run, side);
  return run.isReplay && !isOver(run) ? `Slow replay. ${words}` : words;
}

function describeOffer(about) {
  if (about.models.length === 0) return "This server has no exposed model. The Detect tab works without one.";
  return about.samples.length > 0 ? "Ask a question, or try one of the samples." : "Ask a question.";
}

export const formatMs = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${Math.round(ms)} ms`);

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

function describeRetrieval(run) {
  const ended = run.sources.filter((source) => source.status !== "asking").length;
  if (run.sources.length === 0) return "No source was chosen.";
  return `${ended} of ${count(run.sources.length, "source")} answered…`;
}

function describeGeneration(run, side) {
  const released = releasedEnd(run);
  if (side === "client" && released === 0) return "The model has the documents. Waiting for the first released text…";
  if (run.held.length === 0 && released === 0) return "The model has the documents. Waiting for its first token…";
  if (side === "client") return `The model is writing: ${count(released, "character")} released.`;
  return `The model is writing: ${run.held.length - released} held, ${count(released, "character")} released.`;
}

function describeEnd(run) {
  const time = formatMs(run.answer.metadata?.total_time_ms ?? run.times.end);
  const { outcome } = run.answer;
  if (outcome === "prompt_blocked") return `The question was blocked after ${time}. No answer was released.`;
  if (outcome === "answer_blocked") return `The answer was cut off after ${time}. Lockgate stopped the model.`;
  const notes = [describeMasks(run), describeDropped(run), describeFailed(run)];
  return [`Answered in ${time}.`, ...notes].filter(Boolean).join(" ");
}

function describeMasks(run) {
  return run.frames.some((frame) => frame.outcome === "masked") ? "Some text was masked before its release." : "";
}

function describeFailed(run) {
  const failed = run.sources.filter((source) => source.status === "error" || source.status === "timeout").length;
  return failed > 0 ? `${count(failed, "source")} failed.` : "";
}

function describeDropped(run) {
  const dropped = run.sources.reduce((sum, source) => sum + (source.dropped ?? 0), 0);
  if (dropped === 0) return "";
  return `${count(dropped, "document was", "documents were")} dropped and never reached the model.`;
}
