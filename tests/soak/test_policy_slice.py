# SPDX-License-Identifier: Apache-2.0
"""A short slice of the long runs of streams under policies, and a look at the judge and at what it starts from."""

import json
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from lockgate.detectors.patterns import open_keywords_detector, open_regex_detector
from lockgate.detectors.pii.detector import open_pii_detector
from lockgate.detectors.scans import ScanningDetector
from lockgate.detectors.secrets.detector import open_secrets_detector
from lockgate.gate.values import Excerpt
from tests.server.processes import ROOT
from tests.soak.policies.digests import TAMPERINGS, verify, verify_as_server
from tests.soak.policies.expected import Part, compare
from tests.soak.policies.faulty import VARIANTS, planted
from tests.soak.policies.lanes import JSON, PLAIN
from tests.soak.policies.marks import CODE, NAMES, NOTED, PHRASES, TAG, draw_catalogue
from tests.soak.policies.plans import COVERING, PERIOD, count_needed, draw_plan, list_due
from tests.soak.policies.play import Game, PolicyReport, list_cuts, play, play_stops
from tests.soak.policies.serving import Place
from tests.soak.policies.settings import MASKING, MASKS, SHADOWS
from tests.soak.policies.spoiled import find_unnoticed
from tests.soak.streams.play import UNHURRIED
from tests.waits import HANG_S

SEED = 7
HERE = Place(is_apart=False)
APART = Place(patience=UNHURRIED)


async def test_a_few_random_streams_under_policies_break_no_law(tmp_path: Path) -> None:
    report = await play(Game(20, SEED, at_once=10, place=APART), tmp_path)
    assert report.violations == []
    assert report.streams == 20
    assert {"complete", "failed"} == set(report.ends)
    assert report.hidden > 40
    assert report.shared > 0
    assert find_unnoticed(report.played, most=4) == {}


async def test_streams_in_shadow_arrive_as_they_were_said(tmp_path: Path) -> None:
    report = await play(Game(5, SEED, names=SHADOWS, place=HERE), tmp_path)
    assert report.violations == []
    assert report.streams == 5


async def test_the_model_is_left_when_a_policy_ends_its_answer(tmp_path: Path) -> None:
    report = await play_stops(Game(8, SEED, at_once=4, place=HERE, longest_s=HANG_S), tmp_path)
    assert report.violations == []
    assert len(report.closing_s) == 8


async def test_a_server_that_is_broken_is_found_out(tmp_path: Path) -> None:
    name = "forgets what is ahead"
    report: PolicyReport = await play(Game(10, SEED, place=Place(is_apart=False, variant=name)), tmp_path)
    assert VARIANTS[name].laws & set(report.laws())


def test_what_was_broken_is_whole_again_at_the_end() -> None:
    for variant in VARIANTS.values():
        owner, attribute, _ = variant.plant()
        honest = getattr(owner, attribute)
        with planted(next(name for name, one in VARIANTS.items() if one is variant)):
            assert getattr(owner, attribute) is not honest
        assert getattr(owner, attribute) is honest


OPENED: dict[str, AbstractAsyncContextManager[ScanningDetector]] = {
    "pii": open_pii_detector({"entities": ["EmailAddress", "IBAN", "CreditCard"]}),
    "keys": open_secrets_detector({}),
    "names": open_keywords_detector({"keywords": list(NAMES)}),
    "phrases": open_keywords_detector({"keywords": list(PHRASES)}),
    "noted": open_regex_detector({"patterns": list(NOTED)}),
}


@pytest.mark.parametrize("eye", OPENED)
async def test_detectors_find_in_the_marks_what_the_catalogue_says(eye: str) -> None:
    async with OPENED[eye] as detector:
        reading = detector.accept({}, ())
        for seed in range(5):
            for mark in draw_catalogue(seed):
                [found] = await reading.read([Excerpt(f"Bax {mark.text} dux.", "")])
                wanted = [(4 + one.start, 4 + one.end) for one in mark.finds if one.eye == eye]
                assert [(one.start, one.end) for one in found] == wanted, mark


def test_distant_detectors_find_in_the_marks_what_the_catalogue_says() -> None:
    for mark in draw_catalogue(SEED):
        codes = [one.span() for one in CODE.finditer(mark.text)]
        tags = [one.span(group) for one in TAG.finditer(mark.text) for group in (1, 2) if one[group]]
        assert codes == [(one.start, one.end) for one in mark.finds if one.eye == "codes"]
        assert tags == [(one.start, one.end) for one in mark.finds if one.eye == "tags"]


def test_marks_are_the_same_in_json() -> None:
    for mark in draw_catalogue(SEED):
        assert json.loads(f'"{mark.written}"') == mark.text


def test_streams_take_every_place_of_every_mark_in_turn() -> None:
    numbers = [number for number in range(30) if number % PERIOD < COVERING]
    cut = set().union(*[list_cuts(draw_plan(number, SEED)) for number in numbers])
    for form, count in ((PLAIN, 4), (JSON, 7)):
        due = list_due(SEED, form)[: count * len(numbers)]
        assert {(slot.mark.name, form, slot.place) for slot in due} <= cut
    assert all(count_needed(seed) <= 1000 for seed in range(20))


def test_plans_cover_what_they_are_to_cover() -> None:
    plans = [draw_plan(number, SEED) for number in range(100)]
    lanes = [lane for plan in plans for lane in plan.lanes]
    fields = {lane.field.rpartition("/")[2] for lane in lanes}
    assert fields == {"content", "text", "reasoning_content", "refusal", "arguments", "input"}
    assert {plan.policy.name for plan in plans} >= {f"all-{mask}" for mask in MASKS}
    assert len({plan.policy.name for plan in plans}) > len(MASKING) // 2
    assert {len(plan.finishes) for plan in plans} == {1, 2, 3}
    assert {call.kind for plan in plans for call in plan.calls} == {"function", "custom", "function_call"}
    assert any(plan.is_poisoned for plan in plans)
    assert any(plan.is_broken for plan in plans)
    assert any(plan.prompt.finds for plan in plans)


def test_the_example_of_the_specification_passes_and_no_tampered_copy_does() -> None:
    page = (ROOT / "docs" / "receipts.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("data: {")]
    receipt = json.loads(lines[-1][6:])["receipt"]
    for name, tamper in {"": lambda *_: True, **TAMPERINGS}.items():
        events = [json.loads(line[6:]) for line in lines]
        assert tamper(random.Random(SEED), events)
        assert verify(events, receipt) is verify_as_server(events, receipt) is (name == ""), name


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("Ask [EMAIL] now.", ""),
        ("Ask kir[EMAIL] now.", "leak"),
        ("Ask [EMAIL].org now.", "leak"),
        ("Ask [MAIL] now.", "mask"),
        ("Ask [EMAIL] no.", "text"),
        ("Ask [EMAIL] now. More", "text"),
    ],
)
def test_the_judge_says_what_is_wrong_with_a_text(text: str, law: str) -> None:
    found = compare([Part("Ask "), Part("[EMAIL]", "kira@bax.org"), Part(" now.")], text, None)
    assert (found[0] if isinstance(found, tuple) else "") == law


def test_made_up_names_are_the_same_for_the_same_value() -> None:
    parts = [Part("Ask "), Part(None, "kira@bax.org"), Part(" or "), Part(None, "kira@bax.org"), Part(".")]
    assert compare(parts, "Ask heron@x.com or heron@x.com.", None) == {"kira@bax.org": "heron@x.com"}
    assert isinstance(compare(parts, "Ask heron@x.com or maple@x.com.", None), tuple)
    assert isinstance(compare(parts, "Ask heron@x.com or heron@x.com.", {"kira@bax.org": "maple@x.com"}), tuple)
