# SPDX-License-Identifier: Apache-2.0
"""The options of who answers and who knows: models, data sources, and where each is. Refuses to know who uses them."""
# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

import dataclasses
from collections.abc import Mapping
from typing import Any

from lockgate.config import kinds
from lockgate.config.kinds import Section
from lockgate.config.options import Secret, option


@dataclasses.dataclass(frozen=True, slots=True)
class OpenAIModelSettings:
    """A model of an OpenAI-compatible server. `api_token` names a variable."""

    url: str = option(kinds.URL, "address of the server: what stands before `/chat/completions`")
    model: str = option(kinds.NAME, "name of the model there")
    api_token: str | None = option(kinds.TEXT, "name of the environment variable that holds the bearer token", None)
    api_token_value: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class OllamaModelSettings:
    """A model of an Ollama server."""

    url: str = option(kinds.URL, "address of the server: what stands before `/api`")
    model: str = option(kinds.NAME, "name of the model there")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model of this instance; exactly one of `openai`, `ollama` and `embedded` is set. `id` is that of its entry."""

    id: str
    openai: OpenAIModelSettings | None = option(Section(OpenAIModelSettings), "an OpenAI-compatible server", None)
    ollama: OllamaModelSettings | None = option(Section(OllamaModelSettings), "an Ollama server", None)
    embedded: str | None = option(
        kinds.EMBEDDED, "one that runs here: `module:attribute` or the name of an installed one", None
    )
    options: Mapping[str, Any] = option(kinds.MAP, "what the embedded model is given", dict, "{}")
    expose: bool | None = option(
        kinds.BOOLEAN, "true: every request may name it; false: none may", None, "as `model` on `/v1` and `/api`"
    )
    policy: str | None = option(kinds.NAME, "id of the policy of requests that name none", None)


@dataclasses.dataclass(frozen=True, slots=True)
class SpaceSettings:
    """A data source of a SyftAI Space. `token_env` names a variable."""

    url: str = option(kinds.URL, "address of the space")
    slug: str = option(kinds.SLUG, "name of the endpoint there")
    owner: str | None = option(kinds.NAME, "whose it is", None)
    tenant: str | None = option(kinds.NAME, "sent as `X-Tenant-Name`", None)
    token_env: str | None = option(kinds.TEXT, "name of the environment variable that holds the bearer token", None)
    token: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PostgresSettings:
    """A PostgreSQL database. `dsn_env` names a variable; once the settings are loaded, `dsn` is what it holds."""

    dsn_env: str = option(kinds.NAME, "name of the environment variable that holds the address with user and password")
    dsn: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PostgresSourceSettings:
    """Passages in a PostgreSQL database. `dsn_env` names a variable; once loaded, `dsn` is what it holds."""

    dsn_env: str = option(kinds.NAME, "name of the environment variable that holds the address with user and password")
    table: str = option(kinds.TABLE, "table of the passages", "passages")
    dsn: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ElasticsearchSettings:
    """An index of Elasticsearch or OpenSearch. `api_key_env` names a variable, `api_key` is what it holds."""

    url: str = option(kinds.URL, "address of the server")
    index: str = option(kinds.SLUG, "name of the index")
    api_key_env: str | None = option(kinds.NAME, "name of the environment variable that holds the API key", None)
    api_key: Secret | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SourceSettings:
    """A data source of this instance; exactly one of its kinds is set. `id` is that of its entry."""

    id: str
    syftai_space: SpaceSettings | None = option(Section(SpaceSettings), "an endpoint of a SyftAI Space", None)
    embedded: str | None = option(
        kinds.EMBEDDED, "one that runs here: `index`, `module:attribute` or the name of an installed one", None
    )
    options: Mapping[str, Any] = option(kinds.MAP, "what the embedded source is given", dict, "{}")
    postgres: PostgresSourceSettings | None = option(Section(PostgresSourceSettings), "a PostgreSQL database", None)
    elasticsearch: ElasticsearchSettings | None = option(
        Section(ElasticsearchSettings), "an index of Elasticsearch or OpenSearch", None
    )
    expose: bool = option(kinds.BOOLEAN, "requests may name it", False)


@dataclasses.dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Who may be called of those that requests name."""

    allow: tuple[str, ...] = option(
        kinds.TEXTS,
        "hosts and networks that requests may name; empty: any but link-local and metadata addresses",
        (),
        "[]",
    )
