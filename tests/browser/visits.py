# SPDX-License-Identifier: Apache-2.0
"""A page in a real browser, watched: whatever it complains about, and whoever it calls, is known at the end.

Decides what no page of ours may do. Refuses to know what is on the page: elements are found by their test ids.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Request, expect
from playwright.async_api import ViewportSize as Size

from tests.waits import HANG_S

PICTURES = Path(__file__).resolve().parents[2] / "artifacts" / "screenshots"
WIDE: Size = {"width": 1280, "height": 900}
PHONE: Size = {"width": 360, "height": 740}
HANG_MS = HANG_S * 1000
OVER = ("done", "failed", "stopped", "lost")
MAX_PORTRAIT_BYTES = 300_000
READABLE = 4.5  # the least contrast of text (WCAG 2.2, 1.4.3)
# What the reader could see, after each change of the answer; and what the page was forbidden to do.
_WATCHER = """
window.seen = [];
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
document.addEventListener("DOMContentLoaded", () => {
  const read = (id) => [...document.querySelectorAll(`[data-testid=answer] [data-testid=${id}]`)]
    .map((node) => node.textContent).join("");
  const look = () => {
    const now = { held: read("held"), released: read("released") };
    const last = window.seen.at(-1);
    if (last?.held !== now.held || last?.released !== now.released) window.seen.push(now);
  };
  const answer = document.querySelector("[data-testid=answer]");
  if (answer) new MutationObserver(look).observe(answer, { childList: true, subtree: true, characterData: true });
});
"""
# Playwright's own way to wait for a claim needs `eval` in the page, which our policy forbids.
_UNTIL_HELD = """([held, over]) => new Promise((resolve) => {
  const pattern = new RegExp(held);
  const isHeld = () => pattern.test(window.seen.at(-1)?.held ?? "");
  const isOver = () => over.includes(document.querySelector("[data-testid=status]").dataset.phase);
  const look = () => (isHeld() || isOver() ? resolve() : requestAnimationFrame(look));
  look();
})"""
# The page draws what has changed with the next frame; what is new then fades in.
_FRAME = "() => new Promise((resolve) => requestAnimationFrame(() => resolve()))"
_SETTLED = "() => Promise.allSettled(document.getAnimations().map((one) => one.finished)).then(() => null)"
_CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
_Read = TypeVar("_Read")
expect.set_options(timeout=HANG_MS)


class Visit:
    """One page. Complaints that a test calls for are allowed by a pattern each."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.allowed: list[str] = []
        self.complaints: list[str] = []
        self.called: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", self._follow)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _follow(self, request: Request) -> None:
        self.called.append(request.url)

    def at(self, name: str) -> Locator:
        """The element with that test id; several, if there are."""
        return self.page.get_by_test_id(name)

    async def wait_for_choices(self) -> None:
        """Until the page knows what there is."""
        await expect(self.at("policy").locator("option")).not_to_have_count(0)

    async def ask(self, question: str, *, policy: str | None = None, model: str | None = None) -> None:
        """Type a question and press the button."""
        for name, value in (("policy", policy), ("model", model)):
            if value is not None:
                await self.at(name).select_option(value)
        await self.at("question").fill(question)
        await self.begin(self.at("ask"))

    async def begin(self, button: Locator) -> None:
        """Press what begins a run, until that run is what the page shows."""
        before = await self.at("answer").get_attribute("data-run")
        await button.click()
        await expect(self.at("answer")).not_to_have_attribute("data-run", before or "")

    async def wait_for(self, *phases: str) -> str:
        """Until the answer is in one of these phases; without any, until it is over. The phase."""
        wanted = re.compile(f"^({'|'.join(phases or OVER)})$")
        await expect(self.at("status")).to_have_attribute("data-phase", wanted)
        return await self.at("status").get_attribute("data-phase") or ""

    async def wait_for_held(self, pattern: str) -> None:
        """Until such text waits, which is told at that very moment, or until the answer is over."""
        async with asyncio.timeout(HANG_S):
            await self.page.evaluate(_UNTIL_HELD, [pattern, OVER])

    async def eventually(self, read: Callable[[], Awaitable[_Read]], holds: Callable[[_Read], bool]) -> _Read:
        """What is read once it fits: the page is looked at with every frame."""
        value = await read()
        try:
            async with asyncio.timeout(HANG_S):
                while not holds(value):
                    await self.page.evaluate(_FRAME)
                    value = await read()
        except TimeoutError:
            raise AssertionError(f"this is still what is read: {value!r}") from None
        return value

    async def settle(self) -> None:
        """Until what has changed is drawn, and what is new has faded in."""
        await self.page.evaluate(_FRAME)
        await self.page.evaluate(_SETTLED)

    async def open(self, tab: str) -> None:
        """Open a tab, until it is drawn."""
        await self.at(f"tab-{tab}").click()
        await expect(self.page.locator(f"#panel-{tab}")).to_be_visible()
        await self.settle()

    async def text(self, name: str) -> str:
        """The text of every element with that test id, joined."""
        return "".join(await self.at(name).all_text_contents())

    async def expect_text(self, name: str, words: str) -> None:
        """That text becomes exactly this."""
        await self.eventually(lambda: self.text(name), lambda told: told == words)

    async def story(self) -> list[dict[str, str]]:
        """What was held and what was released, after each change."""
        told: list[dict[str, str]] = await self.page.evaluate("window.seen")
        return told

    async def expect_readable(self, *selectors: str) -> None:
        """The text of the first visible element of each selector stands out from what is behind it."""
        for selector in selectors:
            await expect(self.page.locator(selector).filter(visible=True).first).to_be_visible()
        await self.settle()
        told: Mapping[str, float] = await self.page.evaluate(_CONTRAST, list(selectors))
        assert {name: value for name, value in told.items() if value < READABLE} == {}

    async def expect_no_overflow(self) -> None:
        """The page is not wider than the window."""
        await self.eventually(self._read_overflow, lambda pixels: pixels <= 0)

    async def _read_overflow(self) -> int:
        script = "document.scrollingElement.scrollWidth - innerWidth"
        return int(await self.page.evaluate(script))

    async def show(self, selector: str) -> None:
        """Scroll there at once."""
        where = self.page.locator(selector)
        await where.evaluate("node => node.scrollIntoView({ block: 'start', behavior: 'instant' })")

    async def picture(self, name: str, *, full: bool = False) -> Path:
        """A picture of the page among the artefacts."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        await self.page.screenshot(path=path, full_page=full, caret="initial", animations="disabled")
        return path

    async def portrait(self, name: str) -> None:
        """A picture that the documentation shows: of what is seen without scrolling, and small."""
        path = await self.picture(name)
        assert path.stat().st_size < MAX_PORTRAIT_BYTES, f"{path.name} has {path.stat().st_size} bytes"

    async def judge(self) -> None:
        """Nothing was complained about, nothing forbidden was tried, and nobody but this machine was called."""
        rules = self.allowed
        wrong = [one for one in self.complaints if not any(re.search(rule, one) for rule in rules)]
        assert wrong == []
        assert await self.page.evaluate("window.violations") == []
        hosts = {urlsplit(url).hostname for url in self.called if not url.startswith("data:")}
        assert hosts <= {"127.0.0.1"}


@asynccontextmanager
async def visiting(
    browser: Browser, address: str, *, size: Size = WIDE, is_known: bool = True, **more: Any
) -> AsyncIterator[Visit]:
    """A page that is open and, unless the server keeps it from us, knows what there is; at the end it has behaved."""
    context = await browser.new_context(viewport=size, **more)
    try:
        context.set_default_timeout(HANG_MS)
        await context.add_init_script(_WATCHER)
        visit = Visit(await context.new_page(), address)
        await visit.page.goto(address)
        await expect(visit.page.locator("body")).not_to_have_css("margin", "8px")  # what a page without a style has
        if is_known:
            await visit.wait_for_choices()
        yield visit
        await visit.judge()
    finally:
        await context.close()
