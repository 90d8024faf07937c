# SPDX-License-Identifier: Apache-2.0
"""The detector API: our detectors, for anybody who speaks it. Translates at the border, a few lines per route.

Decides which detector a request names. Keeps every finding unless the request itself has a threshold: whoever asks
has its own. Errors are in the words of that API.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.api.bodies import decode_body
from lockgate.api.passthrough import build_passthrough, prepare
from lockgate.api.shapes import Shape
from lockgate.backends.detector_format import (
    HEALTH_PATH,
    PATHS,
    ChatRequest,
    ContentsRequest,
    ContextRequest,
    GenerationRequest,
    encode_found_contents,
    encode_found_results,
    encode_refusal,
    to_subject,
)
from lockgate.errors import InvalidRequest, UnknownDetector, UnsuitableDetector
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION, Detection, Excerpt
from lockgate.gate.verdicts import keep
from lockgate.gateway import Parts
from lockgate.guard.detectors import Guard, check_thresholds
from lockgate.server.app import App, Handler, Routes
from lockgate.server.exchange import Exchange
from lockgate.telemetry import count_detections

_CONTENTS = Shape(ContentsRequest)
_SUBJECTS: Mapping[str, Shape[Any]] = {
    TEXT_GENERATION: Shape(GenerationRequest),
    TEXT_CHAT: Shape(ChatRequest),
    TEXT_CONTEXT_DOC: Shape(ContextRequest),
}
_NAMES = (b"detector-id", b"x-model-name")


def build_parts_app(parts: Parts) -> App:
    """The application of the port."""
    limits = parts.settings.limits
    app = App(part_routes(parts), max_streams=limits.max_streams, timeout_s=limits.request_timeout_s)
    app.encode_error = encode_refusal
    return app


def part_routes(parts: Parts) -> Routes:
    """The port of our detectors: a path for each type, also where no detector is of that type."""
    routes = DetectorRoutes(parts)
    posts: dict[str, Handler] = {PATHS[kind]: routes.review(kind) for kind in _SUBJECTS}
    posts[PATHS[TEXT_CONTENTS]] = routes.detect_contents
    return {HEALTH_PATH: {"GET": health}, **{path: {"POST": endpoint} for path, endpoint in posts.items()}}


async def health(exchange: Exchange) -> None:
    """GET /health."""
    await exchange.reply.answer_json(b'{"status":"HEALTHY"}')


class DetectorRoutes:
    """The endpoints of the open parts."""

    def __init__(self, parts: Parts) -> None:
        self._guards = parts.guards
        self._body_bytes = parts.settings.limits.body_bytes
        self._headers = build_passthrough(parts.settings)

    async def detect_contents(self, exchange: Exchange) -> None:
        """POST text/contents."""
        guard = self._find(exchange, TEXT_CONTENTS)
        request = await decode_body(_CONTENTS, await exchange.request.read_json(self._body_bytes))
        reading, threshold = await self._accept(guard, request.detector_params, exchange)
        lists = await reading.read([Excerpt(text) for text in request.contents])
        found = [_choose(guard, one, threshold) for one in lists]
        await exchange.reply.answer_json(encode_found_contents(found))

    def review(self, kind: str) -> Handler:
        """POST text/generation, text/chat and text/context/doc."""

        async def review(exchange: Exchange) -> None:
            guard = self._find(exchange, kind)
            request = await decode_body(_SUBJECTS[kind], await exchange.request.read_json(self._body_bytes))
            if isinstance(request, ChatRequest) and not request.messages:
                raise InvalidRequest("`messages` is required")
            accepted, threshold = await self._accept(guard, request.detector_params, exchange)
            found = await accepted.review(to_subject(request))
            await exchange.reply.answer_json(encode_found_results(_choose(guard, found, threshold)))

        return review

    def _find(self, exchange: Exchange, kind: str) -> Guard:
        """The detector that the headers name; the only one of its type need not be named."""
        name = next((value for header in _NAMES if (value := exchange.request.header(header))), "")
        suitable = [guard for guard in self._guards.values() if guard.type == kind]
        if not name and len(suitable) == 1:
            return suitable[0]
        if not name:
            raise InvalidRequest("header `detector-id` must name a detector")
        guard = self._guards.get(name)
        if guard is None:
            raise UnknownDetector(name)
        if guard.type != kind:
            raise UnsuitableDetector(f"detector `{name}` is not supported by this endpoint")
        return guard

    async def _accept(self, guard: Guard, params: dict[str, Any], exchange: Exchange) -> tuple[Any, float | None]:
        """What has accepted the parameters, a Reading or a Review, and the threshold, if there is one."""
        check_thresholds({guard.id: params})
        threshold = params.pop("threshold", None)
        return await prepare([params], partial(guard.detector.accept, params, self._headers(exchange))), threshold


def _choose(guard: Guard, found: Sequence[Detection], threshold: float | None) -> list[Detection]:
    """The findings that are told, and counted."""
    kept = found if threshold is None else keep(found, threshold)
    chosen = [one._replace(detector_id=guard.id) for one in kept]
    count_detections(chosen)
    return chosen
