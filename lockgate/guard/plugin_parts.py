# SPDX-License-Identifier: Apache-2.0
"""Readings, reviews and chunkers of plugins: one that raises or answers in a wrong shape has failed, by its name.

So a plugin fails as a service would: `on_detector_failure` decides. The log has the exception without its message,
which may quote a text. Lockgate's own parts are not wrapped.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from math import isnan
from typing import Any, cast

import msgspec

from lockgate.errors import BrokeProtocol, LockgateError
from lockgate.gate.values import TEXT_CONTENTS, Chunk, Detection, Excerpt, Frame, Subject, find_span_fault
from lockgate.interfaces import Chunker, Detector, Headers, Reading, Review, Reviewer, SourceReading
from lockgate.telemetry import LogEvent, logger

_encode = msgspec.json.Encoder().encode
_TEXTS = ("text", "detection", "detection_type", "detector_id")


@contextmanager
def blaming(kind: str, name: str) -> Iterator[None]:
    """Makes any exception of the part a failure of the part; errors of Lockgate pass unchanged."""
    try:
        yield
    except LockgateError:
        raise
    except Exception as error:
        logger.error(LogEvent.FAILED.value, exc_info=error)
        raise BrokeProtocol(name, f"{kind} `{name}` raised {type(error).__name__}") from error


def accept_plugin(
    name: str, type_: str, detector: Detector | Reviewer, params: Mapping[str, Any], headers: Headers
) -> "PluginReading | PluginReview":
    """Returns the plugin's Reading, or its Review if its type is not `text_contents`, with its faults caught."""
    with blaming("detector", name):
        accepted: Any = detector.accept(params, headers)
    if type_ != TEXT_CONTENTS:
        return PluginReview(name, accepted)
    return (PluginSourceReading if isinstance(accepted, SourceReading) else PluginReading)(name, accepted)


class PluginReading:
    """A reading of a plugin's detector."""

    def __init__(self, name: str, inner: Reading) -> None:
        self._name = name
        self._inner = inner

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """Returns the plugin's findings after a check of their number, shapes and places."""
        with blaming("detector", self._name):
            found = await self._inner.read(excerpts)
            if len(found) != len(excerpts):
                raise _misfit(self._name, f"{len(found)} lists of findings for {len(excerpts)} texts")
            for excerpt, of_text in zip(excerpts, found, strict=True):
                _check_findings(self._name, of_text, excerpt)
        return found


class PluginSourceReading(PluginReading):
    """A reading of a plugin's detector that uses the names of the sources."""

    def with_sources(self, paths: Collection[str]) -> Reading:
        """Returns the reading of an answer that uses documents of these sources."""
        with blaming("detector", self._name):
            return PluginReading(self._name, cast("SourceReading", self._inner).with_sources(paths))


class PluginReview:
    """A review of a plugin's detector."""

    def __init__(self, name: str, inner: Review) -> None:
        self._name = name
        self._inner = inner

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """Returns the plugin's findings after a check of their shapes."""
        with blaming("detector", self._name):
            found = await self._inner.review(subject)
            _check_findings(self._name, found, None)
        return found


class PluginChunker:
    """A chunker of a plugin. It always runs in a task, so that its failure can be handled."""

    def __init__(self, name: str, inner: Chunker) -> None:
        self._name = name
        self._inner = inner

    async def cut(self, text: str) -> Sequence[Chunk]:
        """Returns all chunks of a complete text."""
        with blaming("chunker", self._name):
            chunks = await self._inner.cut(text)
            for chunk in chunks:
                _check_chunk(self._name, chunk)
        return chunks

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Yields chunks as soon as the plugin does."""
        with blaming("chunker", self._name):
            async with aclosing(self._inner.stream(frames)) as chunks:
                async for chunk in chunks:
                    _check_chunk(self._name, chunk)
                    yield chunk


def _check_findings(name: str, found: object, excerpt: Excerpt | None) -> None:
    if not isinstance(found, list | tuple):
        raise _misfit(name, f"its findings are no list but {type(found).__name__}")
    for one in found:
        fault = _find_fault(one) or ("" if excerpt is None else find_span_fault(one, *excerpt))
        if fault:
            raise _misfit(name, fault)
        _encode((one.evidence, one.metadata))


def _find_fault(one: object) -> str:
    if not isinstance(one, Detection):
        return f"a finding is no Detection but {type(one).__name__}"
    for field in _TEXTS:
        if not isinstance(getattr(one, field), str):
            return f"`{field}` of a finding is no string"
    if not (type(one.start) is int and type(one.end) is int):
        return "`start` or `end` of a finding is no integer"
    is_number = isinstance(one.score, int | float) and not isnan(one.score)
    return "" if is_number else "`score` of a finding is no number"


def _check_chunk(name: str, chunk: object) -> None:
    is_chunk = isinstance(chunk, Chunk) and type(chunk.start) is int and type(chunk.end) is int
    if not (is_chunk and isinstance(cast("Chunk", chunk).text, str)):
        raise BrokeProtocol(name, f"chunker `{name}`: a chunk is no Chunk of two integers and a string")


def _misfit(name: str, fault: str) -> BrokeProtocol:
    return BrokeProtocol(name, f"detector `{name}`: {fault}")
