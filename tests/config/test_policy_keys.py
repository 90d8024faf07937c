# SPDX-License-Identifier: Apache-2.0
"""Every key of a policy that says how it acts, the words of single detectors, and whose default a policy is."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.config.load import load_settings
from lockgate.config.policies import SECTION_TYPES, PolicySettings
from lockgate.config.report import describe_policy, render_check, render_yaml
from lockgate.config.settings import Settings
from lockgate.gate.verdicts import Action, DocumentAction, MaskWith, Measures
from tests.config.config_cases import HOME, PII, Loader

DETECTORS = """
detectors:
  pii: {embedded: pii}
  more: {embedded: pii}
  whole: {embedded: format}
  chat: {embedded: pii, type: text_chat}
  context: {embedded: pii, type: text_context_doc}
"""
UPSTREAM = "{url: 'http://h', model: m}"
BACKEND = "openai: {service: {hostname: h, port: 1}, policies: {POLICIES}}\n"
GUARDED = f"{PII}policies: {{strict: {{input: {{pii: {{}}}}}}, watch: {{input: {{pii: {{}}}}}}}}\n"


def _load(loader: Loader, keys: str) -> Settings:
    return loader.load(f"{DETECTORS}policies: {{p: {{{keys}}}}}")


def _policy(loader: Loader, keys: str) -> PolicySettings:
    return _load(loader, keys).policies["p"]


def _faults(loader: Loader, keys: str, more: str = "") -> list[str]:
    faults = loader.faults(f"{DETECTORS}policies: {{p: {{{keys}}}}}\n{more}")
    return [fault.removeprefix("config.yaml: policies.p.") for fault in faults]


# Mode, masks, lanes, speculation.


def test_a_policy_enforces_with_blocks_in_all_lanes_unless_it_says_otherwise(loader: Loader) -> None:
    policy = _policy(loader, "output: {pii: {}}")
    assert (policy.is_shadow, policy.mask_with, policy.is_speculative) == (False, MaskWith.BLOCK, False)
    assert policy.lanes == ("content", "reasoning", "tool_arguments")
    assert (policy.own_actions, policy.own_failures) == ({}, {})


@pytest.mark.parametrize(("word", "is_shadow"), [("enforce", False), ("shadow", True)])
def test_the_mode_is_one_of_two_words(loader: Loader, word: str, *, is_shadow: bool) -> None:
    policy = _policy(loader, f"output: {{pii: {{}}}}, on_finding: block, mode: {word}")
    assert policy.is_shadow is is_shadow
    assert [policy.measures(section).is_shadow for section in ("input", "documents", "output", "grounding")] == [
        is_shadow
    ] * 4
    assert policy.on_output is Action.BLOCK


@pytest.mark.parametrize("way", list(MaskWith))
def test_masks_are_written_in_one_of_three_ways(loader: Loader, way: MaskWith) -> None:
    policy = _policy(loader, f"output: {{pii: {{}}}}, on_finding: mask, mask_with: {way.value}")
    assert policy.mask_with is way
    assert policy.measures("output") == Measures(
        Action.MASK, {}, way, "This answer was withheld.", own=frozenset({"pii"})
    )


@pytest.mark.parametrize(
    ("said", "lanes"),
    [
        ("[content]", ("content",)),
        ("[tool_arguments, content]", ("content", "tool_arguments")),
        ("[reasoning, reasoning]", ("reasoning",)),
        ("[Content, REASONING, tool_arguments]", ("content", "reasoning", "tool_arguments")),
        ("[]", ()),
    ],
)
def test_lanes_stand_in_one_order_whatever_was_written(loader: Loader, said: str, lanes: tuple[str, ...]) -> None:
    assert _policy(loader, f"output: {{pii: {{}}}}, lanes: {said}").lanes == lanes


def test_a_policy_may_let_the_model_begin_early(loader: Loader) -> None:
    assert _policy(loader, "input: {pii: {}}, speculative: true").is_speculative
    assert not _policy(loader, "input: {pii: {}}, speculative: false").is_speculative


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("mode: shade", "mode: must be one of enforce, shadow, not `shade`; did you mean `shadow`?"),
        ("mode: [shadow]", "mode: must be one of enforce, shadow, not a list"),
        ("mask_with: stars", "mask_with: must be one of block, label, pseudonym, not `stars`"),
        ("mask_with: labels",
         "mask_with: must be one of block, label, pseudonym, not `labels`; did you mean `label`?"),
        ("lanes: content", "lanes: must be a list of strings, not a string"),
        ("lanes: [content, tools]", "lanes: must be one of content, reasoning, tool_arguments, not `tools`"),
        ("lanes: [[content]]", "lanes: must be a string, not a list"),
        ("speculative: maybe", "speculative: must be true or false, not a string"),
        ("specultive: true", "specultive: no such key; did you mean `speculative`?"),
        ("maskwith: label", "maskwith: no such key; did you mean `mask_with`?"),
    ],
)  # fmt: skip
def test_a_word_that_is_none_is_refused_with_its_place(loader: Loader, keys: str, expected: str) -> None:
    assert _faults(loader, f"output: {{pii: {{}}}}, {keys}") == [expected]


# Single detectors.


@pytest.mark.parametrize(
    ("section", "word", "action"),
    [
        ("input", "annotate", Action.ANNOTATE),
        ("input", "mask", Action.MASK),
        ("input", "stop", Action.BLOCK),  # of a question nothing goes back to the client
        ("input", "block", Action.BLOCK),
        ("documents", "flag", DocumentAction.FLAG),
        ("documents", "mask", DocumentAction.MASK),
        ("documents", "drop", DocumentAction.DROP),
        ("output", "annotate", Action.ANNOTATE),
        ("output", "mask", Action.MASK),
        ("output", "stop", Action.STOP),
        ("output", "block", Action.BLOCK),
    ],
)
def test_a_detector_has_a_word_of_its_own_for_findings(loader: Loader, section: str, word: str, action: Any) -> None:
    policy = _policy(loader, f"{section}: {{pii: {{on_finding: {word}, threshold: 0.7}}, more: {{}}}}")
    assert policy.own_actions == {section: {"pii": action}}
    assert getattr(policy, section) == {"pii": {"threshold": 0.7}, "more": {}}  # it is no parameter of the detector
    measures = policy.measures(section)
    as_text = {"flag": Action.ANNOTATE, "drop": Action.BLOCK}.get(word, action)
    assert (measures.of("pii"), measures.of("more")) == (as_text, Action.ANNOTATE)
    assert policy.action(section, "pii") == action.name.lower()
    assert (
        policy.action(section, "more") == policy.action(section) == ("flag" if section == "documents" else "annotate")
    )


def test_a_detectors_own_word_counts_more_than_that_of_all(loader: Loader) -> None:
    keys = (
        "output: {pii: {on_finding: annotate}, more: {}}, grounding: {context: {on_finding: stop}}, on_finding: block"
    )
    policy = _policy(loader, keys)
    assert policy.measures("output") == Measures(
        Action.BLOCK, {"pii": Action.ANNOTATE}, fallback="This answer was withheld.", own=frozenset({"pii", "more"})
    )
    assert policy.measures("grounding").of("context") is Action.STOP
    assert policy.actions() == {"output": "block", "grounding": "block"}


@pytest.mark.parametrize("for_all", ["fail", "pass"])
def test_a_detector_has_a_word_of_its_own_for_its_failure(loader: Loader, for_all: str) -> None:
    keys = (
        "input: {pii: {on_detector_failure: pass}, more: {}}, output: {pii: {on_detector_failure: fail}}, "
        "documents: {pii: {}}, grounding: {context: {on_detector_failure: pass}}, "
        f"on_detector_failure: {for_all}"
    )
    policy = _policy(loader, keys)
    assert policy.own_failures == {"input": {"pii": True}, "output": {"pii": False}, "grounding": {"context": True}}
    passes = for_all == "pass"
    assert [policy.passes("input", name) for name in ("pii", "more")] == [True, passes]
    assert [policy.passes(section, "pii") for section in ("documents", "output")] == [passes, False]
    assert policy.passes("grounding", "context")
    assert policy.input == {"pii": {}, "more": {}}


def test_a_detector_may_have_a_limit_for_holding_a_text_that_is_no_parameter(loader: Loader) -> None:
    policy = _policy(loader, "input: {pii: {max_hold_ms: 250, threshold: 0.7}, more: {}}, output: {pii: {}}")
    assert policy.own_limits == {"input": {"pii": 250}}
    assert [policy.max_hold_s("input", name) for name in ("pii", "more")] == [0.25, None]
    assert policy.max_hold_s("output", "pii") is None
    assert policy.input == {"pii": {"threshold": 0.7}, "more": {}}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("input: {pii: {on_finding: drop}}",
         "input.pii.on_finding: must be one of annotate, mask, stop, block, not `drop`"),
        ("documents: {pii: {on_finding: block}}",
         "documents.pii.on_finding: must be one of flag, mask, drop, not `block`"),
        ("documents: {pii: {on_finding: annotate}}",
         "documents.pii.on_finding: must be one of flag, mask, drop, not `annotate`"),
        ("output: {pii: {on_finding: {output: mask}}}",
         "output.pii.on_finding: must be one of annotate, mask, stop, block, not a map"),
        ("output: {pii: {on_finding: }}",
         "output.pii.on_finding: must be one of annotate, mask, stop, block, not null"),
        ("grounding: {context: {on_finding: flag}}",
         "grounding.context.on_finding: must be one of annotate, mask, stop, block, not `flag`"),
        ("output: {pii: {on_detector_failure: ignore}}",
         "output.pii.on_detector_failure: must be one of fail, pass, not `ignore`"),
        ("output: {pii: {on_detector_failure: true}}",
         "output.pii.on_detector_failure: must be one of fail, pass, not a boolean"),
        ("output: {pii: {max_hold_ms: 0}}", "output.pii.max_hold_ms: must be at least 1"),
        ("output: {pii: {max_hold_ms: soon}}", "output.pii.max_hold_ms: must be an integer, not a string"),
        ("output: {chat: {on_finding: mask}}",
         "output.chat: a detector of type text_chat reads the answer only when it is complete, too late to mask it: "
         "use annotate, or a detector of type text_contents"),
    ],
)  # fmt: skip
def test_a_word_that_a_detector_cannot_have_is_refused_with_its_place(loader: Loader, keys: str, expected: str) -> None:
    assert _faults(loader, keys) == [expected]


def test_a_detector_that_reads_at_the_end_may_only_tell_while_others_act(loader: Loader) -> None:
    policy = _policy(loader, "output: {pii: {}, chat: {on_finding: annotate}}, on_finding: {output: mask}")
    assert (policy.measures("output").of("chat"), policy.measures("output").of("pii")) == (Action.ANNOTATE, Action.MASK)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ("grounding: {context: {on_finding: mask}}", "grounding.context.on_finding"),
        ("grounding: {context: {}}, on_finding: {grounding: mask}", "on_finding.grounding"),
    ],
)
def test_what_reports_at_the_end_is_refused_where_it_was_told_to_act(loader: Loader, keys: str, place: str) -> None:
    fault = "with `grounding: trail` its findings come when the answer has left, too late to mask it"
    assert _faults(loader, keys, "grounding: trail") == [f"{place}: {fault}: use annotate, or `grounding: hold`"]


def test_a_word_of_its_own_frees_a_detector_that_reports_at_the_end(loader: Loader) -> None:
    keys = "grounding: {context: {on_finding: annotate}}, on_finding: {grounding: mask}"
    policy = loader.load(f"{DETECTORS}policies: {{p: {{{keys}}}}}\ngrounding: trail").policies["p"]
    assert policy.measures("grounding").of("context") is Action.ANNOTATE


# Warnings.


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ("output: {pii: {}}, mode: shadow",
         "policies.p.mode is shadow: findings are reported and change nothing"),
        ("output: {pii: {on_detector_failure: pass}}",
         "policies.p.output.pii.on_detector_failure is pass: when the detector fails, text leaves unread"),
        ("output: {pii: {on_detector_failure: pass}}, on_detector_failure: pass",
         "policies.p.on_detector_failure is pass: when a detector fails, text leaves unread"),
        ("output: {pii: {}}, lanes: []", "policies.p.lanes is empty: no detector reads the model's answer"),
        ("output: {pii: {}}, sources: clear",
         "policies.p.sources is clear: documents leave in `sources` unread"),
        ("input: {pii: {}}, sources: clear",
         "policies.p.sources has no effect: the policy has no detectors of `output`"),
        ("output: {pii: {}}, speculative: true",
         "policies.p.speculative has no effect: the policy has no detectors of `input`"),
        ("output: {whole: {on_finding: stop}}",
         "policies.p.output.whole reads the whole answer: with stop, all of a stream waits for its end"),
    ],
)  # fmt: skip
def test_what_may_surprise_is_a_warning(loader: Loader, keys: str, warning: str) -> None:
    assert _load(loader, keys).warnings == (warning,)


@pytest.mark.parametrize(
    "keys",
    [
        "input: {pii: {}}, speculative: true",
        "input: {pii: {}}, lanes: []",
        "output: {pii: {on_detector_failure: fail}}",
        "output: {whole: {on_finding: annotate}}",
    ],
)
def test_what_cannot_surprise_is_no_warning(loader: Loader, keys: str) -> None:
    assert _load(loader, keys).warnings == ()


def test_in_shadow_nothing_waits_for_the_end(loader: Loader) -> None:
    warnings = _load(loader, "output: {whole: {}}, on_finding: stop, mode: shadow").warnings
    assert warnings == ("policies.p.mode is shadow: findings are reported and change nothing",)


def test_a_variable_changes_how_a_policy_acts(loader: Loader) -> None:
    name = "LOCKGATE_POLICIES__P__"
    variables = {
        f"{name}MODE": "shadow",
        f"{name}MASK_WITH": "label",
        f"{name}LANES": "content,tool_arguments",
        f"{name}SPECULATIVE": "true",
        f"{name}OUTPUT__PII__ON_FINDING": "stop",
        f"{name}OUTPUT__PII__ON_DETECTOR_FAILURE": "pass",
    }
    text = f"{DETECTORS}policies: {{p: {{input: {{pii: {{}}}}, output: {{pii: {{}}}}}}}}"
    policy = loader.load(text, variables).policies["p"]
    assert (policy.is_shadow, policy.mask_with, policy.is_speculative) == (True, MaskWith.LABEL, True)
    assert policy.lanes == ("content", "tool_arguments")
    assert (policy.action("output", "pii"), policy.passes("output", "pii")) == ("stop", True)


# What is printed.

EVERY_KEY = """policies:
  p:
    mode: shadow
    input:
      pii: {threshold: 0.8, on_finding: mask, on_detector_failure: pass}
      more: {roles: [user, tool], threshold: {user: 0.9}}
    documents: {pii: {on_finding: drop}}
    output: {pii: {on_finding: stop}, more: {on_detector_failure: pass, max_hold_ms: 500}}
    grounding: {context: {on_finding: annotate}}
    on_finding: {input: block, documents: mask, output: mask, grounding: mask}
    mask_with: pseudonym
    lanes: [tool_arguments, content]
    fallback: No.
    on_detector_failure: fail
    speculative: true
    sources: clear
    grounding_without_documents: refuse
    unreadable: {image: pass, file: refuse}
    tool_results: block
"""


def test_every_key_is_printed_as_it_can_be_written(loader: Loader) -> None:
    keys = loader.load(DETECTORS + EVERY_KEY).policies["p"].as_keys()
    written = yaml.safe_load(EVERY_KEY)["policies"]["p"]
    written["lanes"] = ["content", "tool_arguments"]
    assert keys == written
    assert next(iter(keys)) == "mode"


FAILING = st.sampled_from([{}, {"on_detector_failure": "fail"}, {"on_detector_failure": "pass"}])


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """Any policy, as a file says it."""
    policy: dict[str, Any] = {}
    text, document = ["annotate", "mask", "stop", "block"], ["flag", "mask", "drop"]
    words: dict[str, str] = {}
    for section, known in (("input", text), ("documents", document), ("output", text), ("grounding", text)):
        names = ["context"] if section == "grounding" else ["pii", "more"]
        for name in draw(st.lists(st.sampled_from(names), unique=True)):
            own = draw(st.sampled_from([{}, *[{"on_finding": word} for word in known]]))
            policy.setdefault(section, {})[name] = {**own, **draw(FAILING)}
        if section in policy and draw(st.booleans()):
            words[section] = draw(st.sampled_from(known))
    policy["on_finding"] = words or draw(st.sampled_from(text))
    for key, values in (
        ("mode", ["enforce", "shadow"]),
        ("mask_with", ["block", "label", "pseudonym"]),
        ("lanes", [[], ["content"], ["tool_arguments", "reasoning"]]),
        ("on_detector_failure", ["fail", "pass"]),
        ("speculative", [True, False]),
        ("sources", ["mask", "clear"]),
        ("grounding_without_documents", ["pass", "refuse"]),
        ("unreadable", ["refuse", "pass", {"audio": "pass"}]),
        ("tool_results", ["replace", "block"]),
    ):
        if draw(st.booleans()):
            policy[key] = draw(st.sampled_from(values))
    return policy


@settings(max_examples=25)  # a file takes its time, and has several
@given(st.lists(policies(), min_size=1, max_size=6).map(lambda some: {f"p{n}": one for n, one in enumerate(some)}))
def test_what_is_printed_of_any_policy_means_the_same_when_it_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "policies.yaml"
    path.write_text(f"{DETECTORS}\n{yaml.safe_dump({'policies': said})}")
    first = load_settings(config_path=path, flags={}, environ=HOME)
    path.write_text(render_yaml(first))
    again = load_settings(config_path=path, flags={}, environ=HOME)
    assert render_yaml(again) == render_yaml(first)
    for name, one in again.policies.items():
        other = first.policies[name]
        unread = {f"on_{section}" for section in SECTION_TYPES if not getattr(one, section)}  # nothing is said of these
        assert replace(one, **{key: getattr(other, key) for key in unread}) == other
        assert describe_policy(one) == describe_policy(other)


def _table(settings: Settings) -> list[list[str]]:
    shown = render_check(settings).split("Policies\n")[1].split("\n\n")[0].splitlines()
    return [re.split("  +", line.strip()) for line in shown]


def test_check_shows_how_a_policy_acts_and_whose_default_it_is(loader: Loader) -> None:
    text = DETECTORS + EVERY_KEY + BACKEND.replace("POLICIES", "gpt: p, '*': p")
    settings = loader.load(
        f"{text}models: {{main: {{openai: {UPSTREAM}, policy: p}}}}\n"
        "agents: {default: {main: main, sources: [], policy: p}}"
    )
    assert _table(settings)[1] == [
        "p",
        "shadow, speculative",
        "pii (mask, may fail), more (block)",
        "pii (drop)",
        "pii (stop), more (mask, may fail)",
        "context (annotate)",
        "pseudonym",
        "content, tool_arguments",
        "agent default, model main, openai gpt, openai *",
    ]


# Default policies.


def test_a_model_has_a_default_policy(loader: Loader) -> None:
    settings = loader.load(f"{GUARDED}models: {{m: {{openai: {UPSTREAM}, policy: strict}}, n: {{openai: {UPSTREAM}}}}}")
    assert [settings.models[name].policy for name in "mn"] == ["strict", None]
    assert yaml.safe_load(render_yaml(settings))["models"]["m"]["policy"] == "strict"


def test_models_behind_the_backend_have_default_policies(loader: Loader) -> None:
    settings = loader.load(GUARDED + BACKEND.replace("POLICIES", "gpt: strict, '*': watch"))
    assert settings.openai is not None
    assert settings.openai.policies == {"gpt": "strict", "*": "watch"}
    assert yaml.safe_load(render_yaml(settings))["openai"]["policies"] == {"gpt": "strict", "*": "watch"}
    without = loader.load(GUARDED + BACKEND.replace(", policies: {POLICIES}", ""))
    assert without.openai is not None
    assert without.openai.policies == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"models: {{m: {{openai: {UPSTREAM}, policy: strct}}}}",
         "models.m.policy: policy `strct` not found in section `policies`; did you mean `strict`?"),
        (f"models: {{m: {{openai: {UPSTREAM}, policy: [strict]}}}}", "models.m.policy: must be a string, not a list"),
        (BACKEND.replace("POLICIES", "gpt: wach"),
         "openai.policies.gpt: policy `wach` not found in section `policies`; did you mean `watch`?"),
        (BACKEND.replace("POLICIES", "'*': other"),
         "openai.policies.*: policy `other` not found in section `policies`; add it there, or name another"),
        (BACKEND.replace("POLICIES", "gpt: [strict]"), "openai.policies.gpt: must be a string, not a list"),
        (BACKEND.replace("POLICIES", "gpt: "), "openai.policies.gpt: must be a string, not null"),
        (BACKEND.replace("{POLICIES}", "strict"), "openai.policies: must be a map, not a string"),
    ],
)  # fmt: skip
def test_a_default_policy_that_is_not_there_is_a_fault(loader: Loader, text: str, fault: str) -> None:
    assert loader.faults(GUARDED + text) == [f"config.yaml: {fault}"]


def test_a_default_policy_needs_policies(loader: Loader) -> None:
    assert loader.faults(f"{PII}models: {{m: {{openai: {UPSTREAM}, policy: strict}}}}") == [
        "config.yaml: models.m.policy: policy `strict` not found in section `policies`; add it there, or name another"
    ]


# Models that judge.

JUDGE = "detectors: {tone: {embedded: llm_judge, options: {model: MODEL, criteria: {rude: It is rude.}}}}\n"


def test_the_model_that_judges_is_one_of_the_models(loader: Loader) -> None:
    text = f"{JUDGE}models: {{judge: {{openai: {UPSTREAM}}}}}\n"
    assert loader.load(text.replace("MODEL", "judge")).detectors["tone"].options["model"] == "judge"
    assert loader.faults(text.replace("MODEL", "jugde")) == [
        "config.yaml: detectors.tone.options.model: model `jugde` not found in section `models`; did you mean `judge`?"
    ]
    assert loader.faults(JUDGE.replace("MODEL", "judge")) == [
        (
            "config.yaml: detectors.tone.options.model: "
            "model `judge` not found in section `models`; add it there, or name another"
        )
    ]


@pytest.mark.parametrize("said", ["[judge]", "{a: b}", "7"])
def test_what_is_no_name_of_a_model_does_not_stop_the_rest_from_being_checked(loader: Loader, said: str) -> None:
    faults = loader.faults(f"{JUDGE.replace('MODEL', said)}limits: {{body_bytes: 0}}")
    assert faults[-1] == "config.yaml: limits.body_bytes: must be at least 1"


def test_what_another_detector_calls_a_model_is_its_own(loader: Loader) -> None:
    assert loader.load("detectors: {d: {embedded: 'pkg:open', options: {model: anything}}}").detectors["d"].options == {
        "model": "anything"
    }
