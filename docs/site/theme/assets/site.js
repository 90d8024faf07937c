// SPDX-License-Identifier: Apache-2.0
// Light or dark, the menu of narrow screens, copying commands, and searching. Pages read well without it.
"use strict";
const root = document.documentElement;
const base = document.currentScript.dataset.base;
root.classList.add("scripted");
const remember = (value) => { try { localStorage.setItem("theme", value); } catch { /* a private window */ } };
const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
if (recall()) root.dataset.theme = recall();

function switchTheme() {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  remember(root.dataset.theme);
}

function switchMenu(event) {
  const isOpen = root.classList.toggle("menu-open");
  event.currentTarget.setAttribute("aria-expanded", String(isOpen));
}

function addCopy(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const commands = [...block.querySelectorAll("kbd")].map((one) => one.dataset.command);
    await navigator.clipboard.writeText(commands.length ? commands.join("\n") : block.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
}

function loadPlaces(then) {
  if (window.places) return then();
  const script = document.createElement("script");
  script.src = `${base}assets/search.js`;
  script.addEventListener("load", then);
  document.head.append(script);
}

// A place counts when it has every word; words in its title count more.
function findPlaces(words) {
  const found = [];
  for (const [location, title, text] of window.places) {
    const [head, body] = [title.toLowerCase(), text.toLowerCase()];
    if (!words.every((word) => head.includes(word) || body.includes(word))) continue;
    const inTitle = words.filter((word) => head.includes(word)).length;
    const first = body.indexOf(words.find((word) => body.includes(word)) ?? "");
    found.push({ location, title, rank: inTitle * 10 - location.includes("decisions/") * 5, extract: text.slice(Math.max(0, first - 40), first + 90) });
  }
  return found.sort((one, other) => other.rank - one.rank).slice(0, 12);
}

function showFound(list, input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  list.replaceChildren();
  list.hidden = words.length === 0;
  if (list.hidden) return;
  const found = findPlaces(words);
  if (!found.length) list.textContent = "Nothing found.";
  for (const place of found) {
    const link = document.createElement("a");
    const extract = document.createElement("small");
    link.href = base + place.location;
    link.textContent = place.title || place.location;
    extract.textContent = place.extract;
    link.append(extract);
    list.append(link);
  }
}

function readySearch(form) {
  const [input, list] = [form.querySelector("input"), form.querySelector(".found")];
  form.addEventListener("submit", (event) => { event.preventDefault(); list.querySelector("a")?.click(); });
  input.addEventListener("input", () => loadPlaces(() => showFound(list, input)));
  document.addEventListener("click", (event) => { if (!form.contains(event.target)) list.hidden = true; });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") list.hidden = true;
    if (event.key !== "/" || event.target.closest("input, textarea") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    input.focus();
  });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("button.theme").addEventListener("click", switchTheme);
  document.querySelector("button.menu").addEventListener("click", switchMenu);
  document.querySelectorAll("pre.code").forEach(addCopy);
  readySearch(document.querySelector(".search"));
});
