# SPDX-License-Identifier: Apache-2.0
"""The options of models, data sources, agents and their sessions; `lockgate.config.agent_sections` reads them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockgate.config import kinds
from lockgate.config.kinds import Secret, Section, option

INDEX = "index"  # the source of an agent that names none; the embedded index unless `sources` has this id
SESSIONS_FILE = "sessions.db"


@dataclasses.dataclass(frozen=True, slots=True)
class OpenAIModelSettings:
    """A model of an OpenAI-compatible server. `api_token` names a variable."""

    url: str = option(kinds.URL, "address of the server: the URL before `/chat/completions`")
    model: str = option(kinds.NAME, "name of the model there")
    api_token: str | None = option(kinds.TEXT, "name of the environment variable that holds the bearer token", None)
    api_token_value: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class OllamaModelSettings:
    """A model of an Ollama server."""

    url: str = option(kinds.URL, "address of the server: the URL before `/api`")
    model: str = option(kinds.NAME, "name of the model there")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """A configured model; exactly one of `openai`, `ollama` and `embedded` is set. `id` is the key of its entry."""

    id: str
    openai: OpenAIModelSettings | None = option(Section(OpenAIModelSettings), "an OpenAI-compatible server", None)
    ollama: OllamaModelSettings | None = option(Section(OllamaModelSettings), "an Ollama server", None)
    embedded: str | None = option(
        kinds.EMBEDDED, "a model inside this process: `module:attribute` or the name of an installed one", None
    )
    options: Mapping[str, Any] = option(kinds.MAP, "options of the embedded model", dict, "{}")
    expose: bool | None = option(
        kinds.BOOLEAN, "true: every request may name it; false: none may", None, "as `model` on `/v1` and `/api`"
    )
    policy: str | None = option(kinds.NAME, "id of the policy of requests that name none", None)
    required_policy: str | None = option(
        kinds.NAME, "id of a policy that is always in force, beside the one that a request names", None
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SpaceSettings:
    """A data source of a SyftAI Space. `token_env` names a variable."""

    url: str = option(kinds.URL, "address of the space")
    slug: str = option(kinds.SLUG, "name of the endpoint there")
    owner: str | None = option(kinds.NAME, "owner of the endpoint", None)
    tenant: str | None = option(kinds.NAME, "sent as `X-Tenant-Name`", None)
    token_env: str | None = option(kinds.TEXT, "name of the environment variable that holds the bearer token", None)
    token: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PostgresSettings:
    """A PostgreSQL database. `dsn_env` names a variable; once the settings are loaded, `dsn` is its value."""

    dsn_env: str = option(kinds.NAME, "name of the environment variable that holds the address with user and password")
    dsn: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PostgresSourceSettings:
    """Passages in a PostgreSQL database. `dsn_env` names a variable; once loaded, `dsn` is its value."""

    dsn_env: str = option(kinds.NAME, "name of the environment variable that holds the address with user and password")
    table: str = option(kinds.TABLE, "table of the passages", "passages")
    dsn: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ElasticsearchSettings:
    """An index of Elasticsearch or OpenSearch. `api_key_env` names a variable, `api_key` is its value."""

    url: str = option(kinds.URL, "address of the server")
    index: str = option(kinds.SLUG, "name of the index")
    api_key_env: str | None = option(kinds.NAME, "name of the environment variable that holds the API key", None)
    api_key: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SourceSettings:
    """A configured data source; exactly one of its kinds is set. `id` is the key of its entry."""

    id: str
    syftai_space: SpaceSettings | None = option(Section(SpaceSettings), "an endpoint of a SyftAI Space", None)
    embedded: str | None = option(
        kinds.EMBEDDED,
        "a source inside this process: `index`, `module:attribute` or the name of an installed one",
        None,
    )
    options: Mapping[str, Any] = option(kinds.MAP, "options of the embedded source", dict, "{}")
    postgres: PostgresSourceSettings | None = option(Section(PostgresSourceSettings), "a PostgreSQL database", None)
    elasticsearch: ElasticsearchSettings | None = option(
        Section(ElasticsearchSettings), "an index of Elasticsearch or OpenSearch", None
    )
    expose: bool = option(kinds.BOOLEAN, "requests may name it", False)


@dataclasses.dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Which of the addresses that requests name Lockgate may call."""

    allow: tuple[str, ...] = option(
        kinds.TEXTS,
        "hosts and networks that requests may name; empty: any but link-local and metadata addresses",
        (),
        "[]",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent, checked: the models, sources and policy that it names exist. `id` is the key of its entry."""

    id: str
    main: str = option(kinds.NAME, "id of the model that answers from documents and writes code")
    conversational: str = option(kinds.NAME, "id of the model for everything else", "", "the same as `main`")
    sources: tuple[str, ...] = option(
        kinds.TEXTS, "ids of its data sources; an empty list: it searches nothing", (), "[index]"
    )
    policy: str | None = option(kinds.NAME, "id of its policy", None)
    platform_route: bool = option(kinds.BOOLEAN, "has a route for questions about account, usage and billing", False)
    prepare_timeout_s: float = option(
        kinds.DURATION, "seconds for the steps before the answer: choosing a route, searching the sources", 30.0, "30"
    )
    first_token_timeout_s: float = option(kinds.DURATION, "seconds until the model's first token", 60.0, "60")
    token_gap_timeout_s: float = option(kinds.DURATION, "seconds between two tokens", 60.0, "60")
    history_messages: int = option(kinds.COUNT, "messages of the session that go into a prompt", 20)
    history_tokens: int = option(kinds.COUNT, "how many tokens these messages may have, roughly", 6000)
    passages: int = option(kinds.POSITIVE, "passages that go into a prompt", 8)
    min_similarity: float = option(
        kinds.between(-1, 1), "passages less similar to the question than this are left out; 0: none", 0.0, "0"
    )

    def __post_init__(self) -> None:
        """Use `main` for everything when `conversational` is not set."""
        object.__setattr__(self, "conversational", self.conversational or self.main)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionSettings:
    """Where sessions are kept; exactly one of `sqlite`, `postgres` and `embedded` is set."""

    sqlite: str | None = option(
        kinds.normalised(kinds.PATH, str), "file, in the data directory unless absolute", SESSIONS_FILE,
        "sessions.db, unless `postgres` or `embedded` is given",
    )  # fmt: skip
    postgres: PostgresSettings | None = option(Section(PostgresSettings), "a PostgreSQL database", None)
    embedded: str | None = option(
        kinds.EMBEDDED, "a session store of a plugin: `module:attribute` or the name of an installed one", None
    )
    options: Mapping[str, Any] = option(kinds.MAP, "options of the plugin's session store", dict, "{}")
    retention_days: int | None = option(kinds.POSITIVE, "days that a turn is kept", None)
    max_messages: int = option(kinds.integer(2), "messages kept per session", 200)
    shared_default: bool = option(
        kinds.BOOLEAN,
        "gRPC requests without a session id share one session; false: each gets a new one, which is not kept",
        True,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The embedding model; without `ollama` it runs in this process."""

    ollama: OllamaModelSettings | None = option(Section(OllamaModelSettings), "an embedding model of Ollama", None)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassifierSettings:
    """The classifier that chooses a route without a call to a model."""

    model_path: Path | None = option(
        kinds.PATH,
        "file of the classifier",
        None,
        "the one in the data directory, else the one in the package",
        ("CLASSIFIER_MODEL_PATH",),
    )
    confidence_threshold: float = option(
        kinds.between(0, 1), "below this confidence the model chooses the label", 0.85,
        variables=("CLASSIFIER_CONFIDENCE_THRESHOLD",),
    )  # fmt: skip
    export_dir: Path | None = option(
        kinds.PATH, "where questions and their labels are written; null: nowhere", None,
        variables=("CLASSIFIER_EXPORT_DIR",),
    )  # fmt: skip
    export_threshold: int = option(
        kinds.POSITIVE, "questions per file", 100, variables=("CLASSIFIER_EXPORT_THRESHOLD",)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How answers are judged."""

    judge: str | None = option(kinds.NAME, "id of the model that judges", None)
    questions: Path | None = option(kinds.PATH, "file of the questions", None)
