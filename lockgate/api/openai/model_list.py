# SPDX-License-Identifier: Apache-2.0
"""The models that requests may name: agents, configured models, and those of the upstream server."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lockgate.api.openai.answer_types import ClientError, ClientFault
from lockgate.api.openai.format import encode
from lockgate.errors import UpstreamError
from lockgate.interfaces import ModelLister

OWNER = "lockgate"
CACHE_S = 30.0
MAX_MODELS = 1000  # of the upstream server
MAX_NAME_CHARS = 256


class ProxiedModels:
    """The models of the upstream server, fetched at most every 30 seconds; none while it does not list them."""

    def __init__(self, server: ModelLister | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._lock = asyncio.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self._asked_at: float | None = None

    async def find(self) -> Mapping[str, dict[str, Any]]:
        """The models by name, in the order of the server."""
        if self._server is None:
            return {}
        async with self._lock:  # concurrent requests fetch once
            if self._asked_at is None or self._clock() - self._asked_at >= CACHE_S:
                try:
                    self._known = _read_models(await self._server.list_models())
                except UpstreamError:
                    self._known = {}
                self._asked_at = self._clock()
        return self._known


def _read_models(listed: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """The models with a name, limited in number and length."""
    models: dict[str, dict[str, Any]] = {}
    for one in listed:
        name = one.get("id") if isinstance(one, dict) else None
        if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and len(models) < MAX_MODELS:
            created, owner = one.get("created"), one.get("owned_by")
            described = describe(name, created if type(created) is int else 0)
            models[name] = described | ({"owned_by": owner} if isinstance(owner, str) else {})
    return models


def describe(name: str, created: int) -> dict[str, Any]:
    """The entry of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}


def encode_models(models: Sequence[Mapping[str, Any]]) -> bytes:
    """The list of models."""
    return encode({"object": "list", "data": models})


def encode_unknown_model(name: str) -> bytes:
    """The error for a model that does not exist."""
    message = f"The model `{name}` does not exist"
    fault = ClientFault(message, "invalid_request_error", "model", "model_not_found")
    return encode(ClientError(404, message, fault))
