# SPDX-License-Identifier: Apache-2.0
"""A detector with criteria in plain text: a model judges each text; the strictest of its rulings counts."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from lockgate.detectors.judge.scores import PROMPTS, find_json
from lockgate.detectors.scans import find_gap
from lockgate.errors import BrokeProtocol, LockgateError, TimedOut, Unavailable, UpstreamError
from lockgate.gate.prompt import escape, find_fence, make_sendable
from lockgate.gate.values import Detection, Excerpt, Message, Span
from lockgate.interfaces import Headers, Model, PartContext, with_context
from lockgate.params import Params, shown
from lockgate.sessions.turns import ASSISTANT, SYSTEM, USER, forget_reasoning
from lockgate.telemetry import LogEvent, calling_aside, describe_exception, log_event

# --- Task and ruling ------------------------------------------------------------------------------------------

MAX_REPLY_CHARS = 20_000  # of a judge's reply; a longer one is no ruling
MAX_REASON_CHARS = 300
LOWEST_VIOLATION = 0.5  # the lowest score of a text that violates, even if the judge gives a lower one
_OVERLAP_CHARS = 200  # the most that neighbouring windows share

# Marks of chat templates in square brackets, which a text must not contain. Those in angle brackets are escaped.
_TURN_MARK = re.compile(r"\[(?=/?[A-Z_]+\])")
_YES = re.compile(r"\W*(?:yes|true)\b", re.IGNORECASE)
# `No idea` is no ruling, and neither is `No. Or yes.`
_NO = re.compile(
    r"\W*(?:no|false)(?:\s*[.,:;!*\u2013\u2014]|\s+-|\W*\Z)(?!.*\b(?:yes|true)\b)", re.IGNORECASE | re.DOTALL
)
_TRUE_WORDS, _FALSE_WORDS = ("yes", "true"), ("no", "false")
_VIOLATES = "violates"


class RuledExample(NamedTuple):
    """A text with its known ruling."""

    text: str
    violates: bool


class Ruling(NamedTuple):
    """A judge's ruling on a text. A text that does not violate has the score 0."""

    violates: bool
    score: float
    reason: str = ""


def build_task(criteria: str, text: str, examples: Sequence[RuledExample] = ()) -> tuple[Message, ...]:
    """Builds the prompt for a text, with the examples as earlier turns."""
    shown = [
        message
        for one in examples
        for message in (Message(USER, _frame(one.text)), Message(ASSISTANT, _write(one.violates)))
    ]
    system = PROMPTS["ruling_system"].format(criteria=make_sendable(criteria).strip())
    return (Message(SYSTEM, system), *shown, Message(USER, _frame(text)))


def read_ruling(reply: str) -> Ruling | None:
    """Reads the ruling in a reply; returns None if there is no clear one. Never raises."""
    if len(reply) > MAX_REPLY_CHARS:
        return None
    answer = reply if reply.lstrip().startswith("{") else forget_reasoning(reply)
    objects = [value for value in find_json(answer) if isinstance(value, dict)]
    if objects:
        rulings = [_read_object(value) for value in objects if _VIOLATES in value]
        known = [one for one in rulings if one is not None]
        # Other objects may be quoted from the text: a text that contains rulings must not soften its own.
        return max(known, key=lambda one: (one.violates, one.score)) if known and len(known) == len(rulings) else None
    if _YES.match(answer):
        return Ruling(True, 1.0)
    return Ruling(False, 0.0) if _NO.match(answer) else None


def cut_windows(text: str, max_chars: int) -> list[Span]:
    """Splits a text into overlapping parts, between words if possible, which are judged one by one."""
    windows: list[Span] = []
    overlap = min(_OVERLAP_CHARS, max_chars // 4)
    start = 0
    while len(text) - start > max_chars:
        end = find_gap(text, start + max_chars * 3 // 4, start + max_chars)
        windows.append(Span(start, end))
        start = end - overlap
    windows.append(Span(start, len(text)))
    return windows


def _frame(text: str) -> str:
    shown = _TURN_MARK.sub("[ ", escape(make_sendable(text)))
    return str(PROMPTS["ruling"]).format(fence=find_fence((shown,)), text=shown)


def _write(violates: bool) -> str:
    return json.dumps({_VIOLATES: violates, "score": 1.0 if violates else 0.0, "reason": "as the criterion says"})


def _read_object(value: dict[str, Any]) -> Ruling | None:
    violates = _read_flag(value[_VIOLATES])
    if violates is None:
        return None
    score = _read_share(value.get("score"))
    reason = value.get("reason")
    reason = " ".join(reason.split())[:MAX_REASON_CHARS] if isinstance(reason, str) else ""
    if not violates:
        return Ruling(False, 0.0, reason)
    return Ruling(True, 1.0 if score is None else max(score, LOWEST_VIOLATION), reason)


def _read_flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.strip().casefold() if isinstance(value, str) else ""
    return word in _TRUE_WORDS if word in _TRUE_WORDS + _FALSE_WORDS else None


def _read_share(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1 else None  # type: ignore[arg-type, operator]


# --- The detector ---------------------------------------------------------------------------------------------

NAME = "llm_judge"  # also the type of its findings
OPTIONS = ("model", "criteria", "name", "examples", "max_chars", "timeout_s", "max_tokens", "max_open")
PARAMS = ("criteria",)
LOOKBEHIND_CHARS = 200
MAX_CRITERIA_CHARS = 4_000
MAX_LABEL_CHARS = 100
MAX_EXAMPLES = 20
MAX_EXAMPLE_CHARS = 4_000
_MAX_KNOWN = 64  # rulings that one request keeps


class JudgeSettings(NamedTuple):
    """The settings of a judge."""

    model: str
    criteria: str
    name: str = "Judged"
    examples: tuple[RuledExample, ...] = ()
    max_chars: int = 4_000
    timeout_s: float = 20.0
    max_tokens: int = 256
    max_open: int = 4


class LlmJudge:
    """Asks a model about texts; `max_open` limits the calls of all requests together."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(self, settings: JudgeSettings, context: PartContext) -> None:
        self.settings = settings
        self._context = context
        self._permits = asyncio.Semaphore(settings.max_open)

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "JudgeReading":
        given = Params.of_request(params, PARAMS)
        return JudgeReading(self, _read_text(given, "criteria", MAX_CRITERIA_CHARS, self.settings.criteria))

    async def rule(self, criteria: str, text: str) -> Ruling:
        """Returns the ruling on a text; raises UpstreamError if none comes in time, queueing included."""
        task = build_task(criteria, text, self.settings.examples)
        model = self._find_model()
        until = asyncio.get_running_loop().time() + self.settings.timeout_s
        with _blaming(self.settings.model):
            async with asyncio.timeout_at(until), self._permits:
                with calling_aside(until):
                    reply = await self._ask(model, task)
        ruling = read_ruling(reply)
        if ruling is None:
            raise BrokeProtocol(NAME, f"the reply of model `{self.settings.model}` is no ruling")
        return ruling

    def _find_model(self) -> Model:
        try:
            return self._context.find_model(self.settings.model)
        except KeyError:
            raise Unavailable(NAME, f"the judge's model `{self.settings.model}` is not configured") from None

    async def _ask(self, model: Model, task: Sequence[Message]) -> str:
        params = {"temperature": 0, "max_tokens": self.settings.max_tokens, "stream": False}
        reply = ""
        async with aclosing(model.generate(task, params)) as bursts:
            async for burst in bursts:
                reply += "".join([frame.text for frame in (burst if isinstance(burst, list) else (burst,))])
                if len(reply) > MAX_REPLY_CHARS:
                    break
        return reply


@contextmanager
def _blaming(model: str) -> Iterator[None]:
    """Turns every failure of the model into one of this detector; its message is for the log."""
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
        log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part=NAME, reason=describe_exception(error))
        raise UpstreamError(NAME, f"the judge's model `{model}` failed") from error


class _ExcerptPart(NamedTuple):
    """A piece of an excerpt that is judged at once; it may begin in the text before the excerpt."""

    excerpt: int
    start: int
    text: str


class JudgeReading:
    """Reads texts by one request's criteria. A text that comes twice is judged once."""

    def __init__(self, judge: LlmJudge, criteria: str) -> None:
        self._judge = judge
        self._criteria = criteria
        self._known: dict[str, asyncio.Future[Ruling]] = {}

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        """Returns a finding for each part that violates: an excerpt, or a window of a long one."""
        settings = self._judge.settings
        parts = [part for number, one in enumerate(excerpts) for part in _cut(number, one, settings.max_chars)]
        rulings = await self._rule_all(list(dict.fromkeys(part.text for part in parts)))
        findings: list[list[Detection]] = [[] for _ in excerpts]
        for part in parts:
            ruling = rulings[part.text]
            if ruling.violates:
                findings[part.excerpt].append(_hit(part, settings.name, ruling))
        return findings

    async def _rule_all(self, texts: Sequence[str]) -> dict[str, Ruling]:
        """Returns the rulings by text; the first failure ends the other calls."""
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
        while (pending := self._known.get(text)) is not None:
            await asyncio.wait((pending,))
            if not pending.cancelled():  # else its caller has gone
                return pending.result()
        answer = self._known[text] = asyncio.get_running_loop().create_future()
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        try:
            ruling = await self._judge.rule(self._criteria, text)
        except BaseException as error:
            if self._known.get(text) is answer:
                del self._known[text]  # the next caller asks again
            if isinstance(error, LockgateError):
                answer.set_exception(error)
                answer.exception()  # marks it as read: perhaps no task waits for it
            else:
                answer.cancel()
            raise
        answer.set_result(ruling)
        return ruling


def _cut(number: int, excerpt: Excerpt, max_chars: int) -> list[_ExcerptPart]:
    whole, shift = excerpt.before + excerpt.text, len(excerpt.before)
    if not excerpt.text.strip():
        return []
    return [_ExcerptPart(number, start - shift, whole[start:end]) for start, end in cut_windows(whole, max_chars)]


def _hit(part: _ExcerptPart, name: str, ruling: Ruling) -> Detection:
    end = part.start + len(part.text)
    metadata = {"reason": ruling.reason} if ruling.reason else None
    return Detection(part.start, end, part.text, name, NAME, ruling.score, metadata=metadata)


@with_context
@asynccontextmanager
async def open_llm_judge(options: Mapping[str, Any], context: PartContext) -> AsyncIterator[LlmJudge]:
    """Reports texts that do what `criteria` describe. Options: see `OPTIONS`."""
    yield LlmJudge(_read_settings(Params.of_options(options, OPTIONS)), context)


def _read_settings(params: Params) -> JudgeSettings:
    default = JudgeSettings("", "")
    return JudgeSettings(
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


def _read_example(params: Params, at: int, value: object) -> RuledExample:
    place = f"examples[{at}]"
    if not isinstance(value, Mapping) or set(value) != {"text", "violates"}:
        raise params.fault("examples", f"`{place}` must be a map of `text` and `violates`")
    if not isinstance(value["violates"], bool):
        raise params.fault("examples", f"`{place}.violates` must be true or false, not {shown(value['violates'])}")
    return RuledExample(params.text("examples", f"{place}.text", value["text"], MAX_EXAMPLE_CHARS), value["violates"])


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
