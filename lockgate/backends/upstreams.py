# SPDX-License-Identifier: Apache-2.0
"""Upstreams: the sources and models that requests name, behind one connection pool.

The scheme of an address decides the kind of endpoint. The address is checked when a connection is made, so that no
name can lead elsewhere later. Making a source or model never raises: its calls fail if its endpoint cannot be used.
"""

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from lockgate.backends.endpoints import KEEP_ALIVE_S, MAX_BODY_BYTES, Endpoint, UnfitHeader, build_headers, find_path
from lockgate.backends.http import AddressRefused, HttpCaller, open_connector, open_session
from lockgate.backends.openai import NAME as OPENAI
from lockgate.backends.openai_model import OpenAIModel
from lockgate.backends.spaces import NAME as SPACE
from lockgate.backends.spaces import SpaceModel, SpaceSource
from lockgate.config.addresses import AddressRules, read_host
from lockgate.config.refs import LOCAL_ADDRESS, OPENAI_PREFIX, check_form, check_slug
from lockgate.errors import Unavailable
from lockgate.gate.values import Document, Frame, Message
from lockgate.index.hits import FoundDocuments, find_similarity
from lockgate.interfaces import DataSource, Model

MAX_CONNECTIONS = 4096
MIN_CONNECTIONS = 64
MAX_PER_HOST = 512  # further calls wait for one of these, within their own time limit
MAX_LOOKUPS = 32
MAX_ADDRESSES = 256  # parsed addresses in the cache, each of at most MAX_KEPT_CHARS
MAX_KEPT_CHARS = 1000
NAMES_KEPT_S = 10  # the permitted addresses of a name; then it is looked up and checked again

LocalSources = Mapping[str, DataSource | Endpoint | None]
LocalModels = Mapping[str, Model | Endpoint | None]

_MAX_ID_CHARS = 100  # of a request's name that an error message quotes


class _Unusable(Exception):
    """An endpoint cannot be called; the message is the reason."""


class _Address(NamedTuple):
    """The base URL of an OpenAI-compatible server, or the query URL of an endpoint of a Space."""

    url: URL
    is_openai: bool


class Upstreams:
    """Makes sources and models of the endpoints that requests name.

    `sources` and `models` are those that this instance exposes: local ones, or remote endpoints. The latter have a
    separate pool without address rules, since the settings chose them.
    """

    def __init__(self, named: "_Reach", own: "_Reach", sources: LocalSources, models: LocalModels) -> None:
        self._named = named
        self._own = own
        self._sources = sources
        self._models = models

    def source(self, endpoint: Endpoint, correlation_id: str, threshold: float) -> DataSource:
        """Returns the source at an endpoint; never raises."""
        if endpoint.url.lower() != LOCAL_ADDRESS:
            return self._named.source(endpoint, correlation_id, threshold)
        source = self._sources.get(endpoint.slug)
        if source is None:
            return _Unreachable(f"no data source `{endpoint.slug[:_MAX_ID_CHARS]}` is exposed here")
        if isinstance(source, Endpoint):  # the remote source applies the threshold
            return _LocalSource(self._own.source(source, correlation_id, threshold), endpoint.path)
        return _LocalSource(source, endpoint.path, threshold)

    def own_source(self, endpoint: Endpoint) -> DataSource:
        """Returns the source at an endpoint of the settings; any address is permitted."""
        return self._own.source(endpoint, "", 0.0)

    def model(self, endpoint: Endpoint, correlation_id: str) -> Model:
        """Returns the model at an endpoint; never raises."""
        if endpoint.url.lower() != LOCAL_ADDRESS:
            return self._named.model(endpoint, correlation_id)
        model = self._models.get(endpoint.slug)
        if model is None:
            return _Unreachable(f"no model `{endpoint.slug[:_MAX_ID_CHARS]}` is exposed here")
        return self._own.model(model, correlation_id) if isinstance(model, Endpoint) else model


class _Reach:
    """Makes sources and models that share one pool. Without rules any address may be called."""

    def __init__(self, pooled: aiohttp.ClientSession, rules: AddressRules | None) -> None:
        self._rules = rules
        self._read_short = lru_cache(MAX_ADDRESSES)(self._read_address)
        self._space_sources = HttpCaller(pooled, "source", SPACE, None, MAX_BODY_BYTES)
        self._space_models = HttpCaller(pooled, "model", SPACE, None, MAX_BODY_BYTES)
        self._openai_models = HttpCaller(pooled, "model", OPENAI, None, MAX_BODY_BYTES)

    def source(self, endpoint: Endpoint, correlation_id: str, threshold: float) -> DataSource:
        try:
            address = self._read(endpoint.url, endpoint.slug)
            if address.is_openai:
                raise _Unusable(f"an {OPENAI_PREFIX} address is a model, not a data source")
            headers = build_headers(correlation_id, endpoint.token, endpoint.tenant)
        except (_Unusable, UnfitHeader) as why:
            return _Unreachable(str(why))
        return SpaceSource(self._space_sources, address.url, headers, endpoint, endpoint.path, threshold)

    def model(self, endpoint: Endpoint, correlation_id: str) -> Model:
        try:
            address = self._read(endpoint.url, endpoint.slug)
            headers = build_headers(correlation_id, endpoint.token, None if address.is_openai else endpoint.tenant)
        except (_Unusable, UnfitHeader) as why:
            return _Unreachable(str(why))
        if address.is_openai:
            known_as = endpoint.slug if self._rules is None else OPENAI
            return OpenAIModel(self._openai_models, address.url, headers, endpoint, known_as)
        return SpaceModel(self._space_models, address.url, headers, endpoint)

    def _read(self, url: str, slug: str) -> _Address:
        """Parses and checks an endpoint's address; raises _Unusable. Short addresses are cached."""
        is_short = len(url) + len(slug) <= MAX_KEPT_CHARS
        return self._read_short(url, slug) if is_short else self._read_address(url, slug)

    def _read_address(self, url: str, slug: str) -> _Address:
        if (fault := check_slug(url, slug)) is not None:
            raise _Unusable(f"the slug {fault}")
        is_openai = url.lower().startswith(OPENAI_PREFIX)
        base = _read_url(url[len(OPENAI_PREFIX) :] if is_openai else url)
        host = base.raw_host or ""
        try:
            literal = read_host(host)
        except ValueError as error:
            raise _Unusable(f"the url cannot be used: {error}") from None
        if literal is not None and self._rules is not None and not self._rules.permits(host, literal):
            raise _Unusable("the address may not be called")  # the resolver checks names only
        if is_openai:
            return _Address(base, is_openai)
        return _Address(find_path(base, f"/api/v1/endpoints/{quote(slug, safe='')}/query"), is_openai)


@asynccontextmanager
async def open_upstreams(
    allow: Sequence[str], sources: LocalSources, models: LocalModels, *, resends: bool = True
) -> AsyncIterator[Upstreams]:
    """Opens the upstreams; leaving closes them. Raises ValueError for an invalid entry of `allow`.

    `resends`: as in open_http.
    """
    rules = AddressRules(allow)
    async with _open_pool(rules, resends=resends) as named, _open_pool(None, resends=resends) as own:
        yield Upstreams(_Reach(named, rules), _Reach(own, None), sources, models)


@asynccontextmanager
async def _open_pool(rules: AddressRules | None, *, resends: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """Opens a separate connection pool; TLS is verified with the system's certificates."""
    resolver = _Resolver(rules)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    quarter = max(MIN_CONNECTIONS, soft // 4)  # of the limit of open files: clients and services need some too
    connector = open_connector(
        resends=resends,
        ssl=True,
        resolver=resolver,
        ttl_dns_cache=NAMES_KEPT_S,
        limit=MAX_CONNECTIONS if soft < 0 else min(MAX_CONNECTIONS, quarter),
        limit_per_host=MAX_PER_HOST,
        keepalive_timeout=KEEP_ALIVE_S,
    )
    try:
        async with open_session(connector, connect_timeout_s=None) as pooled:
            yield pooled
    finally:
        await resolver.close()


class _Resolver(AbstractResolver):
    """Looks names up and returns only addresses that may be called.

    It has separate threads: the event loop has few, and any request can name a host whose lookup takes long.
    """

    def __init__(self, rules: AddressRules | None) -> None:
        self._rules = rules
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, "lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Returns the permitted addresses of a name; raises AddressRefused if it has others only."""
        look_up: Callable[[], Any] = partial(
            socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        results = [_to_result(host, port, entry) for entry in found]
        rules = self._rules
        permitted = results if rules is None else [one for one in results if rules.permits(host, one["host"])]
        if results and not permitted:
            raise AddressRefused
        return permitted

    async def close(self) -> None:
        """Stops further lookups; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _LocalSource:
    """A source of this instance; its documents are cited by the name that the request uses.

    If a document has a similarity, that becomes its score, so that documents of several sources can be compared, and
    documents below the threshold are left out. Without a threshold, the source's scores stay.
    """

    def __init__(self, source: DataSource, path: str, threshold: float | None = None) -> None:
        self._source = source
        self._path = path
        self._threshold = threshold

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """Returns the documents that the source finds."""
        found = await self._source.search(question, limit)
        named = FoundDocuments([one._replace(source=self._path) for one in found])
        threshold = self._threshold
        if threshold is None:
            named.left_out = found.left_out if isinstance(found, FoundDocuments) else 0
            return named
        near = [(one, find_similarity(one)) for one in named]
        return [
            one if similarity is None else one._replace(score=similarity)
            for one, similarity in near
            if similarity is None or similarity >= threshold or threshold == 0
        ]


class _Unreachable:
    """A source or a model that cannot be called; every call raises the reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """Raises Unavailable."""
        raise Unavailable("upstream", self._why)

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """Raises Unavailable."""
        await self.search("", 0)
        yield Frame(0, "")


def _read_url(text: str) -> URL:
    """Parses an absolute address without credentials, query and fragment; repairs no faults."""
    if (fault := check_form(text)) is not None:
        raise _Unusable(f"the url {fault}")
    try:
        url = URL(text)
    except ValueError:
        raise _Unusable("the url cannot be read") from None
    if not url.raw_host or url.port == 0:
        raise _Unusable("the url cannot be read")
    return url


def _to_result(host: str, port: int, entry: tuple[Any, ...]) -> ResolveResult:
    family, _, proto, _, place = entry
    zone = place[3] if family == socket.AF_INET6 else 0
    numeric = f"{place[0]}%{zone}" if zone else place[0]
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=numeric, port=port, family=family, proto=proto, flags=flags)
