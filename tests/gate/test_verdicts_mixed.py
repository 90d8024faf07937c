# SPDX-License-Identifier: Apache-2.0
"""The laws of verdicts where each detector has an action of its own, under all three kinds of masks, and in shadow."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.values import Detection
from lockgate.gate.verdicts import MASK_CHARACTER, Action, Judge, MaskWith, Measures, Verdict, judge_whole
from tests.gate.test_masks import CUTS, LETTERS, WAYS, Case, cases
from tests.gate.test_verdicts import find_sentence

DETECTORS = ("a", "b", "c")
FALLBACK = "[WITHHELD]"
ACTIONS = st.sampled_from(Action)


@st.composite
def mixed(draw: st.DrawFn) -> Case:
    """Findings of several detectors, which tell what they found in every field that may."""
    case = draw(cases(draw(st.sampled_from([0, 3, 4]))))
    names = draw(st.lists(st.sampled_from(DETECTORS), min_size=len(case.found), max_size=len(case.found)))
    case.found = [
        (_tell_all(one._replace(detector_id=name)), early) for (one, early), name in zip(case.found, names, strict=True)
    ]
    return case


def _tell_all(one: Detection) -> Detection:
    word = one.text
    metadata = {"rule": f"<{word}>", "reason": word[1:], "list": [word, {"x": word}], "n": 1}
    return one._replace(evidence=({"name": "seen", "value": word},), metadata=metadata)


@st.composite
def measures(draw: st.DrawFn) -> Measures:
    """Any mixture: one action for all, others for some, or one for each."""
    some = st.dictionaries(st.sampled_from(DETECTORS), ACTIONS)
    each = st.permutations(list(Action)).map(lambda actions: dict(zip(DETECTORS, actions, strict=False)))
    return Measures(draw(ACTIONS), draw(some | each), draw(WAYS), FALLBACK)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Measures, Measures]:
    """Two that differ only in that the second is stricter for some detectors."""
    mild = draw(measures())
    stricter = {name: draw(st.sampled_from([one for one in Action if one >= mild.of(name)])) for name in DETECTORS}
    return mild, mild._replace(actions=stricter)


def _judge(case: Case, how: Measures) -> tuple[list[Verdict], Judge]:
    judge = Judge(how, None, find_sentence)
    return [judge.judge(start, text, found) for start, text, found in case.releases()], judge


def _own(verdicts: list[Verdict]) -> set[str]:
    """The letters that left."""
    return set(LETTERS) & set("".join([verdict.body for verdict in verdicts]))


@given(mixed(), pairs(), WAYS, WAYS)
def test_a_stricter_policy_never_releases_more(
    case: Case, two: tuple[Measures, Measures], one: MaskWith, other: MaskWith
) -> None:
    mild, strict = _judge(case, two[0]._replace(mask_with=one))[0], _judge(case, two[1]._replace(mask_with=other))[0]
    assert sum(verdict.kept for verdict in strict) <= sum(verdict.kept for verdict in mild)
    assert _own(strict) <= _own(mild)


@given(mixed(), measures())
def test_nothing_leaves_that_a_detector_hides_whatever_the_others_say(case: Case, how: Measures) -> None:
    for one, _ in case.found:
        if how.of(one.detector_id) is not Action.ANNOTATE:
            assert not _own(_judge(case, how)[0]) & set(one.text)


@given(mixed(), measures())
def test_findings_that_are_only_told_change_nothing(case: Case, how: Measures) -> None:
    rest = Case(
        case.text, case.borders, [pair for pair in case.found if how.of(pair[0].detector_id) is not Action.ANNOTATE]
    )
    said = [[(one.text, one.is_blocked, one.kept, one.masks) for one in _judge(each, how)[0]] for each in (case, rest)]
    assert said[0] == said[1]


@given(mixed(), measures(), CUTS)
def test_what_is_done_is_what_the_strictest_finding_calls_for(case: Case, how: Measures, cuts: set[int]) -> None:
    verdicts, judge = _judge(case.recut(cuts), how)
    strictest_action = max([how.of(one.detector_id) for one, _ in case.found], default=Action.ANNOTATE)
    assert judge.strictest_action is strictest_action is how.strictest([one.detector_id for one, _ in case.found])
    assert verdicts[-1].is_blocked == (strictest_action >= Action.STOP)
    if strictest_action is Action.ANNOTATE:
        assert "".join([verdict.text for verdict in verdicts]) == case.text
    assert not any(verdict.masks for verdict in verdicts) or Action.MASK in map(how.of, DETECTORS)


@given(mixed(), measures())
def test_shadow_changes_nothing_and_tells_nothing_but_what_it_would_have_done(case: Case, how: Measures) -> None:
    verdicts, judge = _judge(case, how._replace(is_shadow=True))
    assert verdicts == [Verdict(text, kept=len(text)) for _, text, _ in case.releases()]
    assert judge.strictest_action is _judge(case, how)[1].strictest_action
    whole = judge_whole(case.text, [one for one, _ in case.found], how._replace(is_shadow=True))
    assert whole == Verdict(case.text, kept=len(case.text))


def _tells(one: Detection) -> set[str]:
    metadata: Mapping[str, object] = one.metadata or {}
    values = [one.text, *[each["value"] for each in one.evidence], *map(str, metadata.values())]
    return set(LETTERS.replace(" ", "")) & set("".join(values))


@given(mixed(), measures())
def test_a_finding_tells_only_what_has_left_in_the_clear(case: Case, how: Measures) -> None:
    verdicts = _judge(case, how)[0]
    if max([how.action, *how.actions.values()]) is Action.ANNOTATE:
        return
    for turn, verdict in enumerate(verdicts):
        for one in verdict.detections:
            assert _tells(one) <= _own(verdicts[: turn + 1])


@given(mixed(), measures())
def test_a_finding_whose_text_has_just_left_tells_it(case: Case, how: Measures) -> None:
    given_ = [found for _, _, found in case.releases()]
    for (start, _, _), found, verdict in zip(case.releases(), given_, _judge(case, how)[0], strict=True):
        for one, told in zip(found, verdict.detections, strict=True):
            is_clear = start <= one.start < one.end <= start + verdict.kept and not any(
                mask.start < one.end and one.start < mask.end for mask in verdict.masks
            )
            if is_clear:
                assert told == one


@given(mixed(), measures())
def test_every_finding_is_told_once_with_its_place_kind_and_score(case: Case, how: Measures) -> None:
    for (_, _, found), verdict in zip(case.releases(), _judge(case, how)[0], strict=True):
        assert [one[:2] + one[4:7] for one in verdict.detections] == [one[:2] + one[4:7] for one in found]
        for told, one in zip(verdict.detections, found, strict=True):
            quotes = len(one.text) >= 3 and one.text.casefold() in one.detection.casefold()
            assert told.detection == one.detection or (quotes and set(told.detection) == {MASK_CHARACTER})
        assert [len(one.text) for one in verdict.detections] == [len(one.text) for one in found]
        assert all((one.metadata or {})["n"] == 1 for one in verdict.detections)


def test_a_policy_of_measures_answers_for_each_detector() -> None:
    how = Measures(Action.MASK, {"a": Action.ANNOTATE, "b": Action.BLOCK})
    assert [how.of(name) for name in DETECTORS] == [Action.ANNOTATE, Action.BLOCK, Action.MASK]
    assert how.strictest(["a", "c"]) is Action.MASK
    assert how.strictest([]) is Action.ANNOTATE
    assert not how.changes_text(["a"])
    assert how.changes_text(["a", "c"])
    assert not how._replace(is_shadow=True).changes_text(DETECTORS)


def test_where_a_text_ends_in_a_mask_the_mask_is_written_and_nothing_of_the_text() -> None:
    found = [Detection(2, 8, "secret", "Key", "", 1.0, "a"), Detection(5, 7, "re", "Word", "", 1.0, "b")]
    for way, expected in (
        (MaskWith.BLOCK, "a " + MASK_CHARACTER * 3),
        (MaskWith.LABEL, "a [KEY]"),
        (MaskWith.PSEUDONYM, "a key-heron"),
    ):
        how = Measures(Action.ANNOTATE, {"a": Action.MASK, "b": Action.STOP}, way, FALLBACK)
        verdict = judge_whole("a secret b", found, how, None, lambda _, at: at)
        assert (verdict.text, verdict.kept, verdict.is_blocked) == (f"{expected}\n{FALLBACK}", 5, True)


def test_a_callers_own_pattern_learns_nothing_of_what_is_hidden() -> None:
    """Who names a detector besides a policy is told only of what has left in the clear, and changes nothing."""
    how = Measures(Action.MASK, own=frozenset({"pii"}))
    address = Detection(5, 14, "ana@x.org", "Email", "pii", 0.9, "pii")
    letters = [
        Detection(at, at + 1, letter, f"is-{letter}", "regex", 1.0, "mine") for at, letter in enumerate("Mail ana@")
    ]
    verdict = judge_whole("Mail ana@x.org", [address, *letters], how)
    assert verdict.text == "Mail █████████"
    assert [one.detector_id for one in verdict.detections] == ["pii", *["mine"] * 5]
    assert judge_whole("Mail ana@x.org", letters, how).text == "Mail ana@x.org"
    blocked = judge_whole("Mail ana@x.org", [address, *letters], how._replace(action=Action.BLOCK))
    assert [one.detector_id for one in blocked.detections] == ["pii"]
