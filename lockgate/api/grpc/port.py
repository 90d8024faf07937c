# SPDX-License-Identifier: Apache-2.0
"""One gRPC port: admission, time limit and errors of its calls, health, and stopping."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from lockgate.config.settings import LimitSettings
from lockgate.errors import InvalidRequest, OverloadedError, RequestTimedOut
from lockgate.protos.grpc_health_pb2 import HealthCheckRequest, HealthCheckResponse
from lockgate.server.callers import Callers, CallerShare, read_bearer
from lockgate.server.error_replies import reply_to
from lockgate.server.exchange import CREDENTIALS, KEY_HEADER, SENT_TWICE
from lockgate.sessions.turns import ANONYMOUS
from lockgate.telemetry import answer_started, observe_request, start_request

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
_CLEAN_UP_S = 2.0

_CODES: Mapping[int, grpc.StatusCode] = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.PRECONDITION_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.UNPROCESSABLE_ENTITY: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.BAD_GATEWAY: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_HEALTH = "grpc.health.v1.Health"
_FOR_EVER_S = 31_536_000.0
_LOOK_S = 0.5  # between two checks for a watcher
_MAX_WATCHERS = 100
_FLUSH_S = 0.5  # for the last messages of calls that have ended


class Calls:
    """Admits and ends the calls of one port."""

    def __init__(self, limits: LimitSettings, callers: Callers | None = None) -> None:
        self._callers = callers or Callers()
        self._permits = limits.max_streams
        self._timeout_s = limits.request_timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()

    def switch(self, limits: LimitSettings, callers: Callers) -> set["asyncio.Task[Any]"]:
        """Admit later calls by these limits and callers; returns the calls under way."""
        self._callers = callers
        self._permits = limits.max_streams - len(self._tasks)
        self._timeout_s = limits.request_timeout_s
        return set(self._tasks)

    async def attend(self, path: str, context: Context, answer: Callable[[CallerShare], Awaitable[T]]) -> T:
        """Run `answer` with the caller's share; its exceptions end the call with a status."""
        request = start_request("POST", path, path, lambda name: read_metadata(context, name.decode()).encode())
        code, has_left, caller = 0, False, ""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            caller = self._identify(context)
            with self._callers.admit_name(caller) as share:
                return await self._admit(partial(answer, share))
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the second: reading or writing noticed the end
            has_left = True
            raise
        except Exception as error:  # noqa: BLE001 - the last place to answer
            reply = reply_to(error)
            code = reply.status
            answer_started(code, is_stream=False)
            await context.abort(_CODES.get(code, grpc.StatusCode.INTERNAL), reply.details)
        finally:
            self._tasks.discard(task)
            observe_request(request, code=code, caller=caller, has_left=has_left)

    async def wait_idle(self) -> None:
        """Wait until no call runs."""
        while tasks := set(self._tasks):
            await asyncio.wait(tasks)

    async def end(self) -> None:
        """Cancel calls that still run when the port is closed, and give them a moment to clean up."""
        if tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)

    def _identify(self, context: Context) -> str:
        sent = [name for name, _ in context.invocation_metadata() or ()]
        if any(sent.count(name.decode()) > 1 for name in CREDENTIALS):
            raise InvalidRequest(SENT_TWICE, status=400)
        key = read_metadata(context, KEY_HEADER.decode()).strip().encode("latin-1", "replace")
        key = key or read_bearer(read_metadata(context, "authorization").encode("latin-1", "replace"))
        names = (context.auth_context() or {}).get("x509_common_name", ())  # of the verified certificate
        certificate_name = next((name.decode("utf-8", "replace") for name in names), "")
        return self._callers.identify(key, certificate_name) or ANONYMOUS

    async def _admit(self, answer: Callable[[], Awaitable[T]]) -> T:
        if self._permits <= 0:
            raise OverloadedError("too many requests at once, try again later")
        self._permits -= 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await answer()
        except TimeoutError:
            if limit.expired():
                raise RequestTimedOut from None
            raise
        finally:
            self._permits += 1


def read_metadata(context: Context, name: str) -> str:
    """The first value of that name, or nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""


class GrpcMethod(NamedTuple):
    """One method: its request type, its handler, and grpc's builder for its kind (unary or streaming)."""

    request: type[Message]
    answer: Callable[..., Any]
    build: Callable[..., Any] = grpc.unary_unary_rpc_method_handler


Services = Mapping[str, Mapping[str, GrpcMethod]]


class GrpcBinding(NamedTuple):
    """Options of a port. `shares`: other processes may serve it too. `is_ready`: the status that health reports."""

    max_message_bytes: int
    tls: grpc.ServerCredentials | None = None
    shares: bool = False
    reflects: DescriptorPool | None = None
    is_ready: Callable[[], bool] = lambda: True


class GrpcPort:
    """Serves one port as PortServer does, but over gRPC."""

    def __init__(self, services: Services, calls: Calls, binding: GrpcBinding) -> None:
        options = [
            ("grpc.so_reuseport", int(binding.shares)),  # else a second server could share the port unnoticed
            ("grpc.max_receive_message_length", binding.max_message_bytes),
        ]
        self._server = grpc.aio.server(options=options)
        self._tls = binding.tls
        self._stopping = asyncio.Event()
        health = _HealthService(services, binding.is_ready, self._stopping)
        methods = {
            "Check": GrpcMethod(HealthCheckRequest, health.check),
            "Watch": GrpcMethod(HealthCheckRequest, health.watch, grpc.unary_stream_rpc_method_handler),
        }
        self._server.add_generic_rpc_handlers(
            [_build_service(name, methods) for name, methods in {**services, _HEALTH: methods}.items()]
        )
        if binding.reflects is not None:
            from grpc_reflection.v1alpha.reflection import SERVICE_NAME, enable_server_reflection

            enable_server_reflection((*services, _HEALTH, SERVICE_NAME), self._server, pool=binding.reflects)
        self._calls = calls
        self._cut = asyncio.Event()

    def bind(self, address: str) -> int:
        """Bind the port of the address, or a free one for 0; raises RuntimeError, which does not say why."""
        if self._tls is not None:
            return self._server.add_secure_port(address, self._tls)
        return self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def serve(self, timeout_s: float | None) -> None:
        """Serve until `stop`, then until no call is open: at most `timeout_s`, or until `cut`."""
        try:
            await self._stopping.wait()
            async with asyncio.TaskGroup() as group:
                ending = [group.create_task(self._cut_when_asked()), group.create_task(self._end_when_idle())]
                await self._server.stop(_FOR_EVER_S if timeout_s is None else timeout_s)
                for task in ending:
                    task.cancel()
        finally:
            await self._server.stop(None)
            await self._calls.end()

    def stop(self) -> None:
        """Accept no more calls; running calls go on."""
        self._stopping.set()

    def cut(self) -> None:
        """End all calls now."""
        self.stop()
        self._cut.set()

    async def _cut_when_asked(self) -> None:
        await self._cut.wait()
        await self._server.stop(None)

    async def _end_when_idle(self) -> None:
        await self._calls.wait_idle()
        await self._server.stop(_FLUSH_S)


class _HealthService:
    """The health service: SERVING once all upstream services have been reached."""

    def __init__(self, services: Services, is_ready: Callable[[], bool], stopping: asyncio.Event) -> None:
        self._known = {"", _HEALTH, *services}
        self._is_ready = is_ready
        self._stopping = stopping
        self._watchers = 0

    async def check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return HealthCheckResponse(status=self._find_status(request.service))

    async def watch(self, request: HealthCheckRequest, context: Context) -> None:
        """Send the status now and at each change, until the client leaves or the port stops."""
        if self._watchers >= _MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already, try again later")
        self._watchers += 1
        try:
            await self._send_changes(request.service, context)
        finally:
            self._watchers -= 1

    async def _send_changes(self, service: str, context: Context) -> None:
        last = None
        while not self._stopping.is_set():
            status = self._find_status(service)
            if status != last:
                await context.write(HealthCheckResponse(status=status))
                last = status
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._stopping.wait()

    def _find_status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in self._known:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if self._is_ready() else HealthCheckResponse.NOT_SERVING


def _build_service(name: str, methods: Mapping[str, GrpcMethod]) -> grpc.GenericRpcHandler:
    handlers = {key: one.build(one.answer, one.request.FromString, _encode) for key, one in methods.items()}
    return grpc.method_handlers_generic_handler(name, handlers)


def _encode(message: Message) -> bytes:
    return message.SerializeToString()
