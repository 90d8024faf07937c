# SPDX-License-Identifier: Apache-2.0
"""Real gRPC servers on loopback that do what a test tells them, and record what they were asked."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from lockgate.config.settings import ServiceSettings, TlsSettings
from lockgate.gate.values import Frame
from lockgate.interfaces import Chunker
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.protos import caikit_runtime_chunkers_pb2 as chunkers
from lockgate.protos import caikit_runtime_nlp_pb2 as nlp_requests
from lockgate.protos import fmaas_pb2 as fmaas
from lockgate.protos import grpc_health_pb2 as health
from tests.waits import forever, until

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Any]]
Streaming = Callable[[Any, Context], AsyncIterator[Any]]
Methods = Mapping[str, Any]  # by name, each Unary or Streaming
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class Record:
    """What a server saw. `left` is set when a call was cancelled before it had ended."""

    def __init__(self) -> None:
        self.metadata: list[list[tuple[str, str | bytes]]] = []
        self.received: list[Any] = []
        self.calls = 0
        self.opened = asyncio.Event()
        self.left = asyncio.Event()

    def open(self, context: Context) -> None:
        """A call has begun."""
        self.calls += 1
        self.metadata.append([(name, value) for name, value in context.invocation_metadata() or ()])
        self.opened.set()

    def headers(self, call: int = -1) -> dict[str, str | bytes]:
        """The metadata of a call."""
        return dict(self.metadata[call])


def _encode(message: Any) -> bytes:
    """A message as bytes; bytes as they are, so that a server can answer rubbish."""
    encoded: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return encoded


class GrpcServer:
    """Methods of one service, each a coroutine or an async generator of the test's own."""

    def __init__(self) -> None:
        self.record = Record()
        self._services: dict[str, Handlers] = {}

    def answer(self, path: str, request: Any, behave: Unary) -> None:
        """One message for one message."""

        async def run(message: Any, context: Context) -> Any:
            self.record.open(context)
            self.record.received.append(message)
            with _noting(self.record):
                return await behave(message, context)

        self._add(path, grpc.unary_unary_rpc_method_handler(run, request.FromString, _encode))

    def stream(self, path: str, request: Any, behave: Streaming) -> None:
        """Many messages for one message."""

        async def run(message: Any, context: Context) -> AsyncIterator[Any]:
            self.record.open(context)
            self.record.received.append(message)
            with _noting(self.record):
                async for one in behave(message, context):
                    yield one

        self._add(path, grpc.unary_stream_rpc_method_handler(run, request.FromString, _encode))

    def converse(self, path: str, request: Any, behave: Streaming) -> None:
        """Many messages for many messages."""

        async def run(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            self.record.open(context)
            with _noting(self.record):
                async for one in behave(self._recorded(messages), context):
                    yield one

        self._add(path, grpc.stream_stream_rpc_method_handler(run, request.FromString, _encode))

    async def _recorded(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for message in messages:
            self.record.received.append(message)
            yield message

    def _add(self, path: str, method: "grpc.RpcMethodHandler[Any, Any]") -> None:
        _, service, name = path.split("/")
        self._services.setdefault(service, {})[name] = method

    @asynccontextmanager
    async def listening(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
        """Serve on a port, a free one unless told."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in self._services.items()]
        )
        address = f"127.0.0.1:{port}"
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
        await server.start()
        try:
            yield bound
        finally:
            await server.stop(None)
            await until(lambda: not _list_calls(), "the end of every call")  # one that the loop ends is told of loudly


def _list_calls() -> list[Any]:
    """The library's own tasks, one for each call of a server of this loop."""
    names = (getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks())
    return [name for name in names if name == "_schedule_rpc_coro"]


class _noting:  # noqa: N801 - reads as a word
    """Notes in the record that a call was cancelled."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            self._record.left.set()


CHUNKERS = "/caikit.runtime.Chunkers.ChunkersService"
NLP = "/caikit.runtime.Nlp.NlpService"
TGIS = "/fmaas.GenerationService"


async def answer_nothing(_message: Any, _context: Context) -> Any:
    """Never comes back."""
    await forever()


async def stream_nothing(_message: Any, _context: Context) -> AsyncIterator[Any]:
    """Never says a word."""
    yield await forever()


def failing_with(code: grpc.StatusCode, details: str) -> Unary:
    """Ends every call with a status."""

    async def behave(_message: Any, context: Context) -> Any:
        await context.abort(code, details)

    return behave


def build_chunker_server(cut: Unary | None = None, converse: Streaming | None = None) -> GrpcServer:
    """A chunker; what is not told never answers."""
    server = GrpcServer()
    path = f"{CHUNKERS}/ChunkerTokenizationTaskPredict"
    server.answer(path, chunkers.ChunkerTokenizationTaskRequest, cut or answer_nothing)
    path = f"{CHUNKERS}/BidiStreamingChunkerTokenizationTaskPredict"
    server.converse(path, chunkers.BidiStreamingChunkerTokenizationTaskRequest, converse or stream_nothing)
    return server


def serve_chunker(chunker: Chunker) -> GrpcServer:
    """One of our own chunkers, over gRPC."""

    async def cut(request: chunkers.ChunkerTokenizationTaskRequest, _context: Context) -> nlp.TokenizationResults:
        tokens = [nlp.Token(start=one.start, end=one.end, text=one.text) for one in await chunker.cut(request.text)]
        return nlp.TokenizationResults(results=tokens, token_count=len(tokens))

    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        async def frames() -> AsyncGenerator[Frame, None]:
            async for message in messages:
                yield Frame(message.input_index_stream, message.text_stream)

        async for chunk in chunker.stream(frames()):
            yield build_chunk(chunk.start, chunk.end, chunk.text)

    return build_chunker_server(cut, converse)


def build_chunk(start: int, end: int, *texts: str, inputs: tuple[int, int] = (0, 0)) -> Any:
    """One answer of a chunker's stream; the offsets of its tokens mean nothing."""
    return nlp.ChunkerTokenizationStreamResult(
        results=[nlp.Token(start=7, end=8, text=text) for text in texts],
        start_index=start,
        processed_index=end,
        token_count=99,
        input_start_index=inputs[0],
        input_end_index=inputs[1],
    )


def build_tgis_server(methods: Methods) -> GrpcServer:
    """A TGIS server with some of the methods Generate, GenerateStream, Tokenize, ModelInfo."""
    server = GrpcServer()
    for name, behave in methods.items():
        path, request = f"{TGIS}/{name}", _TGIS_REQUESTS[name]
        if name == "GenerateStream":
            server.stream(path, request, behave)
        else:
            server.answer(path, request, behave)
    return server


def build_nlp_server(methods: Methods) -> GrpcServer:
    """A caikit-NLP server with some of its methods."""
    server = GrpcServer()
    for name, behave in methods.items():
        path, request = f"{NLP}/{name}", getattr(nlp_requests, name.removesuffix("Predict") + "Request")
        if name.startswith("ServerStreaming"):
            server.stream(path, request, behave)
        else:
            server.answer(path, request, behave)
    return server


def add_health(server: GrpcServer, behave: Unary) -> GrpcServer:
    """The standard health service besides."""
    server.answer("/grpc.health.v1.Health/Check", health.HealthCheckRequest, behave)
    return server


_TGIS_REQUESTS = {
    "Generate": fmaas.BatchedGenerationRequest,
    "GenerateStream": fmaas.SingleGenerationRequest,
    "Tokenize": fmaas.BatchedTokenizeRequest,
    "ModelInfo": fmaas.ModelInfoRequest,
}


def at(port: int, **settings: Any) -> ServiceSettings:
    """The settings of a service on loopback."""
    return ServiceSettings(hostname="127.0.0.1", port=port, **settings)


def over_tls(port: int, hostname: str = "127.0.0.1", **tls: Any) -> ServiceSettings:
    """The settings of a service that speaks TLS."""
    return ServiceSettings(hostname=hostname, port=port, tls=TlsSettings(**tls))


async def frames_of(texts: Sequence[str]) -> AsyncGenerator[Frame, None]:
    """Texts as frames, numbered from 0."""
    for number, text in enumerate(texts):
        yield Frame(number, text)
