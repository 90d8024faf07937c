# SPDX-License-Identifier: Apache-2.0
"""Serves the built-in detectors over HTTP and the chunkers over gRPC until a signal stops both."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc

from lockgate._version import __version__
from lockgate.api.grpc.chunkers import CUT, SERVICE, STREAM, ChunkerMethods
from lockgate.api.grpc.port import Calls, GrpcBinding, GrpcMethod, GrpcPort
from lockgate.api.guarded_answer import build_passthrough
from lockgate.api.shapes import Shape, decode
from lockgate.backends.detector_format import (
    HEALTH_PATH,
    PATHS,
    ChatDetectionRequest,
    ContentsRequest,
    ContextDetectionRequest,
    GenerationRequest,
    encode_found_contents,
    encode_found_results,
    encode_refusal,
    to_subject,
)
from lockgate.compat import find_rules
from lockgate.config.settings import Settings
from lockgate.errors import CannotListen, InvalidRequest, UnknownDetector, UnsuitableDetector
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION, Detection, Excerpt
from lockgate.gate.verdicts import keep
from lockgate.gateway import Parts, open_parts
from lockgate.guard.detectors import Guard, check_thresholds, prepare
from lockgate.protos.caikit_runtime_chunkers_pb2 import (
    BidiStreamingChunkerTokenizationTaskRequest,
    ChunkerTokenizationTaskRequest,
)
from lockgate.server.acceptors import BACKLOG, describe_fault, is_loopback, join_address
from lockgate.server.app import App, Handler
from lockgate.server.exchange import Exchange
from lockgate.server.ports import (
    Ports,
    PortServer,
    loop_factory,
    spare_the_collector,
    stop_on_signals,
    stop_timeout_s,
)
from lockgate.telemetry import LogEvent, count_detections, log_event, open_telemetry

T = TypeVar("T")
_OVERHEAD_BYTES = 1024  # of a message besides its text
_PORT_ERRORS = frozenset({errno.EADDRINUSE, errno.EACCES})
_CONTENTS = Shape(ContentsRequest)
_SUBJECTS: Mapping[str, Shape[Any]] = {
    TEXT_GENERATION: Shape(GenerationRequest),
    TEXT_CHAT: Shape(ChatDetectionRequest, name="ChatRequest"),
    TEXT_CONTEXT_DOC: Shape(ContextDetectionRequest, name="ContextRequest"),
}
_NAMES = (b"detector-id", b"x-model-name")


class PartsPlace(NamedTuple):
    """The address of the two ports; port 0 takes any free one."""

    host: str = "127.0.0.1"
    detectors_port: int = 8080
    chunkers_port: int = 8085


def serve_parts(settings: Settings, place: PartsPlace) -> None:
    """Serve until SIGINT or SIGTERM."""
    with (
        open_telemetry(settings.otlp, joins_traces=find_rules(settings).joins_traces),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve(settings, place))


async def _serve(settings: Settings, place: PartsPlace) -> None:
    for warning in (*settings.warnings, *_list_warnings(settings, place)):
        log_event(LogEvent.WARNING, logging.WARNING, reason=warning)
    async with open_parts(settings) as parts:
        spare_the_collector()
        chunking = _build_chunking(parts)
        _bind("--chunkers-port", partial(_listen, place.host, place.chunkers_port)).close()  # grpc gives no reason
        chunkers_port = _bind("--chunkers-port", partial(chunking.bind, join_address(place.host, place.chunkers_port)))
        with _bind("--detectors-port", partial(_listen, place.host, place.detectors_port)) as listening:
            names = {"detectors": list(parts.guards), "chunkers": list(parts.chunkers)}
            log_event(LogEvent.STARTED, logging.INFO, version=__version__, settings=settings.source, **names)
            detecting = PortServer(build_parts_app(parts), listening)
            detectors_port = listening.getsockname()[1]
            addresses = {
                "detectors": f"http://{join_address(place.host, detectors_port)}",
                "chunkers": f"grpc://{join_address(place.host, chunkers_port)}",
            }
            ports = Ports([detecting, chunking], stop_timeout_s(settings))
            with stop_on_signals(ports.stop, ports.cut):
                await ports.start()
                for name, address in addresses.items():
                    log_event(LogEvent.LISTENING, port=name, address=address)
                await ports.serve()
    log_event(LogEvent.STOPPED)


def _build_chunking(parts: Parts) -> GrpcPort:
    limits = parts.settings.limits
    calls = Calls(limits)
    methods = ChunkerMethods(parts.chunkers, calls, max_held_chars=limits.max_held_chars)
    service = {
        CUT: GrpcMethod(ChunkerTokenizationTaskRequest, methods.cut),
        STREAM: GrpcMethod(
            BidiStreamingChunkerTokenizationTaskRequest, methods.stream, grpc.stream_stream_rpc_method_handler
        ),
    }
    return GrpcPort({SERVICE: service}, calls, GrpcBinding(limits.body_bytes + _OVERHEAD_BYTES))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening


def _bind(flag: str, bind: Callable[[], T]) -> T:
    try:
        return bind()
    except OSError as error:
        hint = f"{flag} chooses another port" if error.errno in _PORT_ERRORS else "--host chooses another address"
        raise CannotListen(f"failed to run server: io error: {describe_fault(error)}; {hint}") from error


def _list_warnings(settings: Settings, place: PartsPlace) -> list[str]:
    """Warnings: settings that protect the API port but not these ports, and ports open to other machines."""
    given = {"callers": bool(settings.callers), "server.tls": settings.server.tls.cert_path is not None}
    warnings = [f"`{name}` has no effect on parts" for name, is_given in given.items() if is_given]
    if not is_loopback(place.host):
        warnings.append(f"any client that reaches {place.host} may call; `--host 127.0.0.1` closes it")
    return warnings


def build_parts_app(parts: Parts) -> App:
    """The application of the detectors' port: one path for each type of detector, even if no detector has it."""
    detecting = DetectorRoutes(parts)
    posts: dict[str, Handler] = {PATHS[kind]: detecting.review(kind) for kind in _SUBJECTS}
    posts[PATHS[TEXT_CONTENTS]] = detecting.detect_contents
    limits = parts.settings.limits
    return App(
        {HEALTH_PATH: {"GET": health}, **{path: {"POST": endpoint} for path, endpoint in posts.items()}},
        max_streams=limits.max_streams,
        timeout_s=limits.request_timeout_s,
        encode_error=encode_refusal,
    )


async def health(exchange: Exchange) -> None:
    """GET /health."""
    await exchange.reply.answer_json(b'{"status":"HEALTHY"}')


class DetectorRoutes:
    """The endpoints for the detectors of the opened parts."""

    def __init__(self, parts: Parts) -> None:
        self._guards = parts.guards
        self._body_bytes = parts.settings.limits.body_bytes
        self._headers = build_passthrough(parts.settings)

    async def detect_contents(self, exchange: Exchange) -> None:
        """POST text/contents."""
        guard = self._find(exchange, TEXT_CONTENTS)
        request = await decode(await exchange.request.read_json(self._body_bytes), _CONTENTS.decode)
        reading, threshold = await self._accept(guard, request.detector_params, exchange)
        lists = await reading.read([Excerpt(text) for text in request.contents])
        found = [_choose(guard, one, threshold) for one in lists]
        await exchange.reply.answer_json(encode_found_contents(found))

    def review(self, kind: str) -> Handler:
        """POST text/generation, text/chat and text/context/doc."""

        async def review(exchange: Exchange) -> None:
            guard = self._find(exchange, kind)
            request = await decode(await exchange.request.read_json(self._body_bytes), _SUBJECTS[kind].decode)
            if isinstance(request, ChatDetectionRequest) and not request.messages:
                raise InvalidRequest("`messages` is required")
            accepted, threshold = await self._accept(guard, request.detector_params, exchange)
            found = await accepted.review(to_subject(request))
            await exchange.reply.answer_json(encode_found_results(_choose(guard, found, threshold)))

        return review

    def _find(self, exchange: Exchange, kind: str) -> Guard:
        """The detector that the headers name; without a name, the only one of its type."""
        name = next((value for header in _NAMES if (value := exchange.request.header(header))), "")
        suitable = [guard for guard in self._guards.values() if guard.type == kind]
        if not name and len(suitable) == 1:
            return suitable[0]
        if not name:
            raise InvalidRequest("header `detector-id` must name a detector")
        guard = self._guards.get(name)
        if guard is None:
            raise UnknownDetector(name)
        if guard.type != kind:
            raise UnsuitableDetector(f"detector `{name}` is not supported by this endpoint")
        return guard

    async def _accept(self, guard: Guard, params: dict[str, Any], exchange: Exchange) -> tuple[Any, float | None]:
        """The detector's Reading or Review for these parameters, and the threshold, if given."""
        check_thresholds({guard.id: params})
        threshold = params.pop("threshold", None)
        return await prepare([params], partial(guard.detector.accept, params, self._headers(exchange))), threshold


def _choose(guard: Guard, found: Sequence[Detection], threshold: float | None) -> list[Detection]:
    """Selects and counts the detections to report."""
    kept = found if threshold is None else keep(found, threshold)
    chosen = [one._replace(detector_id=guard.id) for one in kept]
    count_detections(chosen)
    return chosen
