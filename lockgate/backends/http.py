# SPDX-License-Identifier: Apache-2.0
"""HTTP clients: pooled connections, TLS, headers, time limits and error mapping.

Calls of services in the settings (HttpService, or JoinedCaller for a URL) carry the trace's headers. Endpoints that a
request names (HttpCaller) get exactly the headers that come with each call.
"""

import asyncio
import contextlib
import http
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from lockgate._version import __version__
from lockgate.backends.connections import NEVER_PASSED, blaming, set_up_client
from lockgate.backends.reconnects import REUSED, ResendingConnector, new_connection, was_lost_unread
from lockgate.config.settings import ServiceSettings, TlsSettings
from lockgate.errors import BrokeOff, BrokeProtocol, Refusal, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Health
from lockgate.interfaces import Headers
from lockgate.telemetry import client_call, count_reconnect, trace_headers

CONNECT_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_REASON_CHARS = 300
CHEAP_BYTES = 128 * 1024  # the most that is decoded on the event loop
LARGE_BYTES = 1024 * 1024
BYTES_PER_VALUE = 4  # a large body with fewer per value is an attack: it takes many times its size in memory
END_WAIT_S = 0.02
MAX_RETRY_DIGITS = 9  # of a `Retry-After` in seconds
READ_AHEAD_BYTES = 256 * 1024  # the library's default
EVENT_STREAM = "text/event-stream"

T = TypeVar("T")


class AddressRefused(aiohttp.ClientConnectionError):
    """A host name has no address that may be called."""


_NOT_REACHED = 408  # the status of every failure below HTTP; clients do not see its message
_FOREIGN = (aiohttp.ClientError, HttpProcessingError, OSError)  # TimeoutError is an OSError
_TRANSLATIONS: tuple[tuple[tuple[type[Exception], ...], type[UpstreamError], str], ...] = (
    ((TimeoutError,), TimedOut, "no answer in time"),
    ((AddressRefused,), Unavailable, "the address may not be called"),
    ((aiohttp.ClientConnectorDNSError,), Unavailable, "the host name cannot be resolved"),
    ((aiohttp.ClientSSLError, ssl.SSLError), Unavailable, "TLS failed"),
    ((aiohttp.ClientConnectorError,), Unavailable, "cannot connect"),
    ((aiohttp.ClientResponseError, HttpProcessingError), BrokeProtocol, "the answer is not HTTP"),
    ((aiohttp.ClientPayloadError,), BrokeOff, "the answer broke off"),
    (_FOREIGN, BrokeOff, "the connection was lost"),
)
# Python's phrases of these changed between its versions.
_PHRASES = {413: "Payload Too Large", 416: "Range Not Satisfiable", 418: "I'm a teapot", 422: "Unprocessable Entity"}


class OutgoingRequest(NamedTuple):
    """One request; `failure` begins the message of any error. `is_once`: it must never be sent again."""

    url: URL
    headers: CIMultiDict[str]
    body: bytes
    failure: str
    is_once: bool = False

    def __repr__(self) -> str:
        return f"Outgoing({self.url})"  # headers hold tokens, bodies hold user text


class HttpResponse(NamedTuple):
    """A complete response; `retry_after_s` of a refusal that has it."""

    status: int
    body: bytes
    retry_after_s: int | None = None


class HttpCaller:
    """Calls the address of each request over one pool. Telemetry and errors use `kind` and `name`.

    Without `timeout_s` the user of this class limits the time. With `joins_trace` calls carry the trace's headers.
    """

    joins_trace = False

    def __init__(
        self, pooled: aiohttp.ClientSession, kind: str, name: str, timeout_s: float | None, max_bytes: int
    ) -> None:
        self._pooled = pooled
        self._kind = kind
        self.name = name
        self._timeout_s = timeout_s
        self.max_bytes = max_bytes

    async def post(self, outgoing: OutgoingRequest) -> HttpResponse:
        """Returns the complete response of any status; raises UpstreamError if it does not arrive in time."""
        with client_call(self._kind, self.name) as call:
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send(outgoing)
                    status = call.status = response.status
                    body = await self._read_whole(response, outgoing.failure)
                    return HttpResponse(status, body, None if status == 200 else read_retry_after(response))
            except _FOREIGN as error:
                raise self.translate(error, outgoing.failure) from None

    async def open(self, outgoing: OutgoingRequest) -> aiohttp.ClientResponse:
        """Returns the response when its head has arrived in time; the caller reads its body and closes it."""
        with client_call(self._kind, self.name) as call:
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send(outgoing)
            except _FOREIGN as error:
                raise self.translate(error, outgoing.failure) from None
            call.status = response.status
            return response

    async def read(self, response: aiohttp.ClientResponse, outgoing: OutgoingRequest) -> bytes:
        """Reads the whole body of an opened response, in bounded time and size."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read_whole(response, outgoing.failure)
        except _FOREIGN as error:
            raise self.translate(error, outgoing.failure) from None

    async def read_packet(self, response: aiohttp.ClientResponse, outgoing: OutgoingRequest) -> bytes:
        """Waits for the next bytes of the body and returns them; empty at its end."""
        try:
            return await response.content.readany()
        except _FOREIGN as error:
            raise self.translate(error, outgoing.failure) from None

    async def fetch(self, url: URL, headers: CIMultiDict[str]) -> HttpResponse:
        """Gets a URL within the time of a probe; telemetry does not count this call."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                response = await self._pooled.get(url, headers=headers, allow_redirects=False)
                return HttpResponse(response.status, await self._read_whole(response, ""))
        except _FOREIGN as error:
            raise self.translate(error, "") from None

    async def probe_at(self, url: URL, headers: CIMultiDict[str], well_below: int) -> Health:
        """Returns a service's health: HEALTHY if it answers with a status below `well_below`; never raises."""
        try:
            status = (await self.fetch(url, headers)).status
        except UpstreamError as error:
            return Health("UNKNOWN", 500, error.message)
        return Health("HEALTHY") if status < well_below else _judge_status(status)

    def translate(self, error: Exception, failure: str) -> UpstreamError:
        """Returns the UpstreamError for a library's error; its message is for the log."""
        ours, reason = next((ours, reason) for kinds, ours, reason in _TRANSLATIONS if isinstance(error, kinds))
        if ours is BrokeProtocol:  # the library's message quotes the answer, hence user text
            return ours(self.name, failure + reason)
        detail = self._detail(error)
        message = f"{failure}{reason}: {detail}" if detail else failure + reason
        return ours(self.name, message, status=_NOT_REACHED, words="", own=failure + reason)

    def refuse_length(self, failure: str, limit: int) -> BrokeProtocol:
        """Returns the error for an answer that exceeds the limit."""
        return BrokeProtocol(self.name, f"{failure}the answer is longer than {limit} bytes")

    async def _read_whole(self, response: aiohttp.ClientResponse, failure: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while part := await response.content.readany():
                parts.append(part)
                size += len(part)
                if size > self.max_bytes:
                    raise self.refuse_length(failure, self.max_bytes)
        except BaseException:
            response.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _send(self, outgoing: OutgoingRequest) -> aiohttp.ClientResponse:
        """Sends the request; once more if it was lost with an idle connection, after no other failure."""
        headers, trace = outgoing.headers, trace_headers()  # called for every request, even if they are not sent
        if self.joins_trace:
            headers = headers.copy()
            headers.update(trace)
        post = partial(self._pooled.post, outgoing.url, headers=headers, allow_redirects=False)
        REUSED.set(None)
        try:
            response = await post(data=_Body(outgoing.body))
        except aiohttp.ClientConnectionError as error:
            if outgoing.is_once or not was_lost_unread(error):
                raise
            count_reconnect(self._kind, self.name)
            with new_connection():
                response = await post(data=_Body(outgoing.body))
        if response.status < 200:  # the library closes an unrequested switch of protocol too late
            response.close()
            raise HttpProcessingError
        _watch(response)
        return response

    def _detail(self, error: Exception) -> str:
        """Returns the reason without details of the network: a client may have chosen the address."""
        return describe(error)


class JoinedCaller(HttpCaller):
    """Calls a service that the settings name; its calls carry the trace's headers."""

    joins_trace = True


class HttpService(JoinedCaller):
    """Calls one service of the settings, with its pool, base address, token and the trace's headers."""

    def __init__(self, service: ServiceSettings, kind: str, name: str, pooled: aiohttp.ClientSession) -> None:
        scheme = "http" if service.tls is None else "https"
        prefix = f"/{service.path_prefix}" if service.path_prefix else ""
        self._base = f"{scheme}://{service.hostname}:{service.port}{prefix}"
        self._token = service.api_token_value
        super().__init__(pooled, kind, name, float(service.request_timeout), MAX_ANSWER_BYTES)

    def url(self, path: str) -> URL:
        """Returns the URL of a path of the service."""
        return URL(self._base + path)

    def headers(self, passed: Headers, fixed: Mapping[str, str]) -> CIMultiDict[str]:
        """Returns the headers passed on, overruled by the service's token and the fixed ones."""
        headers = _pass_on(passed)
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token.reveal()}"
        headers["content-type"] = "application/json"
        headers.update(fixed)
        return headers

    async def probe(self, passed: Headers) -> Health:
        """Asks the service for its health; never raises. Neither token nor trace is sent."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                response = await self._pooled.get(self.url("/health"), headers=_pass_on(passed), allow_redirects=False)
                return _judge(response.status, await self._read_whole(response, ""))
        except _FOREIGN as error:
            return Health("UNKNOWN", 500, self.translate(error, "").message)
        except BrokeProtocol:
            return _judge(response.status, b"")

    def _detail(self, error: Exception) -> str:
        return str(error)[:MAX_REASON_CHARS]


@contextlib.asynccontextmanager
async def open_http(
    service: ServiceSettings, kind: str, name: str, *, resends: bool = True, silence_s: float | None = None
) -> AsyncIterator[HttpService]:
    """Opens a service's client; the first request connects, and leaving closes the connections.

    `resends`: a request that was lost with an idle connection is sent once more. `silence_s`: how long a service may
    send nothing within a response.
    """
    tls = True if service.tls is None else build_tls(service.tls)
    connector = open_connector(resends=resends, ssl=tls, limit=0)
    async with open_session(connector, silence_s=silence_s) as pooled:
        yield HttpService(service, kind, name, pooled)


@contextlib.asynccontextmanager
async def open_with_health(
    service: ServiceSettings, health_service: ServiceSettings | None, kind: str, name: str, **options: Any
) -> AsyncIterator[tuple[HttpService, HttpService]]:
    """Opens a service's client and the one for its health, often the same; `options` are those of open_http."""
    async with open_http(service, kind, name, **options) as opened:
        if health_service is None:
            yield opened, opened
            return
        async with open_http(health_service, kind, name) as health:
            yield opened, health


def open_connector(*, resends: bool, **options: Any) -> aiohttp.TCPConnector:
    """Opens a connection pool; with `resends` a request that is lost with an idle connection is sent again."""
    return ResendingConnector(**options) if resends else aiohttp.TCPConnector(**options)


def open_session(
    connector: aiohttp.TCPConnector,
    connect_timeout_s: float | None = CONNECT_TIMEOUT_S,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
    silence_s: float | None = None,
) -> aiohttp.ClientSession:
    """Opens a session without cookies, proxies, netrc files and a total timeout; HttpCaller limits time and size.

    It buffers twice `read_ahead_bytes` of an unread body, then it stops the sender.
    """
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s, sock_read=silence_s),
        trust_env=False,
        read_bufsize=read_ahead_bytes,
    )


def build_tls(tls: TlsSettings) -> ssl.SSLContext:
    """Builds a client's TLS context; every part of the settings may be missing."""
    with blaming("client_ca_cert_path", tls.client_ca_cert_path):
        context = ssl.create_default_context(cafile=tls.client_ca_cert_path)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # newer Pythons set it and refuse certificates in use
    context.set_alpn_protocols(["http/1.1"])
    set_up_client(context, tls)
    return context


def refuse(
    service: str,
    message: str,
    status: int,
    *,
    words: str | None = None,
    own: str = "",
    refusal: Refusal | None = None,
) -> UpstreamError:
    """Returns the error for a service that answered without success; the rest is as in UpstreamError."""
    ours = Unavailable if status == 503 else Rejected if 400 <= status < 500 else UpstreamError
    return ours(service, message, status=status, words=words, own=own, refusal=refusal)


def read_retry_after(response: aiohttp.ClientResponse) -> int | None:
    """Returns the seconds after which a service may be asked again; None if there is no such number."""
    value = response.headers.get("Retry-After", "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= MAX_RETRY_DIGITS else None


def describe(error: Exception) -> str:
    """Returns the system's or TLS's reason for a failure, without any address; empty if there is none."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or "").replace("_", " ").lower()
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else ""


async def decode(body: bytes, read: Callable[[bytes], T]) -> T:
    """Applies `read` to a body: a small one at once, a large one in a thread."""
    return read(body) if len(body) <= CHEAP_BYTES else await asyncio.to_thread(read, body)


def count_values(body: bytes | str) -> int:
    """Estimates the number of JSON values, rarely too low; commas and brackets inside texts count too."""
    marks: tuple[Any, ...] = (",", "{", "[") if isinstance(body, str) else (b",", b"{", b"[")
    return sum(map(body.count, marks))


def refuse_dense(body: bytes) -> None:
    """Raises ValueError for a large body of tiny values, which decoded takes up to thirty times the memory."""
    if len(body) > LARGE_BYTES and count_values(body) * BYTES_PER_VALUE > len(body):
        raise ValueError("it has too many values")


async def let_end(response: aiohttp.ClientResponse) -> None:
    """Waits a moment for the end of the body, so that the connection can be reused."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(END_WAIT_S):
            while await response.content.readany():
                pass


class _Body(aiohttp.payload.BytesPayload):
    """A JSON body in one piece. Unlike its base it does not warn above 1 MiB."""

    def __init__(self, content: bytes) -> None:
        super(aiohttp.payload.BytesPayload, self).__init__(content, content_type="application/json")
        self._size = len(content)


class _HealthBody(msgspec.Struct):
    status: Literal["HEALTHY", "UNHEALTHY", "UNKNOWN"]
    reason: Any = None


_decode_health = msgspec.json.Decoder(_HealthBody).decode


def _pass_on(passed: Headers) -> CIMultiDict[str]:
    """Returns the headers to pass on, with all values; in lower case, else the library loses some."""
    headers = CIMultiDict({"user-agent": f"lockgate/{__version__}"})
    kept = [(lower, _restore(value)) for name, value in passed if (lower := name.lower()) not in NEVER_PASSED]
    for name, _ in kept:
        headers.popall(name, None)
    headers.extend(kept)
    headers["accept-encoding"] = "identity"
    return headers


def _restore(value: str) -> str:
    """Restores UTF-8 bytes that the server has read as Latin-1, since the library writes UTF-8."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _watch(response: aiohttp.ClientResponse) -> None:
    """Ends the body when its connection ends.

    If a later packet breaks the rules of chunked bodies, the library only closes the connection, and the reader
    would wait for ever.
    """
    content, connection = response.content, response.connection
    closed = getattr(connection.protocol, "closed", None) if connection is not None else None
    if closed is None or content.is_eof():
        return

    def end(_closed: "asyncio.Future[None]") -> None:
        if content.exception() is None and not content.is_eof():
            content.set_exception(aiohttp.ClientPayloadError("the body breaks the rules of HTTP"))

    closed.remove_done_callback(_retrieve_error)  # once for a connection, also while it is kept and idle
    closed.add_done_callback(_retrieve_error)
    closed.add_done_callback(end)
    content.on_eof(partial(closed.remove_done_callback, end))


def _retrieve_error(closed: "asyncio.Future[None]") -> None:
    """Retrieves a connection's error, so that asyncio does not warn about it."""
    if not closed.cancelled():
        closed.exception()


def _judge_status(status: int) -> Health:
    """Returns the health that a status without success means."""
    return Health("UNHEALTHY" if 500 <= status < 600 else "UNKNOWN", status, _phrase(status))


def _judge(status: int, body: bytes) -> Health:
    """Returns the health from an answer to a health request."""
    if status != 200:
        return _judge_status(status)
    try:
        health = _decode_health(body)
    except (ValueError, RecursionError):
        return Health("HEALTHY")
    has_reason = health.status != "HEALTHY" and isinstance(health.reason, str)
    return Health(health.status, 200, health.reason if has_reason else None)


def _phrase(status: int) -> str | None:
    try:
        return _PHRASES.get(status) or http.HTTPStatus(status).phrase
    except ValueError:
        return None
