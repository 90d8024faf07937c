// SPDX-License-Identifier: Apache-2.0
// Parses server-sent events. Any cut of the text gives the same events; only CR, LF and CRLF end a line.

export class SseParser {
  #rest = "";
  #endedInReturn = false;
  #name = "";
  #lines = [];

  // Adds text; returns the events that are complete now, each {name, text}.
  feed(text) {
    let fresh = text;
    if (this.#endedInReturn && fresh !== "") {
      if (fresh.startsWith("\n")) fresh = fresh.slice(1);
      this.#endedInReturn = false;
    }
    this.#endedInReturn ||= fresh.endsWith("\r");
    const lines = (this.#rest + fresh).split(/\r\n|\r|\n/);
    this.#rest = lines.pop();
    return lines.map((line) => this.#take(line)).filter((event) => event !== null);
  }

  #take(line) {
    if (line === "") return this.#finish();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    if (field === "data") this.#lines.push(value);
    return null;
  }

  #finish() {
    const event = this.#lines.length > 0 ? { name: this.#name || "message", text: this.#lines.join("\n") } : null;
    this.#name = "";
    this.#lines = [];
    return event;
  }
}
