# SPDX-License-Identifier: Apache-2.0
"""Chooses, opens and closes the parts of a process; imports only what the settings name."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.agent.answer import AnyAgent
from lockgate.agent.evaluate import EvaluationSetup
from lockgate.compat import find_rules
from lockgate.config.access import list_requirements
from lockgate.config.endpoint_rules import EndpointRules
from lockgate.config.grants import AGENT_PREFIX, ANYTHING, Grant, is_under
from lockgate.config.policies import SECTION_TYPES
from lockgate.config.settings import (
    DetectorSettings,
    GenerationSettings,
    Settings,
)
from lockgate.errors import ConfigError, ConfigFaults, InvalidRequest, RequestError, UpstreamError
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CONTENTS, WHOLE_TEXT_CHUNKER, Health
from lockgate.guard.detectors import DetectorAsReviewer, Guard, Rules, choose
from lockgate.guard.plugin_parts import PluginChunker
from lockgate.guard.policy import Chunking
from lockgate.interfaces import Backend, Chunker, Headers, Probe, TypedDetector
from lockgate.opened_agents import (
    AgentOpener,
    ExposedAgent,
    OpenedAgents,
    SharedContext,
    build_evaluation,
    list_required,
)
from lockgate.part_pool import PartPool, stamp_files
from lockgate.plugins import is_foreign, place_fault
from lockgate.policy_resolver import PolicyResolver
from lockgate.sessions.turns import DEFAULT_AGENT

if TYPE_CHECKING:
    from lockgate.backends.upstreams import Upstreams

_RUNS_HERE = Health("HEALTHY")
_NOT_KEPT = "cannot be kept with `compat: fms`, where completions have no policies: remove it, or set `compat: none`"
_NO_PATH = "no model answers there: write a path such as `/v1/chat/completions`, `/v1` for all below it, or `/`"
_SENTENCES = "sentence"  # the chunker for detectors that compare an answer with documents


@dataclass(frozen=True, slots=True)
class Gateway:
    """The open parts of a process."""

    settings: Settings
    policies: PolicyResolver
    sentences: Chunking  # for detectors that compare an answer with documents
    upstreams: "Upstreams"
    opened: OpenedAgents
    rules: EndpointRules
    generation: Backend | None = None
    openai: Backend | None = None
    probes: Mapping[str, Probe | None] = field(default_factory=dict)  # by name; None for parts in this process

    async def probe(self, headers: Headers = ()) -> dict[str, Health]:
        """Returns the health of every part; probes all services at once, parts in this process are healthy."""
        probing = {name: probe.probe(headers) for name, probe in self.probes.items() if probe is not None}
        answered = dict(zip(probing, await asyncio.gather(*probing.values()), strict=True))
        return {name: answered.get(name, _RUNS_HERE) for name in self.probes}

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The detectors by id."""
        return self.policies.guards

    @property
    def agents(self) -> Mapping[str, AnyAgent]:
        """The agents by name."""
        return self.opened.agents

    @property
    def default_agent(self) -> str:
        """The agent of requests that name none: the one called `default`, else the first."""
        return DEFAULT_AGENT if DEFAULT_AGENT in self.opened.agents else next(iter(self.opened.agents))

    def find_agent(self, name: str, policy: str | None, grant: Grant = ANYTHING, source: str = "") -> AnyAgent:
        """Returns an agent, with the named policy if it has none; raises KeyError for an unknown agent or policy.

        With `source` it has this source only. Raises NotAllowed for what the grant does not permit.
        """
        agent, settings = self.opened.find_agent(name, source), self.settings.agents[name]
        grant.check_model(AGENT_PREFIX + name)
        if policy is not None:
            grant.check_policy(policy)
        if policy not in (None, settings.policy) and settings.policy is not None:
            message = f"agent `{name}` has policy `{settings.policy}`: a request cannot name another"
            raise InvalidRequest(message, status=400)
        if policy in (None, settings.policy) and not grant.required:
            return agent
        required = (*grant.required, *list_required(self.settings, settings))
        joined = self.policies.join(required, policy or settings.policy)
        return replace(agent, guarding=self.policies.resolve_for_agent(joined))

    def evaluation(self, agent: str | None = None, grant: Grant = ANYTHING) -> EvaluationSetup:
        """The parts of an agent's evaluation."""
        name = agent or self.default_agent
        return build_evaluation(self.settings, self.opened, partial(self.find_agent, name, None, grant))

    @property
    def strategy(self) -> Strategy | None:
        """Where releases end, if a rule or a setting decides it for all endpoints."""
        chosen = self.settings.release_strategy
        if self.rules.strategy is not None or chosen is None:
            return self.rules.strategy
        return Strategy(chosen)


@asynccontextmanager
async def open_gateway(settings: Settings, pool: PartPool | None = None) -> AsyncIterator[Gateway]:
    """Opens every part that the settings name; closes them in reverse order. Takes equal parts from the pool."""
    from lockgate.backends.upstreams import open_upstreams

    async with AsyncExitStack() as stack:
        opener = _Opener(settings, stack, pool)
        generation = await opener.open_generation()
        openai = await opener.open_openai()
        chunkers = [name for name, part in settings.chunkers.items() if part.service is not None]
        used = [part.chunker_id for part in settings.detectors.values()]
        for name in dict.fromkeys([*chunkers, *used]):
            await opener.open_chunker(name)
        if _SENTENCES not in opener.chunkers:
            await opener.open_chunker(_SENTENCES)
            opener.probes.pop(_SENTENCES, None)  # no detector names it, so its health does not count
        guards = [await opener.open_guard(name, detector) for name, detector in settings.detectors.items()]
        kept = {guard.id: guard for guard in guards if guard is not None}
        opener.try_policies(kept)
        opener.check_access()
        sentences = opener.chunkers[_SENTENCES]
        if opener.faults or sentences is None:
            raise ConfigFaults(tuple(opener.faults))
        policies, chunking = PolicyResolver(settings, kept), Chunking(_SENTENCES, sentences)
        exposed = ExposedAgent({}, {})
        opening = open_upstreams(settings.upstreams.allow, *exposed, resends=opener.rules.resends)
        upstreams = await stack.enter_async_context(opening)
        try:
            agent_opener = AgentOpener(policies, chunking, stack, opener.open_part, upstreams, opener.context)
            agents = await agent_opener.open(exposed)
        except ConfigError as error:
            if opener.faults:
                raise ConfigFaults((*opener.faults, error)) from error
            raise
        if opener.faults:
            raise ConfigFaults(tuple(opener.faults))
        probes = {**opener.probes, **agents.probes}
        opener.context.take_over()
        yield Gateway(settings, policies, chunking, upstreams, agents, opener.rules, generation, openai, probes)


@dataclass(frozen=True, slots=True)
class Parts:
    """The open parts that run in this process."""

    settings: Settings
    guards: Mapping[str, Guard]
    chunkers: Mapping[str, Chunker]


@asynccontextmanager
async def open_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Opens detectors (without their chunkers) and chunkers of this process; closes them in reverse order."""
    names = [name for name, one in settings.chunkers.items() if one.embedded and name != WHOLE_TEXT_CHUNKER]
    detectors = {name: one for name, one in settings.detectors.items() if one.embedded}
    async with AsyncExitStack() as stack:
        opener = _Opener(settings, stack)
        for name in (*names, WHOLE_TEXT_CHUNKER):
            await opener.open_chunker(name)
        guards = [
            await opener.open_guard(name, replace(one, chunker_id=WHOLE_TEXT_CHUNKER))
            for name, one in detectors.items()
        ]
        if opener.faults:
            raise ConfigFaults(tuple(opener.faults))
        chunkers = {name: one for name in names if (one := opener.chunkers[name]) is not None}
        yield Parts(settings, {guard.id: guard for guard in guards if guard is not None}, chunkers)


class _Opener:
    """Opens parts one by one and collects the faults in their options."""

    def __init__(self, settings: Settings, stack: AsyncExitStack, pool: PartPool | None = None) -> None:
        self._settings = settings
        self.rules = find_rules(settings)
        self.context = SharedContext(settings, stack, pool)
        self.chunkers: dict[str, Chunker | None] = {}
        self.probes: dict[str, Probe | None] = {}
        self.faults: list[ConfigError] = []

    async def open_generation(self) -> Backend | None:
        chosen = self._settings.generation
        if chosen is None:
            return None
        opening = _open_generation(chosen, limits_silence=self.rules.limits_silence)
        backend: Backend | None = await self._call("generation", opening, "generation.service", chosen)
        return backend

    async def open_openai(self) -> Backend | None:
        chosen = self._settings.openai
        if chosen is None:
            return None
        from lockgate.backends.openai import open_openai_client

        rules = self.rules
        client = open_openai_client(
            chosen, resends=rules.resends, limits_silence=rules.limits_silence, skips_events=rules.skips_events
        )
        backend: Backend | None = await self._call("openai", client, "openai.service", chosen)
        return backend

    async def open_chunker(self, name: str) -> None:
        chosen = None if name == WHOLE_TEXT_CHUNKER else self._settings.chunkers.get(name)
        if chosen is not None and chosen.service is not None:
            from lockgate.backends.chunker import open_chunker_client

            client = open_chunker_client(name, chosen.service)
            self.chunkers[name] = await self._call(name, client, f"chunkers.{name}.service", chosen)
            return
        embedded = name if chosen is None or chosen.embedded is None else chosen.embedded
        options = {} if chosen is None else chosen.options
        opened = await self.open_part("lockgate.chunkers", embedded, options, f"chunkers.{name}")
        is_plugin = opened is not None and is_foreign("lockgate.chunkers", embedded)
        self.chunkers[name] = PluginChunker(name, opened) if is_plugin else opened
        if chosen is not None:
            self.probes[name] = None

    async def open_guard(self, name: str, detector: DetectorSettings) -> Guard | None:
        chunker = self.chunkers.get(detector.chunker_id)
        if detector.embedded is None:
            from lockgate.backends.detector import open_detector_client

            if self.rules.batch_contents is not None:
                detector = replace(detector, batch_contents=self.rules.batch_contents)
            rules = self.rules
            client = open_detector_client(name, detector, trusts_findings=rules.trusts_findings, resends=rules.resends)
            opened = await self._call(name, client, f"detectors.{name}.service", detector)
        else:
            opened = await self.open_part(
                "lockgate.detectors", detector.embedded, detector.options, f"detectors.{name}"
            )
            self.probes[name] = None
            opened = self._fit(name, detector, opened)
        if opened is None or (chunker is None and detector.type == TEXT_CONTENTS):
            return None
        return Guard(
            name,
            detector.type,
            opened,
            detector.chunker_id,
            chunker,
            detector.default_threshold,
            is_plugin=detector.embedded is not None and is_foreign("lockgate.detectors", detector.embedded),
            is_remote=detector.embedded is None,
        )

    def _fit(self, name: str, detector: DetectorSettings, opened: Any) -> Any:
        """Returns the detector, adapted to the configured type; if it cannot have that type, adds a fault."""
        types = opened.types if isinstance(opened, TypedDetector) else (TEXT_CONTENTS,)
        if opened is None or detector.type in types:
            return opened
        if TEXT_CONTENTS in types:
            return DetectorAsReviewer(opened)
        message = f"`{detector.embedded}` cannot be of type {detector.type}: write {' or '.join(types)}"
        self.faults.append(ConfigError(message, source=self._settings.source, key=f"detectors.{name}.type"))
        return None

    def try_policies(self, guards: Mapping[str, Guard]) -> None:
        """Checks the parameters that policies give to detectors; adds a fault for each wrong one."""
        for policy in self._settings.policies.values():
            for section in SECTION_TYPES:
                for name, params in getattr(policy, section).items():
                    try:
                        if name in guards:
                            choose(guards, {name: params}, Rules(types=(guards[name].type,)))
                    except (RequestError, UpstreamError) as error:
                        key = f"policies.{policy.name}.{section}.{name}"
                        words = error.message.removeprefix(f"detector request failed for `{name}`: ")
                        words += "; besides, a policy gives a detector `threshold`, `on_finding`, "
                        words += "`on_detector_failure`, `max_hold_ms`"
                        self.faults.append(ConfigError(words, source=self._settings.source, key=key))

    def check_access(self) -> None:
        """Adds a fault for each required policy and each caller's list that this gateway could not keep."""
        from lockgate.api.endpoints import list_guarded_paths

        settings, source = self._settings, self._settings.source
        keys = [one.key for one in list_requirements(settings)]
        keys += [("callers", one.name, "policies") for one in settings.callers.values() if one.policies is not None]
        keys += [("callers", one.name, "models") for one in settings.callers.values() if one.models is not None]
        for key in [] if self.rules.has_extensions else keys:
            self.faults.append(ConfigError(_NOT_KEPT, source=source, key=".".join(key)))
        paths = list_guarded_paths()
        for begin in settings.required_policies:
            if not begin.startswith("/") or not any(is_under(path, begin) for path in paths):
                self.faults.append(ConfigError(_NO_PATH, source=source, key=f"required_policies.{begin}"))

    async def _call(self, name: str, opening: AbstractAsyncContextManager[Any], key: str, chosen: object) -> Any:
        """Opens a client, which also probes the service's health; None, and a fault, if it fails."""
        try:
            client = await self.context.enter((key, chosen, stamp_files(chosen)), opening)
        except ConfigError as error:
            self.faults.append(ConfigError(error.message, source=self._settings.source, key=key))
            return None
        self.probes[name] = client
        return client

    async def open_part(self, group: str, name: str, options: Mapping[str, Any], key: str) -> Any:
        """Opens a part that runs in this process; None, and a fault, if that fails."""
        try:
            return await self.context.enter_plugin(group, name, options)
        except ConfigError as error:
            self.faults.append(place_fault(error, self._settings.source, key))
            return None


def _open_generation(chosen: GenerationSettings, *, limits_silence: bool) -> AbstractAsyncContextManager[Any]:
    if chosen.provider == "tgis":
        from lockgate.backends.tgis import open_tgis_client

        return open_tgis_client(chosen.service, limits_silence=limits_silence)
    from lockgate.backends.caikit_nlp import open_caikit_nlp_client

    return open_caikit_nlp_client(chosen.service, limits_silence=limits_silence)


def open_once(settings: Settings) -> None:
    """Opens and closes every part, to find faults; raises ConfigError. Calls nothing."""

    async def open_and_close() -> None:
        async with open_gateway(settings):
            pass

    asyncio.run(open_and_close())


def try_part(group: str, name: str, options: Mapping[str, Any], data_dir: Path) -> ConfigError | None:
    """Opens and closes a part; returns its fault, if any."""

    async def open_once() -> None:
        async with AsyncExitStack() as stack:
            await SharedContext(Settings(data_dir=data_dir), stack).enter_plugin(group, name, options)

    try:
        asyncio.run(open_once())
    except ConfigError as error:
        return error
    return None
