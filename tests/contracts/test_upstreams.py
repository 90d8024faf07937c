# SPDX-License-Identifier: Apache-2.0
"""Who is called for which address, who is refused, and how connections are shared (A-3 to A-6, A-24 to A-27, D-27)."""

import asyncio
import socket
import ssl
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from lockgate.backends import upstreams as upstreams_module
from lockgate.backends.endpoints import Endpoint
from lockgate.backends.upstreams import MAX_ADDRESSES, MAX_KEPT_CHARS, Upstreams, open_upstreams
from lockgate.errors import UpstreamError
from lockgate.gate.values import Document, Frame
from lockgate.interfaces import DataSource, Model
from lockgate.testing import ScriptedDataSource, ScriptedModel
from tests.contracts.http_peers import Exchange, open_peer, reply_json
from tests.server.certificates import Authority
from tests.waits import linger, until

REFUSED = "the address may not be called"


def at(url: str, **changes: Any) -> Endpoint:
    return Endpoint(url, "notes", "al", None, None, None)._replace(**changes)


async def ask_source(source: DataSource) -> str:
    """The words of a source's failure; nothing if there is none."""
    try:
        await source.search("q", 5)
    except UpstreamError as error:
        return str(error)
    return ""


async def ask_model(model: Model) -> str:
    """The words of a model's failure; nothing if there is none."""
    try:
        async with aclosing(model.generate((), {})) as frames:
            async for _ in frames:
                pass
    except UpstreamError as error:
        return str(error)
    return ""


async def ask_both(upstreams: Upstreams, endpoint: Endpoint) -> str:
    """The words of the failure of an endpoint, as a source or as a model: the same."""
    said = await ask_source(upstreams.source(endpoint, "c", 0.5))
    told = await ask_model(upstreams.model(endpoint, "c"))
    assert told.removeprefix("Network error: ") == said
    return said


async def ask(url: str, allow: tuple[str, ...] = (), **changes: Any) -> str:
    async with open_upstreams(allow, {}, {}) as upstreams:
        return await ask_both(upstreams, at(url, **changes))


BOTH = {"references": None, "summary": {"message": "x"}}


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "/x", "//h/x", "h:80", "ftp://h", "file:///etc/passwd", "javascript:1", "http:", "http:/h", "http:h",
        "http://", "http:///x", "http://:80", "https://", " http://h", "http://h ", "http://h\n", "http://h\t/x",
        "http://h/\r\nx", "http://h\x00", "http://h/\ud800", "http://a b/", "http://h\\x", "http://h/\\x", "http://h:0",
        "http://h:x", "http://h:99999", "http://h:-1", "http://[::1", "http://[::1]x", "http://[1.2.3.4]", "http://h?",
        "http://h?a=b", "http://h/x?", "http://h#", "http://h/#x", "http://u@h", "http://u:p@h/x", "http://@h",
        "http://:@h", "http://a..b", "http://.", "http://%68/", "http://a%00b/", "http://2130706433", "http://127.1",
        "http://0x7f000001", "http://0177.0.0.1", "http://127.0.0.1.", "http://[::1%25lo]", "http://[::1%lo]",
        "http://" + "a" * 64, "openai+ftp://h", "openai+http://", "openai+openai+http://h", "lockgate", "lockgate:x",
        "lockgate://h", " lockgate:", "tunneling:al", "http+unix://x", "http://\u2100", "http://é\u3002\u3002x",
    ],
)  # fmt: skip
async def test_an_address_that_is_none_is_an_error_and_nobody_is_called(url: str) -> None:
    async with open_upstreams((), {}, {}) as upstreams:
        said = await ask_both(upstreams, at(url))
    assert said.startswith("the url ")


async def test_few_addresses_are_kept_and_no_long_one() -> None:
    async with open_upstreams((), {}, {}) as upstreams:
        for number in range(MAX_ADDRESSES + 1):
            upstreams.source(at(f"http://h{number}"), "c", 0.5)
        upstreams.source(at("http://h", slug="x" * MAX_KEPT_CHARS), "c", 0.5)
        kept = upstreams._named._read_short.cache_info()
    assert (kept.currsize, kept.misses) == (MAX_ADDRESSES, MAX_ADDRESSES + 1)


@pytest.mark.parametrize("slug", ["", ".", "..", "a/b", "a?b", "a#b", "a%2fb", "a\r\nb", "\ud800"])
async def test_a_slug_that_is_no_segment_is_an_error(slug: str) -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        assert (await ask(f"http://127.0.0.1:{peer.port}", slug=slug)).startswith("the slug ")
    assert peer.received == []


@pytest.mark.parametrize(
    ("prefix", "slug", "path"),
    [
        ("", "x", "/api/v1/endpoints/x/query"),
        ("/", "x", "/api/v1/endpoints/x/query"),
        ("/space/", "x", "/space/api/v1/endpoints/x/query"),
        ("/a/b%20c//", "a b;é\\", "/a/b%20c/api/v1/endpoints/a%20b%3B%C3%A9%5C/query"),
        ("/é", "...", "/%C3%A9/api/v1/endpoints/.../query"),
    ],
)
async def test_the_prefix_is_kept_and_the_slug_is_one_segment(prefix: str, slug: str, path: str) -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        assert await ask(f"http://127.0.0.1:{peer.port}{prefix}", slug=slug) == ""
        assert await ask(f"HTTP://127.0.0.1:{peer.port}{prefix}", slug=slug) == ""
    assert [received.path for received in peer.received] == [path] * 4


@pytest.mark.parametrize("bad", ["k\r\nX-Evil: 1", "k\n", "\x00k", "k\x7f", "k\x85", "k\ud800", "k\t"])
async def test_a_token_or_tenant_that_is_no_header_fails_without_a_call(bad: str) -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        url = f"http://127.0.0.1:{peer.port}"
        assert await ask(url, token=bad) == "the token cannot be sent as a header"
        assert await ask(url, tenant=bad) == "the tenant name cannot be sent as a header"
        async with open_upstreams((), {}, {}) as upstreams:
            said = await ask_model(upstreams.model(at(f"openai+{url}", token=bad), "c"))
        assert said == "the token cannot be sent as a header"
    assert peer.received == []


async def test_other_characters_are_sent_as_utf_8() -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        assert await ask(f"http://127.0.0.1:{peer.port}", token="tökén 1", tenant="テナント") == ""
    for received in peer.received:
        assert received.all("authorization")[0].encode("latin-1").decode() == "Bearer tökén 1"
        assert received.all("x-tenant-name")[0].encode("latin-1").decode() == "テナント"


async def test_an_empty_token_or_tenant_is_none() -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        await ask(f"http://127.0.0.1:{peer.port}", token="", tenant="", transaction_token="")
    for received in peer.received:
        assert received.all("authorization") == received.all("x-tenant-name") == []
        assert "transaction_token" not in received.json


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "[64:ff9b::169.254.169.254]", "100.100.100.200",
     "[fd00:ec2::254]", "168.63.129.16", "１６９.254.169.254", "169。254。169。254"],
)  # fmt: skip
async def test_a_guarded_address_is_refused_in_any_spelling(host: str) -> None:
    assert await ask(f"http://{host}/latest") == REFUSED
    assert await ask(f"https://{host}:8443") == REFUSED
    async with open_upstreams((), {}, {}) as upstreams:
        assert await ask_model(upstreams.model(at(f"openai+http://{host}"), "c")) == REFUSED


@pytest.mark.parametrize("allow", [("127.0.0.1",), ("127.0.0.0/8",), ("localhost", "127.0.0.0/30"), ("0.0.0.0/0",)])
async def test_a_listed_address_is_called(allow: tuple[str, ...]) -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        assert await ask(f"http://127.0.0.1:{peer.port}", allow) == ""


@pytest.mark.parametrize("allow", [("10.0.0.0/8",), ("localhost",), ("*.example",), ("::/0",), ("127.0.0.2",)])
async def test_an_address_that_is_not_listed_is_refused(allow: tuple[str, ...]) -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        assert await ask(f"http://127.0.0.1:{peer.port}", allow) == REFUSED
        assert await ask(f"http://[::ffff:127.0.0.1]:{peer.port}", allow) == REFUSED
    assert peer.received == []


async def test_a_name_is_judged_by_the_list_and_by_what_it_leads_to() -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        url = f"http://LocalHost:{peer.port}"
        for allow in ((), ("localhost",), ("LOCALHOST.",), ("127.0.0.0/8", "::1"), ("127.0.0.1",)):
            assert await ask(url, allow) == "", allow
        for refusing in (("10.0.0.0/8",), ("*.localhost",), ("other",)):
            assert await ask(url, refusing) == REFUSED
    assert len(peer.received) == 10


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names and what they lead to, at the lowest place; others fail."""
    known: dict[str, list[str]] = {}
    original = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        name = str(host).removesuffix(".")
        if not name.endswith(".example"):
            return original(host, port, *args, **more)
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for address in known[name] for entry in original(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("guarded", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"])
@pytest.mark.parametrize("allow", [(), ("inner.example",), ("*.example", "10.0.0.0/8")])
async def test_a_name_that_leads_to_a_guarded_address_is_refused(
    names: dict[str, list[str]], guarded: str, allow: tuple[str, ...]
) -> None:
    names["inner.example"] = [guarded]
    assert await ask("http://inner.example", allow) == REFUSED
    assert await ask("https://INNER.example.:8443/x", allow) == REFUSED


async def test_a_name_that_many_ask_for_at_once_is_refused_to_all(names: dict[str, list[str]]) -> None:
    names["inner.example"] = ["169.254.169.254"]
    async with open_upstreams((), {}, {}) as upstreams:
        sources = [upstreams.source(at("http://inner.example", slug=f"s{n}"), "c", 0.5) for n in range(10)]
        assert await asyncio.gather(*map(ask_source, sources)) == [REFUSED] * 10


async def test_of_several_addresses_only_those_that_may_be_called_are_tried(names: dict[str, list[str]]) -> None:
    names["two.example"] = ["169.254.169.254", "127.0.0.1"]
    async with open_peer(reply_json(BOTH)) as peer:
        assert await ask(f"http://two.example:{peer.port}", ("two.example",)) == ""
        assert await ask(f"http://two.example:{peer.port}") == ""
    assert peer.received[0].all("host") == [f"two.example:{peer.port}"]


async def test_a_name_that_leads_elsewhere_later_is_judged_again_and_the_judged_address_used_until_then(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("aiohttp.connector.monotonic", lambda: now)
    names["moving.example"] = ["127.0.0.1"]
    async with open_peer(reply_json(BOTH)) as peer, open_upstreams((), {}, {}) as upstreams:
        endpoint = at(f"http://moving.example:{peer.port}")
        assert await ask_both(upstreams, endpoint) == ""
        names["moving.example"] = ["169.254.169.254"]
        await peer.part_from_all()  # so that the next call needs a connection of its own
        now += upstreams_module.NAMES_KEPT_S - 1
        assert await ask_both(upstreams, endpoint) == ""
        await peer.part_from_all()
        now += 2
        assert await ask_both(upstreams, endpoint) == REFUSED
        names["moving.example"] = ["127.0.0.1"]
        assert await ask_both(upstreams, endpoint) == ""  # a refusal is not remembered
    assert len(peer.received) == 6


async def test_a_name_that_nobody_knows_is_told(names: dict[str, list[str]]) -> None:
    names.clear()
    assert await ask("http://nobody.example") == "the host name cannot be resolved"


async def test_slow_lookups_do_not_delay_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.getaddrinfo
    begun: list[str] = []
    may_end = threading.Event()

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if str(host).startswith("slow"):
            begun.append(host)
            may_end.wait()
        return original("127.0.0.1" if str(host).endswith("example") else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with open_peer(reply_json(BOTH)) as peer, open_upstreams((), {}, {}) as upstreams:
        slow = [upstreams.source(at(f"http://slow{n}.example:{peer.port}"), "c", 0.5) for n in range(12)]
        tasks = [asyncio.create_task(source.search("q", 5)) for source in slow]
        try:
            await until(lambda: len(begun) == 12, "the slow lookups")
            assert await ask_source(upstreams.source(at(f"http://fast.example:{peer.port}"), "c", 0.5)) == ""
        finally:
            may_end.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("entry", ["*", "a b", "10.0.0.1/8", "http://x"])
async def test_a_bad_entry_of_the_list_stops_the_start(entry: str) -> None:
    with pytest.raises(ValueError, match="`"):
        async with open_upstreams((entry,), {}, {}):
            pass


async def test_proxies_and_netrc_files_of_the_environment_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login eve password secret\n", encoding="utf-8")
    async with open_peer(reply_json(BOTH)) as peer, open_peer(reply_json(BOTH)) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("NETRC", str(netrc))
        assert await ask(f"http://127.0.0.1:{peer.port}") == ""
    assert proxy.connections == 0
    assert [received.all("authorization") for received in peer.received] == [[], []]


async def test_tls_is_verified_by_the_systems_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path, "ours")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.issue("server"))
    async with open_peer(reply_json(BOTH), tls=serving) as peer:
        said = await ask(f"https://127.0.0.1:{peer.port}")
        assert said.startswith("TLS failed: ")
        assert "certificate" in said
        trusting = ssl.create_default_context(cafile=authority.path)
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting)  # what the library read at its start
        assert await ask(f"https://127.0.0.1:{peer.port}") == ""
        assert (await ask(f"https://localhost:{peer.port}")).startswith("TLS failed: ")
        plain = await ask(f"http://127.0.0.1:{peer.port}")
        assert plain
    assert len(peer.received) == 2


async def test_parts_of_this_instance_are_found_by_their_id() -> None:
    source, model = ScriptedDataSource([Document("T", "c", 0.5, source="x")]), ScriptedModel(["a", "b"])
    async with open_upstreams(("10.0.0.0/8",), {"notes": source}, {"notes": model}) as upstreams:
        found = await upstreams.source(at("lockgate:", owner="me"), "c", 0.5).search("q", 5)
        assert found == [Document("T", "c", 0.5, source="me/notes")]
        frames = [frame async for frame in upstreams.model(at("LockGate:"), "c").generate((), {})]
        assert frames == [Frame(0, "a"), Frame(1, "b")]
        said = await ask_source(upstreams.source(at("lockgate:", slug="hidden"), "c", 0.5))
        assert said == "no data source `hidden` is exposed here"
        assert (
            await ask_model(upstreams.model(at("lockgate:", slug="hidden"), "c")) == "no model `hidden` is exposed here"
        )
        assert await ask_source(upstreams.source(at("lockgate:", slug="x" * 999), "c", 0.5))


async def test_of_a_source_of_this_instance_only_what_is_near_enough_is_used() -> None:
    near, far, unknown = ({"similarity": 0.71}, {"similarity": 0.2}, {"similarity": "0.9", "id": "x"})
    given = [Document("far", "", 0.03, far), Document("near", "", 0.02, near), Document("words", "", 0.01, unknown)]
    async with open_upstreams((), {"notes": ScriptedDataSource(given)}, {}) as upstreams:
        found = await upstreams.source(at("lockgate:"), "c", 0.5).search("q", 5)
        all_of_them = await upstreams.source(at("lockgate:"), "c", 0.0).search("q", 5)
    assert [(one.title, one.score) for one in found] == [("near", 0.71), ("words", 0.01)]
    assert [(one.title, one.score) for one in all_of_them] == [("far", 0.2), ("near", 0.71), ("words", 0.01)]


async def test_endpoints_of_this_instance_are_called_with_their_own_token_whatever_the_list_says() -> None:
    async with open_peer(reply_json(BOTH)) as peer:
        own = Endpoint(f"http://127.0.0.1:{peer.port}", "inner", "us", "t", "our-token")
        async with open_upstreams(("10.0.0.0/8",), {"notes": own}, {"notes": own}) as upstreams:
            assert await ask_both(upstreams, at("lockgate:", token="theirs", transaction_token="tx")) == ""
    for received in peer.received:
        assert received.path == "/api/v1/endpoints/inner/query"
        assert received.all("authorization") == ["Bearer our-token"]
        assert b"tx" not in received.body


async def test_a_model_server_is_no_source() -> None:
    async with open_upstreams((), {}, {}) as upstreams:
        said = await ask_source(upstreams.source(at("openai+http://127.0.0.1"), "c", 0.5))
    assert said == "an openai+ address is a model, not a data source"


async def test_many_requests_share_connections() -> None:
    async with open_peer(reply_json(BOTH)) as peer, open_upstreams((), {}, {}) as upstreams:
        url = f"http://127.0.0.1:{peer.port}"
        for _ in range(4):
            sources = [upstreams.source(at(url, slug=f"s{n}"), "c", 0.5) for n in range(100)]
            await asyncio.gather(*[source.search("q", 5) for source in sources])
    assert len(peer.received) == 400
    assert peer.connections <= 100


async def test_an_idle_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams_module, "KEEP_ALIVE_S", 0.05)
    async with open_peer(reply_json(BOTH)) as peer, open_upstreams((), {}, {}) as upstreams:
        source = upstreams.source(at(f"http://127.0.0.1:{peer.port}"), "c", 0.5)
        for _ in range(2):
            assert await ask_source(source) == ""
            await until(lambda: not peer.open_connections, "the end of the connection")
    assert peer.connections == 2


async def test_connections_in_total_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams_module, "MAX_CONNECTIONS", 3)
    most = now = 0

    async def script(exchange: Exchange) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await until(lambda: most >= 3, "three at once")
        await linger()
        now -= 1
        await exchange.answer(b"{}")

    async with open_peer(script) as peer, open_upstreams((), {}, {}) as upstreams:
        source = upstreams.source(at(f"http://127.0.0.1:{peer.port}"), "c", 0.5)
        await asyncio.gather(*[source.search("q", 5) for _ in range(12)])
    assert most == 3
