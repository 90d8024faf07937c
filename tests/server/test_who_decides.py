# SPDX-License-Identifier: Apache-2.0
"""Who decides (D-44), over sockets: what a caller may name, and policies that are in force for every request."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc
import pytest

from lockgate.server.app import App
from tests.server.agent_houses import open_client
from tests.server.gateways import V1, V1_STREAM
from tests.server.http_client import Answer, call
from tests.server.policy_house import MAIL, House, Voice, chat, open_house, post, text
from tests.server.policy_surfaces import AGGREGATOR, CHAT, OLLAMA_CHAT, OLLAMA_TEXT, TEXT, _hear

GENERATE = "/api/v2/text/generation-detection"
MASKED = "Write to ███████████████ now. It is bluebird. Bye."
CALLERS = """
callers:
  web: {key_env: WEB_KEY, policies: [noted, labelled], models: [m, alone, agent/free, only]}
  ops: {key_env: OPS_KEY}
  bound: {key_env: BOUND_KEY, required_policy: masked}
"""
KEYS: dict[str, Any] = {"WEB_KEY": "w", "OPS_KEY": "o", "BOUND_KEY": "b"}
FORBIDDEN = "this caller may not use the {} that the request names"


class Request(NamedTuple):
    """A way to ask a model: where, with what body under a policy, and the part of the error that holds its text."""

    path: str
    body: Callable[[str | None, bool], Mapping[str, Any]]
    error_text: Callable[[Any], str] = lambda body: str(body["details"])


def build_v1(policy: str | None, is_stream: bool) -> Mapping[str, Any]:
    return {"model_id": "m", "inputs": "Hello", "guardrail_config": {} if policy is None else {"policy": policy}}


def build_question(policy: str | None, is_stream: bool) -> Mapping[str, Any]:
    named = {} if policy is None else {"detectors": {"policy": policy}}
    return {"prompt": "Hello", "model": {"url": "lockgate:", "slug": "alone"}, **named}


def chat_with(model: str) -> Callable[[str | None, bool], Mapping[str, Any]]:
    return lambda policy, is_stream: chat(model=model if policy is None else f"{model}@{policy}", stream=is_stream)


def text_with(model: str) -> Callable[[str | None, bool], Mapping[str, Any]]:
    return lambda policy, is_stream: text(model=model if policy is None else f"{model}@{policy}", stream=is_stream)


def read_openai(body: Any) -> str:
    return str(body["error"]["message"])


def read_ollama(body: Any) -> str:
    return str(body["error"])


REQUESTS = {
    "proxied chat": Request(CHAT, lambda policy, is_stream: chat(policy, stream=is_stream), read_openai),
    "proxied text": Request(TEXT, lambda policy, is_stream: text(policy, stream=is_stream), read_openai),
    "configured chat": Request(CHAT, chat_with("alone"), read_openai),
    "configured text": Request(TEXT, text_with("alone"), read_openai),
    "agent": Request(CHAT, chat_with("agent/free"), read_openai),
    "agent for Ollama": Request(OLLAMA_CHAT, chat_with("agent/free"), read_ollama),
    "text for Ollama": Request(OLLAMA_TEXT, text_with("alone"), read_ollama),
    "guardrails": Request(V1, build_v1),
    "aggregator": Request(AGGREGATOR, build_question, lambda body: str(body["message"])),
}


def path_of(request: Request, is_stream: bool) -> str:
    """Where the request goes; two surfaces have another path for streams."""
    if request.path == V1 and is_stream:
        return V1_STREAM
    return request.path + "/stream" * (request.path == AGGREGATOR and is_stream)


async def send(house: House, name: str, policy: str | None = None, *, is_stream: bool = False, key: str = "") -> Answer:
    request = REQUESTS[name]
    return await post(
        house.port,
        path_of(request, is_stream),
        request.body(policy, is_stream),
        **({"x_lockgate_key": key} if key else {}),
    )


def names_of(receipt: Mapping[str, Any]) -> list[str]:
    return sorted({one["detector_id"] for one in receipt["detectors"]})


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", [None, "noted", "shade", "content"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_policy_that_is_required_everywhere_cannot_be_replaced(
    name: str, policy: str | None, is_stream: bool
) -> None:
    async with open_house(more="required_policies: {/: masked}") as house:
        answer = await send(house, name, policy, is_stream=is_stream)
    heard = _hear(answer)
    assert heard.error is None
    assert MAIL not in answer.body.decode()
    assert heard.receipt is not None
    assert heard.receipt["mode"] == "enforce"
    assert heard.receipt["policy"] == ("masked" if policy is None else f"masked+{policy}")
    assert "mail" in names_of(heard.receipt)
    assert heard.fits()


def list_places() -> list[tuple[str, str]]:
    """Each way to ask with each place of a required policy; models of the generation server have none of their own."""
    pairs = [(name, place) for name in REQUESTS for place in ("caller", "model", "path")]
    return [pair for pair in pairs if pair != ("guardrails", "model")]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("name", "place"), list_places())
async def test_a_required_policy_of_any_place_counts(name: str, place: str, is_stream: bool) -> None:
    given: dict[str, str] = {
        "caller": CALLERS,
        "model": "",
        "path": f"required_policies: {{{REQUESTS[name].path}: masked, {V1_STREAM}: masked}}",
    }
    environ: dict[str, Any] = dict(KEYS)
    if place == "model":
        environ = {f"LOCKGATE_MODELS__{one}__REQUIRED_POLICY": "masked" for one in ("MAIN", "ALONE")}
        environ["LOCKGATE_OPENAI__REQUIRED_POLICIES"] = "{m: masked}"
    async with open_house(more=given[place], **environ) as house:
        answer = await send(house, name, "noted", is_stream=is_stream, key="b" if place == "caller" else "")
    assert _hear(answer).error is None
    assert MAIL not in answer.body.decode()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_policy_that_the_caller_may_not_name_is_refused_before_the_model_is_called(
    name: str, is_stream: bool
) -> None:
    async with open_house(more=CALLERS, **KEYS) as house:
        refused = await send(house, name, "shade", is_stream=is_stream, key="w")
        assert (refused.status, refused.headers["content-type"]) == (403, "application/json")
        assert REQUESTS[name].error_text(refused.json()) == FORBIDDEN.format("policy")
        assert not house.voice.asked
        allowed = await send(house, name, "noted", is_stream=is_stream, key="w")
        other = await send(house, name, "shade", is_stream=is_stream, key="o")
    assert (allowed.status, other.status) == (200, 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(model="other")),
        (CHAT, chat(model="main")),
        (CHAT, chat(model="agent/default")),
        (CHAT, chat(model="brunix@noted")),
        (TEXT, text(model="main")),
        ("/noted/v1/chat/completions", chat(model="other")),
        (V1, {**build_v1(None, False), "model_id": "other"}),
        (V1_STREAM, {**build_v1(None, True), "model_id": "other"}),
        (GENERATE, {"model_id": "other", "prompt": "Hello", "detectors": {}}),
        (OLLAMA_CHAT, chat(model="main:latest")),
        (AGGREGATOR, {"prompt": "Hello", "model": {"url": "lockgate:", "slug": "main"}}),
        (AGGREGATOR, {"prompt": "Hello", "model": {"url": "openai+http://127.0.0.1:1/v1", "slug": "m"}}),
    ],
)
async def test_a_model_that_the_caller_may_not_name_is_refused(path: str, body: Mapping[str, Any]) -> None:
    if path == GENERATE:
        body = {**body, "detectors": {"mail": {}}}
    async with open_house(more=CALLERS, **KEYS) as house:
        refused = await post(house.port, path, body, x_lockgate_key="w")
        assert not house.voice.asked
    assert refused.status == 403
    assert FORBIDDEN.format("model") in refused.body.decode()


async def test_a_policy_in_the_path_or_of_a_moderation_counts_as_named() -> None:
    async with open_house(more=CALLERS, **KEYS) as house:
        for path, body, status in (
            ("/masked/v1/chat/completions", chat(), 403),
            ("/noted/v1/chat/completions", chat(), 200),
            ("/masked/v1/chat/completions", chat(model="agent/free"), 403),
            ("/masked/v1/moderations", {"input": "Hello"}, 403),
            ("/v1/moderations", {"input": "Hello", "policy": "masked"}, 403),
            ("/v1/moderations", {"input": "Hello", "model": "masked"}, 403),
            ("/labelled/v1/moderations", {"input": "Hello"}, 200),
        ):
            answer = await post(house.port, path, body, x_lockgate_key="w")
            assert answer.status == status, (path, answer)


async def test_the_default_of_a_model_is_replaced_only_by_a_policy_that_the_caller_may_name() -> None:
    more = CALLERS.replace("[m,", "[m, guarded, safe,")
    async with open_house(more=more, **KEYS) as house:
        for model in ("guarded", "safe"):
            by_default = await post(house.port, CHAT, chat(model=model), x_lockgate_key="w")
            replaced = await post(house.port, CHAT, chat(model=f"{model}@noted"), x_lockgate_key="w")
            forbidden = await post(house.port, CHAT, chat(model=f"{model}@content"), x_lockgate_key="w")
            assert MAIL not in by_default.body.decode()
            assert _hear(by_default).receipt["policy"] == "masked"  # type: ignore[index]
            assert MAIL in _hear(replaced).text
            assert forbidden.status == 403


async def test_lists_show_only_what_the_caller_may_use() -> None:
    async with open_house(more=CALLERS, **KEYS) as house:
        seen = {}
        for key in ("w", "o"):
            headers = {"x-lockgate-key": key}
            models = (await call(house.port, "/v1/models", method="GET", headers=headers)).json()["data"]
            tags = (await call(house.port, "/api/tags", method="GET", headers=headers)).json()["models"]
            seen[key] = ([one["id"] for one in models], [one["name"] for one in tags])
            shown = await call(house.port, "/v1/models/main", method="GET", headers=headers)
            assert shown.status == (404 if key == "w" else 200)
    assert seen["w"] == (["agent/free", "alone"], ["agent/free", "alone"])
    assert seen["o"][0] == ["brunix", "agent/default", "agent/free", "main", "alone", "safe"]


@pytest.mark.parametrize("path", [CHAT, OLLAMA_CHAT])
async def test_a_request_with_detectors_cannot_change_those_of_a_required_policy(path: str) -> None:
    own = {"output": {"mail": {"threshold": 2}, "word": {}}}
    async with open_house(more="required_policies: {/: masked}") as house:
        answer = await post(house.port, CHAT, chat(model="m", detectors=own, stream=False))
    heard = _hear(answer)
    assert heard.text == MASKED
    assert heard.receipt is not None
    assert names_of(heard.receipt) == ["mail", "word"]


@pytest.mark.parametrize("more", [{"on_finding": {"output": "block"}}, {"fallback": "No."}])
async def test_a_request_has_no_actions_of_its_own_beside_a_required_policy(more: Mapping[str, Any]) -> None:
    body = {**build_question(None, False), "detectors": {"output": {"word": {}}, **more}}
    async with open_house(more="required_policies: {/: masked}") as house:
        refused = await post(house.port, AGGREGATOR, body)
    assert refused.status == 422
    assert "cannot be given together with a policy" in refused.body.decode()


async def test_generation_with_detection_is_under_a_required_policy_too() -> None:
    body = {"model_id": "m", "prompt": "Hello", "detectors": {"review": {}}}
    review = "LOCKGATE_DETECTORS__REVIEW"
    environ: dict[str, Any] = {f"{review}__TYPE": "text_generation", f"{review}__EMBEDDED": "pii"}
    async with open_house(more=f"required_policies: {{{GENERATE}: masked}}", **environ) as house:
        answer = (await post(house.port, GENERATE, body)).json()
        unsuitable = await post(house.port, GENERATE, {**body, "detectors": {"mail": {}}})
    assert answer["generated_text"] == MASKED
    assert [one["detector_id"] for one in answer["detections"]] == ["mail"]  # the other's finding did not leave
    assert names_of(answer["receipt"]) == ["mail", "review"]
    assert answer["receipt"]["policy"] == "masked"
    assert MAIL not in str(answer)
    assert unsuitable.status == 400


async def test_generation_with_detection_answers_with_the_fallback_where_the_prompt_is_blocked() -> None:
    body = {"model_id": "m", "prompt": "Say bluebird", "detectors": {"review": {}}}
    review = "LOCKGATE_DETECTORS__REVIEW"
    environ: dict[str, Any] = {f"{review}__TYPE": "text_generation", f"{review}__EMBEDDED": "pii"}
    async with open_house(more=f"required_policies: {{{GENERATE}: asked}}", **environ) as house:
        answer = (await post(house.port, GENERATE, body)).json()
    assert (answer["generated_text"], answer["receipt"]["outcome"]) == ("[no]", "blocked")
    assert [one["detector_id"] for one in answer["detections"]] == ["word"]


class Asked(NamedTuple):
    """How a call of the agent over gRPC ended."""

    code: grpc.StatusCode
    text: str
    details: str


async def ask_agent(house: House, method: str, key: str = "") -> Asked:
    metadata = [("x-lockgate-key", key)] if key else []
    async with open_client(house.grpc_port, *metadata) as client:
        outcome = await client.ask("Hello", method=method)
    return Asked(outcome.code, "".join(one.text for one in outcome.messages), outcome.details)


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
@pytest.mark.parametrize("place", ["caller", "model", "path"])
async def test_a_required_policy_counts_over_grpc(place: str, method: str) -> None:
    more = {"caller": CALLERS, "model": "", "path": "required_policies: {/brunix.AssistanceEngine: masked}"}[place]
    environ: dict[str, Any] = KEYS if place == "caller" else {"LOCKGATE_MODELS__MAIN__REQUIRED_POLICY": "masked"}
    environ = {} if place == "path" else environ
    async with open_house(more=more, agent_policy="noted", **environ) as house:
        guarded = await ask_agent(house, method, "b" if place == "caller" else "")
        free = await ask_agent(house, method, "o") if place == "caller" else guarded
    assert (guarded.code, guarded.text) == (grpc.StatusCode.OK, MASKED)
    assert (MAIL in free.text) == (place == "caller")


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
async def test_an_agent_that_the_caller_may_not_name_is_denied_over_grpc(method: str) -> None:
    async with open_house(more=CALLERS, **KEYS) as house:
        refused = await ask_agent(house, method, "w")
        assert not house.voice.asked
        allowed = await ask_agent(house, method, "o")
    assert (refused.code, refused.details) == (grpc.StatusCode.PERMISSION_DENIED, FORBIDDEN.format("model"))
    assert allowed.code is grpc.StatusCode.OK


async def test_an_evaluation_needs_the_agent_too_and_a_key_is_sent_once() -> None:
    async with open_house(more=CALLERS, **KEYS) as house:
        for keys, code, details in (
            (["w"], grpc.StatusCode.PERMISSION_DENIED, FORBIDDEN.format("model")),
            (["o"], grpc.StatusCode.FAILED_PRECONDITION, "no judge"),
            (["o", "o"], grpc.StatusCode.INVALID_ARGUMENT, "may be sent once only"),
        ):
            async with open_client(house.grpc_port, *[("x-lockgate-key", key) for key in keys]) as client:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await client.evaluate()
            assert failed.value.code() is code
            assert details in str(failed.value.details())


async def test_the_playground_offers_only_what_the_caller_may_name() -> None:
    async with open_house(more=CALLERS + "server: {playground: true}\n", **KEYS) as house:
        headers = {"x-lockgate-key": "w", "host": "127.0.0.1"}
        about = (await call(house.port, "/playground/about", method="GET", headers=headers)).json()
    assert [one["name"] for one in about["policies"]] == ["labelled", "noted"]
    assert [one["id"] for one in about["models"]] == ["alone"]


def test_a_path_under_a_policy_and_one_with_a_trace_are_the_path_that_a_policy_is_required_on() -> None:
    app = App({}, max_streams=1, timeout_s=1.0, required={"/v1": "one", "/api/v1/chat": "two"})
    for path, required in (
        ("/v1/chat/completions", ("one",)),
        ("/masked/v1/chat/completions", ("one",)),
        ("/api/v1/chat/stream", ("two",)),
        ("/trace/api/v1/chat/stream", ("two",)),
        ("/api/chat", ()),
    ):
        assert app._build_route(path).required == required


@pytest.mark.parametrize("model", ["m", "main"])
async def test_made_up_names_stay_the_same_when_a_conversation_is_sent_again(model: str) -> None:
    body = chat(model=model if model == "m" else f"{model}@renamed", prompt=f"Mail {MAIL}.", stream=False)
    body |= {"detectors": {"policy": "renamed"}} if model == "m" else {}
    async with open_house() as house:
        first = _hear(await post(house.port, CHAT, body, x_lockgate_mapping="true"))
        turns = [*body["messages"], {"role": "assistant", "content": first.text}, *body["messages"]]
        again = _hear(await post(house.port, CHAT, {**body, "messages": turns}, x_lockgate_mapping="true"))
    assert MAIL not in first.text
    assert (again.text, again.names) == (first.text, first.names)
    assert first.names is not None
    assert list(first.names.values()) == [MAIL]


async def test_the_stricter_action_of_two_policies_counts_and_each_keeps_its_detectors() -> None:
    voice = Voice("Write to ana@example.org now. ", "It is bluebird. ", "Bye.")
    async with open_house(voice, more="required_policies: {/v1: masked}") as house:
        answer = _hear(await post(house.port, CHAT, chat("own", stream=False)))
    assert answer.text == "Write to ███████████████ now. \n[cut]"
    assert answer.receipt is not None
    assert answer.receipt["outcome"] == "stopped"
