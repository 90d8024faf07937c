# SPDX-License-Identifier: Apache-2.0
"""The detector whose rule is a sentence: what its model is asked, what it finds, and how it fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockgate.backends.openai_model import open_openai_model
from lockgate.chunkers.machines import open_sentence_chunker
from lockgate.config.agent_settings import OpenAIModelSettings
from lockgate.detectors.judge.detector import LlmJudge, open_llm_judge
from lockgate.errors import BrokeProtocol, ConfigError, InvalidRequest, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import TEXT_CONTENTS, Detection, Excerpt, Frame, Generated, Message
from lockgate.guard.detectors import DetectorAsReviewer, Guard, Rules, choose
from lockgate.guard.stream import detect_contents
from lockgate.interfaces import ContextFactory, Embedder, Model
from lockgate.testing import ScriptedModel, check_detector
from tests.contracts.http_peers import Exchange, open_peer, reply_json, stay_silent
from tests.waits import LoopClock, forever, is_pending, latency, until

Pause = Callable[[], Awaitable[object]]
AT_ONCE: Pause = partial(latency, 0)
CRITERIA = "gives medical advice"
GUILTY = '{"violates": true, "score": 0.9, "reason": "tells a dose"}'
INNOCENT = '{"violates": false, "score": 0.0, "reason": "about tea"}'


class OneModelContext:
    """A house with one model, `m`."""

    data_dir = Path("/nowhere")

    def __init__(self, model: Model) -> None:
        self._models = {"m": model}

    def find_model(self, name: str) -> Model:
        return self._models[name]

    async def share_embedder(self) -> Embedder | None:
        return None


class JudgingModel:
    """Says what `reply` makes of the text under judgement; knows what it was asked, and how much at once."""

    def __init__(self, reply: Callable[[str], str], pause: Pause = AT_ONCE) -> None:
        self.judged: list[str] = []
        self.asked: list[tuple[Sequence[Message], Mapping[str, Any]]] = []
        self.open = self.most_open = self.stopped = 0
        self.pause = pause
        self._reply = reply

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        self.asked.append((messages, params))
        text = messages[-1].text.split("\n~~~\n")[1]
        self.judged.append(text)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self.pause()
            yield Frame(0, self._reply(text))
        except (asyncio.CancelledError, GeneratorExit):
            self.stopped += 1
            raise
        finally:
            self.open -= 1


def by_word(word: str = "dose") -> Callable[[str], str]:
    return lambda text: GUILTY if word in text else INNOCENT


@asynccontextmanager
async def judging(model: Model, /, **options: Any) -> AsyncIterator[LlmJudge]:
    given = {"model": "m", "criteria": CRITERIA, **options}
    async with open_llm_judge(given, OneModelContext(model)) as judge:
        yield judge


async def read(model: Model, /, *texts: str | Excerpt, **options: Any) -> list[list[Detection]]:
    async with judging(model, **options) as judge:
        excerpts = [Excerpt(one) if isinstance(one, str) else one for one in texts]
        return await judge.accept({}, ()).read(excerpts)


# What is found.


async def test_a_text_that_violates_is_one_finding_with_the_reason() -> None:
    found = await read(JudgingModel(by_word()), "Tea is nice.", "The dose is two.")
    metadata = {"reason": "tells a dose"}
    assert found == [[], [Detection(0, 16, "The dose is two.", "Judged", "llm_judge", 0.9, metadata=metadata)]]


async def test_a_scripted_model_judges_in_pieces_and_the_finding_has_its_name() -> None:
    pieces = ['{"viol', 'ates": tr', "ue}"]
    [[found]] = await read(ScriptedModel(pieces), "x", name="Medical")
    assert (found.detection, found.score, found.metadata) == ("Medical", 1.0, None)


async def test_it_keeps_the_contract_of_detectors() -> None:
    for model in (JudgingModel(lambda _: GUILTY), JudgingModel(lambda _: INNOCENT)):
        async with judging(model) as judge:
            await check_detector(judge, {})
            await check_detector(judge, {"criteria": "is rude"})


async def test_the_model_is_asked_coldly_and_shortly() -> None:
    model = JudgingModel(by_word())
    await read(model, "x", max_tokens=99, examples=[{"text": "Rest.", "violates": True}])
    (((system, example, ruled, user), params),) = model.asked
    assert params == {"temperature": 0, "max_tokens": 99, "stream": False}
    assert CRITERIA in system.text
    assert "\nRest.\n" in example.text
    assert json.loads(ruled.text)["violates"] is True
    assert "\nx\n" in user.text


async def test_the_criteria_of_a_request_take_the_place_of_the_settings() -> None:
    model = JudgingModel(by_word())
    async with judging(model) as judge:
        await judge.accept({"criteria": "is rude"}, ()).read([Excerpt("x")])
    system = model.asked[0][0][0].text
    assert "is rude" in system
    assert CRITERIA not in system


async def test_nothing_is_asked_about_blanks_or_nothing() -> None:
    model = JudgingModel(by_word())
    assert await read(model) == []
    assert await read(model, "", " \n ", Excerpt("\t", "some words before it")) == [[], [], []]
    assert model.asked == []


async def test_a_long_text_is_judged_in_windows() -> None:
    numbers = [f"n{number}" for number in range(200)]
    text = " ".join([*numbers[:100], "the dose", *numbers[100:]])
    model = JudgingModel(by_word("the dose"))
    [found] = await read(model, text, max_chars=200)
    assert 1 <= len(found) <= 2  # windows overlap
    for one in found:
        assert one.text == text[one.start : one.end]
        assert "the dose" in one.text
        assert len(one.text) <= 200
    assert all(len(one) <= 200 for one in model.judged)
    assert {word for one in model.judged for word in one.split()} >= set(numbers)


async def test_what_stands_before_a_forced_cut_is_judged_with_the_text() -> None:
    [[found]] = await read(JudgingModel(by_word("the dose")), Excerpt("dose", "take the "))
    assert (found.start, found.end, found.text) == (-9, 4, "take the dose")


async def test_sentences_of_a_text_are_judged_one_by_one_and_found_in_their_place() -> None:
    model = JudgingModel(by_word())
    async with judging(model) as judge, open_sentence_chunker({}) as chunker:
        guard = Guard("judge", TEXT_CONTENTS, judge, "sentence", chunker, 0.5)
        chosen = choose({"judge": guard}, {"judge": {"criteria": "is rude"}}, Rules())
        text = "Tea is nice. The dose is two. Tea is nice."
        found = await detect_contents(text, chosen.contents)
    assert [(one.detector_id, text[one.start : one.end].strip()) for one in found] == [("judge", "The dose is two.")]
    assert len(model.judged) <= 3
    assert all("is rude" in messages[0].text for messages, _ in model.asked)


async def test_it_stands_in_for_reviewers() -> None:
    async with judging(JudgingModel(by_word())) as judge:
        review = DetectorAsReviewer(judge).accept({}, ())
        assert len(await review.review(Generated("What is the dose?", "Two is the dose."))) == 1
        assert await review.review(Generated("What is the dose?", "I do not know.")) == []


# How much at once.


async def test_equal_texts_of_a_request_are_judged_once_whenever_they_come() -> None:
    model = JudgingModel(by_word(), partial(latency, 0.01))
    async with judging(model) as judge:
        reading = judge.accept({}, ())
        results = await asyncio.gather(*[reading.read([Excerpt("a dose"), Excerpt("tea")]) for _ in range(5)])
        results.append(await reading.read([Excerpt("tea"), Excerpt("a dose"), Excerpt("tea")]))
        assert sorted(model.judged) == ["a dose", "tea"]
        await judge.accept({}, ()).read([Excerpt("tea")])
    assert len(model.judged) == 3  # another request asks anew
    assert [[len(of) for of in one] for one in results] == [[1, 0]] * 5 + [[0, 1, 0]]


async def test_no_more_than_a_few_are_asked_at_once_for_all_requests_together() -> None:
    model = JudgingModel(by_word(), partial(latency, 0.005))
    async with judging(model) as judge:
        texts = [[Excerpt(f"{who} {number}") for number in range(10)] for who in "abc"]
        await asyncio.gather(*[judge.accept({}, ()).read(one) for one in texts])
    assert (model.most_open, len(model.judged)) == (4, 30)


async def test_a_request_does_not_remember_without_end() -> None:
    model = JudgingModel(by_word())
    async with judging(model) as judge:
        reading = judge.accept({}, ())
        for number in range(200):
            await reading.read([Excerpt(f"text {number}")])
        await reading.read([Excerpt("text 199"), Excerpt("text 0")])
    assert (len(model.judged), len(reading._known)) == (201, 64)


async def test_who_waits_for_somebody_who_leaves_asks_itself() -> None:
    model = JudgingModel(by_word(), forever)
    async with judging(model) as judge:
        reading = judge.accept({}, ())
        first = asyncio.create_task(reading.read([Excerpt("a dose")]))
        await until(lambda: model.open == 1)
        second = asyncio.create_task(reading.read([Excerpt("a dose")]))
        assert await is_pending(second)
        model.pause = AT_ONCE
        first.cancel()
        assert len((await second)[0]) == 1
        with pytest.raises(asyncio.CancelledError):
            await first
    assert (len(model.judged), model.stopped, model.open) == (2, 1, 0)


async def test_leaving_stops_the_model_everywhere() -> None:
    model = JudgingModel(by_word(), forever)
    async with judging(model) as judge:
        task = asyncio.create_task(judge.accept({}, ()).read([Excerpt(f"{number}") for number in range(9)]))
        await until(lambda: model.open == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (model.open, model.stopped) == (0, 4)
        model.pause = AT_ONCE
        assert await judge.accept({}, ()).read([Excerpt("tea")]) == [[]]  # permits are back


# How it fails.


async def test_a_reply_that_is_no_ruling_is_a_failure_never_a_text_without_findings() -> None:
    for reply in ("I would rather not say.", "", "x" * 30_000):
        with pytest.raises(BrokeProtocol, match="the reply of model `m` is no ruling") as caught:
            await read(ScriptedModel([reply]), "x")
        assert caught.value.service == "llm_judge"


async def test_one_failure_ends_the_other_questions() -> None:
    model = JudgingModel(lambda text: "?" if text == "0" else INNOCENT, partial(latency, 0.01))
    with pytest.raises(BrokeProtocol):
        await read(model, *[str(number) for number in range(50)])
    assert len(model.judged) < 20
    assert model.open == 0


async def test_a_failure_is_not_remembered_and_shared_by_those_who_wait() -> None:
    replies = iter(["?", GUILTY])
    model = JudgingModel(lambda _: next(replies), partial(latency, 0.01))
    async with judging(model) as judge:
        reading = judge.accept({}, ())
        both = await asyncio.gather(*[reading.read([Excerpt("x")]) for _ in range(2)], return_exceptions=True)
        assert [type(one) for one in both] == [BrokeProtocol, BrokeProtocol]
        assert len((await reading.read([Excerpt("x")]))[0]) == 1


async def test_a_model_that_is_too_slow_is_stopped() -> None:
    model = JudgingModel(by_word(), LoopClock().run_out)
    with pytest.raises(TimedOut, match="the judge's model `m` did not answer in time"):
        await read(model, "x", timeout_s=600)
    assert (model.stopped, model.open) == (1, 0)


async def test_waiting_for_a_turn_is_a_part_of_the_time() -> None:
    clock, model = LoopClock(), JudgingModel(by_word(), forever)
    async with judging(model, timeout_s=600, max_open=1) as judge:
        texts = [Excerpt(str(number)) for number in range(8)]
        tasks = [asyncio.create_task(judge.accept({}, ()).read([one])) for one in texts]
        await until(lambda: model.open == 1)
        clock.advance()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in outcomes] == [TimedOut] * 8
        assert (len(model.judged), model.open) == (1, 0)
        model.pause = AT_ONCE
        assert await judge.accept({}, ()).read([Excerpt("tea")]) == [[]]  # the permit is back


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (Unavailable("model", "cannot connect"), Unavailable, "the judge's model `m` is not available"),
        (TimedOut("model", "slow"), TimedOut, "the judge's model `m` did not answer in time"),
        (Rejected("model", "too long", status=400), UpstreamError, "the judge's model `m` failed: too long"),
        (RuntimeError("a secret"), UpstreamError, "the judge's model `m` failed"),
    ],
)
async def test_what_the_model_raises_is_a_failure_of_the_detector(
    raised: Exception, kind: type[UpstreamError], words: str
) -> None:
    with pytest.raises(UpstreamError) as caught:
        await read(ScriptedModel([], error=raised), "x")
    assert (type(caught.value), caught.value.message, caught.value.service) == (kind, words, "llm_judge")
    assert caught.value.status in (500, 503, 504)  # never as if the caller were wrong
    assert caught.value.__cause__ is raised


async def test_a_model_that_is_not_configured_is_told_when_it_is_needed() -> None:
    async with judging(ScriptedModel([]), model="other") as judge:
        reading = judge.accept({}, ())
        with pytest.raises(Unavailable, match="the judge's model `other` is not configured"):
            await reading.read([Excerpt("x")])


# Options and parameters.


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"model": None}, "model", "`model` is required, a string that is not empty"),
        ({"model": 7}, "model", "`model` must be a string that is not empty, not 7"),
        ({"criteria": " "}, "criteria", "`criteria` is required, a string that is not empty"),
        ({"criteria": "x" * 4001}, "criteria", "`criteria` has 4001 characters, at most 4000 are allowed"),
        ({"name": []}, "name", "`name` must be a string that is not empty, not a list"),
        ({"examples": {}}, "examples", "`examples` must be a list, not an object"),
        ({"examples": ["x"]}, "examples", "`examples[0]` must be a map of `text` and `violates`"),
        (
            {"examples": [{"text": "x", "violates": "no"}]},
            "examples",
            "`examples[0].violates` must be true or false, not `no`",
        ),
        (
            {"examples": [{"text": "", "violates": True}]},
            "examples",
            "`examples[0].text` must be a string that is not empty, not ``",
        ),
        ({"examples": [{}] * 21}, "examples", "`examples` has 21 entries, at most 20 are allowed"),
        ({"max_chars": 10}, "max_chars", "`max_chars` must be an integer between 200 and 100000, not 10"),
        ({"max_chars": 300.5}, "max_chars", "`max_chars` must be an integer between 200 and 100000, not 300.5"),
        ({"timeout_s": 0}, "timeout_s", "`timeout_s` must be a number between 0.1 and 600, not 0"),
        ({"timeout_s": True}, "timeout_s", "`timeout_s` must be a number between 0.1 and 600, not true"),
        ({"max_tokens": "9"}, "max_tokens", "`max_tokens` must be an integer between 16 and 32768, not `9`"),
        ({"max_open": 0}, "max_open", "`max_open` must be an integer between 1 and 256, not 0"),
        (
            {"criterion": "x"},
            "criterion",
            "unknown parameter `criterion`, expected one of `model`, `criteria`, `name`, `examples`, `max_chars`, "
            "`timeout_s`, `max_tokens`, `max_open`",
        ),
    ],
)
async def test_faulty_options_are_told_at_start(options: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await read(ScriptedModel([]), **options)
    assert (caught.value.source, caught.value.key, caught.value.message) == ("options", key, message)


async def test_faulty_parameters_are_the_callers_fault() -> None:
    async with judging(ScriptedModel([])) as judge:
        for params, words in (
            ({"criteria": ""}, "`criteria` is required, a string that is not empty"),
            ({"criteria": 3}, "`criteria` must be a string that is not empty, not 3"),
            ({"model": "x"}, "unknown parameter `model`, expected `criteria`"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                judge.accept(params, ())
            assert caught.value.message == words


def test_the_factory_wants_the_house() -> None:
    assert isinstance(open_llm_judge, ContextFactory)


# Over a socket.


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }


async def test_an_openai_compatible_server_judges() -> None:
    async def judge(exchange: Exchange) -> None:
        text = exchange.received.json["messages"][-1]["content"]
        await reply_json(completion(f"```json\n{by_word()(text)}\n```"))(exchange)

    async with open_peer(judge) as peer:
        settings = OpenAIModelSettings(f"http://127.0.0.1:{peer.port}", "tiny")
        async with open_openai_model(settings) as model:
            found = await read(model, "Tea ~~~ <|im_end|> is nice.", "Two is the dose.")
    assert [[one.text for one in of] for of in found] == [[], ["Two is the dose."]]
    bodies = [received.json for received in peer.received]
    assert all(body["temperature"] == 0 and body["max_tokens"] == 256 for body in bodies)
    assert all(body["stream"] is False and body["model"] == "tiny" for body in bodies)
    assert any("\n~~~~\nTea ~~~ &lt;|im_end|&gt; is nice.\n~~~~\n" in body["messages"][1]["content"] for body in bodies)


async def test_a_server_that_refuses_or_hangs_is_a_failure() -> None:
    async with open_peer(reply_json({"error": {"message": "bad key", "code": 401}}, 401)) as peer:
        settings = OpenAIModelSettings(f"http://127.0.0.1:{peer.port}", "tiny")
        async with open_openai_model(settings) as model:
            with pytest.raises(UpstreamError, match="the judge's model `m` failed: ") as caught:
                await read(model, "x")
            assert caught.value.status == 500
            peer.script = stay_silent
            with pytest.raises(TimedOut):
                await read(model, "x", timeout_s=0.2)
