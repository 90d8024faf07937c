# SPDX-License-Identifier: Apache-2.0
"""Policies in the settings: what they become, what is refused, and what `lockgate check` shows of them."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockgate.chunkers.machines import MachineChunker
from lockgate.chunkers.sentences import SentenceMachine, load_stop_judge
from lockgate.config.load import load_settings
from lockgate.config.policies import PolicySettings
from lockgate.config.report import render_check, render_yaml
from lockgate.config.settings import Settings
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import Action, DocumentAction, judge_whole
from lockgate.guard.policy import Chunking, find_sentence
from tests.config.config_cases import PII, Loader

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
DETECTORS = """
detectors:
  pii: {embedded: pii}
  whole: {embedded: format}
  chat: {embedded: pii, type: text_chat}
  generated: {embedded: pii, type: text_generation}
  context: {embedded: pii, type: text_context_doc}
  context2: {embedded: pii, type: text_context_doc}
"""
EVERY = f"""{DETECTORS}
policies:
  p:
    input: {{pii: {{threshold: 0.8, entities: [EmailAddress]}}}}
    documents: {{pii: {{}}}}
    output: {{pii: }}
    grounding: {{context: {{}}, context2: {{}}}}
    on_finding: {{input: block, documents: drop, output: mask}}
    fallback: Ask us by phone.
    on_detector_failure: pass
"""


def _policy(loader: Loader, keys: str) -> PolicySettings:
    return loader.load(f"{DETECTORS}policies: {{p: {{{keys}}}}}").policies["p"]


def _faults(loader: Loader, keys: str) -> list[str]:
    return [fault.removeprefix("config.yaml: ") for fault in loader.faults(f"{DETECTORS}policies: {{p: {{{keys}}}}}")]


def _actions(policy: PolicySettings) -> tuple[Action, DocumentAction, Action]:
    return policy.on_input, policy.on_documents, policy.on_output


def test_a_policy_says_who_reads_what_and_what_follows(loader: Loader) -> None:  # D-23
    policy = loader.load(EVERY).policies["p"]
    assert policy.name == "p"
    assert policy.input == {"pii": {"threshold": 0.8, "entities": ["EmailAddress"]}}
    assert (policy.documents, policy.output) == ({"pii": {}}, {"pii": {}})
    assert list(policy.grounding) == ["context", "context2"]
    assert policy.on_grounding is Action.ANNOTATE
    assert _actions(policy) == (Action.BLOCK, DocumentAction.DROP, Action.MASK)
    assert (policy.fallback, policy.passes_failures) == ("Ask us by phone.", True)


def test_a_policy_only_reports_unless_it_says_more(loader: Loader) -> None:
    policy = _policy(loader, "output: {pii: {}}")
    assert _actions(policy) == (Action.ANNOTATE, DocumentAction.FLAG, Action.ANNOTATE)
    assert (policy.fallback, policy.passes_failures) == ("This answer was withheld.", False)
    assert policy == PolicySettings("p", output={"pii": {}})


def test_without_policies_there_are_none(loader: Loader) -> None:
    assert loader.load(PII).policies == Settings().policies == {}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("annotate", (Action.ANNOTATE, DocumentAction.FLAG, Action.ANNOTATE)),
        ("mask", (Action.MASK, DocumentAction.MASK, Action.MASK)),
        ("block", (Action.BLOCK, DocumentAction.DROP, Action.BLOCK)),
        ("stop", (Action.BLOCK, DocumentAction.DROP, Action.STOP)),
    ],
)
def test_one_word_speaks_for_every_section(loader: Loader, word: str, expected: Any) -> None:
    text = f"input: {{pii: {{}}}}, documents: {{pii: {{}}}}, output: {{pii: {{}}}}, on_finding: {word}"
    assert _actions(_policy(loader, text)) == expected


def test_a_map_speaks_for_the_sections_that_it_names(loader: Loader) -> None:
    keys = "input: {pii: {}}, documents: {pii: {}}, output: {pii: {}}, on_finding: {output: stop}"
    assert _actions(_policy(loader, keys)) == (Action.ANNOTATE, DocumentAction.FLAG, Action.STOP)


@pytest.mark.parametrize("word", ["flag", "drop"])
def test_a_word_for_documents_may_stand_alone_where_there_is_nothing_else(loader: Loader, word: str) -> None:
    expected = (Action.ANNOTATE, DocumentAction[word.upper()], Action.ANNOTATE)
    assert _actions(_policy(loader, f"documents: {{pii: {{}}}}, on_finding: {word}")) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("input: {pi: {}}", "input.pi: detector `pi` not found; did you mean `pii`?"),
        ("input: {chat: {}}", "input.chat: detector `chat` is of type text_chat; `input` needs text_contents"),
        ("documents: {context: {}}", "documents.context: detector `context` is of type text_context_doc; `documents` "
         "needs text_contents"),
        ("output: {context: {}}", "output.context: detector `context` is of type text_context_doc; `output` needs "
         "text_contents or text_chat or text_generation"),
        ("grounding: {pii: {}}", "grounding.pii: detector `pii` is of type text_contents; `grounding` needs "
         "text_context_doc"),
        ("grounding: {generated: {}}", "grounding.generated: detector `generated` is of type text_generation; "
         "`grounding` needs text_context_doc"),
        ("input: {pii: {threshold: high}}", "input.pii.threshold: must be a number, not a string"),
        ("input: {pii: {threshold: true}}", "input.pii.threshold: must be a number, not a boolean"),
        ("input: {pii: 0.5}", "input.pii: must be a map, not a number"),
        ("input: [pii]", "input: must be a map, not a list"),
        ("on_finding: hide", "on_finding: must be one of annotate, mask, stop, block, not `hide`"),
        ("on_finding: blok", "on_finding: must be one of annotate, mask, stop, block, not `blok`; "
         "did you mean `block`?"),
        ("on_finding: 1", "on_finding: must be one of annotate, mask, stop, block, or a map, not an integer"),
        ("on_finding: drop, input: {pii: {}}, documents: {pii: {}}",
         "on_finding: `drop` is for documents only: write `{documents: drop}`"),
        ("on_finding: flag", "on_finding: `flag` is for documents only: write `{documents: flag}`"),
        ("on_finding: {input: drop}", "on_finding.input: must be one of annotate, mask, stop, block, not `drop`"),
        ("on_finding: {documents: block}", "on_finding.documents: must be one of flag, mask, drop, not `block`"),
        ("on_finding: {output: }", "on_finding.output: must be one of annotate, mask, stop, block, not null"),
        ("on_finding: {grounding: drop}",
         "on_finding.grounding: must be one of annotate, mask, stop, block, not `drop`"),
        ("on_finding: drop, documents: {pii: {}}, grounding: {context: {}}",
         "on_finding: `drop` is for documents only: write `{documents: drop}`"),
        ("on_finding: {answer: block}",
         "on_finding.answer: no such section; on_finding has input, documents, output, grounding"),
        ("fallback: [a]", "fallback: must be a string, not a list"),
        ("on_detector_failure: ignore", "on_detector_failure: must be one of fail, pass, not `ignore`"),
    ],
)  # fmt: skip
def test_what_a_policy_cannot_mean_is_refused_with_its_place(loader: Loader, keys: str, expected: str) -> None:
    assert _faults(loader, keys) == [f"policies.p.{expected}"]


@pytest.mark.parametrize("word", ["mask", "stop", "block"])
@pytest.mark.parametrize("detector", ["chat", "generated"])
def test_text_is_not_changed_by_a_detector_that_reads_it_at_its_end(loader: Loader, word: str, detector: str) -> None:
    kind = {"chat": "text_chat", "generated": "text_generation"}[detector]
    assert _faults(loader, f"output: {{pii: {{}}, {detector}: {{}}}}, on_finding: {{output: {word}}}") == [
        f"policies.p.output.{detector}: a detector of type {kind} reads the answer only when it is complete, "
        f"too late to {word} it: use annotate, or a detector of type text_contents"
    ]
    assert _policy(loader, f"output: {{pii: {{}}, {detector}: {{}}}}").on_output is Action.ANNOTATE


@pytest.mark.parametrize("said", ["mask", "{grounding: mask}", "{output: stop, grounding: mask}"])
def test_what_compares_answer_and_documents_has_its_own_word(loader: Loader, said: str) -> None:
    policy = _policy(loader, f"output: {{pii: {{}}}}, grounding: {{context: {{}}}}, on_finding: {said}")
    assert policy.on_grounding is Action.MASK
    assert policy.actions()["grounding"] == "mask"
    assert _policy(loader, "grounding: {context: {}}, on_finding: stop").on_grounding is Action.STOP


@pytest.mark.parametrize("word", ["mask", "stop", "block"])
def test_what_reports_at_the_end_of_an_answer_cannot_change_it(loader: Loader, word: str) -> None:
    policies = "policies: {p: {grounding: {context: {}}, on_finding: WORD}}\ngrounding: trail".replace("WORD", word)
    fault = (
        "config.yaml: policies.p.on_finding.grounding: with `grounding: trail` its findings come when the answer has "
        f"left, too late to {word} it: use annotate, or `grounding: hold`"
    )
    assert loader.faults(DETECTORS + policies) == [fault]
    assert loader.faults(DETECTORS + policies.replace(word, f"{{grounding: {word}}}")) == [fault]
    loader.load(DETECTORS + policies.replace("trail", "hold"))
    loader.load(DETECTORS + policies.replace(word, "annotate"))
    loader.load(DETECTORS + policies.replace("grounding: {context: {}}", "output: {pii: {}}"))


def test_a_policy_needs_a_name_and_a_map(loader: Loader) -> None:
    assert loader.faults(f"{PII}policies: {{'': {{input: {{pii: {{}}}}}}}}") == [
        "config.yaml: policies.: a policy needs a name: the key must not be empty"
    ]
    assert loader.faults(f"{PII}policies: {{p: mask}}") == ["config.yaml: policies.p: must be a map, not a string"]
    assert loader.faults(f"{PII}policies: mask") == ["config.yaml: policies: must be a map, not a string"]


def test_faults_of_policies_are_told_with_all_others(loader: Loader) -> None:
    text = """
detectors: {pii: {embedded: pii}, broken: {type: text_chat}}
policies: {a: {input: {broken: {}, gone: {}}, on_finding: no}, b: {output: {pii: {threshold: x}}}}
limits: {body_bytes: 0}
"""
    assert [fault.removeprefix("config.yaml: ") for fault in loader.faults(text)] == [
        "detectors.broken.chunker_id: is required",
        "detectors.broken.default_threshold: is required",
        "detectors.broken: needs `service` (a remote detector) or `embedded` (one inside Lockgate)",
        "policies.a.input.gone: detector `gone` not found; add it to `detectors`, or name another",
        "policies.a.on_finding: must be one of annotate, mask, stop, block, not `no`",
        "policies.b.output.pii.threshold: must be a number, not a string",
        "limits.body_bytes: must be at least 1",
    ]


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ("", "policies.p has no detectors: it guards nothing"),
        ("output: {pii: {}}, on_detector_failure: pass",
         "policies.p.on_detector_failure is pass: when a detector fails, text leaves unread"),
        ("output: {pii: {}}, on_finding: {input: block}",
         "policies.p.on_finding.input has no effect: the policy has no detectors of `input`"),
        ("output: {whole: {}}, on_finding: mask",
         "policies.p.output.whole reads the whole answer: with mask, all of a stream waits for its end"),
    ],
)  # fmt: skip
def test_what_may_surprise_is_a_warning(loader: Loader, keys: str, warning: str) -> None:
    assert loader.load(f"{DETECTORS}policies: {{p: {{{keys}}}}}").warnings == (warning,)


def test_a_variable_changes_a_policy(loader: Loader) -> None:
    variables = {
        "LOCKGATE_POLICIES__P__ON_FINDING": "mask",
        "LOCKGATE_POLICIES__P__FALLBACK": "No.",
        "LOCKGATE_POLICIES__P__OUTPUT__PII__THRESHOLD": "0.9",
    }
    policy = loader.load(EVERY, variables).policies["p"]
    assert _actions(policy) == (Action.MASK, DocumentAction.MASK, Action.MASK)
    assert (policy.fallback, policy.output) == ("No.", {"pii": {"threshold": 0.9}})
    by_section = {"LOCKGATE_POLICIES__P__ON_FINDING": "{output: stop}"}
    assert loader.load(EVERY, by_section).policies["p"].on_output is Action.STOP


def test_policies_can_be_served_and_are_shown(loader: Loader) -> None:
    settings = loader.load(f"{EVERY}  q: {{output: {{pii: {{}}}}, on_finding: stop}}\n")
    shown = render_check(settings).split("Policies\n")[1].split("\n\n")[0].splitlines()
    assert [re.split("  +", line.strip()) for line in shown] == [
        ["name", "mode", "input", "documents", "output", "grounding", "mask with", "lanes", "default of"],
        [
            "p",
            "enforce",
            "pii (block, may fail)",
            "pii (drop, may fail)",
            "pii (mask, may fail)",
            "context (annotate, may fail), context2 (annotate, may fail)",
            "block",
            "content, reasoning, tool_arguments",
            "-",
        ],
        ["q", "enforce", "-", "-", "pii (stop)", "-", "block", "content, reasoning, tool_arguments", "-"],
    ]
    assert "Policies" not in render_check(loader.load(PII))


def test_what_check_prints_means_the_same_when_it_is_loaded(loader: Loader, tmp_path: Path) -> None:
    text = f"{EVERY}  q: {{input: {{pii: {{}}}}, on_finding: stop}}\n  r: {{grounding: {{context: {{}}}}}}\n"
    settings = loader.load(text)
    again = tmp_path / "again.yaml"
    again.write_text(render_yaml(settings))
    resolved = load_settings(config_path=again, flags={}, environ={"HOME": "/home/someone"})
    assert render_yaml(resolved) == render_yaml(settings)
    assert resolved.warnings == settings.warnings
    assert resolved.policies["p"] == settings.policies["p"]
    assert resolved.policies["q"].on_input is Action.BLOCK


def test_no_secret_of_a_policy_is_shown(loader: Loader) -> None:
    settings = loader.load(f"{DETECTORS}policies: {{p: {{input: {{pii: {{api_key: hunter2}}}}}}}}")
    assert "hunter2" not in render_check(settings)


def test_the_page_shows_what_each_action_does() -> None:
    page = PAGE.read_text(encoding="utf-8")
    said = re.search(r"^Of `(.+)` with the finding `(.+)`", page, re.MULTILINE)
    assert said
    text, word = said[1], said[2]
    found = [Detection(text.index(word), text.index(word) + len(word), word, "Keyword", "keyword", 1.0)]
    table = page.split("The client reads")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+)` \|$", table, re.MULTILINE))
    found = [one._replace(detector_id="words") for one in found]
    measures = [PolicySettings("p", output={"words": {}}, on_output=one).measures("output") for one in Action]
    sentences = partial(
        find_sentence, Chunking("sentence", MachineChunker(partial(SentenceMachine, 2000, load_stop_judge())))
    )
    shown = {one.action.name.lower(): judge_whole(text, found, one, None, sentences).text for one in measures}
    assert rows == {name: text.replace("\n", "↵") for name, text in shown.items()}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "policies: {p: {outptu: {pii: {}}, input: {pii: {}}}}",
            "config.yaml: policies.p.outptu: no such key; did you mean `output`?",
        ),
        ("polices: {}", "config.yaml: polices: no such key; did you mean `policies`?"),
        ("agnets: {}", "config.yaml: agnets: no such key; did you mean `agents`?"),
    ],
)
def test_a_typo_that_would_leave_something_unguarded_is_a_fault(loader: Loader, text: str, fault: str) -> None:
    assert loader.faults(DETECTORS + text) == [fault]
