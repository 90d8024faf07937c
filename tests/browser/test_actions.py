# SPDX-License-Identifier: Apache-2.0
"""What was done to an answer, in words, and what is shown of it on each side of the gate."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.browser.scripted_house import MAIL, SAID, House
from tests.browser.visits import PHONE, Visit, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")
CASES = json.loads((Path(__file__).parent / "actions.json").read_text(encoding="utf-8"))
MASKED = "".join(SAID).replace(MAIL, "█" * len(MAIL))
_NAME = "async (cases) => { const { nameActions } = await import('/playground/actions.js');" \
        " return cases.map((one) => nameActions(one.done, one.answer)); }"  # fmt: skip
# Everything that the page has: text, attributes, and what the marks carry for the tooltip.
_READ_ALL = """() => document.documentElement.outerHTML + JSON.stringify(
  [...document.querySelectorAll('*')].map((node) => node.details ?? null))"""


async def test_the_page_has_the_same_words_as_the_command(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        named = await visit.page.evaluate(_NAME, CASES)
    assert named == [one["actions"] for one in CASES]


async def test_the_side_of_the_client_shows_nothing_that_a_client_does_not_get(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="paced")
        await visit.wait_for("generating")
        await visit.at("side-client").check()
        for piece in ("Write to", f" {MAIL} [desk]. ", "And held "):
            house.models["paced"].says.put_nowait(piece)
        await visit.expect_text("released", MASKED[:34])
        await expect(visit.at("held")).to_have_count(0)
        await expect(visit.at("frontiers")).to_be_hidden()
        await expect(visit.at("status")).not_to_contain_text("held")
        await visit.picture("client-side-running")
        house.models["paced"].says.put_nowait(None)
        await visit.wait_for("done")
        await _expect_client_side(visit)
        await visit.at("side-live").check()
        await visit.at("findings").locator("q").first.wait_for()
        assert MAIL in await visit.page.evaluate(_READ_ALL)
        await visit.at("answer").get_by_test_id("finding").focus()
        await visit.at("side-client").check()
        await _expect_client_side(visit)


async def _expect_client_side(visit: Visit) -> None:
    await visit.settle()
    await visit.at("answer").get_by_test_id("finding").focus()
    await expect(visit.page.get_by_role("tooltip")).to_contain_text("mail: EmailAddress")
    await visit.open("raw")
    await expect(visit.at("raw-event").and_(visit.page.locator("[data-event=trace]"))).to_have_count(0)
    await expect(visit.at("hide-trace")).to_be_disabled()
    await visit.open("ask")
    assert MAIL not in await visit.page.evaluate(_READ_ALL)
    await expect(visit.at("document").first).to_contain_text("shown masked")


async def test_the_chosen_side_of_the_client_stays_for_the_next_question(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        await visit.at("side-gate").check()
        await visit.ask("Where is the desk?")
        await visit.wait_for("done")
        await expect(visit.at("side-live")).to_be_checked()
        await visit.at("side-client").check()
        await visit.ask("Where is the desk?")
        await visit.wait_for("done")
        await expect(visit.at("side-client")).to_be_checked()


@pytest.mark.parametrize(
    ("policy", "question", "words"),
    [
        ("guarded", "Where is the desk?", ["answer masked", "shown source masked", "document dropped"]),
        ("guarded", "Where is the desk, idiot?", ["prompt blocked"]),
        ("stopping", "When does it close?", ["stopped"]),
        ("watching", "Where is the desk?", ["shadow: would have masked"]),
    ],
)
async def test_badges_say_what_was_done(
    browser: Browser, house: House, policy: str, question: str, words: list[str]
) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask(question, policy=policy, model="quick")
        await visit.wait_for("done")
        await expect(visit.at("action")).to_have_text(words)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_badges_can_be_read_in_every_theme_and_width(browser: Browser, house: House, scheme: str) -> None:
    async with visiting(browser, house.address, color_scheme=scheme) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        await expect(visit.at("receipt-sent")).to_have_text("desk, gone, quick")
        await visit.expect_readable("[data-testid=action].masked", "[data-testid=action].blocked", ".switch span")
        await visit.picture(f"actions-{scheme}", full=True)
        await visit.page.set_viewport_size(PHONE)
        await visit.expect_no_overflow()
        await visit.show(".answer-card")
        await visit.picture(f"actions-{scheme}-360")
