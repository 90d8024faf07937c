// SPDX-License-Identifier: Apache-2.0
// The whole state of the page. Code that changes it calls `update`, which calls each listener once per animation frame.

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
  problem: null, // an error outside of an answer
  form: { question: "", policy: "", model: "", sources: [], detectors: {}, actions: {} },
  run: null,
  traceNote: "",
  side: "live", // what to show: released and held text ("live"), the client's ("client") or the model's text ("gate")
  detection: { text: "", chosen: [], shown: null, problem: null, isBusy: false },
  raw: { hidesTrace: false },
});

// The side that is shown: without the trace only the client's is known.
export const sideOf = ({ run, side }) => (run?.isTraced ? side : "client");
