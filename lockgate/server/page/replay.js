// SPDX-License-Identifier: Apache-2.0
// The events of a run once more, slowly enough to follow with the eye. Nothing is asked again, and times stay as they
// were. Stopping it shows the rest at once.

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
