# SPDX-License-Identifier: Apache-2.0
"""Routes, admission, the overall time limit, and what becomes of an exchange that fails or whose client leaves.

An application may also tell browsers who may call (`cors`), and give requests a name that client and log know them by
(`is_correlated`): on the paths of the aggregator, and where there is nothing to call.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from lockgate.core.endpoints import (
    CHAT_PATH,
    CHAT_STREAM_PATH,
    OLLAMA_PATHS,
    TRACED_CHAT_PATH,
    is_client_path,
    is_page_path,
)
from lockgate.errors import OverloadedError, RequestTimedOut
from lockgate.server.http.callers import Callers
from lockgate.server.http.cors import Cors, answer_preflight
from lockgate.server.http.errors import reply_to
from lockgate.server.http.exchange import KEEP_ALIVE_S, ErrorEncoder, Exchange
from lockgate.telemetry import IncomingRequest, observe_request, start_request
from lockgate.wire.agent_ollama import encode_error as encode_ollama_error
from lockgate.wire.chat import encode_error as encode_chat_error
from lockgate.wire.guardrails import encode_error
from lockgate.wire.openai import encode_client_error

Endpoint = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Endpoint]]
_JSON = (b"content-type", b"application/json")
_LAST_WORDS_S = 1.0  # how long a client may take to accept an error
# Answered however busy we are, neither counted nor logged.
_LIGHT = frozenset({"/health", "/ready", "/info", "/docs", "/redoc", "/metrics", "/openapi.json"})
_CORRELATED = frozenset({CHAT_PATH, CHAT_STREAM_PATH, TRACED_CHAT_PATH}) | _LIGHT


class App:
    """An ASGI application over a table of routes: path -> method -> endpoint."""

    def __init__(self, routes: Routes, *, max_streams: int, timeout_s: float, callers: Callers | None = None) -> None:
        self._routes = routes
        self._is_counted = not _LIGHT.issuperset(routes)  # the health port is not
        self._has_policies = any(is_client_path(one) and not one.startswith("/v1/") for one in routes)
        self._permits = max_streams
        self._timeout_s = timeout_s
        self._callers = callers or Callers()
        self.keep_alive_s = KEEP_ALIVE_S  # of streams of events
        self.encode_error: ErrorEncoder = encode_error
        self.cors: Cors | None = None
        self.is_correlated = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI has no types of its own
        exchange = Exchange(scope, receive, send)
        exchange.keep_alive_s = self.keep_alive_s
        path = exchange.path
        exchange.encode_error = self._choose_encoder(path)
        methods = self._routes.get(path)
        is_light = path in _LIGHT or (methods is not None and is_page_path(path))
        route = None if methods is None else path
        is_counted = self._is_counted and not is_light
        request = start_request(exchange.method, path, route, exchange.header, is_counted=is_counted)
        endpoint = methods.get("GET" if exchange.method == "HEAD" else exchange.method) if methods else None
        if self.is_correlated and (endpoint is None or path in _CORRELATED):
            exchange.correlate()
            request.correlation_id = exchange.correlation_id
        asked = self.cors.admit(exchange) if self.cors is not None else None
        if endpoint is not None:
            await self._attend(endpoint, exchange, is_light=is_light)
        elif methods is None and self._is_under_unknown(path):
            words = f"policy `{path.split('/')[1]}` not found"
            await exchange.answer(HTTPStatus.NOT_FOUND, encode_client_error(HTTPStatus.NOT_FOUND, words), _JSON)
        elif methods is None:
            await _turn_away(exchange, HTTPStatus.NOT_FOUND)
        elif asked is not None:
            await answer_preflight(exchange, asked)
        else:
            allowed = ",".join([*methods, "HEAD"] if "GET" in methods else methods)
            await _turn_away(exchange, HTTPStatus.METHOD_NOT_ALLOWED, (b"allow", allowed.encode()))
        if not is_light:
            _observe(request, exchange)

    def _is_under_unknown(self, path: str) -> bool:
        """Whether a path of OpenAI's clients stands under a name that no policy has."""
        own = path[path.find("/v1/") :]
        return own != path and own in self._routes and is_client_path(path) and self._has_policies

    def _choose_encoder(self, path: str) -> ErrorEncoder:
        if self.encode_error is not encode_error:
            return self.encode_error
        if is_client_path(path):
            return encode_client_error
        if path in OLLAMA_PATHS:
            return encode_ollama_error
        is_chat = path.startswith(CHAT_PATH) or path == TRACED_CHAT_PATH
        return encode_chat_error if is_chat else encode_error

    async def _attend(self, endpoint: Endpoint, exchange: Exchange, *, is_light: bool) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - every request has its task
        exchange.watch(task)
        try:
            await self._admit(endpoint, exchange, is_light)
        except asyncio.CancelledError as error:
            if not exchange.has_left:  # the process ends now, whatever is under way
                exchange.drop()
            _forget(error)
        except Exception as error:  # noqa: BLE001 - the last place to answer
            exchange.unwatch()
            if not exchange.has_left:
                await self._answer_error(exchange, error)
            _forget(error)
        finally:
            exchange.close()
        if task.cancelling():
            task.uncancel()

    async def _admit(self, endpoint: Endpoint, exchange: Exchange, is_light: bool) -> None:
        if is_light:
            await endpoint(exchange)
            return
        with self._callers.admit(exchange):
            await self._take_permit(endpoint, exchange)

    async def _take_permit(self, endpoint: Endpoint, exchange: Exchange) -> None:
        if self._permits <= 0:
            raise OverloadedError("too many requests at once, try again later")
        self._permits -= 1
        limit = _Limit(self._timeout_s)
        try:
            await endpoint(exchange)
        except asyncio.CancelledError:
            if limit.has_passed and not exchange.has_left:
                raise RequestTimedOut from None
            raise
        finally:
            limit.lift()
            self._permits += 1

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        reply = reply_to(error)
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await exchange.fail(reply)
        except TimeoutError:
            exchange.drop()


class _Limit:
    """The overall time of the task that makes it; what asyncio.timeout does, for a third of its price."""

    __slots__ = ("_task", "_timer", "has_passed")

    def __init__(self, seconds: float) -> None:
        self.has_passed = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    def _pass(self) -> None:
        self.has_passed = True
        if self._task is not None:
            self._task.cancel()

    def lift(self) -> None:
        """It counts no more."""
        self._timer.cancel()
        if self.has_passed and self._task is not None:
            self._task.uncancel()


async def _turn_away(exchange: Exchange, status: HTTPStatus, *headers: tuple[bytes, bytes]) -> None:
    """There is nothing to call; where the contract gives errors a body, this one has it too."""
    if exchange.path.startswith(CHAT_PATH):
        await exchange.answer(status, encode_chat_error(status, status.phrase), _JSON, *headers)
    else:
        await exchange.answer(status, b"", *headers)


def _forget(error: BaseException) -> None:
    """Empty the frames that an error went through: in circles with it, they would keep texts for the collector."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        traceback.clear_frames(one.__traceback__)
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += (one.__cause__, one.__context__)


def _observe(request: IncomingRequest, exchange: Exchange) -> None:
    observe_request(request, code=exchange.error_code, caller=exchange.caller, has_left=exchange.has_left)
