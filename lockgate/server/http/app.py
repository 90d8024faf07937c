# SPDX-License-Identifier: Apache-2.0
"""Routes, admission, the overall time limit, and what becomes of an exchange that fails or whose client leaves."""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lockgate.errors import OverloadedError, RequestTimedOut
from lockgate.server.http.errors import reply_to
from lockgate.server.http.exchange import Exchange
from lockgate.telemetry import Event, log_event

Endpoint = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Endpoint]]
_LAST_WORDS_S = 1.0  # how long a client may take to accept an error
_LIGHT = frozenset({"/health", "/ready", "/info", "/docs", "/openapi.json"})  # answered however busy we are, not logged


class App:
    """An ASGI application over a table of routes: path -> method -> endpoint."""

    def __init__(self, routes: Routes, *, max_streams: int, timeout_s: float) -> None:
        self._routes = routes
        self._permits = max_streams
        self._timeout_s = timeout_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI has no types of its own
        exchange = Exchange(scope, receive, send)
        methods = self._routes.get(exchange.path)
        if methods is None:
            await exchange.answer(404)
            _log_request(exchange, 0.0)
            return
        endpoint = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if endpoint is None:
            allowed = ",".join([*methods, "HEAD"] if "GET" in methods else methods)
            await exchange.answer(405, b"", (b"allow", allowed.encode()))
            _log_request(exchange, 0.0)
            return
        started = time.perf_counter()
        await self._attend(endpoint, exchange)
        if exchange.path not in _LIGHT:
            _log_request(exchange, time.perf_counter() - started)

    async def _attend(self, endpoint: Endpoint, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - every request has its task
        exchange.watch(task)
        try:
            await self._admit(endpoint, exchange)
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
            exchange.unwatch()
        if task.cancelling():
            task.uncancel()

    async def _admit(self, endpoint: Endpoint, exchange: Exchange) -> None:
        if exchange.path in _LIGHT:
            await endpoint(exchange)
            return
        if self._permits <= 0:
            raise OverloadedError("too many requests at once, try again later")
        self._permits -= 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await endpoint(exchange)
        except TimeoutError:
            if limit.expired():
                raise RequestTimedOut from None
            raise
        finally:
            self._permits += 1

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        reply = reply_to(error)
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await exchange.fail(reply)
        except TimeoutError:
            exchange.drop()


def _forget(error: BaseException) -> None:
    """Empty the frames that an error went through: in circles with it, they would keep texts for the collector."""
    traceback.clear_frames(error.__traceback__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for one in (*inner, error.__context__):
        if one is not None:
            _forget(one)


def _log_request(exchange: Exchange, seconds: float) -> None:
    event, status = (Event.CLIENT_LEFT, None) if exchange.has_left else (Event.REQUEST, exchange.status)
    log_event(
        event,
        logging.INFO,
        method=exchange.method,
        path=exchange.path,
        status=status,
        **({"code": exchange.error_code} if exchange.error_code else {}),
        duration_ms=round(seconds * 1000, 2),
    )
