# SPDX-License-Identifier: Apache-2.0
"""Shared by all gRPC clients: channels, TLS, deadlines, metadata and error mapping.

gRPC for Python always verifies certificates. If the settings turn that off, a relay on a private local socket
speaks TLS to the server and plain HTTP/2 to the channel.
"""

import asyncio
import json
import logging
import re
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from lockgate._version import __version__
from lockgate.backends.connections import NEVER_PASSED, blaming, set_up_client
from lockgate.config.settings import ServiceSettings, TlsSettings
from lockgate.errors import BrokeProtocol, ConfigError, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Health
from lockgate.interfaces import Headers
from lockgate.protos.grpc_health_pb2 import HealthCheckRequest
from lockgate.telemetry import LogEvent, ServiceCall, client_call, log_event, trace_headers

# --- TLS ------------------------------------------------------------------------------------------------------

_RELAYED_BYTES = 65_536
_ACCEPT_PAUSE_S = 1.0

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def load_credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    """Checks and loads the files that the settings name. The CA is added to those of the system."""
    build_context(tls)
    roots = _read_system_roots()
    if tls.client_ca_cert_path is not None:
        roots = tls.client_ca_cert_path.read_bytes() + b"\n" + roots
    chain = key = None
    if tls.cert_path is not None:
        chain = tls.cert_path.read_bytes()
        key = (tls.key_path or tls.cert_path).read_bytes()  # one file may hold both
    return grpc.ssl_channel_credentials(roots or None, key, chain)  # no roots at all: those that gRPC brings


def build_context(tls: TlsSettings) -> ssl.SSLContext:
    """Builds a context of Python's TLS, which reports at start what is wrong with a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls.client_ca_cert_path is not None:
        with blaming("client_ca_cert_path", tls.client_ca_cert_path):
            context.load_verify_locations(tls.client_ca_cert_path)
    set_up_client(context, tls)
    return context


def _read_system_roots() -> bytes:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return Path(paths.cafile).read_bytes()
    found = sorted(Path(paths.capath).glob("*.[0-9]")) if paths.capath else []
    return b"\n".join(path.read_bytes() for path in found)


@asynccontextmanager
async def open_unverified_relay(hostname: str, port: int, tls: TlsSettings, timeout_s: float) -> AsyncIterator[str]:
    """Opens a relay to the server over unverified TLS; its local address is for this user only."""
    connect = partial(asyncio.open_connection, hostname, port, ssl=build_context(tls))
    with tempfile.TemporaryDirectory(prefix="lockgate-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind(f"{folder}/relay")
        listener.listen()
        relay = _Relay(listener, connect, timeout_s, f"{hostname}:{port}")
        relay.listen()
        try:
            yield f"unix:{folder}/relay"
        finally:
            await relay.stop()


class _Relay:
    """Opens one connection to the server for each one that the channel opens.

    It is no asyncio server: those leave a connection open that arrives while they close.
    """

    def __init__(self, listener: socket.socket, connect: Connect, timeout_s: float, place: str) -> None:
        self._listener = listener
        self._connect = connect
        self._timeout_s = timeout_s
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no more files may be opened
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_ACCEPT_PAUSE_S, self.listen)
            return
        near.setblocking(False)
        task = self._loop.create_task(self._carry(near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: near.close())  # also if it never began

    async def _carry(self, near: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                far, out = await self._connect()
        except OSError as error:  # a failed handshake and a passed time limit are OSErrors too
            reason = str(error) or "no connection in time"
            log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=self._place, reason=reason)
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry_out(near, out))
                group.create_task(self._carry_back(far, near))
        finally:
            out.transport.abort()

    async def _carry_out(self, near: socket.socket, out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await self._loop.sock_recv(near, _RELAYED_BYTES):
                out.write(piece)
                await out.drain()
        out.close()

    async def _carry_back(self, far: asyncio.StreamReader, near: socket.socket) -> None:
        with suppress(OSError):
            while piece := await far.read(_RELAYED_BYTES):
                await self._loop.sock_sendall(near, piece)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)


# --- Channels and calls ---------------------------------------------------------------------------------------

Answer = TypeVar("Answer", bound=Message)
Metadata = tuple[tuple[str, str], ...]
_AskBytes = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
_StreamBytes = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
ByteStream = grpc.aio.UnaryStreamCall[bytes, bytes] | grpc.aio.StreamStreamCall[bytes, bytes]

_CONNECT_TIMEOUT_S = 60
_PROBE_TIMEOUT_S = 10
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_MAX_METADATA_BYTES = 64 * 1024
_YEAR_S = 31_536_000
_MAX_C_INT = 2**31 - 1
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})

_NAME = re.compile(r"[0-9a-z_.-]+")
_ADDRESS = re.compile(r"\b(?:ipv4|ipv6|unix):\S+ ?")
_VALUE = re.compile(r"[\x20-\x7e]*")
_NOT_FOR_GRPC = NEVER_PASSED | {"user-agent"}  # the channel has its own

_OUR_ERRORS: Mapping[grpc.StatusCode, tuple[type[UpstreamError], int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (Rejected, 400),
    grpc.StatusCode.UNAUTHENTICATED: (Rejected, 401),
    grpc.StatusCode.PERMISSION_DENIED: (Rejected, 403),
    grpc.StatusCode.NOT_FOUND: (Rejected, 404),
    grpc.StatusCode.DEADLINE_EXCEEDED: (TimedOut, 408),
    grpc.StatusCode.UNIMPLEMENTED: (BrokeProtocol, 501),
    grpc.StatusCode.UNAVAILABLE: (Unavailable, 503),
}
_ANY_OTHER = (UpstreamError, 500)
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_HEALTH_REQUEST = HealthCheckRequest(service="")
_HEALTHY = frozenset({grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND})


class RemoteMethod(NamedTuple, Generic[Answer]):
    """A method of a service: its path and the type of its answers."""

    path: str
    answer: type[Answer]


@asynccontextmanager
async def open_channel(service: ServiceSettings) -> AsyncIterator[grpc.aio.Channel]:
    """Opens a channel that connects at the first call and uses the host's addresses in turn."""
    if service.resolution_strategy == "eager":
        await _resolve(service)
    target = f"dns:///{service.hostname}:{service.port}"
    options = _build_options(service)
    async with AsyncExitStack() as stack:
        if service.tls is None:
            channel = grpc.aio.insecure_channel(target, options)
        elif service.tls.insecure:
            relay = open_unverified_relay(service.hostname, service.port, service.tls, _CONNECT_TIMEOUT_S)
            channel = grpc.aio.insecure_channel(await stack.enter_async_context(relay), options)
        else:
            channel = grpc.aio.secure_channel(target, load_credentials(service.tls), options)
        stack.push_async_callback(channel.close)
        yield channel


def _build_options(service: ServiceSettings) -> list[tuple[str, str | int]]:
    options: list[tuple[str, str | int]] = [
        ("grpc.default_authority", f"{service.hostname}:{service.port}"),
        ("grpc.primary_user_agent", f"lockgate/{__version__}"),
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_S * 1000),  # how long one attempt to connect may take
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),  # a service that is up again is found within a second
        ("grpc.dns_ares_query_timeout", _CONNECT_TIMEOUT_S * 1000),
        ("grpc.dns_min_time_between_resolutions_ms", _milliseconds(service.grpc_dns_probe_interval)),
    ]
    if service.http2_keep_alive_interval:
        options.append(("grpc.keepalive_time_ms", _milliseconds(service.http2_keep_alive_interval)))
        options.append(("grpc.keepalive_timeout_ms", _milliseconds(service.keep_alive_timeout)))
    return options


def _milliseconds(seconds: int) -> int:
    return min(seconds * 1000, _MAX_C_INT)


async def _resolve(service: ServiceSettings) -> None:
    limit_s = service.resolution_strategy_timeout
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().getaddrinfo(service.hostname, service.port)
    except TimeoutError as error:
        message = f"`{service.hostname}` was not resolved within {limit_s} s"
        raise ConfigError(message, source="service", key="hostname") from error
    except OSError as error:
        message = f"`{service.hostname}` cannot be resolved: {error.strerror or error}"
        raise ConfigError(message, source="service", key="hostname") from error


def build_metadata(headers: Headers, own: Metadata) -> Metadata:
    """Returns a request's headers for gRPC; `own` and the trace's replace any of the same name."""
    ours = (*own, *trace_headers())
    taken = {name for name, _ in ours}
    if "traceparent" in taken:
        taken.add("tracestate")  # the request's would belong to another trace
    passed = ((name.lower(), value) for name, value in headers)
    return (*((name, value) for name, value in passed if name not in taken and _may_pass(name, value)), *ours)


def _may_pass(name: str, value: str) -> bool:
    if name in _NOT_FOR_GRPC or name.startswith("grpc-") or name.endswith("-bin"):
        return False
    return bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value))


class OutgoingCall(NamedTuple):
    """One request. `failing` begins the text of any error; `own` metadata replaces headers of the same name."""

    request: Message
    failing: str
    headers: Headers = ()
    own: Metadata = ()

    def __repr__(self) -> str:
        return f"Outgoing({self.failing!r})"  # headers hold tokens, requests hold user text


class Peer:
    """Calls one service in limited time, counts the calls and maps errors."""

    def __init__(
        self, channel: grpc.aio.Channel, service: ServiceSettings, kind: str, name: str, *, limits_silence: bool = False
    ) -> None:
        self._channel = channel
        self._limits_silence = limits_silence
        self._kind = kind
        self._name = name
        self._place = f"{service.hostname}:{service.port}"
        self._timeout_s = min(service.request_timeout, _YEAR_S)

    async def ask(self, method: RemoteMethod[Answer], outgoing: OutgoingCall) -> Answer:
        """Sends one message and returns the answer."""
        with self.calling(outgoing.failing):
            call: _AskBytes = self._channel.unary_unary(method.path)
            metadata = build_metadata(outgoing.headers, outgoing.own)
            raw = await call(outgoing.request.SerializeToString(), timeout=self._timeout_s, metadata=metadata)
            return method.answer.FromString(raw)

    async def stream(self, method: RemoteMethod[Answer], outgoing: OutgoingCall) -> AsyncGenerator[Answer, None]:
        """Sends one message and yields the answers; their metadata must come in time. Closing cancels the call.

        With `limits_silence` each answer must come in time.
        """
        with self.calling(outgoing.failing) as counted:
            begin: _StreamBytes = self._channel.unary_stream(method.path)
            metadata = build_metadata(outgoing.headers, outgoing.own)
            call = begin(outgoing.request.SerializeToString(), metadata=metadata)
            async with reading(call) as answers:
                async with self.in_time(outgoing.failing):
                    await call.initial_metadata()
                while (raw := await self._next(answers, outgoing.failing)) is not None:
                    counted.status = 200
                    yield method.answer.FromString(raw)
            counted.stream_ended()

    async def _next(self, answers: AsyncIterator[bytes], failing: str) -> bytes | None:
        if not self._limits_silence:
            return await anext(answers, None)
        async with self.in_time(failing):
            return await anext(answers, None)

    def converse(self, path: str, own: Metadata) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        """Begins a call in which both sides send many messages; use it within `calling` and `reading`."""
        return self._channel.stream_stream(path)(metadata=build_metadata((), own))

    @asynccontextmanager
    async def in_time(self, failing: str) -> AsyncIterator[None]:
        """Raises TimedOut if the body takes longer than the service's request timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            message = f"{failing}: no answer within {self._timeout_s} s"
            raise TimedOut(self._name, message, status=_OUR_ERRORS[grpc.StatusCode.DEADLINE_EXCEEDED][1]) from error

    @contextmanager
    def calling(self, failing: str) -> Iterator[ServiceCall]:
        """Counts a call and maps grpc's errors to Lockgate's; a call's trace headers are made inside."""
        with client_call(self._kind, self._name) as counted:
            try:
                with self._map_errors(failing):
                    yield counted
            except UpstreamError as error:
                counted.status = error.status
                raise
            counted.status = 200

    @contextmanager
    def _map_errors(self, failing: str) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            ours, status = _OUR_ERRORS.get(error.code(), _ANY_OTHER)
            words = self._describe(error)
            message, words = f"{failing}: {words}", "" if ours is TimedOut else words
            raise ours(self._name, message, status=status, words=words) from error
        except DecodeError as error:
            raise BrokeProtocol(self._name, f"{failing}: the answer is not the message agreed on") from error
        except grpc.aio.BaseError as error:
            raise UpstreamError(self._name, f"{failing}: {error}", status=_ANY_OTHER[1], words="") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable(self._name, f"{failing}: the channel was closed", words="") from None

    def _describe(self, error: grpc.aio.AioRpcError) -> str:
        """Returns the service's or gRPC's message without addresses, which callers must not see."""
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            details = _ADDRESS.sub("", details).replace(self._place, "the host")
        return details

    async def probe(self, path: str = _HEALTH_CHECK, request: Message = _HEALTH_REQUEST) -> Health:
        """Returns whether the service answers at all; the content of its answer is ignored."""
        call: _AskBytes = self._channel.unary_unary(path)
        try:
            await call(request.SerializeToString(), timeout=min(_PROBE_TIMEOUT_S, self._timeout_s))
        except grpc.aio.AioRpcError as error:
            status = _OUR_ERRORS.get(error.code(), _ANY_OTHER)[1]
            return Health("HEALTHY") if error.code() in _HEALTHY else Health("UNHEALTHY", status)
        except grpc.aio.BaseError:  # the channel is closed
            return Health("UNHEALTHY", _ANY_OTHER[1])
        return Health("HEALTHY")


@asynccontextmanager
async def reading(call: ByteStream) -> AsyncIterator[AsyncIterator[bytes]]:
    """Gives an iterator of the call's messages; leaving cancels the call at once."""
    answers = cast("AsyncGenerator[bytes, None]", aiter(call))
    try:
        yield answers
    finally:
        call.cancel()
        await answers.aclose()
