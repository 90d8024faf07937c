// SPDX-License-Identifier: Apache-2.0
// The theme: light, dark, or the system's. The browser stores the choice if it allows that.

import { byId } from "./dom.js";

const NAMES = ["system", "light", "dark"];
const STORED = "lockgate-theme";

export function connectTheme() {
  const button = byId("theme-toggle");
  let theme = recall();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = NAMES[(NAMES.indexOf(theme) + 1) % NAMES.length];
    remember(theme);
    show();
  });
  show();
}

function recall() {
  try {
    const stored = localStorage.getItem(STORED);
    return NAMES.includes(stored) ? stored : "system";
  } catch {
    return "system";
  }
}

function remember(theme) {
  try {
    localStorage.setItem(STORED, theme);
  } catch {
    // Without storage the theme still applies until the page is closed.
  }
}
