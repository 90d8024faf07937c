# SPDX-License-Identifier: Apache-2.0
"""The demo as anybody starts it, in a browser: every sample question with the model that comes with it.

Its pictures are those of the documentation (`make screenshots`).
"""

import json
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.browser.demo_process import DemoProcess, Relative, halted
from tests.browser.visits import PHONE, Visit, visiting
from tests.waits import linger, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHARP: dict[str, Any] = {"device_scale_factor": 1.5, "size": {"width": 1280, "height": 740}}
ADDRESS = "rosa.delaney@example.org"
CODEWORD = "nightingale"
SILENT = "silent for"  # what the log says of a model that has to be ended because it says nothing
TEXTS = (".sample strong", ".sample span", ".badge", ".who", "[data-testid=released]", "[data-testid=ask]", "td")


async def _try(visit: Visit, title: str) -> None:
    await visit.begin(visit.page.locator("[data-testid^=sample-]", has_text=title).first)


async def _expect_rest(demo: DemoProcess) -> None:
    await until(lambda: demo.model().is_waiting(), "that the model has nothing to do")


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
        await visit.open("raw")
        await visit.page.set_viewport_size({"width": 1280, "height": 600})
        await visit.show("body")
        await visit.portrait("playground-raw")


async def test_an_address_is_seen_held_and_leaves_masked(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "Personal data")
        assert await visit.wait_for() == "done"
        assert not any(ADDRESS in one["released"] for one in await visit.story())
        await expect(visit.at("answer")).to_contain_text("█" * len(ADDRESS))
        mark = visit.at("answer").locator("mark[data-detector=pii]")
        await mark.first.focus()
        tip = visit.page.get_by_role("tooltip")
        for words in ("pii: EmailAddress", "score", "masked"):
            await expect(tip).to_contain_text(words)
        await expect(visit.at("receipt-outcome")).to_have_text("masked")
        await visit.picture("masked")
        await visit.open("raw")
        await expect(visit.at("raw-event").last).to_have_attribute("data-event", "done")
        traces = await visit.page.locator("[data-event=trace] code").all_text_contents()
        held = [one["text"] for one in map(json.loads, traces) if one["kind"] == "held"]
        assert ADDRESS in "".join(held)


async def test_an_injected_document_is_dropped_with_its_reason(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "An injected instruction")
        assert await visit.wait_for() == "done"
        await expect(visit.page.locator("[data-testid=document][data-outcome=kept]")).not_to_have_count(0)
        dropped = visit.page.locator("[data-testid=document][data-outcome=dropped]")
        await expect(dropped).to_have_count(1)
        for words in ("prompt_injection", "score", "dropped"):
            await expect(dropped).to_contain_text(words)
        await expect(visit.at("status")).to_contain_text("1 document was dropped")
        await expect(visit.at("action")).to_have_text(["document dropped"])
        await visit.show(".answer-card")
        await visit.picture("dropped")


async def test_the_same_note_is_obeyed_where_no_guard_is_on_and_a_badge_says_so(
    browser: Browser, demo: DemoProcess
) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "The same note, unguarded")
        assert await visit.wait_for() == "done"
        await expect(visit.at("action")).to_have_text(["document flagged", "injection obeyed: no guard was on"])
        await visit.show(".answer-card")
        await visit.picture("obeyed")


async def test_nothing_is_made_up_where_no_document_fits(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "Nothing is found")
        assert await visit.wait_for() == "done"
        await expect(visit.at("answer")).to_contain_text("do not contain")
        await expect(visit.at("citation")).to_have_count(0)
        await visit.picture("refusal")


async def test_an_insult_is_blocked_before_the_model_is_asked(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _expect_rest(demo)
        worked = demo.model().cpu_ticks()
        await _try(visit, "An insult")
        assert await visit.wait_for() == "done"
        await expect(visit.at("receipt-outcome")).to_have_text("blocked")
        await expect(visit.at("asked").get_by_test_id("finding").first).to_have_attribute("data-detector", "toxicity")
        await visit.expect_text("released", "This answer was withheld.")
        await linger()
        assert demo.model().cpu_ticks() - worked <= 20  # it reads a question for much longer
        await visit.picture("insult")


async def test_an_answer_ends_before_the_codeword_and_so_does_the_model(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "A codeword")
        assert await visit.wait_for() == "done"
        await _expect_rest(demo)
        await expect(visit.at("receipt-outcome")).to_have_text("stopped")
        story = await visit.story()
        assert not any(CODEWORD in one["released"].lower() for one in story)
        await visit.at("side-gate").check()
        await visit.eventually(lambda: visit.text("withheld"), lambda told: CODEWORD in told.lower())
        await visit.picture("codeword")


async def test_a_sample_takes_the_place_of_one_that_is_under_way(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        await _try(visit, "A grounded answer")
        await visit.wait_for_held(".")
        await _try(visit, "Another grounded answer")
        assert await visit.wait_for() == "done"
        await expect(visit.at("answer")).to_contain_text("founded")


async def test_a_reader_who_stops_stops_the_model(browser: Browser, demo: DemoProcess) -> None:
    """One that stands still cannot stop by itself: it is ended, and another takes its place."""
    async with visiting(browser, demo.address) as visit:
        is_stopped = False
        while not is_stopped:  # one that stands still for too long is ended too, and the log says so
            await _expect_rest(demo)
            model, silences = demo.model(), demo.said().count(SILENT)
            with halted(model):
                await _try(visit, "Another grounded answer")
                await visit.wait_for("generating", "failed")
                await until(Relative(demo.process.pid).is_waiting, "that the server waits for the model")
                await visit.page.keyboard.press("Escape")
                is_stopped = await visit.wait_for() == "stopped"
                await until(model.is_gone, "the end of the model's process")
            is_stopped = is_stopped and demo.said().count(SILENT) == silences


async def test_what_is_held_when_a_reader_stops_never_leaves(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        phase = ""
        while phase != "stopped":  # the model may be quicker than the reader
            await _try(visit, "Another grounded answer")
            await visit.wait_for_held(".{10}")
            await visit.page.keyboard.press("Escape")
            phase = await visit.wait_for()
        await expect(visit.at("held")).to_have_count(0)
        await _expect_rest(demo)
        await visit.picture("stopped-by-reader")


async def test_a_model_that_dies_is_told_and_the_next_question_is_answered(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address) as visit:
        phase, first = "", demo.model()
        while phase != "failed":  # the model may be quicker than the hand that ends it
            await _try(visit, "Another grounded answer")
            assert await visit.wait_for() == "done"  # one that has answered is started again at once
            first = demo.model()
            await _try(visit, "Another grounded answer")
            await visit.wait_for_held(".{10}")
            first.kill()
            phase = await visit.wait_for()
        await expect(visit.at("error")).to_contain_text("The model failed")
        await expect(visit.at("held")).to_have_count(0)
        await visit.picture("model-died")
        await _try(visit, "Another grounded answer")
        assert await visit.wait_for() == "done"
        await expect(visit.at("error")).to_be_empty()
        await expect(visit.at("receipt-covered")).to_have_text("yes")
        assert demo.model().pid != first.pid
        assert not first.is_there()


async def test_pictures_are_taken_while_text_is_held_and_when_it_has_left(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address, **SHARP, color_scheme="light") as visit:
        is_caught = False
        while not is_caught:  # the model may be quicker than the hand that halts it
            await _try(visit, "Personal data")
            await visit.wait_for_held("rosa.delaney@")
            with halted(demo.model()):
                await visit.show("body")
                await visit.portrait("playground")
                seen = (await visit.story())[-1]
                is_caught = "rosa.delaney@" in seen["held"]
                assert seen["released"] == "" or not is_caught
            is_caught = await visit.wait_for() == "done" and is_caught
        await visit.show("body")
        await visit.portrait("playground-masked")
        await visit.expect_readable(*TEXTS)
        await visit.page.emulate_media(color_scheme="dark")
        await visit.expect_readable(*TEXTS)
        await visit.portrait("playground-dark")
        await visit.page.emulate_media(color_scheme="light")
        await visit.page.set_viewport_size(PHONE)
        for tab in ("raw", "detect", "ask"):
            await visit.open(tab)
            await visit.expect_no_overflow()
        await visit.show(".answer-card")
        await visit.portrait("playground-phone")


async def test_a_pasted_text_is_read_by_every_detector(browser: Browser, demo: DemoProcess) -> None:
    async with visiting(browser, demo.address, **SHARP) as visit:
        await visit.open("detect")
        await visit.at("detect-example").click()
        marks = visit.at("detect-results").get_by_test_id("finding")
        for detector in ("pii", "prompt_injection", "toxicity"):
            await expect(marks.and_(visit.page.locator(f"[data-detector={detector}]")).first).to_be_visible()
        table = visit.at("detect-results").get_by_role("region")
        assert await table.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
        await visit.portrait("playground-detect")
