# SPDX-License-Identifier: Apache-2.0
"""The page on a phone, in the dark, for readers who need contrast, and for those who have only a keyboard."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.browser.scripted_house import House
from tests.browser.visits import PHONE, WIDE, Visit, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "https://example.org/" + "a-very-long-word-that-no-line-can-hold" * 3
MAIN_TEXTS = (
    "[data-testid=answer]",
    "[data-testid=question]",
    "[data-testid=held]",
    "[data-testid=released]",
    "[data-testid=ask]",
    "[data-testid=stop]",
    "[data-testid=tab-ask]",
    "[data-testid=tab-detect]",
    "[data-testid=theme-toggle]",
    "[data-testid=status]",
    "[data-testid=document] .badge",
    "[data-testid=citation]",
    "[data-testid=source-error]",
    ".who",
    ".hint",
    "h2",
    "mark",
)


_FIND_NAMELESS = """(all) => {
  const hasName = (one) => one.textContent.trim() || one.labels?.length || one.getAttribute("aria-label")
    || one.getAttribute("aria-labelledby");
  return all.filter((one) => !hasName(one)).map((one) => one.outerHTML);
}"""


async def _fill_every_tab(visit: Visit) -> None:
    await visit.ask(f"Where is {LONG}?", policy="guarded", model="quick")
    await visit.wait_for("done")
    await visit.open("detect")
    await visit.at("detect-text").fill(f"Ask rosa@example.org about {LONG}, you idiot.")
    await visit.at("detect-run").click()
    await expect(visit.at("detect-results").get_by_test_id("finding")).to_have_count(2)


@pytest.mark.parametrize("width", [360, 768])
async def test_no_tab_has_to_be_scrolled_sideways(browser: Browser, house: House, width: int) -> None:
    async with visiting(browser, house.address, size={"width": width, "height": 740}) as visit:
        await visit.expect_no_overflow()
        await _fill_every_tab(visit)
        for tab in ("ask", "detect", "raw"):
            await visit.open(tab)
            await visit.expect_no_overflow()
            await visit.picture(f"width-{width}-{tab}", full=True)


async def test_what_is_touched_on_a_phone_is_large_enough(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address, size=PHONE, has_touch=True, is_mobile=True) as visit:
        for name in ("ask", "stop", "tab-ask", "tab-detect", "tab-raw", "theme-toggle", "policy"):
            box = await visit.at(name).bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 24, name  # WCAG 2.2, 2.5.8


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_texts_stand_out_from_what_is_behind_them(browser: Browser, house: House, scheme: str) -> None:
    async with visiting(browser, house.address, color_scheme=scheme) as visit:
        await visit.expect_readable("[data-testid=ask]", "[data-testid=question]", "label", "select", "legend")
        await visit.ask("Where is the desk?", policy="guarded", model="hanging")
        await expect(visit.at("held").last).to_contain_text("is on the")
        await expect(visit.at("source-error")).to_be_visible()
        await visit.expect_readable(*MAIN_TEXTS)
        await visit.picture(f"held-{scheme}")


async def _expect_light(visit: Visit, *, is_light: bool) -> None:
    async def read() -> int:
        painted = await visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(value) for value in re.findall(r"\d+", painted)[:3]) // 3

    await visit.eventually(read, lambda light: light > 192 if is_light else light < 64)


async def test_the_theme_is_the_systems_until_one_is_chosen_and_then_stays(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address, color_scheme="dark") as visit:
        await _expect_light(visit, is_light=False)
        toggle = visit.at("theme-toggle")
        await toggle.click()
        await expect(toggle).to_contain_text("light")
        await _expect_light(visit, is_light=True)
        await visit.page.reload()
        await visit.wait_for_choices()
        await _expect_light(visit, is_light=True)
        await toggle.click()
        await expect(toggle).to_contain_text("dark")
        await visit.page.emulate_media(color_scheme="light")
        await _expect_light(visit, is_light=False)


async def test_everything_can_be_done_with_the_keyboard(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address, size=WIDE) as visit:
        keyboard = visit.page.keyboard
        await visit.at("model").select_option("hanging")
        await visit.page.evaluate("document.activeElement.blur()")
        await _tab_to(visit, "question")
        await keyboard.type("Where is the desk?")
        await keyboard.press("Control+Enter")
        await expect(visit.at("held").last).to_contain_text("is on the")
        await keyboard.press("Escape")
        assert await visit.wait_for() == "stopped"
        await _tab_to(visit, "tab-ask", back=True)
        for key, name in [
            ("ArrowRight", "detect"),
            ("End", "raw"),
            ("ArrowRight", "ask"),
            ("ArrowLeft", "raw"),
            ("Home", "ask"),
        ]:
            await keyboard.press(key)
            await expect(visit.at(f"tab-{name}")).to_be_focused()
            await expect(visit.at(f"tab-{name}")).to_have_attribute("aria-selected", "true")
            await expect(visit.page.locator(f"#panel-{name}")).to_be_visible()
        await expect(visit.page.get_by_role("tabpanel")).to_have_count(1)


async def test_marks_and_controls_show_where_the_keyboard_is(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        await visit.page.evaluate("document.activeElement.blur()")
        for name in ("tab-ask", "question", "policy", "finding"):
            await _tab_to(visit, name)
            await expect(visit.page.locator(":focus")).not_to_have_css("outline-style", "none")
        await expect(visit.page.get_by_role("tooltip")).to_be_visible()
        await visit.page.keyboard.press("Escape")
        await expect(visit.page.get_by_role("tooltip")).to_be_hidden()


async def _tab_to(visit: Visit, name: str, *, back: bool = False) -> None:
    for _ in range(40):
        await visit.page.evaluate("window.left = document.activeElement")
        await visit.page.keyboard.press("Shift+Tab" if back else "Tab")
        await visit.eventually(lambda: visit.page.evaluate("document.activeElement !== window.left"), bool)
        if await visit.page.evaluate("document.activeElement.dataset.testid") == name:
            return
    pytest.fail(f"the keyboard does not reach `{name}`")


async def test_every_control_has_a_name(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.at("policy").select_option("")
        await visit.ask("Where is the desk?", model="quick")
        await visit.wait_for("done")
        controls = visit.page.locator("button, input, select, textarea, summary, a[href], [tabindex='0']")
        assert await controls.evaluate_all(_FIND_NAMELESS) == []
        assert await visit.page.locator("html").get_attribute("lang") == "en"
