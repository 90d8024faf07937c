# SPDX-License-Identifier: Apache-2.0
"""The settings that say who decides (D-44): what callers may name, and which policies are always in force."""

import asyncio

import pytest

from lockgate.api.endpoints import list_guarded_paths
from lockgate.config.access import list_requirements
from lockgate.config.grants import ANYTHING, Grant, find_by_model, find_by_path, find_grant
from lockgate.config.report import render_check
from lockgate.config.settings import Settings
from lockgate.errors import ConfigFaults, NotAllowed
from lockgate.gateway import open_gateway
from tests.config.config_cases import PII, Loader

POLICIES = (
    PII
    + """
policies:
  mild: {output: {pii: {threshold: 0.9}}}
  strict: {output: {pii: {}}, on_finding: block}
  other: {output: {pii: {regions: [DE]}}}
"""
)
KEYS = {"WEB_KEY": "w", "OPS_KEY": "o"}


def load(loader: Loader, text: str) -> Settings:
    return loader.load(POLICIES + text, KEYS)


def test_a_caller_has_its_policies_models_and_required_policy(loader: Loader) -> None:
    callers = load(loader, "callers: {web: {key_env: WEB_KEY, policies: [mild], models: [m, brunix], "
                           "required_policy: strict}, ops: {key_env: OPS_KEY}}").callers  # fmt: skip
    web = find_grant(callers["web"])
    assert web == Grant(frozenset(["mild"]), frozenset(["m", "brunix", "agent/default"]), ("strict",))
    assert find_grant(callers["ops"]) == ANYTHING
    for name in ("mild", "strict"):
        web.check_policy(name)
    for check, name in ((web.check_policy, "other"), (web.check_model, "agent/free")):
        with pytest.raises(NotAllowed) as refused:
            check(name)
        assert refused.value.status == 403
        assert name not in refused.value.message


def test_an_empty_list_permits_nothing(loader: Loader) -> None:
    callers = load(loader, "callers: {web: {key_env: WEB_KEY, policies: [], models: []}}").callers
    grant = find_grant(callers["web"])
    assert not grant.may_use("m")
    assert not grant.may_name("mild")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("callers: {web: {key_env: WEB_KEY, policies: [mid]}}", (
            "callers.web.policies: policy `mid` not found in section `policies`; did you mean `mild`?")),
        ("callers: {web: {key_env: WEB_KEY, required_policy: x}}", (
            "callers.web.required_policy: policy `x` not found in section `policies`; add it there, or name another")),
        ("callers: {web: {key_env: WEB_KEY, polices: [mild]}}", (
            "callers.web.polices: no such key; did you mean `policies`?")),
        ("callers: {web: {key_env: WEB_KEY, policies: mild}}", (
            "callers.web.policies: must be a list of strings, not a string")),
        ("required_policy: {/v1: strict}", "required_policy: no such key; did you mean `required_policies`?"),
        ("required_policies: {/v1: [strict]}", "required_policies./v1: must be a string, not a list"),
        ("required_policies: {/v1: strict, /api: other}", (
            "required_policies./api: `strict` is required too and gives `pii` other parameters: "
            "write the same in both")),
        ("required_policies: {/v1: strict}\npolicies: {strict: {}, a+b: {}}", (
            "policies.a+b: with required policies no name may have `+`: rename it")),
        ("openai: {service: {hostname: h}, required_policies: {m: nothing}}", (
            "openai.required_policies.m: policy `nothing` not found in section `policies`; "
            "add it there, or name another")),
        ("openai: {service: {hostname: h}, require_policies: {m: strict}}", (
            "openai.require_policies: no such key; did you mean `required_policies`?")),
    ],
)  # fmt: skip
def test_what_could_not_be_kept_is_a_fault(loader: Loader, text: str, fault: str) -> None:
    base = PII if "policies: {strict" in text else POLICIES
    assert loader.faults(base + text, KEYS) == [f"config.yaml: {fault}"]


def test_a_policy_whose_parameters_a_required_one_replaces_is_warned_of(loader: Loader) -> None:
    warnings = load(loader, "required_policies: {/v1: strict}").warnings
    words = "parameters of `pii` have no effect where `strict`, which is required, gives it others"
    assert [one for one in warnings if "no effect" in one] == [f"policies.other: {words}"]


def test_a_model_that_does_not_exist_is_warned_of_unless_another_server_may_have_it(loader: Loader) -> None:
    text = "callers: {web: {key_env: WEB_KEY, models: [gpt, 'https://models.example']}}\n"
    assert "callers.web.models: there is no model or agent `gpt`" in load(loader, text).warnings
    with_server = load(loader, text + "openai: {service: {hostname: h}}").warnings
    assert not any("callers" in one for one in with_server)


def test_a_path_requires_its_policy_on_all_paths_below_it() -> None:
    required = {"/": "all", "/v1": "one", "/api/v1/chat/": "two", "/v1/completions": "all"}
    assert find_by_path(required, "/v1/chat/completions") == ("all", "one")
    assert find_by_path(required, "/v1/completions") == ("all", "one")
    assert find_by_path(required, "/v12") == ("all",)
    assert find_by_path(required, "/api/v1/chat/stream") == ("all", "two")
    assert find_by_path({}, "/v1") == ()
    assert (find_by_model({"*": "a", "m": "b"}, "m"), find_by_model({"*": "a"}, "m")) == (("b",), ("a",))
    assert find_by_model({"n": "b"}, "m") == ()


def test_policies_can_be_required_wherever_a_model_answers() -> None:
    assert {"/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate", "/api/v1/chat",
            "/api/v1/chat/stream", "/api/v2/text/generation-detection", "/api/v2/chat/completions-detection",
            "/brunix.AssistanceEngine/AskAgent"} <= {*list_guarded_paths()}  # fmt: skip


def open_once(settings: Settings) -> list[str]:
    async def open_and_close() -> None:
        async with open_gateway(settings):
            pass

    try:
        asyncio.run(open_and_close())
    except ConfigFaults as error:
        return [f"{one.key}: {one.message}" for one in error.faults]
    return []


def test_a_path_without_a_model_is_a_fault(loader: Loader) -> None:
    words = "no model answers there: write a path such as `/v1/chat/completions`, `/v1` for all below it, or `/`"
    for path in ("/v2", "v1", "/v1/moderations", "/v1/chat/completion"):
        assert open_once(load(loader, f"required_policies: {{{path}: strict}}")) == [
            f"required_policies.{path}: {words}"
        ]
    paths = "{/: strict, /brunix.AssistanceEngine: strict, /brunix.AssistanceEngine/AskAgent: strict, /api/: strict}"
    assert open_once(load(loader, f"required_policies: {paths}")) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("required_policies: {/v1: strict}", "required_policies./v1"),
        ("callers: {web: {key_env: WEB_KEY, policies: []}}", "callers.web.policies"),
        ("callers: {web: {key_env: WEB_KEY, models: []}}", "callers.web.models"),
        ("callers: {web: {key_env: WEB_KEY, required_policy: mild}}", "callers.web.required_policy"),
    ],
)
def test_what_compat_fms_cannot_keep_is_a_fault(loader: Loader, text: str, key: str) -> None:
    faults = open_once(load(loader, text + "\ncompat: fms"))
    assert faults == [
        f"{key}: cannot be kept with `compat: fms`, where completions have no policies: "
        "remove it, or set `compat: none`"
    ]


def test_check_shows_who_may_use_what_and_what_is_always_in_force(loader: Loader) -> None:
    settings = load(
        loader,
        """
callers:
  web: {key_env: WEB_KEY, policies: [mild], models: [m, agent/default], required_policy: strict}
  ops: {key_env: OPS_KEY, policies: []}
models: {m: {ollama: {url: "http://h", model: m}, required_policy: strict}}
required_policies: {/v1: strict}
openai: {service: {hostname: h}, required_policies: {"*": strict}}
""",
    )
    report = render_check(settings)
    assert (
        """Who may use what
  caller  may name policies  may name models   always in force
  web     mild               m, agent/default  strict
  ops     none               any               -

Always in force
  for         policy  mode
  caller web  strict  enforce
  model m     strict  enforce
  openai *    strict  enforce
  path /v1    strict  enforce
"""
        in report
    )
    assert [one.key for one in list_requirements(settings)] == [
        ("callers", "web", "required_policy"), ("models", "m", "required_policy"),
        ("openai", "required_policies", "*"), ("required_policies", "/v1"),
    ]  # fmt: skip
    assert "Who may use what\n  caller  may name policies  may name models  always in force\n  anyone" in render_check(
        load(loader, "")
    )


def test_what_check_prints_means_the_same_when_it_is_loaded(loader: Loader) -> None:
    settings = load(loader, "callers: {web: {key_env: WEB_KEY, policies: [mild], required_policy: strict}}\n"
                            "required_policies: {/v1: strict}")  # fmt: skip
    printed = render_check(settings).partition("All settings\n\n")[2].partition("\nWarnings")[0]
    again = loader.load(printed, KEYS)
    assert (again.callers, again.required_policies) == (settings.callers, settings.required_policies)
