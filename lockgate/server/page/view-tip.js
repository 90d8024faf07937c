// SPDX-License-Identifier: Apache-2.0
// The tooltip of a mark, shown on hover and focus. Escape closes it; the pointer may move onto it.

import { byId, el } from "./dom.js";
import { describeReason } from "./reading.js";
import { formatScore } from "./view-text.js";

const GAP = 8;

export function watchMarks() {
  const tip = byId("tip");
  let owner = null;
  const hide = () => {
    owner = null;
    tip.hidden = true;
    tip.replaceChildren(); // a hidden tooltip keeps no text
  };
  const show = (event) => {
    const mark = event.target.closest?.(".finding");
    if (mark && mark !== owner) {
      owner = mark;
      fill(tip, mark.details ?? []);
      place(tip, mark);
    } else if (!mark && event.type === "pointerover" && !tip.contains(event.target)) {
      if (owner !== document.activeElement) hide();
    }
  };
  // The browser scrolls to a focused element after the focus event.
  const follow = () => (owner && owner === document.activeElement ? place(tip, owner) : hide());
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", follow, { passive: true });
  // Returns whether the tooltip was open.
  return function closeTip() {
    const wasOpen = !tip.hidden;
    hide();
    return wasOpen;
  };
}

function fill(tip, details) {
  tip.replaceChildren(
    ...details.map(({ finding, fate }) =>
      el(
        "div",
        { className: "tip-entry" },
        el("strong", { textContent: `${finding.detector_id}: ${finding.detection}` }),
        el("span", { textContent: `score ${formatScore(finding.score)}` }),
        describeReason(finding) ? el("span", { textContent: describeReason(finding) }) : null,
        fate ? el("span", { textContent: fate }) : null,
      ),
    ),
  );
}

function place(tip, mark) {
  tip.hidden = false;
  const box = mark.getClientRects()[0] ?? mark.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = Math.max(GAP, Math.min(box.left, width - tip.offsetWidth - GAP));
  const isRoomBelow = box.bottom + GAP + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${isRoomBelow ? box.bottom + GAP : Math.max(GAP, box.top - GAP - tip.offsetHeight)}px`;
}
