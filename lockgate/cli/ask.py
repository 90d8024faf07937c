# SPDX-License-Identifier: Apache-2.0
"""`lockgate ask`: sends a question to a running server, or to one in this process, and shows the answer."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Final

from lockgate.cli import EXIT_FAILED, EXIT_FOUND, EXIT_OK
from lockgate.cli.text import flatten
from lockgate.config.refs import LOCAL_ADDRESS, check_url
from lockgate.errors import BrokeProtocol, ConfigError, InvalidRequest

if TYPE_CHECKING:
    from lockgate.cli.answer_story import AnswerEnd
    from lockgate.cli.ask_place import ServerAddress, ServerOffer
    from lockgate.config.settings import Settings

_KEY, _TOKEN = "LOCKGATE_KEY", "LOCKGATE_TRACE_TOKEN"
LOWEST_SCORE: Final = 0.35  # the default for the lowest score of a document
_SECTIONS = ("input", "documents", "output", "grounding")
_MAX_QUESTION_BYTES = 1024 * 1024
_BY_SIGNAL = 128
_PREPARING = "Adding the library's documents to the index …"
_NO_MODEL = "no model is exposed: add `expose: true` to one of `models`"
_NO_MODEL_THERE = "the server does not list its models (`server.playground` is off): use --model, and --source"


def run_ask(options: argparse.Namespace) -> int:
    """Carries out `ask`."""
    if options.trace and not options.json:
        raise ConfigError("needs --json; without --json the trace is shown anyway", source="--trace")
    detectors = _read_detectors(options.detector)
    settings = None if options.url else _load(options)
    question = _read_question(options.question)
    from lockgate.cli.ask_place import open_here, open_there
    from lockgate.telemetry import set_up_logging

    set_up_logging(style=None, level="INFO", is_quiet=True)  # standard output is for the answer
    if settings is not None:
        opening = open_here(settings)
    elif fault := check_url(options.url):
        raise ConfigError(fault, source="--url")
    else:
        token = options.trace_token or os.environ.get(_TOKEN, "")
        opening = open_there(options.url, os.environ.get(_KEY, ""), token)
    return asyncio.run(_run(options, question, detectors, opening))


def _load(options: argparse.Namespace) -> "Settings":
    """The settings; without a config file those of the demo, whose documents are put into the index."""
    from lockgate.cli.answer_view import Waiting
    from lockgate.cli.demo import load_demo_settings, prepare_demo
    from lockgate.config.settings import EMBEDDED_DEFAULT

    settings: Settings = options.load(options)
    if settings.source != EMBEDDED_DEFAULT or settings.models:
        return settings
    given = {name: value for name, value in vars(options).items() if name.startswith("set:")}
    settings = load_demo_settings(argparse.Namespace(**given))
    waiting = Waiting(_PREPARING)
    try:
        prepare_demo(settings)
    finally:
        waiting.end()
    return settings


async def _run(
    options: argparse.Namespace,
    question: str,
    detectors: dict[str, Any],
    opening: "AbstractAsyncContextManager[ServerAddress]",
) -> int:
    """Ask and return the exit code. SIGTERM and SIGHUP cancel the task as Ctrl-C does, so nothing is left running."""
    task = asyncio.current_task()
    assert task is not None
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        async with opening as place:
            body = _build_request(options, question, detectors, await place.fetch_offer())
            return await (_print_events if options.json else _show)(place, body, options)
    except asyncio.CancelledError:
        if ended_by:
            return _BY_SIGNAL + ended_by[0]
        raise


def _build_request(
    options: argparse.Namespace, question: str, detectors: dict[str, Any], offer: "ServerOffer"
) -> dict[str, Any]:
    """The request that the playground's page would send."""
    model = options.model or next(iter(offer.models), None)
    sources = offer.sources if options.source is None else options.source
    policy = options.policy or (next(iter(offer.policies), None) if not detectors else None)
    if model is None:
        raise InvalidRequest(_NO_MODEL_THERE if options.url else _NO_MODEL)
    _check_known("model", [model], offer.models)
    _check_known("source", sources, offer.sources)
    _check_known("policy", [policy] if policy else [], offer.policies)
    guards = detectors | ({"policy": policy} if policy else {})
    return build_request(question, model, sources, guards, options.threshold)


def _check_known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raises InvalidRequest for a name that is not in the list; without a list any name is accepted."""
    for name in names:
        if known and name not in known:
            raise InvalidRequest(f"there is no {kind} `{name}`; there are: {', '.join(known)}")


async def _show(place: "ServerAddress", body: dict[str, Any], _: argparse.Namespace) -> int:
    from lockgate.cli.answer_story import AnswerTranscript
    from lockgate.cli.answer_view import open_view

    story = AnswerTranscript(open_view())
    try:
        async with aclosing(place.ask(body)) as events:
            async for name, event in events:
                try:
                    story.show(name, event)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    fault = f"the event `{flatten(name[:40])}` does not have the expected shape"
                    raise BrokeProtocol("server", fault) from error
    finally:
        story.close()
    return _choose_exit(story.end)


async def _print_events(place: "ServerAddress", body: dict[str, Any], options: argparse.Namespace) -> int:
    from lockgate.cli.answer_story import find_end

    end = None
    async with aclosing(place.ask(body)) as events:
        async for name, event in events:
            end = end or find_end(name, event)
            if name != "trace" or options.trace:
                print(json.dumps({"event": name, "data": event}), flush=True)
    return _choose_exit(end)


def _choose_exit(end: "AnswerEnd | None") -> int:
    from lockgate.cli.answer_story import AnswerEnd

    if end is None:
        raise BrokeProtocol("server", "the connection was closed before the end of the answer")
    return {AnswerEnd.ANSWERED: EXIT_OK, AnswerEnd.BLOCKED: EXIT_FOUND, AnswerEnd.FAILED: EXIT_FAILED}[end]


# The request.


def _read_question(given: str | None) -> str:
    if given not in (None, "-"):
        question = os.fsencode(given).decode("utf-8", "replace")
    else:
        if sys.stdin.isatty():
            print("Your question, then Ctrl-D:", file=sys.stderr, flush=True)
        raw = sys.stdin.buffer.read(_MAX_QUESTION_BYTES + 1)
        if len(raw) > _MAX_QUESTION_BYTES:
            raise ConfigError(f"is longer than {_MAX_QUESTION_BYTES} bytes", source="standard input")
        question = raw.decode("utf-8", "replace")
    if not question.strip():
        raise ConfigError("is empty", source="the question")
    return question.rstrip("\n")


def _read_detectors(words: Sequence[str]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for word in words:
        place, params = read_detector(word, "-d")
        section, _, name = place.partition(":")
        if section not in _SECTIONS or not name:
            raise ConfigError(f"write SECTION:ID, where SECTION is one of {', '.join(_SECTIONS)}", source=f"-d {word}")
        sections.setdefault(section, {})[name] = params
    return sections


def build_request(
    question: str,
    model: str,
    sources: Iterable[str],
    guards: Mapping[str, Any],
    lowest_score: float = LOWEST_SCORE,
) -> dict[str, Any]:
    """The request for an answer by a model of the server, from sources of the server."""
    return {
        "prompt": question,
        "model": {"url": LOCAL_ADDRESS, "slug": model},
        "data_sources": [{"url": LOCAL_ADDRESS, "slug": one} for one in sources],
        **({"detectors": dict(guards)} if guards else {}),
        "citations": True,
        "similarity_threshold": lowest_score,
        "temperature": 0,
    }


def read_detector(word: str, flag: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of `NAME` or `NAME=JSON`, which was given with this flag; raises ConfigError."""
    name, _, raw = word.partition("=")
    try:
        params = json.loads(raw) if raw else {}
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", source=flag, key=name) from error
    if not isinstance(params, dict):
        raise ConfigError("parameters must be a JSON object", source=flag, key=name)
    return name, params
