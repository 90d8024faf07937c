# SPDX-License-Identifier: Apache-2.0
"""One gRPC port: which methods it has, how large a message may be, and what becomes of calls when it is told to stop.

Answers the standard question after health itself. Knows no method's meaning.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import Message

from lockgate.server.grpc.calls import Calls, Context
from lockgate.wire.protos.grpc_health_pb2 import HealthCheckRequest, HealthCheckResponse

_HEALTH = "grpc.health.v1.Health"
_ROOM_BYTES = 1024  # for what a message holds besides its text
_FOR_EVER_S = 31_536_000.0


class Method(NamedTuple):
    """One method: what it takes, who answers, and whether both sides send many messages."""

    request: type[Message]
    answer: Callable[..., Any]
    is_stream: bool = False


Services = Mapping[str, Mapping[str, Method]]


class GrpcPort:
    """Serves one port as PortServer does, with other words on the line."""

    def __init__(self, services: Services, calls: Calls, *, max_message_bytes: int) -> None:
        options = [
            ("grpc.so_reuseport", 0),  # or a second server would share the port without a word
            ("grpc.max_receive_message_length", max_message_bytes + _ROOM_BYTES),
        ]
        self._server = grpc.aio.server(options=options)
        health = {"Check": Method(HealthCheckRequest, _Health(services).check)}
        self._server.add_generic_rpc_handlers(
            [_build_service(name, methods) for name, methods in {**services, _HEALTH: health}.items()]
        )
        self._calls = calls
        self._told = asyncio.Event()
        self._cut = asyncio.Event()

    def bind(self, address: str) -> int:
        """Take the port of the address, or a free one for 0; raises RuntimeError, which does not tell why."""
        return self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def serve(self, timeout_s: float | None) -> None:
        """Until `stop`, then until no call is under way: at most `timeout_s`, and not once `cut` is called."""
        try:
            await self._told.wait()
            async with asyncio.TaskGroup() as group:
                cutting = group.create_task(self._cut_when_told())
                await self._server.stop(_FOR_EVER_S if timeout_s is None else timeout_s)
                cutting.cancel()
        finally:
            await self._server.stop(None)
            await self._calls.end()

    def stop(self) -> None:
        """Accept nothing more; calls under way go on."""
        self._told.set()

    def cut(self) -> None:
        """End everything, now."""
        self.stop()
        self._cut.set()

    async def _cut_when_told(self) -> None:
        await self._cut.wait()
        await self._server.stop(None)


class _Health:
    """Whoever gets an answer is served."""

    def __init__(self, services: Services) -> None:
        self._known = {"", _HEALTH, *services}

    async def check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)


def _build_service(name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, {key: _build_method(one) for key, one in methods.items()})


def _build_method(method: Method) -> "grpc.RpcMethodHandler[Any, Any]":
    build = grpc.stream_stream_rpc_method_handler if method.is_stream else grpc.unary_unary_rpc_method_handler
    return build(method.answer, method.request.FromString, _encode)


def _encode(message: Message) -> bytes:
    return message.SerializeToString()
