# SPDX-License-Identifier: Apache-2.0
"""Opens the parts of agents (models, sources, embedder, classifier, session store) and builds agents of them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.agent.answer import AnyAgent, Gate, Pace
from lockgate.agent.evaluate import EvaluationSetup, JudgeModel
from lockgate.agent.graph import build_graphs
from lockgate.agent.prompts import Guess
from lockgate.agent.routes import choose_routes
from lockgate.agent.turns import Agent, Memory
from lockgate.backends.endpoints import Endpoint
from lockgate.compat import find_rules
from lockgate.config.agent_settings import INDEX, AgentSettings, ModelSettings, SourceSettings, SpaceSettings
from lockgate.config.refs import OPENAI_PREFIX
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError, InvalidRequest, RequestError, UpstreamError
from lockgate.guard.policy import Chunking, Policy
from lockgate.interfaces import DataSource, Embedder, Model, PartContext, Probe, SessionStore
from lockgate.part_pool import PartPool, stamp_files
from lockgate.plugins import open_plugin, place_fault
from lockgate.policy_resolver import PolicyResolver
from lockgate.rag.sources import Bounds, NamedSource, RetrievalScope
from lockgate.sessions.turns import StoreLimits
from lockgate.telemetry import LogEvent, log_event

if TYPE_CHECKING:
    from lockgate.agent.label_export import LabelExport
    from lockgate.backends.upstreams import Upstreams
    from lockgate.index.fts import FtsDataSource
    from lockgate.index.postgres import PostgresIndex

_SESSIONS = "lockgate.sessions"
_OWN_EMBEDDER = "minilm"  # its weights
_HINT = "there is no embedder: run `lockgate setup` to fetch it; until then agents search by words only"

OpenPart = Callable[[str, str, Mapping[str, Any], str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class OpenedAgents:
    """Open agents by name, models and sources by id, and their probes."""

    agents: Mapping[str, Agent]
    models: Mapping[str, Model]
    sources: Mapping[str, NamedSource]
    probes: Mapping[str, Probe]
    needed: Mapping[str, Probe]  # must each have answered once before the process is ready

    def find_agent(self, name: str, source: str = "") -> Agent:
        """An agent, or the same agent with one source only."""
        if not source:
            return self.agents[name]
        if source not in self.sources:
            raise InvalidRequest(f"there is no source `{source}`", status=400)
        agent = self.agents[name]
        return replace(agent, library=agent.library._replace(sources=(self.sources[source],)))


class ExposedAgent(NamedTuple):
    """The sources and models that requests may name by id: opened in this process, or as endpoints."""

    sources: dict[str, DataSource | Endpoint | None]
    models: dict[str, Model | Endpoint | None]


class SharedContext:
    """The objects that the parts of one gateway share. With a pool, other gateways share equal parts."""

    def __init__(self, settings: Settings, stack: AsyncExitStack, pool: PartPool | None = None) -> None:
        self.settings = settings
        self._stack = stack
        self._pool = pool
        self._embedder: Embedder | None = None
        self._has_looked = False
        self._handed_over: list[PartAccess] = []
        self.models: Mapping[str, Model] = {}

    async def share_embedder(self) -> Embedder | None:
        """The embedder of this process, opened once; None if its weights have not been fetched."""
        if not self._has_looked:
            self._embedder = await self.enter(("embedder",), open_own_embedder(self.settings))
            self._has_looked = True
        return self._embedder

    async def enter(
        self,
        key: tuple[Any, ...],
        opening: AbstractAsyncContextManager[Any],
        access: "PartAccess | None" = None,
    ) -> Any:
        """Opens a part for this gateway, or takes the open one with the same key. `access`: what the part was given."""
        if self._pool is None:
            return await self._stack.enter_async_context(opening)
        key = (self.settings.compat, self.settings.data_dir, *key)
        part, given = await self._stack.enter_async_context(self._pool.lease(key, opening, access, self._fits))
        if given is not access:
            self._handed_over.append(given)
            if given.uses_embedder:
                await self.share_embedder()
        return part

    async def enter_plugin(self, group: str, name: str, options: Mapping[str, Any]) -> Any:
        """Opens a plugin's part for this gateway, or takes the open one with the same options and files."""
        access = PartAccess(self)
        key = (group, name, options, stamp_files(options) if self._pool is not None else ())
        return await self.enter(key, open_plugin(group, name, options, access), access)

    def _fits(self, access: "PartAccess | None") -> bool:
        return access is None or not access.uses_models or access.context.settings.models == self.settings.models

    def take_over(self) -> None:
        """Lets the parts that were handed over find the models of this gateway from now on."""
        for one in self._handed_over:
            one.context = self


class PartAccess:
    """The PartContext of one part. It notes what the part uses, which stays open as long as the part does."""

    def __init__(self, context: SharedContext) -> None:
        self.context = context
        self.uses_models = self.uses_embedder = False

    @property
    def data_dir(self) -> Path:
        """The folder with the weights."""
        return self.context.settings.data_dir

    def find_model(self, name: str) -> Model:
        """A configured model; raises KeyError."""
        self.uses_models = True
        return self.context.models[name]

    async def share_embedder(self) -> Embedder | None:
        """The embedder of this process; None if its weights have not been fetched."""
        self.uses_embedder = True
        return await self.context.share_embedder()


class AgentOpener:
    """Opens agents and their parts. `open_part` opens a plugin of a group and records its fault."""

    def __init__(
        self,
        policies: PolicyResolver,
        chunking: Chunking,
        stack: AsyncExitStack,
        open_part: OpenPart,
        upstreams: "Upstreams",
        context: SharedContext,
    ) -> None:
        self._settings = policies.settings
        self._resends = find_rules(policies.settings).resends
        self._policies = policies
        self._chunking = chunking
        self._stack = stack
        self._context = context
        self._open_part = open_part
        self._upstreams = upstreams
        self._probes: dict[str, Probe] = {}

    async def open(self, exposed: ExposedAgent) -> OpenedAgents:
        """Opens all agents; adds the parts that requests may name to `exposed`. Raises ConfigError."""
        settings = self._settings
        models = self._context.models = {name: await self._open_model(one) for name, one in settings.models.items()}
        used = {name: one for name, one in settings.sources.items() if settings.agents or one.expose}
        needs_embedder = any(one.elasticsearch is not None or is_index(one) for one in used.values())
        embedder = await self._open_embedder() if needs_embedder else None
        sources = {name: await self._open_source(one, embedder) for name, one in used.items()}
        exposed.models.update({name: _expose_model(one, models[name]) for name, one in settings.models.items()
                               if one.expose})  # fmt: skip
        exposed.sources.update({name: _expose_source(one, sources[name]) for name, one in used.items() if one.expose})
        agents = await self._open_agents(models, sources, embedder) if settings.agents else {}
        return OpenedAgents(agents, models, sources, self._probes, self._list_needed())

    async def _open_agents(
        self, models: Mapping[str, Model], sources: Mapping[str, NamedSource], embedder: Embedder | None
    ) -> dict[str, Agent]:
        settings = self._settings
        store = await self._open_sessions()
        gate = Gate(self._chunking, settings.limits.max_held_chars, settings.detector_concurrent_requests)
        guess = await self._open_classifier(embedder)
        note_label = await self._open_export()
        agents = {}
        limits = settings.limits
        bounds = Bounds(limits.document_bytes, limits.source_bytes, limits.question_bytes)
        for name, one in settings.agents.items():
            searched = [sources[source] for source in one.sources]
            routes = choose_routes(has_platform=one.platform_route)
            agents[name] = Agent(
                routes=routes,
                graphs=build_graphs(routes),
                main=models[one.main],
                conversational=models[one.conversational],
                library=RetrievalScope(searched, one.passages, one.min_similarity, bounds),
                memory=Memory(store, one.history_messages, one.history_tokens),
                guarding=self._guard(one),
                gate=gate,
                guess=guess,
                note_label=note_label,
                embedder=embedder,
                pace=Pace(one.first_token_timeout_s, one.token_gap_timeout_s),
                prepare_s=one.prepare_timeout_s,
            )
        return agents

    def _guard(self, agent: AgentSettings) -> Callable[[], Policy]:
        required = list_required(self._settings, agent)
        policy = self._settings.policies[agent.policy] if agent.policy is not None else None
        try:
            if required:
                policy = self._policies.join(required, agent.policy)
            return self._policies.resolve_for_agent(policy)
        except RequestError as error:
            key = f"agents.{agent.id}.policy"
            raise ConfigError(error.message, source=self._settings.source, key=key) from error

    def _list_needed(self) -> dict[str, Probe]:
        """The probes of the parts that agents need."""
        agents = self._settings.agents.values()
        if not agents:
            return {}
        needed = {f"models.{name}" for one in agents for name in (one.main, one.conversational)}
        needed |= {f"sources.{name}" for one in agents for name in one.sources}
        return {name: probe for name, probe in self._probes.items() if name in needed or "." not in name}

    async def _open_sessions(self) -> SessionStore:
        access = PartAccess(self._context)
        key = ("sessions", self._settings.sessions)
        opened = await self._context.enter(key, open_sessions(self._settings, access), access)
        store: SessionStore = self._note_probe("sessions", opened)
        return store

    async def _enter(self, name: str, opening: AbstractAsyncContextManager[Any], *key: object) -> Any:
        """Opens a part, or takes over the one that was opened with the same `key` and the same files."""
        key = (name, *key, stamp_files(key))
        return self._note_probe(name, await self._context.enter(key, opening))

    def _note_probe(self, name: str, opened: Any) -> Any:
        if isinstance(opened, Probe):
            self._probes[name] = opened
        return opened

    async def _open_model(self, model: ModelSettings) -> Any:
        name = f"models.{model.id}"
        if model.openai is not None:
            from lockgate.backends.openai_model import open_openai_model

            return await self._enter(name, open_openai_model(model.openai, resends=self._resends), model)
        if model.ollama is not None:
            from lockgate.backends.ollama import open_ollama_model

            return await self._enter(name, open_ollama_model(model.ollama, resends=self._resends), model)
        opened = await self._open_part("lockgate.models", str(model.embedded), model.options, name)
        return self._note_probe(name, opened)

    async def _open_source(self, source: SourceSettings, embedder: Embedder | None) -> NamedSource:
        name = f"sources.{source.id}"
        if source.syftai_space is not None:
            endpoint = _find_space(source.syftai_space)
            return NamedSource(endpoint.path, self._upstreams.own_source(endpoint))
        opened: DataSource
        if source.elasticsearch is not None:
            from lockgate.index.elasticsearch import open_elasticsearch

            opening = open_elasticsearch(source.elasticsearch, embedder, source.id, resends=self._resends)
            opened = await self._enter(name, opening, source, embedder)
        elif is_index(source):
            opened = await self._enter(name, open_index_of(self._settings, source, embedder), source, embedder)
        else:
            opened = await self._open_part("lockgate.data_sources", str(source.embedded), source.options, name)
        return NamedSource(source.id, opened)

    async def _open_embedder(self) -> Embedder | None:
        embedder: Embedder | None
        if self._settings.embeddings.ollama is None:
            embedder = await self._context.share_embedder()
        else:
            embedder = await self._enter("embeddings", open_embedder(self._settings), self._settings.embeddings)
        if embedder is None:
            log_event(LogEvent.WARNING, logging.WARNING, reason=_HINT)
        return embedder

    async def _open_classifier(self, embedder: Embedder | None) -> Callable[[str], Awaitable[Guess | None]] | None:
        """Opens the classifier with the embedder of its training; None without its file or the weights."""
        from lockgate.agent.classifier import find_classifier, load_classifier

        path = find_classifier(self._settings.classifier.model_path, self._settings.data_dir)
        own = embedder if self._settings.embeddings.ollama is None else None
        if path is not None and own is None:
            own = await self._context.share_embedder()
        if path is None or own is None:
            return None
        classifier = load_classifier(path, own, self._settings.classifier.confidence_threshold)
        return classifier.classify if classifier is not None else None

    async def _open_export(self) -> Callable[[str, str, str, float | None], None] | None:
        classifier = self._settings.classifier
        if classifier.export_dir is None:
            return None
        from lockgate.agent.label_export import open_label_export

        opening = open_label_export(classifier.export_dir, classifier.export_threshold)
        key = ("label export", classifier.export_dir, classifier.export_threshold)
        export: LabelExport = await self._context.enter(key, opening)
        return export.note


def find_sessions_file(settings: Settings) -> Path | None:
    """The file of the sessions, if they are kept in a file."""
    sqlite = settings.sessions.sqlite
    return None if sqlite is None else settings.data_dir / sqlite


@asynccontextmanager
async def open_sessions(settings: Settings, context: PartContext | None = None) -> AsyncIterator[SessionStore]:
    """Opens the configured session store, for agents and for operators. Raises ConfigError and UpstreamError."""
    name, options = _choose_store(settings)
    async with AsyncExitStack() as stack:
        context = context if context is not None else PartAccess(SharedContext(settings, stack))
        opening = open_plugin(_SESSIONS, name, options, context, raises=(UpstreamError,))
        try:
            store: SessionStore = await stack.enter_async_context(opening)
        except ConfigError as error:
            raise place_fault(error, settings.source, "sessions") if settings.sessions.embedded else error from error
        yield store


def _choose_store(settings: Settings) -> tuple[str, Mapping[str, Any]]:
    """The name of the session store and its options, which always include the limits."""
    sessions = settings.sessions
    limits = StoreLimits(sessions.max_messages, sessions.retention_days)._asdict()
    if sessions.embedded is not None:
        for key in limits.keys() & sessions.options.keys():
            raise ConfigError(f"write it as `sessions.{key}`", source=settings.source, key=f"sessions.options.{key}")
        return sessions.embedded, {**sessions.options, **limits}
    if sessions.postgres is not None and sessions.postgres.dsn is not None:
        return "postgres", {"dsn": sessions.postgres.dsn.reveal(), **limits}
    return "sqlite", {"file": sessions.sqlite, **limits}


@asynccontextmanager
async def open_embedder(settings: Settings, threads: int = 1) -> AsyncIterator[Embedder | None]:
    """Opens the configured embedder; None if it runs in this process and its weights have not been fetched."""
    if settings.embeddings.ollama is None:
        async with open_own_embedder(settings, threads) as own:
            yield own
        return
    from lockgate.backends.ollama import open_ollama_embedder

    async with open_ollama_embedder(settings.embeddings.ollama, resends=find_rules(settings).resends) as embedder:
        yield embedder


@asynccontextmanager
async def open_own_embedder(settings: Settings, threads: int = 1) -> AsyncIterator[Embedder | None]:
    """Opens the local embedder; None if its weights have not been fetched."""
    from lockgate.models.weights import find_weights

    weights = find_weights(settings.data_dir, _OWN_EMBEDDER)
    if weights is None:
        yield None
        return
    from lockgate.models.minilm import open_minilm

    async with open_minilm(weights, threads) as embedder:
        yield embedder


def is_index(source: SourceSettings) -> bool:
    """Whether documents can be added to a source."""
    return source.postgres is not None or source.embedded == INDEX


def find_index_file(settings: Settings, source: SourceSettings) -> Path:
    """The file of an embedded index; raises ConfigError."""
    from lockgate.index import index_part

    try:
        return index_part.find_index_file(source.options, settings.data_dir)
    except ConfigError as error:
        key = f"sources.{source.id}.options.{error.key}"
        raise ConfigError(error.message, source=settings.source, key=key) from error


def open_index_of(
    settings: Settings, source: SourceSettings, embedder: Embedder | None = None, *, is_quiet: bool = False
) -> "AbstractAsyncContextManager[FtsDataSource | PostgresIndex]":
    """Opens the index of a source, to search it and to add documents; logs what is missing, unless quiet."""
    if source.postgres is None:
        from lockgate.index.fts import open_index

        return open_index(find_index_file(settings, source), embedder, source.id, is_quiet=is_quiet)
    from lockgate.index.postgres import open_postgres_index

    assert source.postgres.dsn is not None
    dsn = source.postgres.dsn.reveal()
    return open_postgres_index(dsn, source.postgres.table, embedder, source.id, is_quiet=is_quiet)


def list_required(settings: Settings, agent: AgentSettings) -> list[str]:
    """The policies that the models of an agent require."""
    required = [settings.models[name].required_policy for name in (agent.main, agent.conversational)]
    return [name for name in dict.fromkeys(required) if name is not None]


def build_evaluation(settings: Settings, opened: OpenedAgents, find: Callable[..., AnyAgent]) -> EvaluationSetup:
    """The parts of an agent's evaluation, as far as they are configured."""
    evaluation = settings.evaluation
    judge = JudgeModel(opened.models[evaluation.judge], evaluation.judge) if evaluation.judge else None
    return EvaluationSetup(find, judge, evaluation.questions)


def _find_space(space: SpaceSettings) -> Endpoint:
    token = space.token.reveal() if space.token is not None else None
    return Endpoint(space.url, space.slug, space.owner, space.tenant, token)


def _expose_source(settings: SourceSettings, source: NamedSource) -> DataSource | Endpoint:
    """A source for requests; for a Space its endpoint, because requests have their own limits."""
    return source.source if settings.syftai_space is None else _find_space(settings.syftai_space)


def _expose_model(settings: ModelSettings, model: Model) -> Model | Endpoint:
    """A model for requests; for an OpenAI-compatible server its endpoint."""
    if (server := settings.openai) is None:
        return model
    token = server.api_token_value.reveal() if server.api_token_value is not None else None
    return Endpoint(OPENAI_PREFIX + server.url, server.model, token=token)
