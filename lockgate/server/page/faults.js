// SPDX-License-Identifier: Apache-2.0
// What went wrong, in plain words that say what to do. Each is {title, words, advice}.

const BY_STATUS = {
  401: {
    title: "The server asks for a key",
    advice: "Enter the key of a caller above and ask again. It is kept in the memory of this page only.",
  },
  403: {
    title: "The server does not allow this",
    advice: "Open the page by the address that the server printed at its start.",
  },
  404: {
    title: "The server does not know this",
    advice: "Reload the page: the server may have been started anew with other settings.",
  },
  413: { title: "That is too long", advice: "Shorten the text and try again." },
  422: { title: "The server refused the request", advice: "Change what it names and try again." },
  429: { title: "Too many requests", advice: "Wait a moment and try again." },
  503: { title: "The server is too busy, or a part of it is away", advice: "Wait a moment and try again." },
  504: { title: "It took too long", advice: "Try again, or ask fewer sources." },
};

export function explainError(error) {
  if (error.status === 0) return explainSilence();
  const known = BY_STATUS[error.status] ?? {
    title: `The server answered with ${error.status ?? "an error"}`,
    advice: "Its log says more.",
  };
  const wait = error.retryAfter ? `Try again in ${error.retryAfter} s.` : known.advice;
  return { title: known.title, words: error.message, advice: wait };
}

// The page asks for a key by itself; only one that was refused is a fault.
export function explainKey(key) {
  if (key === "") return null;
  return { title: "The server does not know this key", words: "", advice: "Enter another one above." };
}

export const explainSilence = () => ({
  title: "The server does not answer",
  words: `Nothing came from ${location.host}.`,
  advice: "Look whether it still runs, start it again (lockgate demo), and ask again.",
});

export const explainLoss = () => ({
  title: "The connection was lost",
  words: "The answer broke off before its end: there is no receipt. What is solid was released; the rest never left.",
  advice: "Look whether the server still runs, and ask again.",
});

export function explainEvent(message) {
  const isModel = /model/i.test(message);
  return {
    title: isModel ? "The model failed" : "The answer could not be finished",
    words: message,
    advice: isModel
      ? "What is solid was released before. Look whether the model runs, and ask again; the embedded one restarts."
      : "What is solid was released before. Ask again; the server's log says more.",
  };
}

export function explainTrace(status) {
  if (status === 403) return "No grey text: the trace refused the token of this page. Reload it to get a new one.";
  return "No grey text: the trace is off, so only released text is shown. To switch it on, set server.trace: true.";
}
