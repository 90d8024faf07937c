# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes, admission, the overall time limit, and replies to errors."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.api.endpoint import AGGREGATOR, GUARDRAILS, OPENAI, ApiEndpoint, CorsRule, Scope
from lockgate.api.endpoints import find_cors, find_endpoint, put_under, split_policy
from lockgate.config.grants import find_by_path
from lockgate.config.refs import CHAT_PATH, TRACE_PREFIX
from lockgate.errors import OverloadedError, RequestTimedOut
from lockgate.server.callers import Callers
from lockgate.server.cors import ORIGIN, Cors, answer_preflight
from lockgate.server.error_replies import reply_to
from lockgate.server.exchange import (
    CONNECTION_EXTENSION,
    KEEP_ALIVE_S,
    ErrorEncoder,
    Exchange,
    HttpReply,
    HttpRequest,
)
from lockgate.server.plain_asgi import PlainConnection
from lockgate.server.unknown_paths import describe_unknown_path, find_format
from lockgate.telemetry import observe_request, start_request

Handler = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Handler]]
_JSON = (b"content-type", b"application/json")
_ERROR_REPLY_S = 1.0  # how long a client may take to receive an error


class _ServedPath(NamedTuple):
    """A path and its handlers; none if it is not served. `label` and `span` name it in metrics and traces."""

    endpoint: ApiEndpoint
    methods: Mapping[str, Handler]
    cors: CorsRule
    encode_error: ErrorEncoder
    label: str | None
    span: str
    is_open: bool  # needs no key and has no limits
    is_light: bool  # neither counted nor logged
    is_counted: bool
    is_correlated: bool
    required: tuple[str, ...]  # the policies that are always in force


class App:
    """An ASGI application over a table of routes; `encode_error` replaces the endpoints' error formats.

    `required`: by path, the policies that are always in force. `explains`: paths and methods that are not served get an
    error with a text, not an empty one.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        max_streams: int,
        timeout_s: float,
        callers: Callers | None = None,
        encode_error: ErrorEncoder | None = None,
        required: Mapping[str, str] = MappingProxyType({}),
        names_failures: bool = True,
        explains: bool = False,
    ) -> None:
        self._required = required
        self._explains = explains
        self._is_counted = any(find_endpoint(path).scope is not Scope.PROBE for path in routes)
        self._encode_error = encode_error
        self._names_failures = names_failures
        self._routes = {path: self._build_route(path, methods) for path, methods in routes.items()}
        self._has_policies = any(split_policy(path) is not None for path in routes)
        self._permits = max_streams
        self._timeout_s = timeout_s
        self._callers = callers or Callers()
        self.keep_alive_s = KEEP_ALIVE_S  # the interval of comments in silent event streams
        self.encode_error = encode_error or GUARDRAILS.encode_error  # if the path is not known
        self.cors: Cors | None = None
        self.is_correlated = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"ASGI `{scope['type']}` is not supported")
        connection = (scope.get("extensions") or {}).get(CONNECTION_EXTENSION)
        if connection is None:
            connection = PlainConnection(receive, send)
            receive, send = connection.receive, connection.send
        request = HttpRequest(scope, receive, connection)
        path, headers = request.path, request.first_headers
        route = self._routes.get(path) or self._find_template(path)
        reply = HttpReply(request, send, route.encode_error, self.keep_alive_s)
        exchange = Exchange(request, reply)
        observed = start_request(
            request.method, path, route.label, headers.get, span_name=route.span, is_counted=route.is_counted
        )
        handler = route.methods.get(request.method)
        if self.is_correlated and (handler is None or route.is_correlated):
            reply.add_headers([request.correlate()])
            observed.correlation_id = request.correlation_id
        rule = self.cors.admit(exchange, route.cors) if self.cors is not None and ORIGIN in headers else None
        if handler is not None:
            await self._attend(handler, exchange, route)
        elif rule is not None and route.methods:
            await answer_preflight(exchange, rule)
        else:
            await self._refuse(exchange, route)
        if not route.is_light:
            observe_request(observed, code=reply.error_code, caller=request.caller, has_left=request.has_left)

    def _find_template(self, path: str) -> _ServedPath:
        """The route of a path that ends in a variable, or a route without handlers."""
        route, under = self._build_route(path), split_policy(path)
        template = route.endpoint.path if route.endpoint.is_template else ""
        return self._routes.get(put_under(under[0], template) if under else template) or route

    def _build_route(self, path: str, methods: Mapping[str, Handler] | None = None) -> _ServedPath:
        """The route of a path or a template of paths. A path under a policy's name has no span."""
        endpoint = find_endpoint(path)
        methods = methods or {}
        is_light = endpoint.is_open and (bool(methods) or endpoint.scope is Scope.PROBE)
        label = endpoint.path if "{" in path else path
        return _ServedPath(
            endpoint,
            methods={**methods, "HEAD": methods["GET"]} if "GET" in methods else methods,
            cors=find_cors(path),
            encode_error=self._encode_error or endpoint.format.encode_error,
            label=label if methods else None,
            span=endpoint.span if methods and endpoint.path == path else "",
            is_open=endpoint.is_open,
            is_light=is_light,
            is_counted=self._is_counted and not is_light,
            is_correlated=endpoint.is_correlated,
            required=find_by_path(self._required, endpoint.path.removeprefix(TRACE_PREFIX)),
        )

    async def _refuse(self, exchange: Exchange, route: _ServedPath) -> None:
        """Reply that the path does not exist or does not have the method."""
        path, allowed = exchange.request.path, list(route.methods)
        status = HTTPStatus.METHOD_NOT_ALLOWED if allowed else HTTPStatus.NOT_FOUND
        body = self._explain(route, path) if self._explains else b""
        if path.startswith(CHAT_PATH):  # its contract has a text for both
            body = AGGREGATOR.encode_error(status, status.phrase)
        elif not allowed and (policy := self._find_unknown_policy(path)) is not None:
            body = OPENAI.encode_error(status, f"policy `{policy}` not found")
        headers = [(b"allow", ",".join(allowed).encode())] if allowed else []
        await exchange.reply.answer(status, body, *([_JSON] if body else []), *headers)

    def _explain(self, route: _ServedPath, path: str) -> bytes:
        """The body of a 404 or a 405, in the format of the path."""
        if route.methods:
            return route.encode_error(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {', '.join(route.methods)}")
        return find_format(path).encode_error(HTTPStatus.NOT_FOUND, describe_unknown_path(path, self._routes))

    def _find_unknown_policy(self, path: str) -> str | None:
        """The name before a path that is served under policies, if no policy has this name."""
        name, own = (split_policy(path) if self._has_policies else None) or ("", "")
        return name if own in self._routes and name != "v1" else None

    async def _attend(self, handler: Handler, exchange: Exchange, route: _ServedPath) -> None:
        request, reply = exchange
        task = asyncio.current_task()
        assert task is not None
        request.watch(task)
        try:
            if route.is_open:
                await handler(exchange)
            else:
                await self._admit(handler, exchange, route)
        except asyncio.CancelledError as error:
            if not request.has_left:  # the server is stopping
                reply.drop()
            _forget(error)
        except Exception as error:  # noqa: BLE001 - the last place to answer
            request.unwatch()
            if not request.has_left:
                await self._answer_error(exchange, error)
            _forget(error)
        finally:
            request.unwatch()
            reply.close()
        while task.cancelling():
            task.uncancel()

    async def _admit(self, handler: Handler, exchange: Exchange, route: _ServedPath) -> None:
        """Call the handler within the limits and the overall timeout; a timer costs a third of asyncio.timeout."""
        request = exchange.request
        share = self._callers.admit(request, takes_bearer=route.endpoint.scope is Scope.BEARER)
        request.grant = share.grant.require(route.required) if route.required else share.grant
        if self._permits <= 0:
            raise OverloadedError("too many requests at once, try again later")
        timer = asyncio.get_running_loop().call_later(self._timeout_s, request.end_late)
        self._permits -= 1
        share.open += 1
        try:
            await handler(exchange)
        except asyncio.CancelledError:
            if request.is_late and not request.has_left:
                raise RequestTimedOut from None
            raise
        finally:
            timer.cancel()
            share.open -= 1
            self._permits += 1

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        reply = reply_to(error, names_failures=self._names_failures)
        try:
            async with asyncio.timeout(_ERROR_REPLY_S):
                await exchange.reply.fail(reply)
        except TimeoutError:
            exchange.reply.drop()


def _forget(error: BaseException) -> None:
    """Clear the error's stack frames: their reference cycles would keep texts until the next garbage collection."""
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
