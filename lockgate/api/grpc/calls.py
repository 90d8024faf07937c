# SPDX-License-Identifier: Apache-2.0
"""What every call of a gRPC port shares: admission, the overall time limit, one line in the log, errors as statuses.

Decides which status stands for which of our errors; their words are chosen where those of HTTP are. Knows no method.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import grpc
import grpc.aio

from lockgate.config.settings import LimitSettings
from lockgate.errors import OverloadedError, RequestTimedOut
from lockgate.server.callers import Callers, read_bearer
from lockgate.server.error_replies import reply_to
from lockgate.server.exchange import KEY_HEADER
from lockgate.sessions.turns import ANONYMOUS
from lockgate.telemetry import answer_started, observe_request, start_request

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
_CLEAN_UP_S = 2.0

_CODES: Mapping[int, grpc.StatusCode] = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.PRECONDITION_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.UNPROCESSABLE_ENTITY: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.BAD_GATEWAY: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Calls:
    """Attends to the calls of one port."""

    def __init__(self, limits: LimitSettings, callers: Callers | None = None) -> None:
        self._callers = callers or Callers()
        self._permits = limits.max_streams
        self._timeout_s = limits.request_timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def attend(self, path: str, context: Context, answer: Callable[[str], Awaitable[T]]) -> T:
        """Lets `answer` run its course for a caller whom it is told; whatever it raises ends the call with a status."""
        request = start_request("POST", path, path, lambda name: read_metadata(context, name.decode()))
        code, has_left, caller = 0, False, ""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            caller = self._identify(context)
            with self._callers.admit_name(caller):
                return await self._admit(partial(answer, caller))
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the second: its end was noticed by reading or writing
            has_left = True
            raise
        except Exception as error:  # noqa: BLE001 - the last place to answer
            reply = reply_to(error)
            code = reply.status
            answer_started(code, is_stream=False)
            await context.abort(_CODES.get(code, grpc.StatusCode.INTERNAL), reply.details)
        finally:
            self._tasks.discard(task)
            observe_request(request, code=code, caller=caller, has_left=has_left)

    async def wait_idle(self) -> None:
        """Until no call is under way."""
        while tasks := set(self._tasks):
            await asyncio.wait(tasks)

    async def end(self) -> None:
        """The port is closed: whatever still runs has lost its client, and is given a moment to clean up."""
        if tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)

    def _identify(self, context: Context) -> str:
        key = read_metadata(context, KEY_HEADER.decode()).strip().encode("latin-1", "replace")
        key = key or read_bearer(read_metadata(context, "authorization").encode("latin-1", "replace"))
        return self._callers.identify(key, _read_certificate(context)) or ANONYMOUS

    async def _admit(self, answer: Callable[[], Awaitable[T]]) -> T:
        if self._permits <= 0:
            raise OverloadedError("too many requests at once, try again later")
        self._permits -= 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await answer()
        except TimeoutError:
            if limit.expired():
                raise RequestTimedOut from None
            raise
        finally:
            self._permits += 1


def _read_certificate(context: Context) -> str:
    """The common name of the client's verified certificate, or nothing."""
    names = (context.auth_context() or {}).get("x509_common_name", ())
    return next((name.decode("utf-8", "replace") for name in names), "")


def read_metadata(context: Context, name: str) -> str:
    """The first value of that name, or nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""
