// SPDX-License-Identifier: Apache-2.0
// Announces released text and the end of a run to screen readers, in batches, not token by token.

import { byId } from "./dom.js";
import { isOver } from "./fold.js";
import { describeStatus } from "./status.js";

const PAUSE_MS = 700;
const KEPT = 6;

export function createAnnouncer() {
  const waiting = [];
  let heard = { id: null, frames: 0, phase: "" };
  let isDue = false;
  const speak = () => {
    isDue = false;
    const line = document.createElement("p");
    line.textContent = waiting.splice(0).join(" ");
    const log = byId("said");
    log.append(line);
    while (log.children.length > KEPT) log.firstChild.remove();
  };
  return function announce({ run, about }) {
    if (!run || run.isReplay) return;
    if (heard.id !== run.id) heard = { id: run.id, frames: 0, phase: "" };
    const complete = run.frames.filter((frame) => frame.points !== null);
    waiting.push(...complete.slice(heard.frames).map((frame) => frame.points.join("").replaceAll(/█+/g, "(masked)")));
    if (run.phase !== heard.phase && isOver(run)) waiting.push(describeStatus(run, about));
    heard = { id: run.id, frames: complete.length, phase: run.phase };
    if (waiting.length === 0 || isDue) return;
    isDue = true;
    setTimeout(speak, PAUSE_MS);
  };
}
