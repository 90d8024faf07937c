# SPDX-License-Identifier: Apache-2.0
"""Identifies callers by key or certificate, limits the requests of each, and has what each may name.

Each worker process counts its own requests.
"""

import hmac
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Self

from lockgate.config.grants import ANYTHING, Grant, find_grant
from lockgate.config.settings import CallerSettings
from lockgate.errors import TooManyRequests, Unauthorized
from lockgate.server.exchange import KEY_HEADER, HttpRequest
from lockgate.sessions.turns import ANONYMOUS

_AUTHORIZATION = b"authorization"
_MINUTE_S = 60.0


class RateWindow:
    """Grants at most `limit` requests in any `span_s` seconds. Callers pass the time, which never decreases."""

    __slots__ = ("_granted", "_limit", "_span_s")

    def __init__(self, limit: int, span_s: float = _MINUTE_S) -> None:
        self._limit = limit
        self._span_s = span_s
        self._granted: deque[float] = deque()

    def go_on(self, before: "RateWindow") -> None:
        """Counts what an earlier window has granted."""
        self._granted = before._granted

    def take(self, now: float) -> float:
        """Grants a request and returns 0, or returns the seconds until the next one can be granted."""
        granted = self._granted
        while granted and granted[0] + self._span_s <= now:
            granted.popleft()
        if len(granted) < self._limit:
            granted.append(now)
            return 0.0
        return min(granted[0] + self._span_s - now, self._span_s)


class CallerShare:
    """A caller's open requests, limits and grant; a context that counts one request while it is open."""

    __slots__ = ("_max_open", "_rate", "grant", "name", "open")

    def __init__(
        self, name: str, max_open: int | None = None, per_minute: int | None = None, grant: Grant = ANYTHING
    ) -> None:
        self.name = name
        self.grant = grant
        self.open = 0
        self._max_open = max_open
        self._rate = RateWindow(per_minute) if per_minute is not None else None

    def renew(self, given: "CallerShare") -> None:
        """Takes the limits and the grant of another share; what has been counted stays."""
        if given._rate is not None and self._rate is not None:
            given._rate.go_on(self._rate)
        self.grant, self._max_open, self._rate = given.grant, given._max_open, given._rate

    def check(self, now: float) -> None:
        """Raises TooManyRequests if a limit is reached. Refused requests are not counted."""
        if self._max_open is not None and self.open >= self._max_open:
            raise TooManyRequests("too many requests of this caller at once, try again later")
        wait_s = self._rate.take(now) if self._rate is not None else 0.0
        if wait_s > 0:
            raise TooManyRequests(
                "too many requests of this caller in one minute, try again later", retry_after_s=math.ceil(wait_s)
            )

    def __enter__(self) -> Self:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class Callers:
    """The configured callers; with none configured, every request is admitted."""

    def __init__(self, settings: Iterable[CallerSettings] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._digests: list[tuple[bytes, str]] = []
        self._shares: dict[str, CallerShare] = {}
        self._anonymous = CallerShare(ANONYMOUS)  # used if no caller is configured
        for one in settings:
            self._digests.append((sha256(one.key.reveal().encode()).digest(), one.name))
            self._shares[one.name] = CallerShare(one.name, one.max_streams, one.requests_per_minute, find_grant(one))

    def go_on(self, before: "Callers") -> None:
        """Counts what the earlier settings of the same callers have admitted."""
        for name in self._shares.keys() & before._shares.keys():
            before._shares[name].renew(self._shares[name])
            self._shares[name] = before._shares[name]

    def admit(self, request: HttpRequest, *, takes_bearer: bool) -> CallerShare:
        """The share of the request's caller; sets `request.caller`. Raises Unauthorized or TooManyRequests."""
        if not self._shares:
            request.caller = request.connection.certificate_name or ANONYMOUS
            return self._anonymous
        request.key = request.first_headers.get(KEY_HEADER, b"").strip()
        if takes_bearer:
            request.withheld |= {_AUTHORIZATION}
            request.key = request.key or read_bearer(request.first_headers.get(_AUTHORIZATION, b""))
        request.caller = self.identify(request.key, request.connection.certificate_name)
        return self.admit_name(request.caller)

    def identify(self, key: bytes, certificate_name: str = "") -> str:
        """The caller's name; raises Unauthorized. Compares every digest, so the time taken reveals nothing."""
        if not self._shares:
            return certificate_name or ANONYMOUS
        digest = sha256(key).digest()
        found = [name for known, name in self._digests if hmac.compare_digest(known, digest)]
        if found and key:
            return found[0]
        if certificate_name in self._shares:
            return certificate_name
        raise Unauthorized("this key is not known" if key else "a key is required: send it as X-Lockgate-Key")

    def admit_name(self, name: str) -> CallerShare:
        """The share of an identified caller, for one more request; raises TooManyRequests."""
        share = self._shares.get(name) or CallerShare(name)
        share.check(self._clock())
        return share


def read_bearer(value: bytes) -> bytes:
    """The token of a Bearer authorization, else empty."""
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
