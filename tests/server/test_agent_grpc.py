# SPDX-License-Identifier: Apache-2.0
"""The agent's service over a real socket, before one process: tokens at once, what is remembered, errors, slow clients.

B-1 to B-11, B-20 to B-27, B-44, B-63 to B-65, B-69.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.server.agent_houses import (
    CLASSIFY,
    EMBED,
    MEANING,
    REWRITE,
    SERVICE,
    SPEAK,
    WORDS,
    AgentProcess,
    Client,
    Saying,
    Upstream,
    finish,
    open_client,
    open_upstream,
    read_stored,
    running_agent,
    say,
    write_config,
)
from tests.server.gateways import GROWING_S
from tests.waits import latency, linger, settled

pytestmark = pytest.mark.asyncio(loop_scope="module")
Code = grpc.StatusCode
FACTS = {
    "lockgate-label",
    "lockgate-layer",
    "lockgate-prepare-ms",
    "lockgate-first-token-ms",
    "lockgate-tokens",
    "lockgate-passages",
    "lockgate-session",
    "lockgate-outcome",
}


class House(NamedTuple):
    """A server process and all around it."""

    upstream: Upstream
    server: AgentProcess
    client: Client
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("agent")
    async with open_upstream() as (upstream, peer):
        config = write_config(folder, peer.port, more="sessions: {shared_default: false}")
        async with running_agent(folder, config) as server, open_client(server.grpc_port) as client:
            yield House(upstream, server, client, folder)


@pytest.fixture
def house(opened: House) -> House:
    """The one server, its upstream as at first."""
    opened.upstream.reset()
    return opened


# One message, or one for each token.


async def test_the_whole_answer_is_one_message(house: House) -> None:
    found = await house.client.ask("Which port?", "whole", method="AskAgent")
    assert [(one.text, one.avap_code, one.is_final) for one in found.messages] == [("It is 8033.", "AVAP-2026", True)]


async def test_a_stream_is_a_message_for_each_token_and_an_empty_last_one(house: House) -> None:
    found = await house.client.ask("Which port?", "tokens")
    assert [(one.text, one.avap_code, one.is_final) for one in found.messages] == [
        ("It ", "", False),
        ("is ", "", False),
        ("8033.", "", False),
        ("", "", True),
    ]


async def test_each_token_arrives_before_the_next_is_made(house: House) -> None:
    """Part 1, check 2."""
    heard = asyncio.Semaphore(0)

    async def speak(saying: Saying) -> None:
        for number in range(12):
            await saying.say(f"{number} ")
            await heard.acquire()
        await saying.end()

    house.upstream.speak = speak
    call = house.client.start("Count", "paced")
    for number in range(12):
        assert (await call.read()).text == f"{number} "
        heard.release()
    assert (await call.read()).is_final


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
async def test_the_first_phase_makes_no_generation_call(house: House, method: str) -> None:
    """Part 1, check 3; the order of B-6. The question's vector is made beside the rewrite."""
    await house.client.ask("Which port?", f"phases-{method}", method=method)
    kinds = house.upstream.kinds
    beside, searched = sorted(kinds[1:3]), sorted(kinds[3:-1])
    assert (kinds[0], beside, searched, kinds[-1]) == (
        CLASSIFY,
        sorted([EMBED, REWRITE]),
        sorted([MEANING, WORDS]),
        SPEAK,
    )
    house.upstream.asked.clear()
    await house.client.ask("Shorter, please", f"phases-{method}", method=method, query_type="CONVERSATIONAL")
    assert house.upstream.asked == [(SPEAK, "small")]


@pytest.mark.parametrize("label", ["RETRIEVAL", "CODE_GENERATION", "CONVERSATIONAL"])
async def test_both_methods_send_the_model_the_same(house: House, label: str) -> None:
    """Part 1, check 1, on the wire: with and without history, decided by the model and by the caller."""
    upstream = house.upstream
    upstream.label = label
    for declared in ("", label):
        for query in ("Which port is it?", "How is it set?", "Tell me again"):
            for method in ("AskAgent", "AskAgentStream"):
                session = f"same-{label}-{declared}-{method}"
                await house.client.ask(query, session, method=method, query_type=declared)
            assert upstream.prompts[-1] == upstream.prompts[-2]
            assert upstream.asked[-1] == (SPEAK, "small" if label == "CONVERSATIONAL" else "main")
    assert len(upstream.prompts) == 12
    assert "Which port is it?" in upstream.prompt()
    assert ("The API port is 8033." in upstream.prompt()) == (label != "CONVERSATIONAL")


async def test_the_end_tells_what_became_of_the_turn(house: House) -> None:
    found = await house.client.ask("Which port?", "facts ü%")
    assert {key for key in found.trailing if key.startswith("lockgate-")} == FACTS
    told = {key.removeprefix("lockgate-"): value for key, value in found.trailing.items()}
    assert (told["label"], told["layer"], told["outcome"]) == ("RETRIEVAL", "model", "answered")
    assert (told["tokens"], told["passages"], told["session"]) == ("3", "1", "facts %C3%BC%25")
    assert 0 < int(told["prepare-ms"]) <= int(told["first-token-ms"])
    declared = await house.client.ask("Which port?", "facts", query_type="CONVERSATIONAL", method="AskAgent")
    assert declared.trailing["lockgate-layer"] == "caller"
    assert declared.trailing["lockgate-passages"] == "0"


# What is remembered.


async def test_history_changes_with_the_final_message_and_not_before(house: House) -> None:
    """Part 1, check 5."""
    may_go_on, session = asyncio.Event(), "unchanged"
    await house.client.ask("First", session)

    async def speak(saying: Saying) -> None:
        await saying.say("half ")
        await may_go_on.wait()
        await saying.say("whole")
        await saying.end()

    house.upstream.speak = speak
    call = house.client.start("Second", session)
    assert (await call.read()).text == "half "
    before = await read_stored(house.folder, session)
    may_go_on.set()
    while not (await call.read()).is_final:
        pass
    after = await read_stored(house.folder, session)
    assert before.turns == [("First", "It is 8033.")]
    assert after.turns == [*before.turns, ("Second", "half whole")]


async def test_a_client_that_leaves_stops_the_model_and_its_turn_is_forgotten(house: House) -> None:
    """Part 1, check 4."""
    left, session = asyncio.Event(), "left"

    async def speak(saying: Saying) -> None:
        for token in ("purple ", "green ", "yellow "):
            await saying.say(token)
        await saying.wait_until_left()
        left.set()

    house.upstream.speak = speak
    call = house.client.start("Which colours?", session)
    assert [(await call.read()).text for _ in range(3)] == ["purple ", "green ", "yellow "]
    call.cancel()
    await left.wait()
    house.upstream.speak = say("Yes.")
    await house.client.ask("And now?", session)
    prompts = json.dumps(house.upstream.prompts[1:])
    assert not [word for word in ("colours", "purple", "green", "yellow") if word in prompts]
    stored = await read_stored(house.folder, session)
    assert stored.turns == [("And now?", "Yes.")]
    assert [(one.question, one.answer) for one in stored.aborted] == [("Which colours?", "purple green yellow ")]


async def test_a_client_that_leaves_while_the_answer_is_prepared_leaves_nothing(house: House) -> None:
    house.upstream.is_silent = True
    call = house.client.start("Which port?", "left early")
    await house.upstream.wait_for(CLASSIFY)
    call.cancel()
    await house.upstream.is_left.wait()
    await linger()
    assert house.upstream.kinds == [CLASSIFY]
    assert (await read_stored(house.folder, "left early")).turns == []


async def test_a_clients_own_deadline_ends_the_model_too(house: House) -> None:
    left = asyncio.Event()

    async def speak(saying: Saying) -> None:
        await saying.say("slowly ")
        await saying.wait_until_left()
        left.set()

    house.upstream.speak = speak
    for timeout_s in GROWING_S:
        found = await house.client.ask("Which port?", "deadline", timeout=timeout_s)
        assert (found.code, found.is_complete) == (Code.DEADLINE_EXCEEDED, False)
        if found.text:
            break
    assert found.text == "slowly "
    await left.wait()
    assert (await read_stored(house.folder, "deadline")).turns == []


async def test_two_turns_at_once_in_a_session_follow_one_another(house: House) -> None:
    """Part 3, check 4."""
    prompts = house.upstream.prompts

    async def speak(saying: Saying) -> None:
        word = "one" if prompts[-1][-1]["content"].count("First") else "two"
        for _ in range(5):
            await latency(0.01)
            await saying.say(f"{word} ")
        await saying.end()

    house.upstream.speak = speak
    await asyncio.gather(*[house.client.ask(query, "at once") for query in ("First?", "Second?")])
    turns = [("First?", "one " * 5), ("Second?", "two " * 5)]
    stored = (await read_stored(house.folder, "at once")).turns
    assert stored in (turns, turns[::-1])
    assert [stored[0][0] in house.upstream.prompt(place) for place in (0, 1)] == [True, True]
    assert [stored[1][0] in house.upstream.prompt(place) for place in (0, 1)] == [False, True]


async def test_sessions_of_other_ids_run_at_once_and_share_nothing(house: House) -> None:
    together = asyncio.Barrier(3)

    async def speak(saying: Saying) -> None:
        await together.wait()  # nobody waits for another's end
        await saying.say("here")
        await saying.end()

    house.upstream.speak = speak
    names = ["north", "south", "west"]
    await asyncio.gather(*[house.client.ask(f"I am {name}", name) for name in names])
    house.upstream.speak = say("ok")
    for name in names:
        await house.client.ask("Who am I?", name)
        assert [other for other in names if f"I am {other}" in house.upstream.prompt()] == [name]


async def test_whoever_names_no_session_gets_a_fresh_one_where_none_is_shared(house: House) -> None:
    sessions = [(await house.client.ask("My name is Ada")).trailing["lockgate-session"] for _ in range(2)]
    assert "My name is Ada" not in json.dumps(house.upstream.prompts[1][:-1])
    assert len({*sessions, "", "default"}) == 4
    for session in (*sessions, "default", ""):
        assert (await read_stored(house.folder, session)).turns == []


async def test_a_retry_of_the_same_request_makes_no_second_turn(house: House) -> None:
    metadata = [("x-request-id", "r-1")]
    first = await house.client.ask("Which port?", "retried", metadata=metadata)
    house.upstream.speak = say("Something else")
    again = await house.client.ask("Which port?", "retried", metadata=metadata)
    assert first.text == again.text == "It is 8033."
    assert again.is_complete
    assert (await read_stored(house.folder, "retried")).turns == [("Which port?", "It is 8033.")]
    other = await house.client.ask("Another question", "retried", metadata=metadata)
    assert (other.code, other.messages) == (Code.INVALID_ARGUMENT, [])


async def test_what_a_model_thinks_is_sent_and_not_remembered(house: House) -> None:
    house.upstream.speak = say("<think>", "hm, ports", "</think>", "8033")
    found = await house.client.ask("Which port?", "thinking")
    assert found.text == "<think>hm, ports</think>8033"
    await house.client.ask("And?", "thinking")
    assert "hm, ports" not in house.upstream.prompt()
    assert (await read_stored(house.folder, "thinking")).turns[0] == ("Which port?", "8033")


# What goes wrong.


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
@pytest.mark.parametrize(
    "fields",
    [
        {"query": ""},
        {"query": " \n"},
        {"editor_content": "not base64!"},
        {"selected_text": "YQ"},  # without its padding
        {"extra_context": "_-8="},  # another alphabet
        {"user_info": "{"},
        {"query_type": "retrieval"},
        {"query_type": "PLATFORM"},
        {"query_type": "NEWS"},
    ],
)
async def test_a_wrong_request_is_an_invalid_argument_and_nobody_is_asked(
    house: House, method: str, fields: dict[str, str]
) -> None:
    given = {"query": "Which port?", "session_id": "wrong", **fields}
    found = await house.client.ask(method=method, **given)
    assert (found.code, found.messages, house.upstream.asked) == (Code.INVALID_ARGUMENT, [], [])
    assert next(iter(fields)) in found.details
    assert (await read_stored(house.folder, "wrong")) == ([], [])


async def test_a_request_may_be_large_but_not_too_large(house: House) -> None:
    content = base64.b64encode(b"x" * 3_000_000).decode()
    found = await house.client.ask("q" * 5000, "large", editor_content=content, query_type="CODE_GENERATION")
    assert found.code is Code.OK
    assert "x" * 1000 in house.upstream.prompt()
    refused = await house.client.ask("q" * (4 * 1024 * 1024 + 2048), "large")
    assert (refused.code, refused.messages) == (Code.RESOURCE_EXHAUSTED, [])
    assert len((await read_stored(house.folder, "large")).turns) == 1


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
async def test_a_model_that_fails_before_its_first_token_is_unavailable(house: House, method: str) -> None:
    house.upstream.status = 500
    found = await house.client.ask("Which port?", f"down-{method}", method=method)
    assert (found.code, found.messages) == (Code.UNAVAILABLE, [])
    assert "secret" not in found.details
    stored = await read_stored(house.folder, f"down-{method}")
    assert (stored.turns, len(stored.aborted)) == ([], 1)


@pytest.mark.parametrize("ending", ["reset", "without its end"])
async def test_a_model_that_fails_after_tokens_ends_the_stream_without_a_final_message(
    house: House, ending: str
) -> None:
    async def speak(saying: Saying) -> None:
        await saying.say("It ")
        await saying.say("is ")
        if ending == "reset":
            saying.reset()
        else:
            await saying.end_early()

    house.upstream.speak = speak
    session = f"broken {ending}"
    found = await house.client.ask("Which port?", session)
    assert found.code in (Code.UNAVAILABLE, Code.INTERNAL)
    assert ([one.text for one in found.messages], found.is_complete) == (["It ", "is "], False)
    stored = await read_stored(house.folder, session)
    assert (stored.turns, stored.aborted[0].answer) == ([], "It is ")
    whole = await house.client.ask("Which port?", session, method="AskAgent")
    assert (whole.code, whole.messages) == (found.code, [])


async def test_an_evaluation_without_a_judge_is_refused(house: House) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await house.client.evaluate()
    assert refused.value.code() is Code.FAILED_PRECONDITION
    assert "judge" in (refused.value.details() or "")


# What the port tells of itself.


async def test_what_there_is_to_call_can_be_asked(house: House) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(house.client.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="brunix.AgentRequest"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="nothing.There"),
    ]
    answers = [one async for one in stub.ServerReflectionInfo(iter(requests))]
    names = {one.name for one in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    for answer in answers[1:3]:
        assert b"brunix" in answer.file_descriptor_response.file_descriptor_proto[0]
    assert answers[3].error_response.error_code == Code.NOT_FOUND.value[0]


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_told_and_watched(house: House, service: str) -> None:
    assert await house.client.check_health(service) == "SERVING"
    call = house.client.watch_health(service)
    assert (await call.read()).status == 1
    call.cancel()


async def test_the_health_of_an_unknown_service_is_not_found(house: House) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await house.client.check_health("nothing.There")
    assert refused.value.code() is Code.NOT_FOUND
    call = house.client.watch_health("nothing.There")
    assert (await call.read()).status == 3  # SERVICE_UNKNOWN
    call.cancel()


async def test_a_method_that_is_not_there_is_unimplemented(house: House) -> None:
    found = await house.client.ask("Which port?", method="AskNobody")
    assert found.code is Code.UNIMPLEMENTED


# Clients that read slowly, answers that are long.

TOKEN = "a" * 16_000
WINDOW_BYTES = 512 * 1024


class Flood:
    """A model that talks as fast as it is heard; `sent` is what has left it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.sent = 0

    async def speak(self, saying: Saying) -> None:
        async for sent in saying.pour(TOKEN, self.tokens):
            self.sent = sent
        await saying.end()

    async def wait_until_stuck(self) -> int:
        """Until nothing has left for a while."""
        return await settled(lambda: self.sent)


async def test_a_client_that_does_not_read_stops_the_model(house: House) -> None:
    """Part 3, check 2. How much a client lets come before it reads is its own affair: this one's window is fixed."""
    flood = Flood(tokens=625)  # 10 MB
    house.upstream.speak = flood.speak
    async with open_client(house.server.grpc_port, grows=False) as client:
        await client.check_health()
        before_kb = house.server.memory_kb()
        call = client.start("Talk", "slow", query_type="CONVERSATIONAL")
        first = await call.read()
        ahead = await flood.wait_until_stuck()
        stuck_kb = house.server.memory_kb() - before_kb
        found = await finish(call)
    print(f"read ahead: {ahead} bytes, resident memory: +{stuck_kb} KB")
    assert ahead <= WINDOW_BYTES
    assert stuck_kb < 2_000
    assert (found.code, first.text + found.text, found.is_complete) == (Code.OK, TOKEN * 625, True)


async def test_memory_stays_flat_however_long_an_answer_is(house: House) -> None:
    """Part 3, check 2."""
    flood = Flood(tokens=2_500)  # 40 MB
    house.upstream.speak = flood.speak
    before_kb = house.server.memory_kb()
    call = house.client.start("Talk", query_type="CONVERSATIONAL")
    most_kb, heard = 0, 0
    while not (message := await call.read()).is_final:
        heard += len(message.text)
        if heard % 1_600_000 == 0:
            most_kb = max(most_kb, house.server.memory_kb() - before_kb)
    assert heard == 2_500 * len(TOKEN)
    print(f"resident memory: +{most_kb} KB at most")
    assert most_kb < 16_000
