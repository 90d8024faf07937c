// SPDX-License-Identifier: Apache-2.0
// All that the page knows, in one place.
// Code that changes it calls `update`, and each listener is called once per frame.

export function createStore(initial) {
  const listeners = [];
  let isDue = false;
  const store = {
    state: initial,
    // Change some fields; run objects are changed in place and need only the call.
    update(changes = {}) {
      Object.assign(store.state, changes);
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(store.show);
    },
    show() {
      isDue = false;
      for (const listener of listeners) listener(store.state);
    },
    subscribe: (listener) => listeners.push(listener),
  };
  return store;
}

export const createState = () => ({
  about: null,
  key: "",
  needsKey: false,
  problem: null, // what went wrong outside of an answer
  form: { question: "", policy: "", model: "", sources: [], detectors: {}, actions: {} },
  run: null,
  traceNote: "",
  side: "client", // of the gate: what the client reads, or what the gate read
  detection: { text: "", chosen: [], shown: null, problem: null, isBusy: false },
  raw: { hidesTrace: false },
});
