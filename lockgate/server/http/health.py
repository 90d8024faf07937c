# SPDX-License-Identifier: Apache-2.0
"""Health of the process and of the parts behind it."""

import msgspec

from lockgate._version import __version__
from lockgate.assembly import Gateway
from lockgate.server.http.exchange import Exchange

_EMULATED = {"fms-guardrails-orchestr8": "0.18.3"}
_encode = msgspec.json.Encoder().encode


class HealthRoutes:
    """The handlers of one open gateway."""

    def __init__(self, gateway: Gateway) -> None:
        versions = _EMULATED if gateway.is_fms else _EMULATED | {"lockgate": __version__}
        chunkers = [guard.chunker_id for guard in gateway.guards.values()]
        parts = {name: {"status": "HEALTHY"} for name in [*chunkers, *gateway.guards]}  # all run in this process
        self._versions = _encode(versions)
        self._parts = _encode({"services": parts})

    async def health(self, exchange: Exchange) -> None:
        """GET /health on the health port."""
        await exchange.answer_json(self._versions)

    async def info(self, exchange: Exchange) -> None:
        """GET /info on the health port."""
        await exchange.answer_json(self._parts)


async def api_health(exchange: Exchange) -> None:
    """GET /health on the API port."""
    await exchange.answer_json(b'{"status":"healthy","service":"lockgate"}')


async def api_ready(exchange: Exchange) -> None:
    """GET /ready on the API port."""
    await exchange.answer_json(b'{"status":"ready","checks":{}}')
