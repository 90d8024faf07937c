# SPDX-License-Identifier: Apache-2.0
"""One turn of a conversation: hold the session, read the input, run the graph, stream the answer, store the turn.

lockgate.agent.turn_machine decides what is stored of a complete or aborted turn. A turn is stored before the client
learns that it is complete.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lockgate.agent.answer import (
    ANSWER_BLOCKED,
    ANSWERED,
    PACE,
    PROMPT_BLOCKED,
    AgentQuestion,
    Gate,
    ModelCall,
    OpenTurn,
    Pace,
    TurnResult,
    collect,
    fail_model,
    join_pieces,
    list_params,
    listen,
)
from lockgate.agent.graph import Graphs, Tools
from lockgate.agent.prompts import NOTHING_FOUND, Guess, build_final_messages, find_route
from lockgate.agent.routes import CONVERSATIONAL_SLOT, Routes, TurnState
from lockgate.agent.turn_machine import Effect, Label, NoteAborted, NoteLabel, Store, TurnMachine
from lockgate.agent.turn_texts import TurnTexts
from lockgate.errors import InvalidRequest, LockgateError, RequestError, TurnFailed, UpstreamError
from lockgate.gate.values import Detection, Document, Frame, Message
from lockgate.guard.model_source import Deadline, read_model
from lockgate.guard.policy import NO_POLICY, Meter, Policy
from lockgate.guard.request import (
    CheckedInput,
    GuardedRequest,
    InputBlocked,
    InputRead,
    ModelStarted,
    Prepared,
    Released,
    open_guarded,
    to_check_failed,
)
from lockgate.guard.stream import Source
from lockgate.index.fusion import Query
from lockgate.interfaces import Embedder, Model, SessionStore
from lockgate.rag.sources import DocumentReader, RetrievalScope, find_documents
from lockgate.sessions.turns import (
    ASSISTANT,
    SYSTEM,
    USER,
    AbortedTurn,
    Past,
    RememberedAnswer,
    SessionKey,
    Turn,
    list_intents,
    recall,
    recall_sent,
)
from lockgate.store_tasks import finish_despite_cancel
from lockgate.task_groups import TaskGroup, run_group
from lockgate.telemetry import LogEvent, agent_step, log_event, name_causes, observe_turn

_NO_STORE = "the session store is not available"
_NOTE_S = 1.0  # for recording an aborted turn
_MAX_REPLY_CHARS = 100_000  # of the main model's internal replies


class PendingVector:
    """A vector that a task computes. Cancelling a task that awaits it does not cancel the computation."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: asyncio.Future[Sequence[float]] = asyncio.get_running_loop().create_future()

    async def fill(self, embedder: Embedder, question: str) -> None:
        """Computes the vector. A failure is raised only to those that await it."""
        try:
            [vector] = await embedder.embed([question])
            self._made.set_result(vector)
        except Exception as error:  # noqa: BLE001 - an embedder may be a plugin's code
            self._made.set_exception(error)
            self._made.exception()
        finally:
            self._made.cancel()  # does nothing if there is a result or an error

    def __await__(self) -> Generator[Any, None, Sequence[float]]:
        return asyncio.shield(self._made).__await__()


class Memory(NamedTuple):
    """The session store, and how much of a session goes into a prompt."""

    store: SessionStore
    max_messages: int = 20
    max_tokens: int = 6000


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent; it can run many turns at once."""

    routes: Routes
    graphs: Graphs
    main: Model
    conversational: Model
    library: RetrievalScope
    memory: Memory
    guarding: Callable[[], Policy]
    gate: Gate
    guess: Callable[[str], Awaitable[Guess | None]] | None = None
    note_label: Callable[[str, str, str, float | None], None] | None = None
    embedder: Embedder | None = None
    pace: Pace = PACE
    prepare_s: float = 30.0

    @property
    def takes(self) -> frozenset[str]:
        """The parameters that both of its models take."""
        return list_params(self.main) & list_params(self.conversational)

    @asynccontextmanager
    async def open(self, ask: AgentQuestion) -> AsyncIterator[OpenTurn]:
        """Opens a turn of a conversation; leaving the context ends it."""
        turn = _RunningTurn(self, ask)
        async with aclosing(turn.run()) as pieces:
            yield OpenTurn(turn.facts, pieces)


class _RunningTurn:
    """Runs one turn of an agent."""

    def __init__(self, agent: Agent, ask: AgentQuestion) -> None:
        self.facts = TurnResult()
        self._agent = agent
        self._ask = ask
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._prepare_until = 0.0
        self._machine = TurnMachine(ask.request_id, has_session=ask.session is not None)
        self._question = ""
        self._texts = TurnTexts(ask, (), ())
        self._past = Past()
        self._policy = NO_POLICY
        self._meter = Meter(is_on=False)
        self._group: TaskGroup | None = None
        self._vector: PendingVector | None = None

    async def run(self) -> AsyncGenerator[str, None]:
        """Yields the turn's pieces; stores the turn and counts how it ended."""
        ask, store = self._ask, self._agent.memory.store
        labels = [route.label for route in self._agent.routes]
        if ask.label and ask.label not in labels:
            raise InvalidRequest(f"unknown query_type; it must be empty or one of {', '.join(labels)}", status=400)
        async with nullcontext() if ask.session is None else _hold_session(store.hold(ask.session)):
            self._started = self._clock()
            try:
                if ask.session is not None:
                    self._past = await self._load(ask.session)
                self._machine.load(self._past.repeated)
                async with aclosing(self._stream() if ask.is_stream else join_pieces(self._stream())) as pieces:
                    async for piece in pieces:
                        if not self._machine.remembered.has_begun:
                            self.facts.first_token_ms = self._elapsed_ms()
                        self._machine.say(piece)
                        yield piece
                await self._carry_out(self._machine.finish(is_answered=self.facts.outcome == ANSWERED))
            except BaseException as error:
                effects = self._break_off(error)
                self._observe()
                await self._carry_out(effects)
                raise
        self._observe()

    def _elapsed_ms(self) -> int:
        return int((self._clock() - self._started) * 1000)

    async def _load(self, session: SessionKey) -> Past:
        memory = self._agent.memory
        try:
            return await memory.store.load(session, max(memory.max_messages // 2, 1), self._ask.request_id)
        except UpstreamError as error:
            raise _fail_store(error) from error

    async def _stream(self) -> AsyncGenerator[str, None]:
        """Yields the guarded answer; records findings and outcome in `facts`."""
        facts, gate, memory = self.facts, self._agent.gate, self._agent.memory
        policy = self._policy = self._agent.guarding()
        if self._ask.session is not None:
            history = recall(self._past.turns, memory.max_messages, memory.max_tokens)
            self._texts = TurnTexts(self._ask, history, list_intents(self._past.turns))
        given = self._texts.open(policy.refuses_unreadable) if policy.is_on else self._texts.input
        meter = self._meter = policy.open_meter(self._ask.caller)
        if meter.is_on:
            facts.receipt = meter.receipt
            meter.receipt.prompt_sent_to = []
            facts.failed_detectors = meter.failed_detectors
            facts.pseudonyms = meter.names.values
        facts.grounding = frozenset([one.guard.id for one in policy.grounding])
        plan = partial(gate.plan, is_whole=not self._ask.is_stream)
        request = GuardedRequest(policy, meter, given, self._prepare, plan, gate.chunking)
        request = request._replace(is_over=lambda: facts.outcome == ANSWER_BLOCKED)
        try:
            async with open_guarded(request) as events, AsyncExitStack() as stack:
                async for event in events:
                    if isinstance(event, Released):
                        if piece := facts.take(event):
                            yield piece
                    elif isinstance(event, ModelStarted):
                        stack.enter_context(agent_step("stream"))
                        if not facts.is_repeated:
                            self._note_sent()
                    elif isinstance(event, InputRead | InputBlocked):
                        self._note_found(event.input.found)
                        if isinstance(event, InputRead):
                            self._machine.read()
                        else:
                            facts.outcome = PROMPT_BLOCKED
                            yield policy.fallback
        except UpstreamError as error:  # of a detector; failures of the model are TurnFailed
            raise to_check_failed(error) from error

    async def _prepare(self, checked: CheckedInput) -> AsyncGenerator[Prepared, None]:
        """Runs the graph and yields the model's call; a repeated request gets the stored answer."""
        facts = self.facts
        self._texts.take(checked)
        state = self._begin()
        repeated = self._machine.prepare(self._question)
        if repeated is not None:
            facts.is_repeated, facts.tokens = True, 1
            facts.label, facts.layer, facts.topic = repeated.label, repeated.layer, repeated.topic
            yield Prepared(_read_stored(repeated.answer))
            return
        self._prepare_until = self._clock() + self._agent.prepare_s
        with agent_step("prepare"):
            state = await self._run(state)
        facts.prepare_ms = self._elapsed_ms()
        facts.label, facts.layer, facts.topic = state["label"], state["layer"], state["topic"]
        facts.confidence, facts.documents = state["confidence"], state.get("documents", ())
        self._machine.label = Label(facts.label, facts.layer, facts.topic, facts.confidence)
        agent, ask, route = self._agent, self._ask, find_route(state["label"], self._agent.routes)
        model = agent.conversational if route.slot == CONVERSATIONAL_SLOT else agent.main
        source = listen(ModelCall(model, build_final_messages(state, agent.routes), ask.params, agent.pace), facts)
        lack = NOTHING_FOUND if route.retrieves else ""
        yield Prepared(source if ask.is_stream else collect(source), facts.documents, lack)

    def _begin(self) -> TurnState:
        """Builds the graph's first state from texts with masks applied."""
        memory, texts = self._agent.memory, self._texts
        self._question = texts.question.replace("\0", "\ufffd")  # as every store replaces it
        sent, history = texts.sent, texts.history
        if self._ask.session is None:
            place = max([at for at, one in enumerate(sent) if one.role == USER], default=len(sent))
            before = [one for one in sent[:place] if one.role in (USER, ASSISTANT)]
            history = recall_sent(before, memory.max_messages, memory.max_tokens)
        return {
            "question": self._question,
            "declared": self._ask.label,
            "history": history,
            "instructions": "\n\n".join(one.text for one in sent if one.role == SYSTEM),
            "editor": texts.editor,
            "account": texts.account,
        }

    async def _run(self, state: TurnState) -> TurnState:
        tools = Tools(
            ask=self._ask_main,
            guess=self._agent.guess,
            start_embedding=None if self._agent.embedder is None else self._start_embedding,
            search=self._search,
            until=self._prepare_until,
            intents=self._texts.intents,
        )
        try:
            async with nullcontext() if self._agent.embedder is None else run_group() as self._group:
                return await self._agent.graphs.run(state, tools)
        except UpstreamError as error:
            raise fail_model(self._agent.main, error) from error

    def _note_sent(self) -> None:
        """Records that a model gets the prompt."""
        sent_to = self._meter.receipt.prompt_sent_to
        if sent_to is not None and "model" not in sent_to:
            sent_to.append("model")

    async def _ask_main(self, messages: Sequence[Message]) -> str:
        self._note_sent()
        generate = partial(self._agent.main.generate, messages, {"temperature": 0.0, "stream": False})
        reply = RememberedAnswer(_MAX_REPLY_CHARS)
        async with aclosing(read_model(generate, Deadline(self._prepare_until + 1.0))) as bursts:
            async for burst in bursts:
                for one in burst if isinstance(burst, list) else (burst,):
                    reply.add(one.text)
                if reply.is_cut:
                    break
        return reply.text

    async def _search(self, query: Query) -> tuple[Document, ...]:
        left_s = self._prepare_until - self._clock()
        query = query._replace(vector=self._vector)
        reader = DocumentReader(self._policy, self._meter, self._agent.library.bounds)
        self.facts.inspected = reader.inspected
        return await find_documents(query, self._agent.library, reader, self._clock() + left_s * 2 / 3)

    def _start_embedding(self) -> None:
        """Computes the question's vector while the model writes keywords."""
        embedder = self._agent.embedder
        if embedder is not None and self._group is not None:
            self._vector = PendingVector()
            self._group.create_task(self._vector.fill(embedder, self._question))

    # The end.

    def _note_found(self, found: Sequence[Detection]) -> None:
        """Records the findings in the input, also by the client's message."""
        self.facts.found_in_prompt = found
        if found:
            self.facts.found_in_messages = self._texts.list_found(found)

    def _break_off(self, error: BaseException) -> list[Effect]:
        if not isinstance(error, Exception):
            return self._machine.leave()
        reason = error.message if isinstance(error, LockgateError) else type(error).__name__
        return self._machine.fail(reason, is_callers=isinstance(error, RequestError))

    async def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                # Once storing has begun, it is finished even if the client leaves.
                await self._carry_out(await finish_despite_cancel(self._store(effect.turn)))
            elif isinstance(effect, NoteAborted):
                await finish_despite_cancel(self._note_aborted(effect.turn))
            elif isinstance(effect, NoteLabel) and self._agent.note_label is not None:
                label = effect.label
                self._agent.note_label(effect.question, label.label, label.layer, label.confidence)

    async def _store(self, turn: Turn) -> list[Effect]:
        assert self._ask.session is not None
        try:
            await self._agent.memory.store.append(self._ask.session, turn)
        except UpstreamError as error:
            raise _fail_store(error) from error
        return self._machine.stored()

    async def _note_aborted(self, turn: AbortedTurn) -> None:
        assert self._ask.session is not None
        try:
            async with asyncio.timeout(_NOTE_S):
                await self._agent.memory.store.abort(self._ask.session, turn)
        except (UpstreamError, TimeoutError) as failure:
            reason = name_causes(failure) if isinstance(failure, UpstreamError) else "too slow"
            log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part="sessions", reason=reason)

    def _observe(self) -> None:
        facts = self.facts
        observe_turn(
            label=facts.label,
            layer=facts.layer,
            outcome=self._machine.ending or facts.outcome,
            first_token_s=facts.first_token_ms / 1000 if facts.tokens else None,
            tokens=facts.tokens,
        )


async def _read_stored(answer: str) -> Source:
    """Yields the stored answer like a model."""
    yield Frame(0, answer, is_last=True)


def _fail_store(error: UpstreamError) -> TurnFailed:
    log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part="sessions", reason=name_causes(error))
    return TurnFailed(_NO_STORE)


@asynccontextmanager
async def _hold_session(lock: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
    """Holds a session; raises TurnFailed if that fails, and ignores a failure to unlock it."""
    try:
        await lock.__aenter__()
    except UpstreamError as error:
        raise _fail_store(error) from error
    try:
        yield
    finally:
        with suppress(UpstreamError):  # the turn has already ended
            await lock.__aexit__(None, None, None)
