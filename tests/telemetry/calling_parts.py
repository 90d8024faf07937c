# SPDX-License-Identifier: Apache-2.0
"""A detector for tests that calls a service for each text, as a model's client would, and tells telemetry about it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from lockgate.errors import Unavailable
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from lockgate.telemetry import client_call, note_generation, note_usage, trace_headers


class CallingDetector:
    """Finds nothing."""

    lookbehind_chars = 0

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "CallingDetector":
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        try:
            await self._ask("detector", "calling")
            note_generation("tiny", "chat")
            usage = (await self._ask("openai", "openai"))["usage"]
        except aiohttp.ClientError:
            raise Unavailable("calling", f"cannot read {excerpts}") from None
        note_usage(usage["prompt_tokens"], usage["completion_tokens"])
        return [() for _ in excerpts]

    async def _ask(self, kind: str, name: str) -> Any:
        with client_call(kind, name) as call:
            async with self._session.post(self._url, headers=trace_headers()) as response:
                call.status = response.status
                return await response.json()


@asynccontextmanager
async def open_calling_detector(options: Mapping[str, Any]) -> AsyncIterator[CallingDetector]:
    async with aiohttp.ClientSession() as session:
        yield CallingDetector(session, options["url"])
