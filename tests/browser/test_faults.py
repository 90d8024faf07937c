# SPDX-License-Identifier: Apache-2.0
"""What the page says when something is away: a source, the model, the trace, a key, the server itself."""

from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Browser, expect

from tests.browser.scripted_house import MAIL, OPEN, UNTRACED, House, open_house
from tests.browser.visits import visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLERS = "callers: {reader: {key_env: READER_KEY}}\n"
KEY = "a-key-that-nobody-writes-down"


async def test_a_source_that_is_gone_is_named_and_the_answer_is_made_without_it(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        assert await visit.wait_for() == "done"
        await expect(visit.at("result-gone")).to_have_attribute("data-status", "error")
        await expect(visit.at("source-error")).to_contain_text("cannot connect")
        await expect(visit.at("result-desk")).to_have_attribute("data-status", "success")
        await expect(visit.at("answer")).to_contain_text("The desk is on the left")
        await visit.picture("source-gone")


async def test_a_model_that_is_away_is_told_and_the_next_one_can_be_asked(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="away")
        assert await visit.wait_for() == "failed"
        await expect(visit.at("error")).to_contain_text("The model failed")
        await expect(visit.at("error")).to_have_attribute("role", "alert")
        await expect(visit.at("receipt")).to_have_text("An answer that breaks off has no receipt.")
        await visit.picture("model-away")
        await visit.ask("Where is the desk?", model="quick")
        assert await visit.wait_for("done") == "done"
        await expect(visit.at("error")).to_be_empty()


async def test_a_model_that_ends_in_its_answer_leaves_what_was_released_and_hides_the_rest(
    browser: Browser, house: House
) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="failing")
        assert await visit.wait_for() == "failed"
        await expect(visit.at("error")).to_contain_text("The model failed")
        await visit.expect_text("released", f"Write to {'█' * len(MAIL)} [desk]. ")
        await expect(visit.at("held")).to_have_count(0)
        await visit.picture("model-gone")


async def test_stopping_tells_the_model_and_what_was_held_never_leaves(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="hanging")
        await expect(visit.at("held").last).to_contain_text("is on the")
        await visit.at("stop").click()
        assert await visit.wait_for() == "stopped"
        await expect(visit.at("stop")).to_be_disabled()
        await expect(visit.at("held")).to_have_count(0)
        await expect(visit.at("answer")).not_to_contain_text("is on the")
        await house.models["hanging"].is_left.wait()


async def test_without_the_trace_no_held_text_is_shown_and_the_page_says_why(browser: Browser) -> None:
    async with open_house(UNTRACED) as house, visiting(browser, house.address) as visit:
        await expect(visit.at("trace-note")).to_contain_text("server.trace")
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        assert await visit.wait_for() == "done"
        story = await visit.story()
        assert {one["held"] for one in story} == {""}
        assert MAIL not in "".join(one["released"] for one in story)
        await expect(visit.at("answer").get_by_test_id("finding")).to_have_attribute("data-detector", "mail")
        for place, outcome in enumerate(("kept", "dropped")):
            await expect(visit.at("document").nth(place)).to_have_attribute("data-outcome", outcome)
        await expect(visit.at("document")).to_have_count(2)
        await expect(visit.at("receipt-outcome")).to_have_text("masked")
        await expect(visit.at("digest-check")).to_have_attribute("data-fits", "true")
        await expect(visit.at("side-gate")).to_be_disabled()
        await visit.picture("trace-off")


async def test_a_key_is_asked_for_sent_and_written_down_nowhere(browser: Browser) -> None:
    opened = open_house(OPEN, CALLERS, READER_KEY=KEY)
    async with opened as house, visiting(browser, house.address, is_known=False) as visit:
        visit.allowed.append("status of 401")
        await expect(visit.at("key")).to_be_focused()
        await visit.picture("key")
        await visit.at("key").fill("a-wrong-key")
        await visit.at("key-use").click()
        await expect(visit.page.get_by_role("alert").first).to_contain_text("The server does not know this key")
        await visit.at("key").fill(KEY)
        await visit.page.keyboard.press("Enter")
        await visit.wait_for_choices()
        await expect(visit.at("key-form")).to_be_hidden()
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        assert await visit.wait_for() == "done"
        await visit.open("detect")
        await visit.at("detect-text").fill(MAIL)
        await visit.at("detect-run").click()
        await expect(visit.at("detect-results").get_by_test_id("finding")).to_have_text(MAIL)
        await visit.open("raw")
        await expect(visit.at("raw-curl")).to_contain_text("curl")
        assert KEY not in await visit.page.content()
        kept = await visit.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert KEY not in kept


async def test_a_server_that_ends_is_told_in_the_middle_of_an_answer_and_before_one(browser: Browser) -> None:
    async with AsyncExitStack() as server:
        house = await server.enter_async_context(open_house())
        async with visiting(browser, house.address) as visit:
            visit.allowed += ["net::ERR_(CONNECTION|INCOMPLETE|EMPTY)"]
            await visit.ask("Where is the desk?", policy="guarded", model="hanging")
            await expect(visit.at("held").last).to_contain_text("is on the")
            await server.aclose()
            assert await visit.wait_for() == "lost"
            await expect(visit.at("error")).to_contain_text("The connection was lost")
            await expect(visit.at("held")).to_have_count(0)
            await visit.ask("Is anybody there?")
            await expect(visit.at("error")).to_contain_text("The server does not answer")
            await visit.picture("server-gone")
