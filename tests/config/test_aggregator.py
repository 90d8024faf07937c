# SPDX-License-Identifier: Apache-2.0
"""The settings of the aggregator (A-22, A-23, A-40): its variables, its section, its models and sources."""

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lockgate.api.endpoints import list_endpoints
from lockgate.config.agent_settings import (
    ModelSettings,
    OpenAIModelSettings,
    SourceSettings,
    SpaceSettings,
)
from lockgate.config.load import load_settings
from lockgate.config.report import render_check, render_yaml
from lockgate.config.settings import AggregatorSettings, Secret, Settings
from lockgate.errors import ConfigError
from tests.config.config_cases import HOME, PII, Loader

EVERY_VARIABLE = {
    "AGGREGATOR_RETRIEVAL_TIMEOUT": "0.6",
    "AGGREGATOR_GENERATION_TIMEOUT": "90",
    "AGGREGATOR_TOTAL_TIMEOUT": "1e2",
    "AGGREGATOR_DEFAULT_TOP_K": "2",
    "AGGREGATOR_MAX_TOP_K": "4",
    "AGGREGATOR_MAX_DATA_SOURCES": "3",
    "AGGREGATOR_MODEL_STREAMING_ENABLED": "True",
    "AGGREGATOR_CORS_ORIGINS": '["https://app.example.com", "http://localhost:3000"]',
    "AGGREGATOR_SYFTHUB_URL": "http://hub:8000",
    "AGGREGATOR_SYFTHUB_JWKS_CACHE_TTL": "60",
}
EVERY_VALUE = AggregatorSettings(
    0.6, 90.0, 100.0, 2, 4, 3, True, ("https://app.example.com", "http://localhost:3000"), "http://hub:8000", 60
)


# The section


def test_the_defaults_are_the_contracts(loader: Loader) -> None:
    assert loader.load(None).aggregator == Settings().aggregator
    assert dataclasses.astuple(Settings().aggregator) == (
        30.0, 120.0, 180.0, 5, 20, 10, False, ("*",), "http://localhost:8000", 3600,
    )  # fmt: skip


def test_every_variable_is_in_force_and_none_gives_a_warning(loader: Loader) -> None:
    settings = loader.load(None, EVERY_VARIABLE | {"AGGREGATOR_HOST": "127.0.0.1", "AGGREGATOR_LOG_FORMAT": "json"})
    assert settings.aggregator == EVERY_VALUE
    assert settings.warnings == ()


def test_the_section_of_the_file_says_the_same(loader: Loader) -> None:  # D-23
    text = """aggregator:
  retrieval_timeout_s: 0.6
  generation_timeout_s: 90
  total_timeout_s: 100
  default_top_k: 2
  max_top_k: 4
  max_data_sources: 3
  model_streaming: true
  cors_origins: [https://app.example.com, "http://localhost:3000"]
  syfthub_url: http://hub:8000
  syfthub_jwks_cache_ttl_s: 60
"""
    assert loader.load(PII + text).aggregator == EVERY_VALUE


def test_our_own_names_win_over_the_aggregators_and_both_over_the_file(loader: Loader) -> None:  # D-23
    text = f"{PII}aggregator: {{max_top_k: 6, max_data_sources: 6, default_top_k: 6}}"
    environ = {
        "AGGREGATOR_MAX_TOP_K": "7",
        "AGGREGATOR_MAX_DATA_SOURCES": "7",
        "LOCKGATE_AGGREGATOR__MAX_DATA_SOURCES": "8",
    }
    aggregator = loader.load(text, environ).aggregator
    assert (aggregator.default_top_k, aggregator.max_top_k, aggregator.max_data_sources) == (6, 7, 8)


@pytest.mark.parametrize("word", ["true", "TRUE", "tRuE", "1", "false", "False", "0"])
def test_booleans_are_words_in_any_case(loader: Loader, word: str) -> None:
    settings = loader.load(None, {"AGGREGATOR_MODEL_STREAMING_ENABLED": word})
    assert settings.aggregator.model_streaming is (word.lower() in ("true", "1"))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("RETRIEVAL_TIMEOUT", "30s", "aggregator.retrieval_timeout_s: must be a number, not a string"),
        ("RETRIEVAL_TIMEOUT", "0", "aggregator.retrieval_timeout_s: must be more than 0 seconds"),
        ("GENERATION_TIMEOUT", "-1", "aggregator.generation_timeout_s: must be more than 0 seconds"),
        ("TOTAL_TIMEOUT", "[1]", "aggregator.total_timeout_s: must be a number, not a list"),
        ("TOTAL_TIMEOUT", ".inf", "aggregator.total_timeout_s: must be more than 0 seconds"),
        ("DEFAULT_TOP_K", "0", "aggregator.default_top_k: must be at least 1"),
        ("MAX_TOP_K", "many", "aggregator.max_top_k: must be an integer, not a string"),
        ("MAX_DATA_SOURCES", "2.5", "aggregator.max_data_sources: must be an integer, not a number"),
        ("MODEL_STREAMING_ENABLED", "2", "aggregator.model_streaming: must be true or false, not an integer"),
        ("MODEL_STREAMING_ENABLED", "maybe", "aggregator.model_streaming: must be true or false, not a string"),
        (
            "CORS_ORIGINS",
            '["https://a.example"',
            "aggregator.cors_origins: is not valid YAML: write the value as in a config file",
        ),
        ("CORS_ORIGINS", '{"a": 1}', "aggregator.cors_origins: must be a list of strings, not a map"),
        ("CORS_ORIGINS", "[1.5]", "aggregator.cors_origins: must be a string, not a number"),
        ("SYFTHUB_JWKS_CACHE_TTL", "an hour", "aggregator.syfthub_jwks_cache_ttl_s: must be an integer, not a string"),
    ],
)
def test_a_malformed_value_is_a_fault_that_names_the_variable(
    loader: Loader, name: str, value: str, fault: str
) -> None:
    assert loader.faults(None, {f"AGGREGATOR_{name}": value}) == [f"AGGREGATOR_{name}: {fault}"]


def test_a_default_cannot_be_more_than_its_limit(loader: Loader) -> None:
    fault = "aggregator.default_top_k: must be at most 4, which is `aggregator.max_top_k`"
    environ = {"AGGREGATOR_DEFAULT_TOP_K": "5", "AGGREGATOR_MAX_TOP_K": "4"}
    assert loader.faults(None, environ) == [f"AGGREGATOR_DEFAULT_TOP_K: {fault}"]
    assert loader.faults(f"{PII}aggregator: {{default_top_k: 5, max_top_k: 4}}") == [f"config.yaml: {fault}"]


def test_a_default_that_nobody_asked_for_follows_the_limit(loader: Loader) -> None:
    aggregator = loader.load(None, {"AGGREGATOR_MAX_TOP_K": "4"}).aggregator
    assert (aggregator.default_top_k, aggregator.max_top_k) == (4, 4)


# Origins


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["*"]', ("*",)),
        ("*", ("*",)),
        ("[]", ()),
        ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
        ('["HTTPS://A.Example/", "https://a.example"]', ("https://a.example",)),
        ('["http://[::1]:3000", "null", "capacitor://localhost"]', ("http://[::1]:3000", "null", "capacitor://localhost")),
    ],
)  # fmt: skip
def test_origins_are_kept_as_browsers_spell_them(loader: Loader, text: str, expected: tuple[str, ...]) -> None:
    environ = {"AGGREGATOR_CORS_ORIGINS": text, "LOCKGATE_SERVER__CORS_ORIGINS": text}
    settings = loader.load(None, environ)
    assert settings.aggregator.cors_origins == settings.server.cors_origins == expected


@pytest.mark.parametrize(
    "origin",
    ["a.example", "https://a.example/page", "https://*.example", "https://a b", "https://a.example\r\nx: y", "//a", "",
     "https://me@a.example"],
)  # fmt: skip
def test_what_no_browser_sends_is_no_origin(loader: Loader, origin: str) -> None:
    text = f"{PII}server: {{cors_origins: [{origin!r}]}}"
    fault = "must be a list of origins such as https://app.example.com, or of `*`"
    assert loader.faults(text.replace("'", '"')) == [f"config.yaml: server.cors_origins: {fault}"]


# Upstreams


def test_entries_of_the_allow_list_are_names_addresses_and_networks(loader: Loader) -> None:
    entries = ["spaces.example", "*.example.com", "10.1.2.3", "10.0.0.0/8", "fd00::/8", "::1"]
    settings = loader.load(f"{PII}upstreams: {{allow: {entries}}}")
    assert settings.upstreams.allow == tuple(entries)
    assert Settings().upstreams.allow == ()


@pytest.mark.parametrize("entry", ["http://h", "h:80", "10.0.0.0/33", "10.0.0.1/8", "*", "a b", "", "a/b"])
def test_what_is_no_entry_of_the_allow_list_is_a_fault(loader: Loader, entry: str) -> None:
    [fault] = loader.faults(f"{PII}upstreams: {{allow: [fine.example, {entry!r}]}}")
    assert fault.startswith("config.yaml: upstreams.allow.1: ")


# Models and sources

TOKENS = {"LLM_TOKEN": " hunter2\n", "SPACE_TOKEN": "swordfish"}
BOTH = f"""{PII}
models:
  main: {{openai: {{url: "https://llm.example/v1/", model: m, api_token: LLM_TOKEN}}, expose: true}}
  mine: {{embedded: "pkg.models:open_mine", options: {{size: 3}}}}
sources:
  notes: {{syftai_space: {{url: "http://space:8080/x", slug: notes, owner: al, tenant: t, token_env: SPACE_TOKEN}}}}
  bare: {{syftai_space: {{url: "http://space", slug: bare}}, expose: true}}
  here: {{embedded: mine}}
"""


def test_models_and_sources_are_resolved(loader: Loader) -> None:  # D-23, D-27
    settings = loader.load(BOTH, TOKENS)
    openai = OpenAIModelSettings("https://llm.example/v1", "m", "LLM_TOKEN", Secret("hunter2"))
    assert settings.models == {
        "main": ModelSettings("main", openai, expose=True),
        "mine": ModelSettings("mine", embedded="pkg.models:open_mine", options={"size": 3}),
    }
    space = SpaceSettings("http://space:8080/x", "notes", "al", "t", "SPACE_TOKEN", Secret("swordfish"))
    assert settings.sources == {
        "notes": SourceSettings("notes", space),
        "bare": SourceSettings("bare", SpaceSettings("http://space", "bare"), expose=True),
        "here": SourceSettings("here", embedded="mine"),
    }
    assert isinstance(settings.models, MappingProxyType)
    assert settings.warnings == ()


def test_models_can_come_from_variables_alone(loader: Loader) -> None:  # D-23
    environ = {
        "LOCKGATE_MODELS__MAIN__OPENAI__URL": "http://h/v1",
        "LOCKGATE_MODELS__MAIN__OPENAI__MODEL": "7",
        "LOCKGATE_MODELS__MAIN__OPENAI__API_TOKEN": "LOCKGATE_TOKEN",
        "LOCKGATE_TOKEN": "hunter2",
    }
    [model] = loader.load(None, environ).models.values()
    assert model.openai == OpenAIModelSettings("http://h/v1", "7", "LOCKGATE_TOKEN", Secret("hunter2"))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("models: {m: {}}", ["models.m: needs exactly one of openai, ollama, embedded"]),
        ("models: {m: }", ["models.m: needs exactly one of openai, ollama, embedded"]),
        ("models: {m: {openai: {url: 'http://h', model: m}, embedded: a}}",
         ["models.m: has `openai` and `embedded`: needs exactly one of openai, ollama, embedded"]),
        ("models: {m: {openai: {}}}", ["models.m.openai.url: is required", "models.m.openai.model: is required"]),
        ("models: {m: {openai: {url: 'http://h', model: ''}}}", ["models.m.openai.model: must not be empty"]),
        ("models: {m: {openia: {}, embedded: a}}", ["models.m.openia: no such key; did you mean `openai`?"]),
        ("models: {m: {embedded: a, exposed: true}}", ["models.m.exposed: no such key; did you mean `expose`?"]),
        ("models: {m: {openai: {url: 'http://h', model: m, api_tokn: X}}}",
         ["models.m.openai.api_tokn: no such key; did you mean `api_token`?"]),
        ("models: {m: {openai: {url: 'http://h', model: m, api_token: GONE}}}",
         ["models.m.openai.api_token: env var `GONE` not found"]),
        ("models: {m: {openai: {url: 'http://h', model: m, api_token: sk-Secret1}}}",
         ["models.m.openai.api_token: must be the name of an environment variable that is set, not the token itself"]),
        ("models: {m: {openai: {url: 'http://h', model: m, api_token: EMPTY}}}",
         ["models.m.openai.api_token: env var `EMPTY` is empty: set it to the token"]),
        ("models: {m: {embedded: 'not a name'}}",
         ["models.m.embedded: must be the name of an embedded part or `module:attribute`"]),
        ("models: {m: {embedded: a, expose: perhaps}}", ["models.m.expose: must be true or false, not a string"]),
        ("models: {'': {embedded: a}}", ["models.: needs an id: the key must not be empty"]),
        ("models: {m: {openai: 1}}", ["models.m.openai: must be a map, not an integer"]),
        ("sources: {s: {}}", ["sources.s: needs exactly one of syftai_space, embedded, postgres, elasticsearch"]),
        ("sources: {s: {embedded: index, elasticsearch: {url: 'http://h', index: i}}}",
         ["sources.s: has `embedded` and `elasticsearch`: needs exactly one of syftai_space, embedded, postgres, "
          "elasticsearch"]),
        ("sources: {s: {syftai_space: {}}}",
         ["sources.s.syftai_space.url: is required", "sources.s.syftai_space.slug: is required"]),
        ("sources: {s: {syftai_space: {url: 'http://h', slug: a/b}}}",
         ["sources.s.syftai_space.slug: must be one segment of a path, without any of / ? # %"]),
        ("sources: {s: {syftai_space: {url: 'http://h', slug: ..}}}",
         ["sources.s.syftai_space.slug: must be one segment of a path, without any of / ? # %"]),
        ("sources: {s: {syftai_space: {url: 'http://h', slug: a, token_env: GONE}}}",
         ["sources.s.syftai_space.token_env: env var `GONE` not found"]),
        ("sources: {s: {syftai_space: {url: 'http://h', slug: a, owner: ''}}}",
         ["sources.s.syftai_space.owner: must not be empty"]),
        ("sources: {s: x}", ["sources.s: must be a map, not a string"]),
        ("sources: []", ["sources: must be a map, not a list"]),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_refused_with_its_place(loader: Loader, text: str, faults: list[str]) -> None:
    found = loader.faults(PII + text, {"EMPTY": " "})
    assert [fault.removeprefix("config.yaml: ") for fault in found] == faults


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("h/v1", "must be an absolute http or https address"),
        ("ftp://h", "must be an absolute http or https address"),
        ("http://", "cannot be read"),
        ("http://h:99999", "cannot be read"),
        ("http://h:x", "cannot be read"),
        ("http://[h", "cannot be read"),
        ("http://a b/", "holds a character that no address has"),
        ("http://h/\\tx", "holds a character that no address has"),
        ("http://me:hunter4@h/v1", "must not hold credentials"),
        ("http://h\\\\x", "holds a character that no address has"),
        ("http://127.1", "cannot be used: the host is neither a name nor an address in its usual spelling"),
        ("http://2130706433/v1", "cannot be used: the host is neither a name nor an address in its usual spelling"),
        ("http://a..b", "cannot be used: the host is neither a name nor an address in its usual spelling"),
        ("http://h/v1?key=hunter4", "must not have a query or a fragment"),
        ("http://h/v1#hunter4", "must not have a query or a fragment"),
    ],
)
def test_an_address_is_checked_and_never_repeated(loader: Loader, url: str, fault: str) -> None:
    entries = {"models: {m: {openai: {url: URL, model: m}}}": "models.m.openai.url",
               "sources: {s: {syftai_space: {url: URL, slug: a}}}": "sources.s.syftai_space.url"}  # fmt: skip
    for text, place in entries.items():
        assert loader.faults(PII + text.replace("URL", f'"{url}"')) == [f"config.yaml: {place}: {fault}"]


def test_options_of_what_does_not_run_here_are_ignored_with_a_warning(loader: Loader) -> None:
    settings = loader.load(f"{PII}models: {{m: {{openai: {{url: 'http://h', model: m}}, options: {{a: 1}}}}}}")
    assert settings.warnings == ("models.m.options is ignored: only an `embedded` entry has options",)


def test_what_runs_here_is_tried_with_all_other_faults(loader: Loader) -> None:
    tried: list[Any] = []

    def refuse(group: str, name: str, options: Any, data_dir: Path) -> ConfigError:
        tried.append((group, name))
        assert data_dir == Path(HOME["HOME"]) / ".local/share/lockgate"
        return ConfigError("is wrong", source="options", key="size")

    loader.path.write_text(BOTH)
    with pytest.raises(ConfigError) as caught:
        load_settings(config_path=loader.path, flags={}, environ={**HOME, **TOKENS}, try_part=refuse)
    assert tried[-2:] == [("lockgate.models", "pkg.models:open_mine"), ("lockgate.data_sources", "mine")]
    assert "models.mine.options.size: is wrong" in str(caught.value)
    assert "sources.here.options.size: is wrong" in str(caught.value)


def test_the_report_shows_models_and_sources_and_no_token(loader: Loader) -> None:
    shown = render_check(loader.load(BOTH, TOKENS), lambda group, name: f"{group} has {name}")
    assert (
        "Models\n"
        "  id    kind      where                     exposed\n"
        "  main  openai    https://llm.example/v1 m  yes\n"
        "  mine  embedded  pkg.models:open_mine      as `model` only\n"
    ) in shown
    assert (
        "Sources\n"
        "  id     kind          where                         exposed\n"
        "  notes  syftai_space  http://space:8080/x al/notes  no\n"
        "  bare   syftai_space  http://space bare             yes\n"
        "  here   embedded      mine                          no\n"
    ) in shown
    assert "lockgate.data_sources has mine" in shown
    assert "hunter2" not in shown
    assert "swordfish" not in shown


def test_what_check_prints_means_the_same_when_it_is_loaded(loader: Loader, tmp_path: Path) -> None:
    settings = loader.load(BOTH, TOKENS | EVERY_VARIABLE)
    again = tmp_path / "again.yaml"
    again.write_text(render_yaml(settings))
    resolved = load_settings(config_path=again, flags={}, environ={**HOME, **TOKENS})
    assert (resolved.models, resolved.sources) == (settings.models, settings.sources)
    assert resolved.aggregator == settings.aggregator
    assert render_yaml(resolved) == render_yaml(settings)


def test_the_endpoints_list_who_reads_questions_and_answers(loader: Loader) -> None:
    shown = list_endpoints(loader.load(f"{PII[:-2]}, ctx: {{embedded: pii, type: text_context_doc}}}}"))
    rows = [row for row in shown if row[0].startswith("/api/v1/chat")]
    assert rows == [(path, "yes", "pii", "pii, ctx") for path in ("/api/v1/chat", "/api/v1/chat/stream")]
