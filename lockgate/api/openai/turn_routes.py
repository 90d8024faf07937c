# SPDX-License-Identifier: Apache-2.0
"""The endpoints for OpenAI and Ollama clients: finds what `model` names, and answers for agents."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

from lockgate._version import __version__
from lockgate.agent.answer import ANSWERED, AgentQuestion, AnyAgent, TurnResult
from lockgate.api.aggregator.format import UNSUITABLE_DOCUMENTS, describe_inspected
from lockgate.api.endpoints import MODELS_PATH
from lockgate.api.guarded_answer import MAPPING_HEADER
from lockgate.api.ollama import format as agent_ollama
from lockgate.api.openai import turn_format as agent_openai
from lockgate.api.openai.configured_model import refuse_session
from lockgate.api.openai.envelope import FILTERED
from lockgate.api.openai.format import UNSUITABLE_INPUT, UNSUITABLE_OUTPUT, encode, to_results, warn
from lockgate.api.openai.model_list import ProxiedModels, describe, encode_models, encode_unknown_model
from lockgate.api.openai.routes import NamedTarget, OpenAIRoutes, Start, start_lines
from lockgate.api.openai.turn_fields import (
    TurnRequest,
    TurnWriter,
    peek_model,
    read_model,
    refuse_with_400,
    start_events,
)
from lockgate.api.openai.whole_answer import CHATS, TEXTS, Dialect
from lockgate.api.receipts import AnswerAccount, describe_failure
from lockgate.api.shapes import decode
from lockgate.api.turn_values import read_request_id
from lockgate.config.grants import AGENT_PREFIX, ANYTHING, Grant
from lockgate.config.settings import Settings
from lockgate.errors import InvalidRequest, UnreadableBody
from lockgate.gate.values import Detection
from lockgate.interfaces import Backend, ModelLister
from lockgate.server.exchange import TOO_LARGE, Exchange, HttpRequest
from lockgate.sessions.turns import DEFAULT_AGENT, SessionKey

BRUNIX = "brunix"
_MAX_FOUND = 256  # cached names, each of at most so many characters:
_MAX_KEPT_CHARS = 200
STOPPED, CUT = "stop", "length"  # why an answer ended, besides FILTERED


class ReadTurn(Protocol):
    """Reads the body of a request to a model that takes these parameters."""

    def __call__(self, raw: bytes, takes: frozenset[str]) -> TurnRequest: ...


class TurnFormat(NamedTuple):
    """One wire format: how requests are read and answers written."""

    read: ReadTurn
    writer: Callable[[TurnRequest], TurnWriter]
    read_body: Callable[[HttpRequest, int], Awaitable[bytes]]  # with a limit in bytes
    start: Start
    encode_unknown: Callable[[str], bytes]  # the answer to a name that no model has
    suffix: str = ""  # optional end of a name


_openai = partial(
    TurnFormat,
    read_body=HttpRequest.read_json,
    start=start_events,
    encode_unknown=encode_unknown_model,
)
_ollama = partial(
    TurnFormat,
    read_body=HttpRequest.read_body,
    start=start_lines,
    encode_unknown=agent_ollama.encode_unknown_model,
    suffix=agent_ollama.LATEST,
)
OPENAI_CHAT = _openai(agent_openai.read_chat, agent_openai.ChatTurnWriter)
OPENAI_TEXT = _openai(agent_openai.read_text, agent_openai.TextTurnWriter)
TEXT_FORMATS = {  # besides OpenAI's, by endpoint
    "ollamaChat": _ollama(agent_ollama.read_chat, agent_ollama.OllamaChatWriter),
    "ollamaGenerate": _ollama(agent_ollama.read_text, agent_ollama.OllamaTextWriter),
}


class AgentGateway(Protocol):
    """What these routes need of a gateway."""

    @property
    def settings(self) -> Settings: ...

    @property
    def openai(self) -> Backend | None:
        """The upstream server, if one is configured."""

    @property
    def agents(self) -> Mapping[str, AnyAgent]:
        """The agents by name."""

    def find_agent(self, name: str, policy: str | None, grant: Grant = ANYTHING) -> AnyAgent:
        """An agent, under the named policy, else under its own, and under those that the grant requires."""


class FoundAgent(NamedTuple):
    """The agent that answers, its name, and the parameters that it takes."""

    agent: AnyAgent
    name: str
    takes: frozenset[str]


class AgentRoutes:
    """The endpoints of one open gateway; `completions` answers where no agent is named."""

    def __init__(self, gateway: AgentGateway, completions: OpenAIRoutes | None = None) -> None:
        self._gateway = gateway
        self._completions = completions
        self._proxied = ProxiedModels(gateway.openai if isinstance(gateway.openai, ModelLister) else None)
        self._models = [name for name, one in gateway.settings.models.items() if one.expose is not False]
        self._limits = gateway.settings.limits
        self._created = int(time.time())
        self._find_short = lru_cache(_MAX_FOUND)(self._find)

    @property
    def names(self) -> list[str]:
        """All names that `model` may have, without those with `@<policy>`."""
        agents = self._gateway.agents
        brunix = [BRUNIX] if DEFAULT_AGENT in agents else []
        return list(dict.fromkeys([*brunix, *(AGENT_PREFIX + name for name in agents), *self._models]))

    async def complete_chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        await self.answer(OPENAI_CHAT, exchange, CHATS)

    async def complete_text(self, exchange: Exchange) -> None:
        """POST /v1/completions."""
        await self.answer(OPENAI_TEXT, exchange, TEXTS)

    async def list_models(self, exchange: Exchange) -> None:
        """GET /v1/models."""
        described = await self._describe_models(exchange.request.grant)
        await exchange.reply.answer_json(encode_models(list(described.values())))

    async def show_model(self, exchange: Exchange) -> None:
        """GET /v1/models/<name>."""
        name = exchange.request.path.partition(f"{MODELS_PATH}/")[2]  # a policy may come before it
        found = (await self._describe_models(exchange.request.grant)).get(name)
        if found is None:
            await _answer_unknown(exchange, OPENAI_CHAT, name)
        else:
            await exchange.reply.answer_json(encode(found))

    async def _describe_models(self, grant: Grant) -> dict[str, Mapping[str, Any]]:
        """Own models, then those of the upstream server that have other names; only those that the caller may use."""
        own = {name: describe(name, self._created) for name in self.names}
        described = {**await self._proxied.find(), **own}
        return {name: described[name] for name in [*own, *described] if grant.may_use(name)}

    async def list_tags(self, exchange: Exchange) -> None:
        """GET /api/tags."""
        names = [name for name in self.names if exchange.request.grant.may_use(name)]
        await exchange.reply.answer_json(agent_ollama.encode_models(names, self._created))

    async def answer(self, form: TurnFormat, exchange: Exchange, dialect: Dialect | None = None) -> None:
        """Answer for an agent, or pass a request to a model on."""
        completions = self._completions
        is_proxied = dialect is not None and self._gateway.openai is not None
        own_max, proxy_max = self._limits.agent_request_bytes, self._limits.body_bytes if is_proxied else 0
        raw = await form.read_body(exchange.request, max(own_max, proxy_max))
        name = await decode(raw, peek_model)
        find = self._find_short if len(name) <= _MAX_KEPT_CHARS else self._find
        found = find(name, exchange.request.policy, form.suffix, exchange.request.grant)
        if len(raw) > (proxy_max if found is None and is_proxied else own_max):
            raise UnreadableBody(TOO_LARGE, status=413)
        if isinstance(found, FoundAgent):
            with refuse_with_400():
                wanted = await decode(raw, partial(form.read, takes=found.takes))
            await _answer(exchange, found, wanted, form)
        elif completions is not None and dialect is not None and (found is not None or is_proxied):
            await completions.complete(exchange, dialect, raw, found)
        elif completions is not None and found is not None:
            with refuse_with_400():
                wanted = await decode(raw, partial(form.read, takes=found.backend.takes))
                refuse_session({"session_id": wanted.session_id, "query_type": wanted.label})
            await completions.answer_text(exchange, wanted, found, form.writer(wanted), form.start)
        else:
            with refuse_with_400():
                await _answer_unknown(exchange, form, await decode(raw, read_model))

    def _find(self, name: str, under: str | None, suffix: str, grant: Grant) -> FoundAgent | NamedTarget | None:
        """The agent or model of that name; `under`: the policy in the path. Raises NotAllowed."""
        found = self._find_named(name, under, grant)
        if found is None and suffix and name.endswith(suffix):
            found = self._find_named(name.removesuffix(suffix), under, grant)
        return found

    def _find_named(self, name: str, under: str | None, grant: Grant) -> FoundAgent | NamedTarget | None:
        found = self._find_exactly(name, under, grant)
        model, _, policy = name.rpartition("@")
        if found is not None or policy not in self._gateway.settings.policies:
            return found
        found = self._find_exactly(model, policy, grant)
        if found is not None and under not in (None, policy):
            raise InvalidRequest(f"the path names policy `{under}`, the request `{policy}`: name one")
        return found

    def _find_exactly(self, name: str, policy: str | None, grant: Grant) -> FoundAgent | NamedTarget | None:
        agent = DEFAULT_AGENT if name == BRUNIX else name.removeprefix(AGENT_PREFIX)
        if agent in self._gateway.agents and agent != name:
            found = self._gateway.find_agent(agent, policy, grant)
            return FoundAgent(found, agent, found.takes)
        if self._completions is None or name not in self._models:
            return None
        grant.check_model(name)
        return self._completions.find_target(name, policy)


async def tell_version(exchange: Exchange) -> None:
    """GET /api/version."""
    await exchange.reply.answer_json(encode(agent_ollama.OllamaVersion(__version__)))


def _build_ask(exchange: Exchange, wanted: TurnRequest, agent: str) -> AgentQuestion:
    session = SessionKey(exchange.request.caller, agent, wanted.session_id) if wanted.session_id else None
    request_id = exchange.request.header(b"x-request-id")
    return AgentQuestion(
        question=wanted.sent[-1].text,
        session=session,
        sent=wanted.sent,
        label=wanted.label,
        editor=wanted.editor,
        account=wanted.account,
        request_id=read_request_id(request_id) if request_id else "",
        params=wanted.params,
        is_stream=wanted.is_stream,
        caller=exchange.request.caller,
    )


async def _answer(exchange: Exchange, found: FoundAgent, wanted: TurnRequest, form: TurnFormat) -> None:
    """Answer with a turn, whole or as a stream. Its end is written when the turn has been stored.

    Nothing is sent before the first piece arrives, so that an earlier failure keeps its status.
    """
    writer, reply = form.writer(wanted), exchange.reply
    async with found.agent.open(_build_ask(exchange, wanted, found.name)) as (facts, pieces):
        piece = await anext(pieces, None)
        writer.account = AnswerAccount(
            facts.receipt, facts.pseudonyms if exchange.request.wants(MAPPING_HEADER) else None
        )
        if wanted.is_stream:
            await form.start(exchange)
            if begin := writer.begin():
                await reply.write(begin)
            while piece is not None:
                if piece:
                    await reply.write(writer.add(piece))
                piece = await anext(pieces, None)
        else:
            piece = "".join([piece or "", *[one async for one in pieces]])
    writer.account = writer.account._replace(detections=_list_detections(facts))
    writer.warnings = _list_warnings(facts)
    end = FILTERED if facts.outcome != ANSWERED else CUT if facts.is_cut else STOPPED
    if wanted.is_stream:
        await reply.write(writer.finish(end=end, usage=facts.usage))
        await reply.end()
    else:
        await reply.answer_json(writer.write_whole(piece or "", end=end, usage=facts.usage))


def _list_detections(facts: TurnResult) -> dict[str, Any]:
    """What was found in the messages, in the documents and in the answer."""
    by_message: dict[int, list[Detection]] = {}
    for at, found in facts.found_in_messages:
        by_message.setdefault(at, []).append(found)
    output = [one for one in facts.found_in_answer if one.detector_id not in facts.grounding]
    grounding = [one for one in facts.found_in_answer if one.detector_id in facts.grounding]
    sections = {
        "input": [{"message_index": at, "results": to_results(found)} for at, found in sorted(by_message.items())],
        "documents": [describe_inspected(one, to_results) for one in facts.inspected],
        "output": [{"choice_index": 0, "results": to_results(output)}] if output else [],
        "grounding": [{"choice_index": 0, "results": to_results(grounding)}] if grounding else [],
    }
    return {section: entries for section, entries in sections.items() if entries}


def _list_warnings(facts: TurnResult) -> list[dict[str, str]]:
    warnings = [UNSUITABLE_INPUT] if facts.found_in_prompt else []
    warnings += [UNSUITABLE_DOCUMENTS] if facts.inspected else []
    warnings += [UNSUITABLE_OUTPUT] if facts.found_in_answer else []
    return warnings + [warn(*describe_failure(name, ends=ends)) for name, ends in facts.failed_detectors.items()]


async def _answer_unknown(exchange: Exchange, form: TurnFormat, name: str) -> None:
    exchange.reply.error_code = 404
    await exchange.reply.answer_json(form.encode_unknown(name), 404)
