# SPDX-License-Identifier: Apache-2.0
"""The agent's service: questions in, answers out as one message or token by token, and an evaluation.

Translates at the border: fields to what the pipeline is asked, pieces to messages, facts to trailing metadata. The last
message is sent when the turn is complete and stored. Knows neither routes nor sessions' contents.
"""

import json
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote
from uuid import uuid4

from lockgate.agent.answer import Facts
from lockgate.agent.evaluate import EvaluationRequest, evaluate
from lockgate.agent.turn_types import Ask, Speaker, Speech
from lockgate.api.grpc.calls import Calls, Context, read_metadata
from lockgate.api.grpc.format import Asked, read_agent_request
from lockgate.api.grpc.port import Kind, Method, Services
from lockgate.api.receipts import ANSWER_LANE, METADATA_KEY, describe_failure, encode_receipt
from lockgate.api.turn_values import read_request_id
from lockgate.gateway import Gateway
from lockgate.protos.assistance_pb2 import (
    AgentRequest,
    AgentResponse,
    EvalRequest,
    EvalResponse,
    QuestionDetail,
)
from lockgate.sessions.turns import DEFAULT_SESSION, SessionKey
from lockgate.telemetry import answer_started, frame_sent

SERVICE = "brunix.AssistanceEngine"
ASK, STREAM, EVALUATE = "AskAgent", "AskAgentStream", "EvaluateRAG"
_WHOLE_CODE = "AVAP-2026"
_REQUEST_ID, _MAPPING = "x-request-id", "x-lockgate-mapping"
_WARNINGS, _PSEUDONYMS = "lockgate-warnings", "lockgate-pseudonyms"
_MAX_METADATA_CHARS = 4096  # of a value; clients take 8 KiB in all unless they say otherwise
_TOO_LONG = "too long for metadata: ask over HTTP"
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")  # what metadata carry as it is


class AgentMethods:
    """The methods of the service."""

    def __init__(self, gateway: Gateway, calls: Calls) -> None:
        self._gateway = gateway
        self._calls = calls
        self._agent: Speaker = gateway.agents[gateway.default_agent]
        self._name = gateway.default_agent
        self._shares_default = gateway.settings.sessions.shared_default

    def list_services(self) -> Services:
        """What a port serves."""
        return {
            SERVICE: {
                ASK: Method(AgentRequest, self.ask, Kind.SERVER),
                STREAM: Method(AgentRequest, self.stream, Kind.SERVER),
                EVALUATE: Method(EvalRequest, self.evaluate),
            }
        }

    async def ask(self, request: AgentRequest, context: Context) -> None:
        """The whole answer in one message."""
        await self._calls.attend(f"/{SERVICE}/{ASK}", context, partial(self._ask, request, context))

    async def stream(self, request: AgentRequest, context: Context) -> None:
        """Each token in a message of its own, then one that says that this was all."""
        await self._calls.attend(f"/{SERVICE}/{STREAM}", context, partial(self._stream, request, context))

    async def evaluate(self, request: EvalRequest, context: Context) -> EvalResponse:
        """Scores of the agent's answers to the configured questions."""
        return await self._calls.attend(f"/{SERVICE}/{EVALUATE}", context, partial(self._evaluate, request))

    async def _ask(self, request: AgentRequest, context: Context, caller: str) -> None:
        ask = self._read(request, context, caller, is_stream=False)
        async with self._agent.open(ask) as speech:
            text = "".join([piece async for piece in speech])
            _note_piece(speech, text)
            _tell_facts(context, speech, ask)
        answer_started(200, is_stream=False)
        await context.write(AgentResponse(text=text, avap_code=_WHOLE_CODE, is_final=True))

    async def _stream(self, request: AgentRequest, context: Context, caller: str) -> None:
        ask = self._read(request, context, caller, is_stream=True)
        async with self._agent.open(ask) as speech:
            async for piece in speech:
                answer_started(200, is_stream=True)
                await context.write(AgentResponse(text=piece))
                _note_piece(speech, piece)
                frame_sent()
            _tell_facts(context, speech, ask)
        answer_started(200, is_stream=True)  # there may have been no token
        await context.write(AgentResponse(is_final=True))

    def _read(self, request: AgentRequest, context: Context, caller: str, *, is_stream: bool) -> Ask:
        asked = read_agent_request(request)
        return Ask(
            asked.query,
            self._find_session(asked, caller),
            label=asked.query_type,
            editor=asked.editor,
            account=asked.account,
            request_id=read_request_id(read_metadata(context, _REQUEST_ID)),
            is_stream=is_stream,
        )

    def _find_session(self, asked: Asked, caller: str) -> SessionKey | None:
        """The session that a request names; whoever names none shares one, or has none."""
        session_id = asked.session_id or (DEFAULT_SESSION if self._shares_default else "")
        return SessionKey(caller, self._name, session_id) if session_id else None

    async def _evaluate(self, request: EvalRequest, _: str) -> EvalResponse:
        wanted = EvaluationRequest(request.category, request.limit, request.index)
        found = await evaluate(wanted, self._gateway.evaluation())
        answer_started(200, is_stream=False)
        return EvalResponse(
            status=found.status,
            questions_evaluated=found.questions_evaluated,
            elapsed_seconds=found.elapsed_seconds,
            judge_model=found.judge_model,
            faithfulness=found.faithfulness,
            answer_relevancy=found.answer_relevancy,
            context_recall=found.context_recall,
            context_precision=found.context_precision,
            global_score=found.global_score,
            verdict=found.verdict,
            details=[
                QuestionDetail(
                    id=one.id,
                    category=one.category,
                    question=one.question,
                    answer_preview=one.answer_preview,
                    n_chunks=one.n_chunks,
                )
                for one in found.details
            ],
        )


def _note_piece(speech: Speech, piece: str) -> None:
    if speech.facts.receipt is not None:
        speech.facts.receipt.chain.add(ANSWER_LANE, piece)


def _tell_facts(context: Context, speech: Speech, ask: Ask) -> None:
    session_id = ask.session.id if ask.session is not None else str(uuid4())
    facts = speech.facts
    told = dict(_list_facts(facts, session_id))
    if facts.receipt is not None:
        told[METADATA_KEY] = encode_receipt(facts.receipt)
        if facts.excused:
            failures = [describe_failure(name, ends=ends) for name, ends in facts.excused.items()]
            told[_WARNINGS] = quote("; ".join([words for _, words in failures]), safe=_PLAIN)[:_MAX_METADATA_CHARS]
        if facts.pseudonyms and read_metadata(context, _MAPPING).lower() in ("1", "true", "yes", "on"):
            names = json.dumps(dict(facts.pseudonyms))
            told[_PSEUDONYMS] = names if len(names) <= _MAX_METADATA_CHARS else _TOO_LONG
    context.set_trailing_metadata(tuple(told.items()))


def _list_facts(facts: Facts, session_id: str) -> Mapping[str, str]:
    """What a client may want to know of a turn, as text that metadata can carry."""
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
