# SPDX-License-Identifier: Apache-2.0
"""CORS: which web pages may read replies, depending on the endpoint's rule and the page's origin."""

from collections.abc import Iterable
from typing import NamedTuple

from lockgate.api.endpoint import CorsRule
from lockgate.config.settings import Settings
from lockgate.server.error_replies import ErrorReply
from lockgate.server.exchange import CORRELATION_HEADER, Exchange, Headers

ANY = "*"
ORIGIN = b"origin"
_METHOD = b"access-control-request-method"
_HEADERS = b"access-control-request-headers"
_MAX_HEADERS_BYTES = 2048
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_METHODS = (b"access-control-allow-methods", b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
_MAX_AGE = (b"access-control-max-age", b"600")
_EXPOSED = (b"access-control-expose-headers", CORRELATION_HEADER)
_CREDENTIALS = (b"access-control-allow-credentials", b"true")
_VARY = (b"vary", b"Origin")


class OriginRule(NamedTuple):
    """The origins that may call some paths, with the headers for each listed origin and for all others."""

    listed: dict[bytes, Headers]
    others: Headers
    is_open: bool

    @property
    def is_silent(self) -> bool:
        """Whether no origin may call; then no CORS header is sent."""
        return not self.listed and not self.is_open

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may call."""
        return self.is_open or origin in self.listed

    def headers(self, origin: bytes) -> Headers:
        """The CORS headers of an answer to this origin."""
        return self.listed.get(origin, self.others)


def build_rule(origins: Iterable[str]) -> OriginRule:
    """The rule for these origins. Only an origin that is listed by name may send credentials."""
    names = dict.fromkeys(origins)
    is_open = names.pop(ANY, "") is None
    listed = {name.encode(): [(b"access-control-allow-origin", name.encode()), _CREDENTIALS, _VARY] for name in names}
    others = [(b"access-control-allow-origin", ANY.encode())] if is_open else []
    return OriginRule(listed, [*others, _VARY] if listed else others, is_open)


class Cors:
    """The CORS rules of one process: for the aggregator's paths, for all others, and for the playground."""

    def __init__(self, settings: Settings) -> None:
        everywhere = settings.server.cors_origins
        self._rules = {
            CorsRule.AGGREGATOR: build_rule((*settings.aggregator.cors_origins, *everywhere)),
            CorsRule.SERVER: build_rule(everywhere),
            CorsRule.NONE: build_rule(()),  # for the playground's own page; the settings do not apply
        }

    def admit(self, exchange: Exchange, cors: CorsRule) -> OriginRule | None:
        """Add CORS headers to the reply. Returns the rule if the request is a browser's preflight, else None."""
        headers = exchange.request.first_headers
        origin = headers.get(ORIGIN)
        rule = self._rules[cors]
        if not origin or rule.is_silent:
            return None
        exchange.reply.add_headers(rule.headers(origin))
        if exchange.request.method == "OPTIONS" and headers.get(_METHOD):
            return rule
        if rule.allows(origin):
            exchange.reply.add_headers([_EXPOSED])
        return None


async def answer_preflight(exchange: Exchange, rule: OriginRule) -> None:
    """Answer a preflight: whether the origin may call. All methods and all well-formed header names are allowed."""
    if not rule.allows(exchange.request.first_headers[ORIGIN]):
        await exchange.reply.fail(ErrorReply(400, "this origin may not call"))
        return
    names = _read_names(exchange.request.first_headers.get(_HEADERS, b""))
    headers = [(b"access-control-allow-headers", names)] if names else []
    await exchange.reply.answer(200, b"", _METHODS, *headers, _MAX_AGE)


def _read_names(value: bytes) -> bytes:
    """The header names of a comma-separated list; empty if the list is malformed or too long."""
    if len(value) > _MAX_HEADERS_BYTES:
        return b""
    names = [name for part in value.split(b",") if (name := part.strip(b" \t"))]
    return b"" if any(name.translate(None, _TOKEN) for name in names) else b", ".join(names)
