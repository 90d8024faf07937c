# SPDX-License-Identifier: Apache-2.0
"""The agent's port by its settings: who may call, TLS, limits of time and number, readiness, several processes, ends.

B-25, B-27, B-31, B-32, B-44, B-66, B-68; D-16, D-24.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from lockgate.sessions.postgres import open_postgres_sessions
from lockgate.sessions.turns import SessionKey, StoreLimits
from tests.contracts.http_peers import Peer
from tests.server.agent_houses import (
    SERVICE,
    SPEAK,
    AgentProcess,
    Client,
    Saying,
    Upstream,
    find_free_port,
    finish,
    open_agent,
    open_client,
    open_upstream,
    read_stored,
    running_agent,
    say,
    taken_port,
    write_config,
)
from tests.server.certificates import Authority, Pair
from tests.waits import HANG_S, linger, until

Code = grpc.StatusCode
CALLERS = """
callers:
  ada: {key_env: ADA_KEY}
  bob: {key_env: BOB_KEY, max_streams: 1}
  cyd: {key_env: CYD_KEY, requests_per_minute: 2}
"""
KEYS = {"ADA_KEY": "ada-key", "BOB_KEY": "bob-key", "CYD_KEY": "cyd-key"}


@pytest.fixture
async def behind() -> AsyncIterator[tuple[Upstream, Peer]]:
    """What stands behind the agent."""
    async with open_upstream() as opened:
        yield opened


def key_of(name: str) -> tuple[str, str]:
    return ("x-lockgate-key", f"{name}-key")


# Who may call.


@pytest.fixture
async def guarded(behind: tuple[Upstream, Peer], tmp_path: Path) -> AsyncIterator[int]:
    """A port that asks for keys."""
    async with open_agent(tmp_path, write_config(tmp_path, behind[1].port, more=CALLERS), **KEYS) as port:
        yield port


@pytest.mark.parametrize(
    "metadata",
    [(), (("x-lockgate-key", "nobody"),), (("authorization", "Bearer nobody"),), (("authorization", "ada-key"),)],
)
@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
async def test_without_a_key_that_is_known_nothing_is_answered(
    guarded: int, behind: tuple[Upstream, Peer], metadata: Any, method: str
) -> None:
    async with open_client(guarded, *metadata) as client:
        found = await client.ask("", method=method, query_type="NEWS")  # wrong, too: that is not even looked at
        assert (found.code, found.messages) == (Code.UNAUTHENTICATED, [])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.evaluate()
        assert refused.value.code() is Code.UNAUTHENTICATED
    assert behind[0].asked == []


async def test_a_key_names_the_caller_and_nobody_sees_the_session_of_another(
    guarded: int, behind: tuple[Upstream, Peer], tmp_path: Path
) -> None:
    for metadata, caller in ((key_of("ada"), "ada"), (("authorization", "Bearer bob-key"), "bob")):
        async with open_client(guarded, metadata) as client:
            for session in ("s", ""):
                assert (await client.ask(f"I am {caller}", session)).is_complete
                await client.ask("Who am I?", session)
                others = [name for name in ("ada", "bob") if f"I am {name}" in behind[0].prompt()]
                assert others == [caller]
    for caller in ("ada", "bob"):
        for session in ("s", "default"):
            assert len((await read_stored(tmp_path, session, caller)).turns) == 2
    assert (await read_stored(tmp_path, "s")).turns == []


async def test_health_and_reflection_need_no_key(guarded: int) -> None:
    async with open_client(guarded) as client:
        assert await client.check_health(SERVICE) in ("SERVING", "NOT_SERVING")


async def test_a_caller_has_so_many_streams_at_once(guarded: int, behind: tuple[Upstream, Peer]) -> None:
    may_go_on = asyncio.Event()

    async def speak(saying: Saying) -> None:
        await saying.say("one ")
        await may_go_on.wait()
        await saying.end()

    behind[0].speak = speak
    async with open_client(guarded, key_of("bob")) as bob, open_client(guarded, key_of("ada")) as ada:
        call = bob.start("First", "a")
        await call.read()
        refused = await bob.ask("Second", "b")
        assert (refused.code, refused.messages) == (Code.RESOURCE_EXHAUSTED, [])
        may_go_on.set()
        assert (await ada.ask("Others do not notice", "a")).is_complete
        assert (await finish(call)).is_complete
        assert (await bob.ask("Third", "b")).is_complete


async def test_a_caller_has_so_many_requests_in_a_minute(guarded: int) -> None:
    async with open_client(guarded, key_of("cyd")) as cyd, open_client(guarded, key_of("ada")) as ada:
        codes = [(await cyd.ask("Again", "a")).code for _ in range(3)]
        assert codes == [Code.OK, Code.OK, Code.RESOURCE_EXHAUSTED]
        assert (await ada.ask("Again", "a")).code is Code.OK


async def test_all_callers_together_have_so_many_streams(behind: tuple[Upstream, Peer], tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def speak(saying: Saying) -> None:
        await saying.say("one ")
        await may_go_on.wait()
        await saying.end()

    behind[0].speak = speak
    config = write_config(tmp_path, behind[1].port, more="limits: {max_streams: 2}")
    async with open_agent(tmp_path, config) as port, open_client(port) as client:
        calls = [client.start("Go", f"s{number}") for number in range(2)]
        for call in calls:
            await call.read()
        refused = await client.ask("One more", "s3")
        assert refused.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
        may_go_on.set()
        assert [(await finish(call)).is_complete for call in calls] == [True, True]


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "our-authority")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Pair:
    return authority.issue("the-server")


def trust(authority: Authority, pair: Pair | None = None) -> grpc.ChannelCredentials:
    """A client that trusts the authority and shows its certificate."""
    shown = (pair.key.read_bytes(), pair.cert.read_bytes()) if pair is not None else (None, None)
    return grpc.ssl_channel_credentials(authority.path.read_bytes(), *shown)


@asynccontextmanager
async def secured(behind: tuple[Upstream, Peer], folder: Path, own: Pair, more: str = "") -> AsyncIterator[int]:
    server = f"server: {{tls: {{cert_path: {own.cert}, key_path: {own.key}{more}}}}}"
    config = write_config(folder, behind[1].port, more=server)
    async with open_agent(folder, config) as port:
        yield port


async def test_with_a_certificate_the_port_speaks_tls_and_nothing_else(
    behind: tuple[Upstream, Peer], tmp_path: Path, authority: Authority, own: Pair
) -> None:
    other = Authority(tmp_path, "another-authority")
    async with secured(behind, tmp_path, own) as port:
        async with open_client(port, tls=trust(authority)) as client:
            assert (await client.ask("Which port?", "s")).text == "It is 8033."
            assert await client.check_health() in ("SERVING", "NOT_SERVING")
        async with open_client(port) as plain, open_client(port, tls=trust(other)) as doubting:
            for client in (plain, doubting):
                assert (await client.ask("Which port?", "s")).code is Code.UNAVAILABLE
    assert (await read_stored(tmp_path, "s")).turns == [("Which port?", "It is 8033.")]


async def test_a_verified_certificate_names_the_caller(
    behind: tuple[Upstream, Peer], tmp_path: Path, authority: Authority, own: Pair
) -> None:
    stranger = Authority(tmp_path, "another-authority").issue("mallory")
    async with secured(behind, tmp_path, own, f", client_ca_cert_path: {authority.path}") as port:
        for name in ("eve", "fay"):
            async with open_client(port, tls=trust(authority, authority.issue(name))) as client:
                assert (await client.ask(f"I am {name}", "s")).is_complete
        for tls in (trust(authority), trust(authority, stranger)):
            async with open_client(port, tls=tls) as client:
                assert (await client.ask("Let me in", "s")).code is Code.UNAVAILABLE
    assert [(await read_stored(tmp_path, "s", name)).turns for name in ("eve", "fay", "anonymous", "mallory")] == [
        [("I am eve", "It is 8033.")],
        [("I am fay", "It is 8033.")],
        [],
        [],
    ]


async def test_where_callers_are_known_a_certificate_must_be_one_of_theirs(
    behind: tuple[Upstream, Peer], tmp_path: Path, authority: Authority, own: Pair
) -> None:
    tls = f"cert_path: {own.cert}, key_path: {own.key}, client_ca_cert_path: {authority.path}"
    config = write_config(tmp_path, behind[1].port, more=f"{CALLERS}\nserver: {{tls: {{{tls}}}}}")
    async with open_agent(tmp_path, config, **KEYS) as port:
        async with open_client(port, tls=trust(authority, authority.issue("ada"))) as client:
            assert (await client.ask("I am ada", "s")).is_complete
        async with open_client(port, tls=trust(authority, authority.issue("zoe"))) as client:
            assert (await client.ask("I am zoe", "s")).code is Code.UNAUTHENTICATED
            assert (await client.ask("I am bob", "s", metadata=[key_of("bob")])).is_complete
    assert (
        len((await read_stored(tmp_path, "s", "ada")).turns)
        == len((await read_stored(tmp_path, "s", "bob")).turns)
        == 1
    )


# Limits of time.


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
async def test_what_takes_too_long_is_a_deadline_exceeded(
    behind: tuple[Upstream, Peer], tmp_path: Path, method: str
) -> None:
    upstream, peer = behind

    async def stay_silent(saying: Saying) -> None:
        await saying.wait_until_left()

    for phase in ("first_token", "prepare"):
        upstream.reset()
        upstream.speak, upstream.is_silent = stay_silent, phase == "prepare"
        limits = {"prepare": 600.0, "first_token": 600.0, phase: 0.3}
        options = ", ".join(f"{name}_timeout_s: {seconds}" for name, seconds in limits.items())
        config = write_config(tmp_path, peer.port, agent=options)
        async with open_agent(tmp_path, config) as port, open_client(port) as client:
            late = await client.ask("Which port?", "late", method=method)
        assert (late.code, late.messages) == (Code.DEADLINE_EXCEEDED, [])
        assert phase == "first_token" or SPEAK not in upstream.kinds
    assert (await read_stored(tmp_path, "late")).turns == []


async def test_a_gap_between_tokens_that_is_too_long_ends_the_stream(
    behind: tuple[Upstream, Peer], tmp_path: Path
) -> None:
    config = write_config(tmp_path, behind[1].port, agent="token_gap_timeout_s: 0.3")

    async def falter(saying: Saying) -> None:
        await saying.say("It ")
        await saying.wait_until_left()

    behind[0].speak = falter
    async with open_agent(tmp_path, config) as port, open_client(port) as client:
        found = await client.ask("Which port?", "gap")
    assert found.code in (Code.UNAVAILABLE, Code.INTERNAL)
    assert (found.text, found.is_complete) == ("It ", False)
    assert (await read_stored(tmp_path, "gap")).turns == []


# Routes and sessions by setting.


async def test_the_platform_route_is_there_when_it_is_switched_on(
    behind: tuple[Upstream, Peer], tmp_path: Path
) -> None:
    upstream = behind[0]
    config = write_config(tmp_path, behind[1].port, agent="platform_route: true")
    async with open_agent(tmp_path, config) as port, open_client(port) as client:
        ruled = await client.ask("You are a direct and concise assistant. Sum it up: 80 % of the quota is used.", "p")
        assert (ruled.trailing["lockgate-label"], ruled.trailing["lockgate-layer"]) == ("PLATFORM", "rules")
        assert upstream.asked == [(SPEAK, "small")]
        declared = await client.ask("What is left?", "p", query_type="PLATFORM", user_info='{"org_id": "acme"}')
        assert declared.trailing["lockgate-label"] == "PLATFORM"
        assert upstream.kinds == [SPEAK, SPEAK]


async def test_whoever_names_no_session_shares_one(behind: tuple[Upstream, Peer], tmp_path: Path) -> None:
    async with open_agent(tmp_path, write_config(tmp_path, behind[1].port)) as port, open_client(port) as client:
        await client.ask("My name is Ada")
        found = await client.ask("Who am I?")
    assert "My name is Ada" in behind[0].prompt()
    assert found.trailing["lockgate-session"] == "default"
    assert len((await read_stored(tmp_path, "default")).turns) == 2


# Readiness.


async def test_health_is_not_serving_until_everything_was_reached_once(tmp_path: Path) -> None:
    number = find_free_port()
    async with open_agent(tmp_path, write_config(tmp_path, number)) as port, open_client(port) as client:
        for service in ("", SERVICE):
            assert await client.check_health(service) == "NOT_SERVING"
        watching = client.watch_health(SERVICE)
        assert (await watching.read()).status == 2
        refused = await client.ask("Which port?", "s")
        assert (refused.code, refused.messages) == (Code.UNAVAILABLE, [])
        upstream = Upstream()
        peer = Peer()
        peer.script = upstream.play
        server = await asyncio.start_server(peer.serve, "127.0.0.1", number)
        try:
            assert (await watching.read()).status == 1
            assert await client.check_health(SERVICE) == "SERVING"
            assert (await client.ask("Which port?", "s")).is_complete
        finally:
            server.close()
            peer.hang_up_on_all()
        await linger()
        assert await client.check_health(SERVICE) == "SERVING"  # what fails later does not undo it
        watching.cancel()


# Processes.


def speak_when(may_go_on: asyncio.Event) -> Any:
    """An answer whose second half waits."""

    async def speak(saying: Saying) -> None:
        await saying.say("half ")
        await may_go_on.wait()
        await saying.say("whole")
        await saying.end()

    return speak


def is_closed(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@asynccontextmanager
async def restarted(
    behind: tuple[Upstream, Peer], folder: Path, more: str = "", **variables: str
) -> AsyncIterator[tuple[AgentProcess, Client]]:
    """A process that took over from another, which was told to stop while it spoke; both turns must be remembered."""
    upstream, peer = behind
    config = write_config(folder, peer.port, more=more)
    may_go_on = asyncio.Event()
    limit = {"LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "600"}
    async with running_agent(folder, config, **variables, **limit) as server, open_client(server.grpc_port) as client:
        await client.ask("My name is Ada", "kept")
        upstream.speak = speak_when(may_go_on)
        call = client.start("Goodbye", "kept")
        assert (await call.read()).text == "half "
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: is_closed(server.api_port), "the closed door")
        await linger()
        may_go_on.set()
        found = await finish(call)
        assert (found.code, found.text, found.is_complete) == (Code.OK, "whole", True)
        assert await asyncio.to_thread(server.process.wait, HANG_S) == 0
    upstream.speak = say("Ada.")
    limit = {"LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "0.4"}
    async with running_agent(folder, config, **variables, **limit) as server, open_client(server.grpc_port) as client:
        await client.ask("Who am I?", "kept")
        for words in ("My name is Ada", "It is 8033.", "Goodbye", "half whole"):
            assert words in upstream.prompt()
        yield server, client


async def test_a_stop_lets_streams_finish_for_a_while_and_a_restart_keeps_the_history(
    behind: tuple[Upstream, Peer], tmp_path: Path
) -> None:
    """Part 3, check 3."""
    left = asyncio.Event()

    async def speak(saying: Saying) -> None:
        await saying.say("half ")
        await saying.wait_until_left()
        left.set()

    async with restarted(behind, tmp_path) as (server, client):
        behind[0].speak = speak
        call = client.start("Goodbye again", "kept")
        await call.read()
        server.process.send_signal(signal.SIGTERM)
        found = await finish(call)
        assert (found.code, found.is_complete) == (Code.UNAVAILABLE, False)
        await left.wait()
        assert await asyncio.to_thread(server.process.wait, HANG_S) == 0
    stored = await read_stored(tmp_path, "kept")
    assert [one for one, _ in stored.turns] == ["My name is Ada", "Goodbye", "Who am I?"]
    assert [(one.question, one.answer) for one in stored.aborted] == [("Goodbye again", "half ")]


async def test_a_restart_keeps_the_history_in_postgresql_too(
    behind: tuple[Upstream, Peer], tmp_path: Path, postgres_dsn: str
) -> None:
    async with restarted(behind, tmp_path, "sessions: {postgres: {dsn_env: OUR_DSN}}", OUR_DSN=postgres_dsn):
        pass
    async with open_postgres_sessions(postgres_dsn, StoreLimits()) as store:
        stored = await store.read_session(SessionKey("anonymous", "default", "kept"))
    assert [one.question for one in stored] == ["My name is Ada", "Goodbye", "Who am I?"]
    assert not (tmp_path / "sessions.db").exists()


async def test_two_processes_serve_one_port_and_one_session(behind: tuple[Upstream, Peer], tmp_path: Path) -> None:
    config = write_config(tmp_path, behind[1].port)
    async with running_agent(tmp_path, config, LOCKGATE_SERVER__WORKERS="2") as server:
        served = await ask_until_both_answer(server, behind[0])
        questions = [one for one, _ in (await read_stored(tmp_path, "shared")).turns]
        assert questions == [f"Question {number}" for number in range(served)]


async def ask_until_both_answer(server: AgentProcess, upstream: Upstream) -> int:
    """Turn after turn on connections of their own; each must know the one before. How many it took."""
    number = 0
    while len({one["worker"] for one in server.events("request") if "AskAgentStream" in str(one)}) < 2:
        async with open_client(server.grpc_port) as client:
            found = await client.ask(f"Question {number}", "shared")
            assert (found.code, found.text) == (Code.OK, "It is 8033.")
        assert not number or f"Question {number - 1}" in upstream.prompt()
        number += 1
    return number


async def test_a_port_that_is_taken_ends_the_start_with_one_clear_line(
    behind: tuple[Upstream, Peer], tmp_path: Path
) -> None:
    config = write_config(tmp_path, behind[1].port)
    with taken_port() as port:
        server = AgentProcess(tmp_path, config, LOCKGATE_SERVER__GRPC_PORT=str(port))
        status = await asyncio.to_thread(server.process.wait, HANG_S)
    said = server.error_path.read_text()
    assert status != 0
    assert f"127.0.0.1:{port}" in said
    assert "--grpc-port" in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
