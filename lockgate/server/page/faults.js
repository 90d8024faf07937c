// SPDX-License-Identifier: Apache-2.0
// Explains errors to the reader and says what to do. Each explanation is {title, words, advice}.

const BY_STATUS = {
  401: {
    title: "The server requires a key",
    advice: "Enter your key above and ask again. It is kept in the memory of this page only.",
  },
  403: {
    title: "The server does not allow this",
    advice: "Open the page at the address that the server printed when it started.",
  },
  404: {
    title: "Not found on the server",
    advice: "Reload the page: the server may have been restarted with other settings.",
  },
  413: { title: "The text is too long", advice: "Shorten it and try again." },
  422: { title: "The server refused the request", advice: "Correct what the message names and try again." },
  429: { title: "Too many requests", advice: "Wait a moment and try again." },
  503: { title: "The server is too busy, or a service is not available", advice: "Wait a moment and try again." },
  504: { title: "The request took too long", advice: "Try again, or choose fewer sources." },
};

export function explainError(error) {
  if (error.status === 0) return explainSilence();
  const known = BY_STATUS[error.status] ?? {
    title: `The server answered with ${error.status ?? "an error"}`,
    advice: "See the server's log.",
  };
  const wait = error.retryAfter ? `Try again in ${error.retryAfter} s.` : known.advice;
  return { title: known.title, words: error.message, advice: wait };
}

// The page shows the key form by itself; only a refused key is an error.
export function explainKey(key) {
  if (key === "") return null;
  return { title: "The server does not know this key", words: "", advice: "Enter another one above." };
}

export const explainSilence = () => ({
  title: "The server does not answer",
  words: `There was no response from ${location.host}.`,
  advice: "Check that it is running, restart it if needed (lockgate demo), and ask again.",
});

export const explainLoss = () => ({
  title: "The connection was lost",
  words: "The answer ended early and has no receipt. Solid text was released; held text was never sent to a client.",
  advice: "Check that the server is running, and ask again.",
});

export function explainEvent(message) {
  const isModel = /model/i.test(message);
  return {
    title: isModel ? "The model failed" : "The answer could not be finished",
    words: message,
    advice: isModel
      ? "Solid text was released before. Check that the model is running, and ask again; an embedded model restarts."
      : "Solid text was released before. Ask again, or see the server's log.",
  };
}

export function explainTrace(status) {
  if (status === 403) return "Held text is not shown: the trace token of this page is not valid. Reload the page.";
  return "Held text is not shown: the trace is off. To switch it on, set server.trace: true.";
}
