# SPDX-License-Identifier: Apache-2.0
"""The settings of agents (B-29, B-44, D-23, D-32): their sections, and what they may name."""

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

from lockgate.api.endpoints import list_endpoints
from lockgate.config.agent_sections import AGENT_SECTIONS
from lockgate.config.agent_settings import (
    AgentSettings,
    ClassifierSettings,
    ElasticsearchSettings,
    EvaluationSettings,
    ModelSettings,
    OllamaModelSettings,
    PostgresSettings,
    PostgresSourceSettings,
    SessionSettings,
    SourceSettings,
)
from lockgate.config.load import load_settings
from lockgate.config.report import render_check, render_yaml
from lockgate.config.settings import Secret, Settings
from tests.config.config_cases import HOME, PII, SECRETS, WHOLE, Loader

MODEL = "models: {m: {ollama: {url: 'http://o:11434/', model: 'llama3:8b'}}}\n"
LABELS = "RETRIEVAL, CODE_GENERATION, CONVERSATIONAL"
AGENT = f"{PII}{MODEL}agents: {{a: {{main: m}}}}\n"


# Agents


def test_everything_that_is_said_about_an_agent_is_in_force(loader: Loader) -> None:  # D-23
    settings = loader.load(WHOLE, SECRETS)
    assert settings.agents == {
        "default": AgentSettings(
            "default", "big", "small", ("pg", "es", "here"), "support", True, 1.5, 2.0, 3.0, 4, 500, 6, -0.5
        ),
        "bare": AgentSettings("bare", "small", "small"),
    }
    assert settings.models["big"] == ModelSettings("big", ollama=OllamaModelSettings("http://o:11434", "llama3:70b"))
    dsn = Secret(SECRETS["DSN"])
    assert settings.sources == {
        "pg": SourceSettings("pg", postgres=PostgresSourceSettings("DSN", "notes_2", dsn)),
        "es": SourceSettings(
            "es", elasticsearch=ElasticsearchSettings("https://es:9200", "docs-1", "ES_KEY", Secret("swordfish"))
        ),
        "here": SourceSettings("here", embedded="index", options={"file": "other.db"}),
    }
    assert settings.sessions == SessionSettings(
        None, PostgresSettings("DSN", dsn), retention_days=30, max_messages=50, shared_default=False
    )
    assert settings.embeddings.ollama == OllamaModelSettings("http://o:11434", "bge")
    assert settings.classifier == ClassifierSettings(Path("labels.onnx"), 0.9, Path("labels"), 7)
    assert settings.evaluation == EvaluationSettings("small", Path("questions.jsonl"))
    assert settings.limits.agent_request_bytes == 100
    assert isinstance(settings.agents, MappingProxyType)
    assert settings.warnings == ()


def test_the_defaults_are_the_contracts(loader: Loader) -> None:  # B-29, B-33, B-38, B-44, B-66
    settings = loader.load(AGENT)
    [agent] = settings.agents.values()
    assert dataclasses.astuple(agent) == (
        "a", "m", "m", ("index",), None, False, 30.0, 60.0, 60.0, 20, 6000, 8, 0.0,
    )  # fmt: skip
    assert settings.sessions == SessionSettings("sessions.db", None, None, {}, None, 200, True)
    assert settings.classifier == ClassifierSettings(None, 0.85, None, 100)
    assert settings.embeddings.ollama is None
    assert settings.evaluation == EvaluationSettings(None, None)
    assert settings.limits.agent_request_bytes == 4 * 1024 * 1024


def test_without_agents_there_is_no_agent(loader: Loader) -> None:  # D-32
    for settings in (loader.load(None), loader.load(f"{PII}{MODEL}agents:"), loader.load(f"{PII}agents: {{}}")):
        assert (settings.agents, settings.sources, settings.listeners.agent) == ({}, {}, None)


def test_an_agent_that_names_no_sources_has_the_embedded_index(loader: Loader) -> None:  # D-32
    assert loader.load(AGENT).sources == {"index": SourceSettings("index", embedded="index")}
    settings = loader.load(f"{AGENT}sources: {{other: {{embedded: x}}}}")
    assert list(settings.sources) == ["index", "other"]
    assert settings.agents["a"].sources == ("index",)


def test_a_source_of_that_name_takes_the_place_of_the_embedded_index(loader: Loader) -> None:
    settings = loader.load(f"{AGENT}sources: {{index: {{embedded: mine}}}}")
    assert settings.sources == {"index": SourceSettings("index", embedded="mine")}


def test_an_empty_list_of_sources_means_none(loader: Loader) -> None:
    settings = loader.load(f"{PII}{MODEL}agents: {{a: {{main: m, sources: []}}}}")
    assert (settings.agents["a"].sources, settings.sources) == ((), {})


def test_a_source_named_twice_counts_once(loader: Loader) -> None:
    text = f"{PII}{MODEL}sources: {{s: {{embedded: x}}}}\nagents: {{a: {{main: m, sources: [s, s]}}}}"
    assert loader.load(text).agents["a"].sources == ("s",)


def test_a_file_about_agents_needs_no_detectors(loader: Loader) -> None:
    assert loader.load(f"{MODEL}agents: {{a: {{main: m}}}}").detectors == {}


@pytest.mark.parametrize(
    ("agents", "faults"),
    [
        ("{a: }", ["a.main: is required"]),
        ("{a: {main: n}}", ["a.main: model `n` not found in section `models`; add it there, or name another"]),
        (
            "{a: {main: m, conversational: mm}}",
            ["a.conversational: model `mm` not found in section `models`; did you mean `m`?"],
        ),
        ("{a: {main: m, sources: [docs, s]}}", [(
            "a.sources: source `docs` not found in section `sources`; add it there, or name "
            "another"
)]),
        ("{a: {main: m, sources: docs}}", ["a.sources: must be a list of strings, not a string"]),
        (
            "{a: {main: m, policy: polite}}",
            ["a.policy: policy `polite` not found in section `policies`; did you mean `police`?"],
        ),
        ("{a: {main: m, polcy: police}}", ["a.polcy: no such key; did you mean `policy`?"]),
        ("{a: {main: m, prepare_timeout_s: 0}}", ["a.prepare_timeout_s: must be more than 0 seconds"]),
        ("{a: {main: m, first_token_timeout_s: -1}}", ["a.first_token_timeout_s: must be more than 0 seconds"]),
        ("{a: {main: m, token_gap_timeout_s: x}}", ["a.token_gap_timeout_s: must be a number, not a string"]),
        ("{a: {main: m, history_messages: -1}}", ["a.history_messages: must be at least 0"]),
        ("{a: {main: m, passages: 0}}", ["a.passages: must be at least 1"]),
        ("{a: {main: m, min_similarity: 1.1}}", ["a.min_similarity: must be from -1 to 1"]),
        ("{a: {main: m, platform_route: perhaps}}", ["a.platform_route: must be true or false, not a string"]),
        ("{a: [m]}", ["a: must be a map, not a list"]),
        ("{a/b: {main: m}}",
         ["a/b: an agent's name may have only letters, digits, `-`, `_` and `.`: requests write `agent/<name>`"]),
        ("{'': {main: m}}",
         [": an agent's name may have only letters, digits, `-`, `_` and `.`: requests write `agent/<name>`"]),
    ],
)  # fmt: skip
def test_an_agent_that_cannot_work_is_refused_with_its_place(loader: Loader, agents: str, faults: list[str]) -> None:
    policy = "policies: {police: {output: {pii: {}}}}\nsources: {s: {embedded: x}}\n"
    assert loader.faults(f"{PII}{MODEL}{policy}agents: {agents}") == [
        f"config.yaml: agents.{fault}" for fault in faults
    ]


def test_agents_must_be_a_map(loader: Loader) -> None:
    assert loader.faults(f"{PII}agents: [a]") == ["config.yaml: agents: must be a map, not a list"]


@pytest.mark.parametrize("name", ["agent/a", "m@support", "brunix"])
def test_a_model_cannot_be_called_what_requests_mean_otherwise(loader: Loader, name: str) -> None:
    reason = (
        "requests write `<model>@<policy>`, `agent/<name>`, and `brunix` for the agent `default`; choose another id"
    )
    text = f"{PII}models: {{{name!r}: {{embedded: a}}}}"
    assert loader.faults(text) == [f"config.yaml: models.{name}: cannot be the id of a model: {reason}"]


# Sessions and the rest


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sessions: {sqlite: s.db, postgres: {dsn_env: DSN}}",
         "sessions: has `sqlite` and `postgres`: needs exactly one of sqlite, postgres, embedded"),
        ("sessions: {postgres: {dsn_env: DSN}, embedded: mine}",
         "sessions: has `postgres` and `embedded`: needs exactly one of sqlite, postgres, embedded"),
        ("sessions: {embedded: postgres, options: {dsn: 'postgresql://me:hunter2@db'}}",
         "sessions.embedded: write `sessions.postgres` instead"),
        ("sessions: {embedded: mine, options: 3}", "sessions.options: must be a map, not an integer"),
        ("sessions: {postgres: {}}", "sessions.postgres.dsn_env: is required"),
        ("sessions: {postgres: {dsn_env: GONE}}", "sessions.postgres.dsn_env: env var `GONE` not found"),
        ("sessions: {postgres: {dsn_env: 'postgresql://me:hunter2@db'}}",
         "sessions.postgres.dsn_env: must be the name of an environment variable that is set, not the address itself"),
        ("sessions: {retention_day: 3}", "sessions.retention_day: no such key; did you mean `retention_days`?"),
        ("sessions: {retention_days: 0}", "sessions.retention_days: must be at least 1"),
        ("sessions: {max_messages: 1}", "sessions.max_messages: must be at least 2"),
        ("sessions: {sqlite: ''}", "sessions.sqlite: must be a path"),
        ("sessions: s.db", "sessions: must be a map, not a string"),
        ("embeddings: {ollama: {url: 'http://o'}}", "embeddings.ollama.model: is required"),
        ("embeddings: {olama: {}}", "embeddings.olama: no such key; did you mean `ollama`?"),
        ("classifier: {confidence_threshold: 85}", "classifier.confidence_threshold: must be from 0 to 1"),
        ("classifier: {export_threshold: 0}", "classifier.export_threshold: must be at least 1"),
        ("classifier: {path: x}", (
            "classifier.path: no such key; remove it, or use one of model_path, "
            "confidence_threshold, export_dir, export_threshold"
)),
        ("evaluation: {judge: nobody}", (
            "evaluation.judge: model `nobody` not found in section `models`; add it there, "
            "or name another"
)),
        ("limits: {agent_request_bytes: 0}", "limits.agent_request_bytes: must be at least 1"),
        ("sources: {s: {postgres: {dsn_env: DSN, table: 'a; drop table b'}}}",
         "sources.s.postgres.table: must be a name of at most 48 lower-case letters, digits and _, and not begin "
         "with a digit"),
        ("sources: {s: {elasticsearch: {url: 'http://e', index: a/b}}}",
         "sources.s.elasticsearch.index: must be one segment of a path, without any of / ? # %"),
        ("sources: {s: {elasticsearch: {url: 'http://e'}}}", "sources.s.elasticsearch.index: is required"),
        ("sources: {s: {elasticsearch: {url: 'http://e', index: i, api_key: x}}}",
         "sources.s.elasticsearch.api_key: no such key; did you mean `api_key_env`?"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_and_secrets_are_not_repeated(loader: Loader, text: str, fault: str) -> None:
    assert loader.faults(PII + text, SECRETS) == [f"config.yaml: {fault}"]


def test_a_file_of_sessions_lies_in_the_data_directory_unless_it_is_absolute(loader: Loader) -> None:  # D-26
    for said, place in (("s.db", "/d/s.db"), ("/x/s.db", "/x/s.db")):
        settings = loader.load(f"{AGENT}sessions: {{sqlite: {said}}}\ndata_dir: /d")
        assert settings.data_dir / (settings.sessions.sqlite or "") == Path(place)
        assert f"sqlite {place}, kept without limit, 200 messages each" in render_check(settings)


# What is shown


def test_the_report_shows_agents_and_no_secret(loader: Loader) -> None:
    shown = render_check(loader.load(WHOLE, SECRETS))
    assert "  big    ollama  http://o:11434 llama3:70b  as `model` only\n" in shown
    assert "  pg    postgres       table notes_2, address from DSN  no\n" in shown
    assert "  es    elasticsearch  https://es:9200 docs-1           no\n" in shown
    assert (
        "Agents\n"
        "  name     main   conversational  sources       policy   routes\n"
        f"  default  big    small           pg, es, here  support  {LABELS}, PLATFORM\n"
        f"  bare     small  small           -             -        {LABELS}\n"
        "\n"
        "Shared by all agents\n"
        "  sessions    postgres, address from DSN, kept 30 days, 50 messages each; "
        "without an id: a new session, not kept\n"
        "  embeddings  ollama http://o:11434 bge\n"
        "  classifier  labels.onnx; lowest confidence 0.9; labels go to labels\n"
        "  evaluation  judge small; questions questions.jsonl\n"
    ) in shown
    assert "  agent   0.0.0.0:50051  default\n" in shown
    assert "hunter2" not in shown
    assert "swordfish" not in shown


def test_the_report_lists_the_paths_of_agents_and_models(loader: Loader) -> None:  # D-18
    paths = ["/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate"]
    lists = ["/v1/models", "/api/tags", "/api/version"]

    def served(text: str) -> list[str]:
        rows = list_endpoints(loader.load(text))
        return [row[0] for row in rows if row[0] in paths + lists and row[1] == "yes"]

    assert served(AGENT) == served(f"{AGENT}compat: fms") == served(PII + MODEL) == paths + lists
    assert served(PII) == lists
    assert served(f"{PII}{MODEL}compat: fms") == []


def test_what_check_prints_means_the_same_when_it_is_loaded(loader: Loader, tmp_path: Path) -> None:
    for text in (WHOLE, AGENT):
        settings = loader.load(text, SECRETS)
        again = tmp_path / "again.yaml"
        again.write_text(render_yaml(settings))
        resolved = load_settings(config_path=again, flags={}, environ={**HOME, **SECRETS})
        for section in ("models", "sources", *AGENT_SECTIONS):
            assert getattr(resolved, section) == getattr(settings, section)
        assert render_yaml(resolved) == render_yaml(settings)


def test_settings_without_a_file_have_no_agent() -> None:
    assert (Settings().agents, Settings().sessions.sqlite) == ({}, "sessions.db")
