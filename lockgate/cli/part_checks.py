# SPDX-License-Identifier: Apache-2.0
"""Checks of the contracts that detectors and chunkers as services must keep, one by one, with advice for their authors.

The clients are the gateway's own, so an answer that the gateway would refuse fails here with the same reason.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from lockgate.backends.chunker import ChunkerClient
from lockgate.backends.detector import DetectorClient, ReviewerClient
from lockgate.backends.detector_format import read_refusal
from lockgate.backends.http import OutgoingRequest
from lockgate.errors import LockgateError
from lockgate.gate.batcher import ChunkAligner, ChunkerInput
from lockgate.gate.values import (
    TEXT_CHAT,
    TEXT_GENERATION,
    Chunk,
    Claim,
    Conversation,
    Detection,
    Excerpt,
    Frame,
    Generated,
    Subject,
)
from lockgate.testing import CHUNKER_TEXTS, check_chunker

PASS, FAIL, SKIP = "pass", "FAIL", "skip"
SAMPLE = "Mail ana@example.org, pay 4111 1111 1111 1111."
_PREFIX = "Zoë 😀 "  # characters of two and four bytes, one of them two units of UTF-16
_AT_ONCE = 8
_LONG_CHARS = 100_000
_SIZES = (1, 3, 1_000)  # of the frames of a stream
_WAIT_S = 2.0  # for a chunk before the end of its stream

Params = Mapping[str, Any]


class CheckResult(NamedTuple):
    """One check: its name, how it ended, what was seen, and what to do."""

    name: str
    state: str
    seen: str = ""
    advice: str = ""


class _Seen(Exception):
    """Ends a check that has failed, or was skipped, with what was seen."""

    def __init__(self, seen: str, state: str = FAIL) -> None:
        super().__init__(seen)
        self.seen = seen
        self.state = state


class _PartCheck(NamedTuple):
    name: str
    run: Callable[[], Awaitable[None]]
    advice: str


async def _run_all(checks: Sequence[_PartCheck]) -> list[CheckResult]:
    return [await _run(one) for one in checks]


async def _run(check: _PartCheck) -> CheckResult:
    try:
        await check.run()
    except _Seen as found:
        return CheckResult(check.name, found.state, found.seen, check.advice)
    except LockgateError as error:
        return CheckResult(check.name, FAIL, error.message, check.advice)
    except AssertionError as error:
        return CheckResult(check.name, FAIL, str(error), check.advice)
    return CheckResult(check.name, PASS)


_HEALTH = "answer it with 200, so that /info of the gateway can show the state"
_SHAPE = (
    "answer a JSON list with one list per text of `contents`, in their order; a result has integers `start` and `end`,"
    " strings `detection` and `detection_type`, and a number `score`"
)
_PLACES = (
    "`start` and `end` count code points of their own text, not bytes nor UTF-16 units; `text`, if given, is what"
    " stands there; leave `text` out where it is normalised"
)
_SAME = "a result may depend on the text and the parameters only, not on other texts, earlier requests or chance"
_SCORES = "give scores from 0 to 1: thresholds of the gateway are in this range"
_LOAD = "serve several requests at once, or bound the work of one"
_REFUSAL = 'answer a wrong body with a 4xx and {"code": …, "message": …}, so that callers can read the reason'
_PLAIN = "answer a JSON list of results with `detection`, `detection_type` and `score`"
_COVER = (
    "put every character that is not white space into a token; its `text` is what stands from `start` to `end`,"
    " counted in code points"
)
_STREAMED = (
    "send chunks in order, without overlaps; `start_index` counts code points of the whole stream, and the tokens'"
    " texts joined are the text from there on; send the rest when the stream ends"
)
_ALIKE = "cut by the text alone: findings must not depend on how the network cuts it"
_EARLY = "send a chunk as soon as it is known: text is held until its chunk has come and was read"


class _DetectorChecks:
    """What checks of all detectors share."""

    def __init__(self, client: DetectorClient | ReviewerClient) -> None:
        self._client = client

    async def is_healthy(self) -> None:
        health = await self._client.probe(())
        if health.status != "HEALTHY":
            raise _Seen(f"{health.status} {health.code} {health.reason or ''}".rstrip(), SKIP)

    async def refuses_a_wrong_body(self) -> None:
        client = self._client
        headers = client.http.headers((), client.fixed_headers)
        answer = await client.http.post(OutgoingRequest(client.url, headers, b'{"contents": 5}', client.failure))
        if not 400 <= answer.status < 500:
            raise _Seen(f"the status is {answer.status}")
        if not read_refusal(answer.status, answer.body)[1]:
            raise _Seen(f"the status is {answer.status}, but there is no `message`")


class _ContentsChecks(_DetectorChecks):
    """Checks of a detector that reads contents."""

    def __init__(self, client: DetectorClient, params: Params, sample: str) -> None:
        super().__init__(client)
        self._reading = client.accept(params, ())
        self._sample = sample
        self._texts = ["", *CHUNKER_TEXTS, sample, _PREFIX + sample]

    def list_checks(self) -> list[_PartCheck]:
        return [
            _PartCheck("GET /health", self.is_healthy, _HEALTH),
            _PartCheck(
                "one list of results per text, each at its place", self._answers_each_text, f"{_SHAPE}; {_PLACES}"
            ),
            _PartCheck("places in a text that is not ASCII", self._counts_code_points, _PLACES),
            _PartCheck("scores from 0 to 1", self._scores, _SCORES),
            _PartCheck("the same results for the same text, alone or among others", self._is_steady, _SAME),
            _PartCheck(f"{_AT_ONCE} requests at once", self._serves_many, _LOAD),
            _PartCheck(f"a text of {_LONG_CHARS:,} characters", self._reads_long, _LOAD),
            _PartCheck("a wrong body is refused", self.refuses_a_wrong_body, _REFUSAL),
        ]

    async def _read(self, *texts: str) -> Sequence[Sequence[Detection]]:
        return await self._reading.read([Excerpt(text) for text in texts])

    async def _answers_each_text(self) -> None:
        await self._read(*self._texts)

    async def _counts_code_points(self) -> None:
        plain, shifted = await self._read(self._sample, _PREFIX + self._sample)
        if not (plain and shifted):
            raise _Seen("nothing was found to compare: give a text with findings by `--text`", SKIP)
        if not {one.text for one in plain} & {one.text for one in shifted}:
            found = ", ".join([f"{one.start}..{one.end}" for one in shifted])
            raise _Seen(f"behind `{_PREFIX}` other text is found, at {found}")

    async def _scores(self) -> None:
        for found in await self._read(*self._texts):
            _check_scores(found)

    async def _is_steady(self) -> None:
        together, again = await self._read(*self._texts), await self._read(*self._texts)
        if again != together:
            raise _Seen("the second answer to the same request differs")
        for text, expected in zip(self._texts, together, strict=True):
            if list(await self._read(text)) != [expected]:
                raise _Seen(f"a text of {len(text)} characters has other results alone than among others")

    async def _serves_many(self) -> None:
        [expected] = await self._read(self._sample)
        for [found] in await asyncio.gather(*[self._read(self._sample) for _ in range(_AT_ONCE)]):
            if found != expected:
                raise _Seen("an answer differs from that to a single request")

    async def _reads_long(self) -> None:
        sentence = f"{self._sample} "
        await self._read(sentence * (_LONG_CHARS // len(sentence) + 1))


class _ReviewChecks(_DetectorChecks):
    """Checks of a detector that reads a chat, a prompt with its answer, or a text with its context."""

    def __init__(self, client: ReviewerClient, params: Params, subject: Subject) -> None:
        super().__init__(client)
        self._review = client.accept(params, ())
        self._subject = subject

    def list_checks(self) -> list[_PartCheck]:
        return [
            _PartCheck("GET /health", self.is_healthy, _HEALTH),
            _PartCheck("a list of results", self._answers, _PLAIN),
            _PartCheck("scores from 0 to 1", self._scores, _SCORES),
            _PartCheck(f"{_AT_ONCE} requests at once, with the same results", self._serves_many, f"{_LOAD}; {_SAME}"),
            _PartCheck("a wrong body is refused", self.refuses_a_wrong_body, _REFUSAL),
        ]

    async def _answers(self) -> None:
        await self._review.review(self._subject)

    async def _scores(self) -> None:
        _check_scores(await self._review.review(self._subject))

    async def _serves_many(self) -> None:
        expected = await self._review.review(self._subject)
        answers = await asyncio.gather(*[self._review.review(self._subject) for _ in range(_AT_ONCE)])
        if any(found != expected for found in answers):
            raise _Seen("an answer differs from that to a single request")


def _check_scores(found: Sequence[Detection]) -> None:
    for one in found:
        if not 0.0 <= one.score <= 1.0:
            raise _Seen(f"a score is {one.score}")


def build_subject(kind: str, sample: str) -> Subject:
    """Returns a subject of this type of detector."""
    if kind == TEXT_CHAT:
        return Conversation([{"role": "user", "content": "Hello."}, {"role": "assistant", "content": sample}])
    return Generated("Hello.", sample) if kind == TEXT_GENERATION else Claim(sample, "docs", ["A document."])


async def check_remote_detector(
    client: DetectorClient | ReviewerClient, kind: str, params: Params, sample: str
) -> list[CheckResult]:
    """Returns the results of all checks of a detector of this type."""
    if isinstance(client, DetectorClient):
        return await _run_all(_ContentsChecks(client, params, sample).list_checks())
    return await _run_all(_ReviewChecks(client, params, build_subject(kind, sample)).list_checks())


async def check_remote_chunker(client: ChunkerClient, sample: str) -> list[CheckResult]:
    """Returns the results of all checks of a chunker."""
    return await _run_all(_ChunkerChecks(client, sample).list_checks())


class _ChunkerChecks:
    def __init__(self, client: ChunkerClient, sample: str) -> None:
        self._client = client
        self._texts = (*CHUNKER_TEXTS, sample, _PREFIX + sample)

    def list_checks(self) -> list[_PartCheck]:
        return [
            _PartCheck("grpc.health.v1.Health/Check", self._is_healthy, "answer it with SERVING"),
            _PartCheck("chunks of whole texts leave out only white space", self._cuts_whole, _COVER),
            _PartCheck("chunks of streams come in order and leave out only white space", self._cuts_streams, _STREAMED),
            _PartCheck("a stream has the same chunks however it is cut into frames", self._is_steady, _ALIKE),
            _PartCheck("a chunk comes before its stream ends", self._is_early, _EARLY),
            _PartCheck("whole and streamed texts have the same chunks", self._is_alike, _ALIKE),
            _PartCheck(f"{_AT_ONCE} streams at once", self._serves_many, _LOAD),
        ]

    async def _is_healthy(self) -> None:
        health = await self._client.probe(())
        if health.status != "HEALTHY":
            raise _Seen(f"{health.status} {health.reason or ''}".rstrip(), SKIP)

    async def _cuts_whole(self) -> None:
        for text in self._texts:
            _align(text).place_all(await self._client.cut(text))

    async def _cuts_streams(self) -> None:
        for text in self._texts:
            for size in _SIZES:
                await self._stream(text, size)

    async def _stream(self, text: str, size: int) -> list[Chunk]:
        aligner, chunks = _align(text), []
        async with aclosing(self._client.stream(_cut_into_frames(text, size))) as answers:
            async for answer in answers:
                chunk = answer._replace(end=answer.start + len(answer.text), inputs=None)
                aligner.place(chunk)
                chunks.append(chunk)
        aligner.finish()
        return chunks

    async def _is_steady(self) -> None:
        for text in self._texts:
            first, *others = [await self._stream(text, size) for size in _SIZES]
            if any(other != first for other in others):
                raise _Seen(f"a text of {len(text)} characters has other chunks in frames of other sizes")

    async def _is_early(self) -> None:
        has_come = asyncio.Event()

        async def frames() -> AsyncGenerator[Frame, None]:
            for number in range(20):
                yield Frame(number, f"Sentence number {number}. \n\n")
            async with asyncio.timeout(_WAIT_S):
                await has_come.wait()

        try:
            async with aclosing(self._client.stream(frames())) as chunks:
                async for _ in chunks:
                    has_come.set()
        except TimeoutError:
            raise _Seen("none came: the chunks of a stream come at its end", SKIP) from None

    async def _is_alike(self) -> None:
        await check_chunker(self._client)

    async def _serves_many(self) -> None:
        text = self._texts[-1]
        expected = await self._stream(text, 3)
        if any(one != expected for one in await asyncio.gather(*[self._stream(text, 3) for _ in range(_AT_ONCE)])):
            raise _Seen("a stream has other chunks than a single one")


def _align(text: str) -> ChunkAligner:
    chunker_input = ChunkerInput()
    chunker_input.append(Frame(0, text))
    return ChunkAligner("chunker", chunker_input)


async def _cut_into_frames(text: str, size: int) -> AsyncGenerator[Frame, None]:
    for number, start in enumerate(range(0, len(text), size)):
        yield Frame(number, text[start : start + size])
