# SPDX-License-Identifier: Apache-2.0
"""CORS: which web pages may read replies, by the rule of the endpoint and the origin."""

from collections.abc import Iterable
from typing import NamedTuple

from lockgate.api.endpoint import CorsRule
from lockgate.config.settings import Settings
from lockgate.server.error_replies import ErrorReply
from lockgate.server.exchange import CORRELATION_HEADER, Exchange, Headers

ANY = "*"
REFUSAL = ErrorReply(400, "this origin may not call")
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
    """The origins of some paths: what each that is listed is told, and what all others are."""

    listed: dict[bytes, Headers]
    others: Headers
    is_open: bool

    @property
    def is_silent(self) -> bool:
        """Whether no other origin may call; then no CORS header is sent."""
        return not self.listed and not self.is_open

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may call."""
        return self.is_open or origin in self.listed

    def headers(self, origin: bytes) -> Headers:
        """What an answer to this origin carries."""
        return self.listed.get(origin, self.others)


def build_rule(origins: Iterable[str]) -> OriginRule:
    """The rule of these origins. Only an origin that is listed by name may send cookies and the like."""
    names = dict.fromkeys(origins)
    is_open = names.pop(ANY, "") is None
    listed = {name.encode(): [(b"access-control-allow-origin", name.encode()), _CREDENTIALS, _VARY] for name in names}
    others = [(b"access-control-allow-origin", ANY.encode())] if is_open else []
    return OriginRule(listed, [*others, _VARY] if listed else others, is_open)


class Cors:
    """The rules of one process: one for what the aggregator's clients call, one for all other paths."""

    def __init__(self, settings: Settings) -> None:
        everywhere = settings.server.cors_origins
        self._rules = {
            CorsRule.AGGREGATOR: build_rule((*settings.aggregator.cors_origins, *everywhere)),
            CorsRule.SERVER: build_rule(everywhere),
            CorsRule.NONE: build_rule(()),  # for the page alone; the settings do not apply
        }

    def admit(self, exchange: Exchange, cors: CorsRule) -> OriginRule | None:
        """Puts on the exchange what its answer tells browsers; gives the rule if a browser asks whether it may call."""
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
    """Whether a browser may send the request that it asks about; all methods and all sane headers are allowed."""
    if not rule.allows(exchange.request.first_headers[ORIGIN]):
        await exchange.reply.fail(REFUSAL)
        return
    names = _read_names(exchange.request.first_headers.get(_HEADERS, b""))
    headers = [(b"access-control-allow-headers", names)] if names else []
    await exchange.reply.answer(200, b"", _METHODS, *headers, _MAX_AGE)


def _read_names(value: bytes) -> bytes:
    """The names of a list of headers; nothing when it is not one."""
    if len(value) > _MAX_HEADERS_BYTES:
        return b""
    names = [name for part in value.split(b",") if (name := part.strip(b" \t"))]
    return b"" if any(name.translate(None, _TOKEN) for name in names) else b", ".join(names)
