# SPDX-License-Identifier: Apache-2.0
"""A detector whose rule is a sentence: any configured model judges whether a text does what the criteria say.

Decides which texts the model is asked about, how many at once and for how long, and that a reply which is no ruling is
a failure of the detector, never a text without findings. What the model is told and how its reply is read is decided
in `lockgate.detectors.judge.verdicts`. Refuses to know which model it is and where it runs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from lockgate.detectors.judge.verdicts import MAX_REPLY_CHARS, Example, Ruling, build_task, cut_windows, read_ruling
from lockgate.errors import BrokeProtocol, LockgateError, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Detection, Excerpt, Message
from lockgate.interfaces import Headers, Model, PartContext, with_context
from lockgate.params import Params, shown
from lockgate.telemetry import Event, calling_aside, describe_exception, log_event

NAME = "llm_judge"  # also the type of what it finds
OPTIONS = ("model", "criteria", "name", "examples", "max_chars", "timeout_s", "max_tokens", "max_open")
PARAMS = ("criteria",)
LOOKBEHIND_CHARS = 200
MAX_CRITERIA_CHARS = 4_000
MAX_LABEL_CHARS = 100
MAX_EXAMPLES = 20
MAX_EXAMPLE_CHARS = 4_000
_MAX_KNOWN = 64  # rulings that one request remembers


class Manner(NamedTuple):
    """What the settings say about a judge."""

    model: str
    criteria: str
    name: str = "Judged"
    examples: tuple[Example, ...] = ()
    max_chars: int = 4_000
    timeout_s: float = 20.0
    max_tokens: int = 256
    max_open: int = 4


class LlmJudge:
    """Asks a model about texts, a few at a time for all requests together."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(self, manner: Manner, context: PartContext) -> None:
        self.manner = manner
        self._context = context
        self._permits = asyncio.Semaphore(manner.max_open)

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "JudgeReading":
        given = Params.of_request(params, PARAMS)
        return JudgeReading(self, _read_text(given, "criteria", MAX_CRITERIA_CHARS, self.manner.criteria))

    async def rule(self, criteria: str, text: str) -> Ruling:
        """The ruling on a text; raises UpstreamError where there is none in time. Waiting for a turn counts."""
        task = build_task(criteria, text, self.manner.examples)
        model = self._find_model()
        until = asyncio.get_running_loop().time() + self.manner.timeout_s
        with _blaming(self.manner.model):
            async with asyncio.timeout_at(until), self._permits:
                with calling_aside(until):
                    reply = await self._ask(model, task)
        ruling = read_ruling(reply)
        if ruling is None:
            raise BrokeProtocol(NAME, f"the reply of model `{self.manner.model}` is no ruling")
        return ruling

    def _find_model(self) -> Model:
        try:
            return self._context.find_model(self.manner.model)
        except KeyError:
            raise Unavailable(NAME, f"the judge's model `{self.manner.model}` is not configured") from None

    async def _ask(self, model: Model, task: Sequence[Message]) -> str:
        """What the model says, up to a length at which it is no ruling any more."""
        params = {"temperature": 0, "max_tokens": self.manner.max_tokens, "stream": False}
        reply = ""
        async with aclosing(model.generate(task, params)) as said:
            async for burst in said:
                reply += "".join([frame.text for frame in (burst if isinstance(burst, list) else (burst,))])
                if len(reply) > MAX_REPLY_CHARS:
                    break
        return reply


@contextmanager
def _blaming(model: str) -> Iterator[None]:
    """Whatever goes wrong with the model is a failure of this detector, and its words are for the log alone."""
    try:
        yield
    except (TimedOut, TimeoutError) as error:
        raise TimedOut(NAME, f"the judge's model `{model}` did not answer in time") from error
    except Unavailable as error:
        raise Unavailable(NAME, f"the judge's model `{model}` is not available") from error
    except UpstreamError as error:
        raise UpstreamError(NAME, f"the judge's model `{model}` failed: {error.message}") from error
    except LockgateError:
        raise
    except Exception as error:
        log_event(Event.UPSTREAM_FAILED, logging.ERROR, part=NAME, reason=describe_exception(error))
        raise UpstreamError(NAME, f"the judge's model `{model}` failed") from error


class _Part(NamedTuple):
    """What is judged at once: a piece of the excerpt with that number; it may begin in what stands before it."""

    excerpt: int
    start: int
    text: str


class JudgeReading:
    """One request's criteria. A text that comes twice is judged once."""

    def __init__(self, judge: LlmJudge, criteria: str) -> None:
        self._judge = judge
        self._criteria = criteria
        self._known: dict[str, asyncio.Future[Ruling]] = {}

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        """A finding for each part of a text that violates: the whole excerpt, or a window of a long one."""
        manner = self._judge.manner
        parts = [part for number, one in enumerate(excerpts) for part in _cut(number, one, manner.max_chars)]
        rulings = await self._rule_all(list(dict.fromkeys(part.text for part in parts)))
        findings: list[list[Detection]] = [[] for _ in excerpts]
        for part in parts:
            ruling = rulings[part.text]
            if ruling.violates:
                findings[part.excerpt].append(_hit(part, manner.name, ruling))
        return findings

    async def _rule_all(self, texts: Sequence[str]) -> dict[str, Ruling]:
        """The rulings by text; the first that fails ends the others."""
        if len(texts) == 1:
            return {texts[0]: await self._rule(texts[0])}
        tasks = [asyncio.create_task(self._rule(text)) for text in texts]
        try:
            return dict(zip(texts, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _rule(self, text: str) -> Ruling:
        while (asked := self._known.get(text)) is not None:
            await asyncio.wait((asked,))
            if not asked.cancelled():  # else whoever asked has left
                return asked.result()
        answer = self._known[text] = asyncio.get_running_loop().create_future()
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        try:
            ruling = await self._judge.rule(self._criteria, text)
        except BaseException as error:
            if self._known.get(text) is answer:
                del self._known[text]  # who asks next asks anew
            if isinstance(error, LockgateError):
                answer.set_exception(error)
                answer.exception()  # it may be that nobody waits for it
            else:
                answer.cancel()
            raise
        answer.set_result(ruling)
        return ruling


def _cut(number: int, excerpt: Excerpt, max_chars: int) -> list[_Part]:
    """What there is to judge; of blanks nothing is asked."""
    whole, shift = excerpt.before + excerpt.text, len(excerpt.before)
    if not excerpt.text.strip():
        return []
    return [_Part(number, start - shift, whole[start:end]) for start, end in cut_windows(whole, max_chars)]


def _hit(part: _Part, name: str, ruling: Ruling) -> Detection:
    end = part.start + len(part.text)
    metadata = {"reason": ruling.reason} if ruling.reason else None
    return Detection(part.start, end, part.text, name, NAME, ruling.score, metadata=metadata)


@with_context
@asynccontextmanager
async def open_llm_judge(options: Mapping[str, Any], context: PartContext) -> AsyncIterator[LlmJudge]:
    """Reports texts that do what `criteria` describe, as the model with the id `model` sees it.

    Other options: `name`, `examples`, `max_chars`, `timeout_s`, `max_tokens`, `max_open`.
    """
    yield LlmJudge(_read_manner(Params.of_options(options, OPTIONS)), context)


def _read_manner(params: Params) -> Manner:
    default = Manner("", "")
    return Manner(
        _read_text(params, "model", MAX_LABEL_CHARS),
        _read_text(params, "criteria", MAX_CRITERIA_CHARS),
        _read_text(params, "name", MAX_LABEL_CHARS, default.name),
        tuple(_read_example(params, at, one) for at, one in enumerate(params.items("examples", MAX_EXAMPLES))),
        int(_read_number(params, "max_chars", default.max_chars, (200, 100_000))),
        _read_number(params, "timeout_s", default.timeout_s, (0.1, 600)),
        int(_read_number(params, "max_tokens", default.max_tokens, (16, 32_768))),
        int(_read_number(params, "max_open", default.max_open, (1, 256))),
    )


def _read_text(params: Params, name: str, max_chars: int, default: str = "") -> str:
    value = params.value(name)
    if value is None and default:
        return default
    if value is None or (isinstance(value, str) and not value.strip()):
        raise params.fault(name, f"`{name}` is required, a string that is not empty")
    return params.text(name, name, value, max_chars)


def _read_example(params: Params, at: int, value: object) -> Example:
    place = f"examples[{at}]"
    if not isinstance(value, Mapping) or set(value) != {"text", "violates"}:
        raise params.fault("examples", f"`{place}` must be a map of `text` and `violates`")
    if not isinstance(value["violates"], bool):
        raise params.fault("examples", f"`{place}.violates` must be true or false, not {shown(value['violates'])}")
    return Example(params.text("examples", f"{place}.text", value["text"], MAX_EXAMPLE_CHARS), value["violates"])


def _read_number(params: Params, name: str, default: float, limits: tuple[float, float]) -> float:
    value = params.value(name)
    if value is None:
        return default
    low, high = limits
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = isinstance(default, int)
    if not is_number or not low <= value <= high or (is_whole and not isinstance(value, int)):
        kind = "an integer" if is_whole else "a number"
        raise params.fault(name, f"`{name}` must be {kind} between {low:g} and {high:g}, not {shown(value)}")
    return int(value) if is_whole else float(value)
