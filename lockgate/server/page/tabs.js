// SPDX-License-Identifier: Apache-2.0
// The tabs: arrow keys, Home and End move between them.

import { byId } from "./dom.js";

const NAMES = ["ask", "detect", "raw"];
const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

export function connectTabs(changed) {
  const tabs = NAMES.map((name) => byId(`tab-${name}`));
  const open = (index) => {
    tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", place === index);
      tab.tabIndex = place === index ? 0 : -1;
      byId(`panel-${NAMES[place]}`).hidden = place !== index;
    });
    changed(NAMES[index]);
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => open(index));
    tab.addEventListener("keydown", (event) => {
      const next = findNext(event.key, index, tabs.length);
      if (next === null) return;
      event.preventDefault();
      open(next);
      tabs[next].focus();
    });
  });
}

function findNext(key, index, length) {
  if (key === "Home") return 0;
  if (key === "End") return length - 1;
  return key in MOVES ? (index + MOVES[key] + length) % length : null;
}
