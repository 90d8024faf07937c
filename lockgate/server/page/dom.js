// SPDX-License-Identifier: Apache-2.0
// Builds and updates elements. Text is always set as text, never as markup.

// Builds an element with properties, attributes (keys with a dash, `role`, `for`, `scope`) and children. Skips null.
export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) setOption(node, key, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function setOption(node, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key === "on") for (const [name, listener] of Object.entries(value)) node.addEventListener(name, listener);
  else if (key === "testid") node.dataset.testid = value;
  else if (key === "data") Object.assign(node.dataset, value);
  else if (key.includes("-") || key === "role" || key === "for" || key === "scope") node.setAttribute(key, value);
  else node[key] = value;
}

export const hint = (text) => el("p", { className: "hint", textContent: text });

export const badge = (word, kind = word, testid = null) =>
  el("span", { className: `badge ${kind}`, textContent: word, testid });

// Builds a table that scrolls if it is too wide; on narrow pages each cell shows the head of its column.
export function buildTable(className, caption, heads, rows) {
  const head = el("tr", {}, heads.map((word) => el("th", { scope: "col", textContent: word })));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell, index) => el("td", { data: { label: heads[index] } }, cell))),
  );
  const parts = [el("caption", { textContent: caption }), el("thead", {}, head), el("tbody", {}, body)];
  const table = el("table", { className }, parts);
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, table);
}

export const byId = (id) => document.getElementById(id);

// Makes the children of `parent` match `items`. A child with a known key stays the same node, which keeps focus,
// opened details and transitions.
export function syncList(parent, items, keyOf, build, update = () => {}) {
  const old = new Map([...parent.children].map((child) => [child.syncKey, child]));
  const nodes = items.map((item, index) => {
    const key = keyOf(item, index);
    const node = old.get(key) ?? build(item, index);
    node.syncKey = key;
    old.delete(key);
    update(node, item, index);
    return node;
  });
  for (const gone of old.values()) gone.remove();
  nodes.forEach((node, index) => {
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
}

// Rebuilds the content of a node only if `key` has changed.
export function keep(node, key, build) {
  if (node.keptKey === key) return;
  node.keptKey = key;
  node.replaceChildren(...[build()].flat().filter((child) => child !== null && child !== undefined));
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function copyButton(label, read) {
  const button = el("button", { type: "button", className: "quiet", textContent: label });
  button.addEventListener("click", async () => {
    const isCopied = await copyText(read());
    button.textContent = isCopied ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// Browsers offer no clipboard API on insecure origins; copying a selection still works there.
function copyBySelection(text) {
  const area = el("textarea", { className: "offscreen", value: text, readOnly: true });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}
