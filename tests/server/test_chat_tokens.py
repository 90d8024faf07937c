# SPDX-License-Identifier: Apache-2.0
"""A token goes to the endpoints of its owner and to nobody else, byte for byte, whatever both look like."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.api.aggregator.format import read_request
from tests.server.gateways import gateway
from tests.server.spaces import Space, ask_chat, collect, open_space

CONFIG = "detectors: {pii: {embedded: pii}}"
OWNERS = st.sampled_from(["al", "AL", "al ", "a", "bo", "", "álvaro", "al/bo", None])
VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
TOKENS = st.text(VISIBLE, min_size=12, max_size=20)
ANY_OWNER = st.text(max_size=6)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request without addresses; the model's slug is `llm`, sources are numbered."""
    sources = [{"slug": f"s{n}", "owner_username": draw(OWNERS)} for n in range(draw(st.integers(1, 4)))]
    holders = draw(st.lists(OWNERS.filter(lambda one: one is not None), unique=True, max_size=5))
    tokens = {
        kind: {owner: f"{kind[0]}{n}-{draw(TOKENS)}" for n, owner in enumerate(holders)} for kind in ("sat", "tx")
    }
    return {
        "prompt": "How long?",
        "model": {"slug": "llm", "owner_username": draw(OWNERS)},
        "data_sources": sources,
        "endpoint_tokens": tokens["sat"],
        "transaction_tokens": tokens["tx"],
    }


def check_tokens(asked: dict[str, Any], space: Space) -> None:
    """Each endpoint has got its owner's tokens and no other's."""
    owners = {one["slug"]: one["owner_username"] for one in (asked["model"], *asked["data_sources"])}
    assert sorted(owners) == sorted(one.slug for one in space.asked)
    everything = {*asked["endpoint_tokens"].values(), *asked["transaction_tokens"].values()}
    for call in space.asked:
        owner = owners[call.slug]
        mine = asked["endpoint_tokens"].get(owner), asked["transaction_tokens"].get(owner)
        assert call.headers.get("authorization") == (f"Bearer {mine[0]}" if mine[0] else None)
        assert call.body.get("transaction_token") == mine[1]
        seen = json.dumps(call.body, ensure_ascii=False) + "".join(call.headers.values())
        for token in everything - set(mine):
            assert token not in seen
            assert json.dumps(token)[1:-1] not in seen


@pytest.mark.parametrize("is_stream", [False, True])
@settings(max_examples=15, deadline=None)
@given(asked=requests())
def test_every_token_reaches_only_its_owner(is_stream: bool, asked: dict[str, Any]) -> None:
    async def play() -> None:
        endpoints: dict[str, Any] = {one["slug"]: [] for one in asked["data_sources"]} | {"llm": "x"}
        async with open_space(endpoints) as space, gateway(CONFIG) as port:
            for one in (asked["model"], *asked["data_sources"]):
                one["url"] = space.url
            if is_stream:
                assert (await collect(port, asked))[-1][0] == "done"
            else:
                assert (await ask_chat(port, asked, authorization="Bearer of-the-client"))[0] == 200
            check_tokens(asked, space)
            assert all("of-the-client" not in str(call.headers) for call in space.asked)

    asyncio.run(play())


@given(st.lists(st.tuples(ANY_OWNER, st.text(max_size=5)), max_size=6), st.none() | ANY_OWNER)
def test_an_owner_is_looked_up_exactly(pairs: list[tuple[str, str]], owner: str | None) -> None:
    tokens = dict(pairs)
    body = {
        "prompt": "q",
        "model": {"url": "u", "slug": "s", "owner_username": owner},
        "endpoint_tokens": tokens,
        "transaction_tokens": {name: f"tx{token}" for name, token in tokens.items()},
    }
    request = read_request(json.dumps(body).encode())
    endpoint = request.endpoint(request.model)
    has = owner is not None and owner in tokens
    assert endpoint.token == (tokens[owner] if has and owner is not None else None)
    assert endpoint.transaction_token == (f"tx{endpoint.token}" if has else None)
    assert not any(
        token in repr(endpoint) for token in tokens.values() if len(token) > 3 and token not in endpoint.path
    )
