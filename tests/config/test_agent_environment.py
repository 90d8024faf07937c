# SPDX-License-Identifier: Apache-2.0
"""The variables of an existing agent's environment file (B-45, D-32): when there is an agent, and who it is."""

from pathlib import Path

import pytest

from lockgate.config.agent_settings import (
    AgentSettings,
    ClassifierSettings,
    ElasticsearchSettings,
    ModelSettings,
    OllamaModelSettings,
    OpenAIModelSettings,
    SourceSettings,
)
from tests.config.config_cases import PII, Loader

OLLAMA = {"OLLAMA_URL": "http://o:11434/", "OLLAMA_MODEL_NAME": "qwen3:8b"}
ELASTIC = {"ELASTICSEARCH_URL": "http://es:9200", "ELASTICSEARCH_INDEX": "docs"}
EVERYTHING = {
    **OLLAMA,
    **ELASTIC,
    "OLLAMA_MODEL_NAME_CONVERSATIONAL": "qwen3:1b",
    "OLLAMA_EMB_MODEL_NAME": "bge-m3",
    "CLASSIFIER_MODEL_PATH": "/models/classifier.bin",
    "CLASSIFIER_CONFIDENCE_THRESHOLD": "0.9",
    "CLASSIFIER_EXPORT_THRESHOLD": "50",
    "CLASSIFIER_EXPORT_DIR": "/labels",
    "LANGFUSE_HOST": "http://langfuse",
    "LANGFUSE_PUBLIC_KEY": "pk",
    "LANGFUSE_SECRET_KEY": "sk",
    "ANTHROPIC_API_KEY": "sk",
    "PROXY_THREAD_WORKERS": "10",
}
MAIN = ModelSettings("main", ollama=OllamaModelSettings("http://o:11434", "qwen3:8b"))
DOCS = SourceSettings("docs", elasticsearch=ElasticsearchSettings("http://es:9200", "docs"))


def test_an_existing_environment_file_works_unchanged(loader: Loader) -> None:  # B-45, D-16
    settings = loader.load(None, EVERYTHING | {"LOCKGATE_SERVER__GRPC_PORT": "50099"})
    conversational = ModelSettings("conversational", ollama=OllamaModelSettings("http://o:11434", "qwen3:1b"))
    assert settings.models == {"main": MAIN, "conversational": conversational}
    assert settings.sources == {"docs": DOCS}
    assert settings.agents == {"default": AgentSettings("default", "main", "conversational", ("docs",))}
    assert settings.embeddings.ollama == OllamaModelSettings("http://o:11434", "bge-m3")
    assert settings.classifier == ClassifierSettings(Path("/models/classifier.bin"), 0.9, Path("/labels"), 50)
    assert settings.listeners.agent == ("agent", "127.0.0.1", 50099, True)
    assert settings.warnings == ()


def test_the_address_of_a_model_server_is_enough_for_an_agent(loader: Loader) -> None:  # D-32
    settings = loader.load(None, OLLAMA)
    assert settings.agents == {"default": AgentSettings("default", "main", "main", ("index",))}
    assert settings.sources == {"index": SourceSettings("index", embedded="index")}
    assert settings.embeddings.ollama is None
    assert settings.listeners.agent == ("agent", "127.0.0.1", 50051, False)


def test_a_file_without_agents_gets_one_too(loader: Loader) -> None:  # D-32
    settings = loader.load(PII, OLLAMA)
    assert (settings.models, list(settings.agents)) == ({"main": MAIN}, ["default"])
    assert settings.listeners.agent == ("agent", "0.0.0.0", 50051, False)


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"OLLAMA_URL": "http://o"}, (
            "OLLAMA_MODEL_NAME: models.main.ollama.model: is required with `OLLAMA_URL`: "
            "set this variable"
)),
        ({"OLLAMA_URL": "http://o", "OLLAMA_MODEL_NAME": ""},
         "OLLAMA_MODEL_NAME: models.main.ollama.model: is required with `OLLAMA_URL`: set this variable"),
        ({**OLLAMA, "ELASTICSEARCH_URL": "http://es"},
         (
             "ELASTICSEARCH_INDEX: sources.docs.elasticsearch.index: "
             "is required with `ELASTICSEARCH_URL`: set this variable"
)),
        ({**OLLAMA, "OLLAMA_URL": "o:11434"},
         "OLLAMA_URL: models.main.ollama.url: must be an absolute http or https address"),
        ({"CLASSIFIER_CONFIDENCE_THRESHOLD": "high"},
         "CLASSIFIER_CONFIDENCE_THRESHOLD: classifier.confidence_threshold: must be a number, not a string"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_a_fault_that_names_the_variable(
    loader: Loader, environ: dict[str, str], fault: str
) -> None:
    assert loader.faults(None, environ) == [fault]


def test_without_an_agent_the_variables_have_no_effect(loader: Loader) -> None:
    settings = loader.load(None, {**ELASTIC, "OLLAMA_MODEL_NAME": "m", "OLLAMA_EMB_MODEL_NAME": "e"})
    assert (settings.agents, settings.sources, settings.models) == ({}, {}, {})
    names = ("OLLAMA_MODEL_NAME", "OLLAMA_EMB_MODEL_NAME", "ELASTICSEARCH_URL", "ELASTICSEARCH_INDEX")
    assert settings.warnings == tuple(f"{name} has no effect: there is no agent" for name in names)


def test_an_empty_variable_counts_as_not_set(loader: Loader) -> None:
    settings = loader.load(None, {"OLLAMA_URL": "", "OLLAMA_MODEL_NAME": "", "ELASTICSEARCH_URL": ""})
    assert (settings.agents, settings.warnings) == ({}, ())


# With a file that has agents


FILE = f"""{PII}
models: {{main: {{ollama: {{url: "http://file", model: f}}}}, small: {{openai: {{url: "http://s/v1", model: s}}}}}}
sources: {{docs: {{elasticsearch: {{url: "http://file", index: f}}}}}}
agents: {{a: {{main: main, conversational: small, sources: [docs]}}}}
"""


def test_variables_change_the_entries_that_the_file_has(loader: Loader) -> None:  # D-23
    settings = loader.load(FILE, OLLAMA | ELASTIC)
    assert settings.models["main"] == MAIN
    assert settings.models["small"].openai == OpenAIModelSettings("http://s/v1", "s")
    assert settings.sources == {"docs": DOCS}
    assert settings.agents == {"a": AgentSettings("a", "main", "small", ("docs",))}
    assert settings.warnings == ()


def test_one_variable_alone_changes_one_value(loader: Loader) -> None:
    settings = loader.load(FILE, {"OLLAMA_URL": "http://o", "ELASTICSEARCH_INDEX": "i"})
    assert settings.models["main"].ollama == OllamaModelSettings("http://o", "f")
    assert settings.sources["docs"].elasticsearch == ElasticsearchSettings("http://file", "i")


def test_nothing_is_added_to_a_file_that_has_agents(loader: Loader) -> None:
    text = f"{PII}models: {{m: {{embedded: x}}}}\nagents: {{a: {{main: m, sources: []}}}}"
    settings = loader.load(text, OLLAMA | ELASTIC | {"OLLAMA_MODEL_NAME_CONVERSATIONAL": "c"})
    assert (list(settings.models), settings.sources, list(settings.agents)) == (["m"], {}, ["a"])
    assert len(settings.warnings) == 5
    assert settings.warnings[0] == "OLLAMA_URL has no effect: the settings already have what it sets"


def test_embeddings_follow_their_variable_whoever_the_agents_are(loader: Loader) -> None:  # D-32
    settings = loader.load(FILE, {"OLLAMA_URL": "http://o", "OLLAMA_EMB_MODEL_NAME": "e"})
    assert settings.embeddings.ollama == OllamaModelSettings("http://o", "e")
    assert loader.faults(FILE, {"OLLAMA_EMB_MODEL_NAME": "e"}) == [
        "OLLAMA_URL: embeddings.ollama.url: is required with `OLLAMA_EMB_MODEL_NAME`: set this variable"
    ]


def test_what_the_agent_default_leaves_open_is_filled(loader: Loader) -> None:
    text = f"{PII}policies: {{p: {{output: {{pii: {{}}}}}}}}\nagents: {{default: {{policy: p, passages: 3}}}}"
    agent = AgentSettings("default", "main", "main", ("docs",), "p", passages=3)
    assert loader.load(text, OLLAMA | ELASTIC).agents == {"default": agent}
    assert loader.load(f"{PII}agents: {{default: }}", OLLAMA).agents["default"].main == "main"
    environ = {"LOCKGATE_AGENTS__DEFAULT__PASSAGES": "3"}
    assert loader.load(None, OLLAMA | environ).agents["default"].passages == 3


def test_models_and_sources_of_the_file_stay_when_they_are_of_another_kind(loader: Loader) -> None:
    text = f"{PII}models: {{main: {{openai: {{url: 'http://s/v1', model: s}}}}}}\nsources: {{docs: {{embedded: x}}}}"
    settings = loader.load(text, OLLAMA)
    assert settings.models == {"main": ModelSettings("main", OpenAIModelSettings("http://s/v1", "s"))}
    assert settings.agents == {"default": AgentSettings("default", "main", "main", ("docs",))}
    reason = "has no effect: the settings already have what it sets"
    assert settings.warnings == (f"OLLAMA_URL {reason}", f"OLLAMA_MODEL_NAME {reason}")


def test_our_own_variables_and_flags_win(loader: Loader) -> None:  # D-23
    environ = {
        "LOCKGATE_MODELS__MAIN__OLLAMA__URL": "http://ours",
        "LOCKGATE_SOURCES__DOCS__ELASTICSEARCH__INDEX": "ours",
        "LOCKGATE_CLASSIFIER__CONFIDENCE_THRESHOLD": "0.5",
    }
    settings = loader.load(FILE, EVERYTHING | environ, models__main__ollama__model="flag")
    assert settings.models["main"].ollama == OllamaModelSettings("http://ours", "flag")
    assert settings.sources["docs"].elasticsearch == ElasticsearchSettings("http://es:9200", "ours")
    assert settings.classifier.confidence_threshold == 0.5


def test_the_model_may_come_from_our_own_variable(loader: Loader) -> None:
    environ = {"OLLAMA_URL": "http://o:11434", "LOCKGATE_MODELS__MAIN__OLLAMA__MODEL": "qwen3:8b"}
    assert loader.load(None, environ).models == {"main": MAIN}
