# SPDX-License-Identifier: Apache-2.0
"""The agent's gRPC service and its port."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import grpc
import msgspec
from google.protobuf.message import Message

from lockgate.agent.answer import AgentQuestion, AnyAgent, OpenTurn, TurnResult
from lockgate.agent.evaluate import EvaluationRequest, evaluate
from lockgate.agent.routes import Editor
from lockgate.api.grpc.port import Calls, Context, GrpcBinding, GrpcMethod, GrpcPort, Services, read_metadata
from lockgate.api.receipts import ANSWER_LANE, METADATA_KEY, describe_failure, encode_receipt
from lockgate.api.turn_values import check_session_id, decode_text, read_request_id, refuse
from lockgate.config.grants import AGENT_PREFIX, Grant, find_by_path
from lockgate.config.refs import AGENT_SERVICE as SERVICE
from lockgate.config.refs import ASK, EVALUATE, STREAM
from lockgate.config.settings import Listener, ServerTlsSettings
from lockgate.errors import CannotListen, InvalidRequest
from lockgate.gateway import Gateway
from lockgate.protos import POOL
from lockgate.protos.assistance_pb2 import (
    AgentRequest,
    AgentResponse,
    EvalRequest,
    EvalResponse,
    QuestionDetail,
)
from lockgate.server.acceptors import join_address
from lockgate.server.callers import Callers, CallerShare
from lockgate.server.health import Readiness
from lockgate.sessions.turns import DEFAULT_SESSION, SessionKey
from lockgate.telemetry import answer_started, frame_sent

_WHOLE_CODE = "AVAP-2026"
_MAX_METADATA_CHARS = 4096  # of a value; clients take 8 KiB in all unless they say otherwise
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")  # sent unescaped in metadata


def _check_json(name: str, text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise refuse(name, "is not JSON") from None


class AgentMethods:
    """The methods of the service."""

    def __init__(self, gateway: Gateway, calls: Calls) -> None:
        self._gateway = gateway
        self._calls = calls
        self._name = gateway.default_agent

    def switch(self, gateway: Gateway) -> None:
        """Answer later calls with the default agent of this gateway."""
        self._gateway = gateway
        self._name = gateway.default_agent if gateway.agents else ""

    def list_services(self) -> Services:
        """The services of the port."""
        return {
            SERVICE: {
                ASK: GrpcMethod(AgentRequest, self.ask, grpc.unary_stream_rpc_method_handler),
                STREAM: GrpcMethod(AgentRequest, self.stream, grpc.unary_stream_rpc_method_handler),
                EVALUATE: GrpcMethod(EvalRequest, self.evaluate),
            }
        }

    async def ask(self, request: AgentRequest, context: Context) -> None:
        """The whole answer in one message."""
        await self._calls.attend(f"/{SERVICE}/{ASK}", context, partial(self._ask, request, context))

    async def stream(self, request: AgentRequest, context: Context) -> None:
        """Each token in one message, then a message that ends the answer."""
        await self._calls.attend(f"/{SERVICE}/{STREAM}", context, partial(self._stream, request, context))

    async def evaluate(self, request: EvalRequest, context: Context) -> EvalResponse:
        """Scores of the agent's answers to the configured questions."""
        return await self._calls.attend(f"/{SERVICE}/{EVALUATE}", context, partial(self._evaluate, request))

    def _find_agent(self, method: str, share: CallerShare) -> AnyAgent:
        """The agent under the policies that are in force for the caller; raises NotAllowed."""
        self._check_agent()
        return self._gateway.find_agent(self._name, None, self._find_grant(method, share))

    def _check_agent(self) -> None:
        """Raises InvalidRequest if the settings have no agent any more."""
        if not self._name:
            raise InvalidRequest("there is no agent", status=404)

    def _find_grant(self, method: str, share: CallerShare) -> Grant:
        required = find_by_path(self._gateway.settings.required_policies, f"/{SERVICE}/{method}")
        return share.grant.require(required) if required else share.grant

    async def _ask(self, request: AgentRequest, context: Context, share: CallerShare) -> None:
        agent = self._find_agent(ASK, share)
        question = self._read(request, context, share.name, is_stream=False)
        async with agent.open(question) as turn:
            text = "".join([piece async for piece in turn.pieces])
            _note_piece(turn, text)
            _send_facts(context, turn, question)
        answer_started(200, is_stream=False)
        await context.write(AgentResponse(text=text, avap_code=_WHOLE_CODE, is_final=True))

    async def _stream(self, request: AgentRequest, context: Context, share: CallerShare) -> None:
        agent = self._find_agent(STREAM, share)
        question = self._read(request, context, share.name, is_stream=True)
        async with agent.open(question) as turn:
            async for piece in turn.pieces:
                answer_started(200, is_stream=True)
                await context.write(AgentResponse(text=piece))
                _note_piece(turn, piece)
                frame_sent()
            _send_facts(context, turn, question)
        answer_started(200, is_stream=True)  # there may have been no token
        await context.write(AgentResponse(is_final=True))

    def _read(self, request: AgentRequest, context: Context, caller: str, *, is_stream: bool) -> AgentQuestion:
        """Decode the request; raises InvalidRequest."""
        if not request.query.strip():
            raise refuse("query", "must not be empty")
        check_session_id(request.session_id)
        editor = Editor(
            decode_text("editor_content", request.editor_content),
            decode_text("selected_text", request.selected_text),
            decode_text("extra_context", request.extra_context),
        )
        if request.user_info:
            _check_json("user_info", request.user_info)
        return AgentQuestion(
            request.query,
            self._find_session(request, caller),
            label=request.query_type,
            editor=editor,
            account=request.user_info,
            request_id=read_request_id(read_metadata(context, "x-request-id")),
            is_stream=is_stream,
            caller=caller,
        )

    def _find_session(self, request: AgentRequest, caller: str) -> SessionKey | None:
        """The session that the request names, else the shared one, or none."""
        session_id = request.session_id or (DEFAULT_SESSION if self._gateway.settings.sessions.shared_default else "")
        return SessionKey(caller, self._name, session_id) if session_id else None

    async def _evaluate(self, request: EvalRequest, share: CallerShare) -> EvalResponse:
        wanted = EvaluationRequest(request.category, request.limit, request.index)
        self._check_agent()
        grant = self._find_grant(EVALUATE, share)
        grant.check_model(AGENT_PREFIX + self._name)
        found = await evaluate(wanted, self._gateway.evaluation(grant=grant))
        answer_started(200, is_stream=False)
        details = [QuestionDetail(**_pick(QuestionDetail, one._asdict())) for one in found.details]
        return EvalResponse(**_pick(EvalResponse, found._asdict()) | {"details": details})


def _pick(kind: type[Message], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are fields of a message."""
    return {name: value for name, value in values.items() if name in kind.DESCRIPTOR.fields_by_name}


def _note_piece(turn: OpenTurn, piece: str) -> None:
    if turn.facts.receipt is not None:
        turn.facts.receipt.chain.add(ANSWER_LANE, piece)


def _send_facts(context: Context, turn: OpenTurn, question: AgentQuestion) -> None:
    session_id = question.session.id if question.session is not None else str(uuid4())
    facts = turn.facts
    metadata = dict(_list_facts(facts, session_id))
    if facts.receipt is not None:
        metadata[METADATA_KEY] = encode_receipt(facts.receipt)
        if facts.failed_detectors:
            failures = [describe_failure(name, ends=ends) for name, ends in facts.failed_detectors.items()]
            warnings = quote("; ".join([text for _, text in failures]), safe=_PLAIN)
            metadata["lockgate-warnings"] = warnings[:_MAX_METADATA_CHARS]
        if facts.pseudonyms and read_metadata(context, "x-lockgate-mapping").lower() in ("1", "true", "yes", "on"):
            names = json.dumps(dict(facts.pseudonyms))
            is_short = len(names) <= _MAX_METADATA_CHARS
            metadata["lockgate-pseudonyms"] = names if is_short else "too long for metadata: ask over HTTP"
    context.set_trailing_metadata(tuple(metadata.items()))


def _list_facts(facts: TurnResult, session_id: str) -> Mapping[str, str]:
    """Facts about a turn for the client, as text that metadata can carry."""
    return {
        "lockgate-label": facts.label,
        "lockgate-layer": facts.layer,
        "lockgate-prepare-ms": str(facts.prepare_ms),
        "lockgate-first-token-ms": str(facts.first_token_ms),
        "lockgate-tokens": str(facts.tokens),
        "lockgate-passages": str(facts.passages),
        "lockgate-session": quote(session_id, safe=_PLAIN),
        "lockgate-outcome": facts.outcome,
    }


class AgentPort(GrpcPort):
    """The agent's port, which can be given another gateway while it serves."""

    def __init__(self, gateway: Gateway, readiness: Readiness, callers: Callers) -> None:
        self._readiness = readiness
        limits = gateway.settings.limits
        self._admission = Calls(limits, callers)
        self._methods = AgentMethods(gateway, self._admission)
        binding = GrpcBinding(
            limits.agent_request_bytes,
            _load_credentials(gateway.settings.server.tls),
            shares=True,
            reflects=POOL,
            is_ready=lambda: self._readiness.is_ready,
        )
        super().__init__(self._methods.list_services(), self._admission, binding)

    def switch(self, gateway: Gateway, readiness: Readiness, callers: Callers) -> set["asyncio.Task[Any]"]:
        """Give later calls to the gateway; returns the calls under way."""
        self._readiness = readiness
        self._methods.switch(gateway)
        return self._admission.switch(gateway.settings.limits, callers)


def build_agent_port(
    gateway: Gateway, readiness: Readiness, listener: Listener, callers: Callers | None = None
) -> AgentPort:
    """Build and bind the port, which other processes may share; other ports may share `callers`."""
    port = AgentPort(gateway, readiness, callers or Callers(gateway.settings.callers.values()))
    address = join_address(listener.host, listener.port)
    try:
        port.bind(address)
    except RuntimeError as error:
        raise CannotListen(f"failed to run server: the agent cannot listen on {address}") from error
    return port


def _load_credentials(tls: ServerTlsSettings) -> grpc.ServerCredentials | None:
    """Load the same files as the API port, which has checked them."""
    if tls.cert_path is None or tls.key_path is None:
        return None
    roots = tls.client_ca_cert_path.read_bytes() if tls.client_ca_cert_path is not None else None
    pair = (tls.key_path.read_bytes(), tls.cert_path.read_bytes())
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)
