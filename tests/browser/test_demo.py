# SPDX-License-Identifier: Apache-2.0
"""The demo as anybody starts it, in a browser: every sample question with the model that comes with it.

Its pictures are those of the documentation (`make screenshots`).
"""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.browser.demo_process import DemoProcess, Relative, halted
from tests.browser.visits import PHONE, Visit, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHARP: dict[str, Any] = {"device_scale_factor": 1.5, "size": {"width": 1280, "height": 740}}
ADDRESS = "rosa.delaney@example.org"
FADE_MS = 1200  # what is new fades in
CODEWORD = "nightingale"
TEXTS = (".sample strong", ".sample span", ".badge", ".who", "[data-testid=released]", "[data-testid=ask]", "td")
IDLE_S, WATCHED_S, TICKS_PER_S = 0.2, 0.4, 100


async def _try(visit: Visit, title: str) -> None:
    await visit.page.locator("[data-testid^=sample-]", has_text=title).first.click()


async def _outcomes(visit: Visit) -> dict[str, str]:
    """What became of each document, by its title."""
    read = "all => all.map((one) => [one.querySelector('.title').textContent, one.dataset.outcome])"
    return dict(await visit.at("document").evaluate_all(read))


async def test_a_question_is_answered_from_documents_that_are_cited(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address, **SHARP) as visit:
        await expect(visit.page.locator("#subtitle")).to_have_text("The town library of Averham")
        await _try(visit, "A grounded answer")
        await expect(visit.at("sources-panel").get_by_test_id("document").first).to_be_visible()
        assert await visit.wait_for() == "done"
        link = visit.at("citation").first
        await link.click()
        source = visit.at(f"result-{await link.get_attribute('data-path')}")
        await expect(source).to_be_focused()
        await expect(source.get_by_test_id("document").first).to_have_attribute("open", "")
        await expect(visit.at("receipt-outcome")).to_have_text("released")
        await expect(visit.at("receipt-covered")).to_have_text("yes")
        await expect(visit.at("digest-check")).to_have_attribute("data-fits", "true")
        await expect(visit.at("timeline")).to_contain_text("first token")
        for detector in ("pii", "toxicity", "citations", "codewords", "groundedness"):
            await expect(visit.at(f"frontier-{detector}")).to_be_visible()
        await visit.show("body")
        await visit.picture("grounded")
        await visit.at("tab-raw").click()
        await visit.page.set_viewport_size({"width": 1280, "height": 600})
        await visit.show("body")
        await visit.portrait("playground-raw")


async def test_an_address_is_seen_held_and_leaves_masked(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "Personal data")
        assert await visit.wait_for() == "done"
        story = await visit.story()
        assert any(ADDRESS in one["held"] for one in story)
        assert not any(ADDRESS in one["released"] for one in story)
        assert "█" * len(ADDRESS) in await visit.text("released")
        mark = visit.at("answer").locator("mark[data-detector=pii]")
        await mark.first.focus()
        tip = visit.page.get_by_role("tooltip")
        for words in ("pii: EmailAddress", "score", "masked"):
            await expect(tip).to_contain_text(words)
        await expect(visit.at("receipt-outcome")).to_have_text("masked")
        await visit.picture("masked")


async def test_an_injected_document_is_dropped_with_its_reason(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "An injected instruction")
        assert await visit.wait_for() == "done"
        outcomes = await _outcomes(visit)
        assert list(outcomes.values()).count("dropped") == 1
        assert "kept" in outcomes.values()
        dropped = visit.page.locator("[data-testid=document][data-outcome=dropped]")
        for words in ("prompt_injection", "score", "dropped"):
            await expect(dropped).to_contain_text(words)
        await expect(visit.at("status")).to_contain_text("1 document was dropped")
        await visit.show(".answer-card")
        await visit.picture("dropped")


async def test_nothing_is_made_up_where_no_document_fits(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "Nothing is found")
        assert await visit.wait_for() == "done"
        assert "do not contain" in await visit.text("released")
        await expect(visit.at("citation")).to_have_count(0)
        await visit.picture("refusal")


async def test_an_insult_is_blocked_before_the_model_is_asked(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        worked = demo.model().cpu_ticks()
        await _try(visit, "An insult")
        assert await visit.wait_for() == "done"
        await expect(visit.at("receipt-outcome")).to_have_text("blocked")
        await expect(visit.at("asked").get_by_test_id("finding").first).to_have_attribute("data-detector", "toxicity")
        assert await visit.text("released") == ""
        assert demo.model().cpu_ticks() - worked <= 2
        await visit.picture("insult")


async def test_an_answer_ends_before_the_codeword_and_so_does_the_model(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "A codeword")
        assert await visit.wait_for() == "done"
        await _expect_idle(demo.model())
        await expect(visit.at("receipt-outcome")).to_have_text("stopped")
        story = await visit.story()
        assert not any(CODEWORD in one["released"].lower() for one in story)
        await visit.at("side-gate").check()
        assert CODEWORD in (await visit.text("withheld")).lower()
        await visit.picture("codeword")


async def _expect_idle(model: Relative) -> None:
    """The model's process has nothing to do, from a fifth of a second on."""
    await asyncio.sleep(IDLE_S)
    before = model.cpu_ticks()
    await asyncio.sleep(WATCHED_S)
    assert model.cpu_ticks() - before <= 0.1 * WATCHED_S * TICKS_PER_S


async def test_a_sample_takes_the_place_of_one_that_is_under_way(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "A grounded answer")
        await visit.until(".")
        await _try(visit, "Another grounded answer")
        assert await visit.wait_for("done") == "done"
        assert "founded" in await visit.text("released")


async def test_a_reader_who_stops_stops_the_model(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "Another grounded answer")
        await visit.until(".{10}")
        await visit.page.keyboard.press("Escape")
        assert await visit.wait_for() == "stopped"
        await _expect_idle(demo.model())
        await expect(visit.at("held")).to_have_count(0)
        await visit.picture("stopped-by-reader")


async def test_a_model_that_dies_is_told_and_the_next_question_is_answered(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        first = demo.model()
        await _try(visit, "Another grounded answer")
        await visit.until(".{10}")
        first.kill()
        assert await visit.wait_for() == "failed"
        await expect(visit.at("error")).to_contain_text("The model failed")
        await expect(visit.at("held")).to_have_count(0)
        await visit.picture("model-died")
        await _try(visit, "Another grounded answer")
        assert await visit.wait_for("done") == "done"
        await expect(visit.at("error")).to_be_empty()
        await expect(visit.at("receipt-covered")).to_have_text("yes")
        assert demo.model().pid != first.pid
        assert not first.is_there()


async def test_pictures_are_taken_while_text_is_held_and_when_it_has_left(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address, **SHARP, color_scheme="light") as visit:
        for _ in range(6):  # the model may be quicker than the hand that halts it
            await _try(visit, "Personal data")
            await visit.until("rosa.delaney@")
            with halted(demo.model()):
                await visit.page.wait_for_timeout(300)
                is_caught = "rosa.delaney@" in await visit.text("held")
                if is_caught:
                    assert await visit.text("released") == ""
                    await visit.show("body")
                    await visit.portrait("playground")
            assert await visit.wait_for() == "done"
            if is_caught:
                break
        assert is_caught
        await visit.page.wait_for_timeout(FADE_MS)
        await visit.show("body")
        await visit.portrait("playground-masked")
        await visit.expect_readable(*TEXTS)
        await visit.page.emulate_media(color_scheme="dark")
        await visit.expect_readable(*TEXTS)
        await visit.portrait("playground-dark")
        await visit.page.emulate_media(color_scheme="light")
        await visit.page.set_viewport_size(PHONE)
        for tab in ("raw", "detect", "ask"):
            await visit.at(f"tab-{tab}").click()
            assert await visit.overflow() <= 0, tab
        await visit.show(".answer-card")
        await visit.page.wait_for_timeout(FADE_MS)
        await visit.portrait("playground-phone")


async def test_a_pasted_text_is_read_by_every_detector(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address, **SHARP) as visit:
        await visit.at("tab-detect").click()
        await visit.at("detect-example").click()
        marks = visit.at("detect-results").get_by_test_id("finding")
        await expect(marks.first).to_be_visible()
        found = await marks.evaluate_all("all => all.map((one) => one.dataset.detector)")
        assert {"pii", "prompt_injection", "toxicity"} <= set(found)
        table = visit.at("detect-results").get_by_role("region")
        assert await table.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
        await visit.portrait("playground-detect")
