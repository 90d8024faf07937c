# SPDX-License-Identifier: Apache-2.0
"""The shape of log lines, and what they leave out. A real server's log is read in tests/server/test_metrics.py."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from lockgate.errors import Unavailable
from lockgate.telemetry import LogEvent, log_event, logger, name_causes, observe_request, set_up_logging, start_request
from lockgate.telemetry.log import describe_exception


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = [(one, one.level) for one in (root, logger, logging.getLogger("asyncio"), logging.getLogger("uvicorn"))]
    sinks = root.handlers[:]
    yield
    root.handlers[:] = sinks
    for one, level in before:
        one.setLevel(level)


def fail() -> BaseException:
    """An error with a cause and a group, all of which quote a secret."""
    try:
        try:
            raise ExceptionGroup("secret 1", [KeyError("secret 2"), OSError("secret 3")])
        except ExceptionGroup as inner:
            raise Unavailable("pii", "secret 4") from inner
    except Unavailable as error:
        return error


def test_of_an_exception_types_and_places_are_told_but_no_word() -> None:
    error = fail()
    assert name_causes(error) == "Unavailable < ExceptionGroup < OSError < KeyError"
    lines = describe_exception(error).splitlines()
    assert lines[0].startswith("Unavailable < ")
    assert "test_log.py" in lines[0]
    assert "secret" not in "".join(lines)


def test_exceptions_in_a_circle_end() -> None:
    one, other = KeyError(), ValueError()
    one.__context__, other.__context__ = other, one
    assert name_causes(one) == "KeyError < ValueError"


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_line_is_one_line_and_keeps_no_secret(capsys: pytest.CaptureFixture[str], style: str) -> None:
    set_up_logging(style=style, level="DEBUG", is_quiet=False)
    logger.error(LogEvent.FAILED.value, exc_info=fail())
    logging.getLogger("asyncio").error("Task failed\nfuture: <Task exception=KeyError('secret')>", exc_info=fail())
    logging.getLogger("foreign").debug("headers: secret")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "secret" not in "".join(lines)
    assert all("Unavailable" in line for line in lines)


def test_every_line_of_a_request_names_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(style="json", level="INFO", is_quiet=False)

    def serve() -> str:
        request = start_request("POST", "/" + "x" * 500, None, lambda name: None, is_counted=False)
        log_event(LogEvent.WARNING, reason="something")
        observe_request(request, code=500, caller="me")
        return request.trace.trace_id

    trace_id = copy_context().run(serve)
    log_event(LogEvent.STOPPED)
    warning, request, stopped = map(json.loads, capsys.readouterr().out.splitlines())
    assert (warning["trace_id"], request["trace_id"]) == (trace_id, trace_id)
    assert "trace_id" not in stopped
    assert (request["method"], request["status"], request["code"], request["caller"]) == ("POST", 0, 500, "me")
    assert len(request["path"]) == 200
    assert request["duration_ms"] >= 0


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(style="json", level="DEBUG", is_quiet=True)
    log_event(LogEvent.STARTED)
    assert capsys.readouterr().out == ""


async def test_what_asyncio_says_of_a_failed_task_is_cut_to_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(style="json", level="DEBUG", is_quiet=False)
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "A task failed", "future": "secret", "exception": KeyError("secret")})
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["event"] == "A task failed"
    assert line["exception"] == "KeyError"
