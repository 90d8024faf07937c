// SPDX-License-Identifier: Apache-2.0
// Repeats the events of a run slowly enough to follow. It sends no request, and the shown times stay the original
// ones. Stopping it shows the rest at once.

const SLOWER = 6;
const MAX_GAP_MS = 700;

export async function* replayEvents(events, signal) {
  let last = events[0]?.at ?? 0;
  for (const event of events) {
    await pause(Math.min((event.at - last) * SLOWER, MAX_GAP_MS), signal);
    last = event.at;
    yield event;
  }
}

function pause(ms, signal) {
  if (signal.aborted || ms < 1) return Promise.resolve();
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
  });
}
