# SPDX-License-Identifier: Apache-2.0
"""An answer on the page: held before it is released, with what was found, what was hidden, and the receipt."""

import json
import shlex

import pytest
from playwright.async_api import Browser, expect

from tests.browser.scripted_house import MAIL, SAID, House
from tests.browser.visits import Visit, visiting
from tests.server.gateways import ask
from tests.server.spaces import STREAM

pytestmark = pytest.mark.asyncio(loop_scope="module")
WHOLE = "".join(SAID)
MASKED = WHOLE.replace(MAIL, "█" * len(MAIL))


async def test_text_is_seen_held_before_it_is_released_and_what_is_masked_never_is(
    browser: Browser, house: House
) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="paced")
        says, held = house.models["paced"].says, visit.at("answer").locator(".tail")
        steps = [
            ("Write to ro", "Write to ro", ""),
            ("sa@example.org [desk]. ", WHOLE[:34], ""),
            ("The desk ", "The desk ", MASKED[:34]),
            ("is on the left [desk]. ", "The desk is on the left [desk]. ", MASKED[:34]),
            ("It closes ", "It closes ", MASKED[:66]),
        ]
        for piece, waits, left in steps:
            says.put_nowait(piece)
            await expect(held).to_have_text(waits)
            await visit.expect_text("released", left)
        says.put_nowait("at six.")
        says.put_nowait(None)
        assert await visit.wait_for() == "done"
        await visit.expect_text("released", MASKED)
        story = await visit.story()
    assert any(MAIL in one["held"] for one in story)
    assert not any(MAIL in one["released"] for one in story)
    assert all(later["released"].startswith(one["released"]) for one, later in zip(story, story[1:], strict=False))


async def test_a_finding_is_marked_with_detector_score_and_reason(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        mark = visit.at("answer").get_by_test_id("finding")
        await expect(mark).to_have_attribute("data-detector", "mail")
        await expect(mark).to_have_text("█" * len(MAIL))
        await mark.focus()
        tip = visit.page.get_by_role("tooltip")
        for words in ("mail: EmailAddress", "score 0.95", "email", "masked"):
            await expect(tip).to_contain_text(words)
        cells = visit.at("findings").get_by_role("row").nth(1).locator("td:nth-child(-n + 4)")
        await expect(cells).to_have_text(["mail", "EmailAddress", MAIL, "0.95"])
        await visit.picture("finding")
        await visit.at("side-gate").check()
        await expect(mark).to_have_text(MAIL)
        await visit.at("side-client").check()
        await expect(mark).to_have_text("█" * len(MAIL))


async def test_documents_arrive_and_one_that_gives_orders_is_dropped_with_its_reason(
    browser: Browser, house: House
) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="hanging")
        await visit.wait_for("generating")
        documents = visit.at("sources-panel").get_by_test_id("document")
        await expect(documents).to_have_count(2)
        kept, dropped = documents.nth(0), documents.nth(1)
        await expect(kept).to_have_attribute("data-outcome", "kept")
        await expect(dropped).to_have_attribute("data-outcome", "dropped")
        for words in ("A note", "orders", "Keyword", "score 1.00", "dropped"):
            await expect(dropped).to_contain_text(words)
        assert "say yes" not in await visit.page.content()
        await visit.at("stop").click()
        await visit.wait_for("stopped")


async def test_a_citation_leads_to_the_documents_of_its_source(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        link = visit.at("citation").first
        await expect(link).to_have_text("[desk]")
        await link.click()
        document = visit.at("sources-panel").get_by_test_id("document").first
        await expect(document).to_have_attribute("open", "")
        await expect(document).to_contain_text("Rosa sits at the desk")
        await expect(visit.at("result-desk")).to_be_focused()


async def test_the_receipt_and_the_timeline_are_those_of_the_last_answer(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        await expect(visit.at("receipt-outcome")).to_have_text("masked")
        await expect(visit.at("receipt-covered")).to_have_text("yes")
        await expect(visit.at("digest-check")).to_have_attribute("data-fits", "true")
        await expect(visit.at("timeline-frame")).to_have_count(3)
        await expect(visit.at("timeline")).to_contain_text("first token")
        await expect(visit.at("timeline")).not_to_contain_text("-")  # nothing ends before it begins
        await expect(visit.at("frontier-mail")).to_have_attribute("data-position", str(len(WHOLE)))
        await visit.ask("And when does it close?", policy="stopping")
        await expect(visit.at("receipt-outcome")).to_have_text("stopped")
        await expect(visit.at("digest-check")).to_have_attribute("data-fits", "true")
        await expect(visit.at("frontier-mail")).to_have_count(0)


async def test_a_question_that_is_blocked_is_shown_with_what_was_found_in_it(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk, idiot?", policy="guarded", model="quick")
        assert await visit.wait_for() == "done"
        await expect(visit.at("status")).to_contain_text("blocked")
        await expect(visit.at("asked").get_by_test_id("finding")).to_have_text("idiot")
        await expect(visit.at("result-desk")).to_have_attribute("data-status", "left")  # which is no failure of theirs
        await expect(visit.at("source-error")).to_have_count(0)
        await expect(visit.at("receipt-outcome")).to_have_text("blocked")
        await visit.expect_text("released", "This answer was withheld.")
        await visit.picture("blocked")


async def test_an_answer_that_is_stopped_ends_with_the_fallback(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("When does it close?", policy="stopping", model="quick")
        assert await visit.wait_for() == "done"
        await visit.expect_text("released", WHOLE.removesuffix("It closes at six.") + "\n(the rest is not told)")
        await expect(visit.at("fallback")).to_have_text("(the rest is not told)")
        await expect(visit.at("receipt-outcome")).to_have_text("stopped")
        assert not any("six" in one["released"] for one in await visit.story())
        await visit.at("side-gate").check()
        await visit.eventually(lambda: visit.text("withheld"), lambda told: "six" in told)
        await visit.picture("stopped")


async def test_a_policy_in_shadow_changes_nothing_and_says_so(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="watching", model="quick")
        await visit.wait_for("done")
        await visit.expect_text("released", WHOLE)
        await expect(visit.at("receipt")).to_contain_text("shadow")
        await expect(visit.at("receipt-outcome")).to_have_text("masked")


async def test_an_answer_can_be_looked_at_again_without_being_asked_for_again(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Where is the desk?", policy="guarded", model="paced")
        for piece in ("Write to", f" {MAIL} [desk]. "):
            house.models["paced"].says.put_nowait(piece)
            await expect(visit.at("held").last).to_contain_text(piece)  # so that they come one after the other
        house.models["paced"].says.put_nowait(None)
        await visit.wait_for("done")
        calls = len(visit.called)
        await visit.page.evaluate("window.seen.length = 0")
        await visit.page.clock.install(time=0)
        await visit.page.clock.pause_at(1)
        await visit.begin(visit.at("replay"))
        await visit.page.clock.run_for("01:00:00")  # and whatever falls into that hour happens in its order
        await visit.page.clock.resume()
        assert await visit.wait_for() == "done"
        await visit.expect_text("released", MASKED[:34])
        story = await visit.story()
        assert story.index({"held": "Write to", "released": ""}) < story.index({"held": "", "released": MASKED[:34]})
        assert len(visit.called) == calls


async def test_detectors_can_be_chosen_one_by_one(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.at("policy").select_option("")
        await visit.at("detector-output-mail").check()
        await visit.at("action-output").select_option("mask")
        await visit.at("source-gone").uncheck()
        await visit.ask("Where is the desk?", model="quick")
        await visit.wait_for("done")
        await visit.expect_text("released", MASKED)
        await expect(visit.at("result-gone")).to_have_count(0)


async def test_the_raw_tab_has_every_event_and_a_command_that_asks_the_same(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.ask("Is it Rosa's desk?", policy="guarded", model="quick")
        await visit.wait_for("done")
        await visit.open("raw")
        await expect(visit.at("raw-event").last).to_have_attribute("data-event", "done")
        names = await visit.at("raw-event").evaluate_all("all => all.map((one) => one.dataset.event)")
        assert names[0] == "retrieval_start"
        assert {"trace", "token", "source_complete", "generation_start"} <= set(names)
        await visit.at("hide-trace").check()
        await expect(visit.at("raw-event").and_(visit.page.locator("[data-event=trace]"))).to_have_count(0)
        await expect(visit.at("raw-curl")).to_contain_text("curl")
        command = await visit.text("raw-curl")
        await _check_command(visit, command.replace("\\\n", " "))


async def _check_command(visit: Visit, command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "curl"
    assert visit.address.removesuffix("/") + STREAM in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["prompt"] == "Is it Rosa's desk?"
    answer = await ask(int(visit.address.rpartition(":")[2].strip("/")), STREAM, body)
    assert answer.status == 200
    assert MAIL not in answer.body.decode().partition('"sources"')[0]
    assert "a-token-of-this-start" not in command


async def test_the_detect_tab_marks_what_is_found_in_a_pasted_text(browser: Browser, house: House) -> None:
    async with visiting(browser, house.address) as visit:
        await visit.open("detect")
        await visit.at("detect-run").click()
        await expect(visit.at("detect-results")).to_contain_text("The text is empty.")
        await visit.at("detect-text").fill(f"👩‍👩‍👧 Ask {MAIL}, you idiot.")
        await visit.at("detect-run").click()
        marks = visit.at("detect-results").get_by_test_id("finding")
        await expect(marks).to_have_text([MAIL, "idiot"])
        await visit.at("detect-detector-rude").uncheck()
        await visit.at("detect-run").click()
        await expect(marks).to_have_text([MAIL])
