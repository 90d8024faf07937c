# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes, admission, the overall time limit, and replies to errors."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from lockgate.api.endpoint import AGGREGATOR, GUARDRAILS, OPENAI, ApiEndpoint, CorsRule, Scope
from lockgate.api.endpoints import find_cors, find_endpoint, put_under, split_policy
from lockgate.config.refs import CHAT_PATH
from lockgate.errors import OverloadedError, RequestTimedOut
from lockgate.server.callers import Callers
from lockgate.server.cors import Cors, answer_preflight
from lockgate.server.error_replies import reply_to
from lockgate.server.exchange import KEEP_ALIVE_S, ErrorEncoder, Exchange, HttpReply, HttpRequest
from lockgate.telemetry import IncomingRequest, observe_request, start_request

Handler = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Handler]]
_JSON = (b"content-type", b"application/json")
_LAST_WORDS_S = 1.0  # how long a client may take to accept an error


class _Route(NamedTuple):
    """A path and its handlers, None where it is not served. `is_light`: neither limited, counted nor logged."""

    endpoint: ApiEndpoint
    methods: Mapping[str, Handler] | None
    cors: CorsRule
    is_light: bool

    def find_handler(self, method: str) -> Handler | None:
        """What answers a method, if anything does."""
        return self.methods.get("GET" if method == "HEAD" else method) if self.methods else None


def _build_route(path: str, methods: Mapping[str, Handler] | None = None) -> _Route:
    endpoint = find_endpoint(path)
    is_light = endpoint.is_open and (methods is not None or endpoint.scope is Scope.PROBE)
    return _Route(endpoint, methods, find_cors(path), is_light)


class App:
    """An ASGI application over a table of routes: path -> method -> handler."""

    def __init__(self, routes: Routes, *, max_streams: int, timeout_s: float, callers: Callers | None = None) -> None:
        self._routes = {path: _build_route(path, methods) for path, methods in routes.items()}
        self._is_counted = any(one.endpoint.scope is not Scope.PROBE for one in self._routes.values())
        self._has_policies = any(split_policy(path) is not None for path in routes)
        self._permits = max_streams
        self._timeout_s = timeout_s
        self._callers = callers or Callers()
        self.keep_alive_s = KEEP_ALIVE_S  # of streams of events
        self.encode_error: ErrorEncoder = GUARDRAILS.encode_error
        self.cors: Cors | None = None
        self.is_correlated = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"ASGI `{scope['type']}` is not supported")
        request = HttpRequest(scope, receive)
        reply = HttpReply(request, send)
        exchange = Exchange(request, reply)
        reply.keep_alive_s = self.keep_alive_s
        route = self._routes.get(request.path) or self._find_template(request.path)
        reply.encode_error = self._choose_encoder(route.endpoint)
        observed = self._start(request, route)
        handler = route.find_handler(request.method)
        if self.is_correlated and (handler is None or route.endpoint.is_correlated):
            reply.add_headers([request.correlate()])
            observed.correlation_id = request.correlation_id
        asked = self.cors.admit(exchange, route.cors) if self.cors is not None else None
        if handler is not None:
            await self._attend(handler, exchange, route.endpoint)
        elif asked is not None and route.methods is not None:
            await answer_preflight(exchange, asked)
        else:
            await self._refuse(exchange, route)
        if not route.is_light:
            observe_request(observed, code=reply.error_code, caller=request.caller, has_left=request.has_left)

    def _find_template(self, path: str) -> _Route:
        """The route of a path that ends in a variable, or one that nothing answers."""
        route, under = _build_route(path), split_policy(path)
        template = route.endpoint.path if route.endpoint.is_template else ""
        return self._routes.get(put_under(under[0], template) if under else template) or route

    def _start(self, request: HttpRequest, route: _Route) -> IncomingRequest:
        """Report the request to telemetry. One under the name of a policy has no span of its endpoint."""
        path, is_counted = request.path, self._is_counted and not route.is_light
        span_name = route.endpoint.span if route.endpoint.path == path and route.methods is not None else ""
        label = None if route.methods is None else path if path in self._routes else route.endpoint.path
        return start_request(request.method, path, label, request.header, span_name=span_name, is_counted=is_counted)

    def _choose_encoder(self, endpoint: ApiEndpoint) -> ErrorEncoder:
        """How errors are written: as the application says, else as the endpoint's format says."""
        is_given = self.encode_error is not GUARDRAILS.encode_error
        return self.encode_error if is_given else endpoint.format.encode_error

    async def _refuse(self, exchange: Exchange, route: _Route) -> None:
        """There is no such path, or it has no such method."""
        methods = route.methods
        if methods is not None:
            allowed = ",".join([*methods, "HEAD"] if "GET" in methods else methods)
            await _turn_away(exchange, HTTPStatus.METHOD_NOT_ALLOWED, (b"allow", allowed.encode()))
        elif (policy := self._find_unknown_policy(exchange.request.path)) is not None:
            words = f"policy `{policy}` not found"
            body = OPENAI.encode_error(HTTPStatus.NOT_FOUND, words)
            await exchange.reply.answer(HTTPStatus.NOT_FOUND, body, _JSON)
        else:
            await _turn_away(exchange, HTTPStatus.NOT_FOUND)

    def _find_unknown_policy(self, path: str) -> str | None:
        """The name before a path that is served under policies, where none of them has it."""
        name, own = (split_policy(path) if self._has_policies else None) or ("", "")
        return name if own in self._routes and name != "v1" else None

    async def _attend(self, handler: Handler, exchange: Exchange, endpoint: ApiEndpoint) -> None:
        task = asyncio.current_task()
        assert task is not None
        exchange.request.watch(task)
        try:
            await self._admit(handler, exchange, endpoint)
        except asyncio.CancelledError as error:
            if not exchange.request.has_left:  # the process ends now, whatever is under way
                exchange.reply.drop()
            _forget(error)
        except Exception as error:  # noqa: BLE001 - the last place to answer
            exchange.request.unwatch()
            if not exchange.request.has_left:
                await self._answer_error(exchange, error)
            _forget(error)
        finally:
            exchange.request.unwatch()
            exchange.reply.close()
        if task.cancelling():
            task.uncancel()

    async def _admit(self, handler: Handler, exchange: Exchange, endpoint: ApiEndpoint) -> None:
        if endpoint.is_open:
            await handler(exchange)
            return
        with self._callers.admit(exchange.request, takes_bearer=endpoint.scope is Scope.BEARER):
            if self._permits <= 0:
                raise OverloadedError("too many requests at once, try again later")
            self._permits -= 1
            limit = _Limit(self._timeout_s)
            try:
                await handler(exchange)
            except asyncio.CancelledError:
                if limit.has_passed and not exchange.request.has_left:
                    raise RequestTimedOut from None
                raise
            finally:
                limit.lift()
                self._permits += 1

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        reply = reply_to(error)
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await exchange.reply.fail(reply)
        except TimeoutError:
            exchange.reply.drop()


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
    if exchange.request.path.startswith(CHAT_PATH):
        await exchange.reply.answer(status, AGGREGATOR.encode_error(status, status.phrase), _JSON, *headers)
    else:
        await exchange.reply.answer(status, b"", *headers)


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
