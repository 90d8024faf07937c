# SPDX-License-Identifier: Apache-2.0
"""The echo for the endpoints that take a `model_id`: a generation server over gRPC (provider `tgis`).

    python examples/echo_generation.py [PORT [HOST]]        127.0.0.1:8035 by default

It repeats the prompt, word by word. It uses the protobuf messages of the package `lockgate`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from lockgate.protos import fmaas_pb2 as fmaas

PACE_S = float(os.environ.get("PACE_S", "0.05"))  # between two words


def split(text: str) -> list[str]:
    """Words with the space after them."""
    *words, last = text.split(" ")
    return [*(f"{word} " for word in words), last]


async def generate(asked: Any, context: object) -> Any:
    """The whole answer."""
    return fmaas.BatchedGenerationResponse(responses=[_say(one.text, split(one.text)) for one in asked.requests])


async def stream(asked: Any, context: object) -> AsyncIterator[Any]:
    """The answer word by word, after a message that counts the words of the prompt."""
    words = split(asked.request.text)
    yield fmaas.GenerationResponse(input_token_count=len(words))
    for number, word in enumerate(words, 1):
        reason = fmaas.StopReason.EOS_TOKEN if number == len(words) else fmaas.StopReason.NOT_FINISHED
        yield fmaas.GenerationResponse(text=word, generated_token_count=number, stop_reason=reason)
        await asyncio.sleep(PACE_S)


async def tokenize(asked: Any, context: object) -> Any:
    """Count the words."""
    counts = [fmaas.TokenizeResponse(token_count=len(split(one.text))) for one in asked.requests]
    return fmaas.BatchedTokenizeResponse(responses=counts)


async def tell_model(asked: object, context: object) -> Any:
    """Answer that the model exists; Lockgate uses this as a health check."""
    return fmaas.ModelInfoResponse(max_sequence_length=4096)


def _say(text: str, words: list[str]) -> Any:
    count = len(words)
    reason = fmaas.StopReason.EOS_TOKEN
    return fmaas.GenerationResponse(text=text, generated_token_count=count, input_token_count=count, stop_reason=reason)


async def serve(port: int, host: str) -> None:
    """Serve until the process is stopped."""
    answering, streaming = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Generate": answering(generate, fmaas.BatchedGenerationRequest.FromString, _encode),
        "GenerateStream": streaming(stream, fmaas.SingleGenerationRequest.FromString, _encode),
        "Tokenize": answering(tokenize, fmaas.BatchedTokenizeRequest.FromString, _encode),
        "ModelInfo": answering(tell_model, fmaas.ModelInfoRequest.FromString, _encode),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("fmaas.GenerationService", methods)])
    server.add_insecure_port(f"{host}:{port}")
    await server.start()
    await server.wait_for_termination()


def _encode(message: Any) -> bytes:
    whole: bytes = message.SerializeToString()
    return whole


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(serve(int(given[0]) if given else 8035, given[1] if len(given) > 1 else "127.0.0.1"))
