# SPDX-License-Identifier: Apache-2.0
"""Names of log events, and the set-up of the one logger: standard output, one event per line."""

import json
import logging
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

SERVICE = "lockgate"
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}

logger = logging.getLogger(SERVICE)


class Event(StrEnum):
    """Everything that we log by name."""

    STARTED = "started"
    STOPPED = "stopped"
    LISTENING = "listening"
    PORT_LEFT_CLOSED = "port_left_closed"
    WARNING = "warning"
    REQUEST = "request"
    CLIENT_LEFT = "client_left"
    UPSTREAM_FAILED = "upstream_failed"
    FAILED = "failed"


def log_event(event: Event, level: int = logging.INFO, **fields: Any) -> None:  # noqa: ANN401 - whatever describes it
    """One event with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, event.value, extra=fields)


class Call:
    """One call to a service behind us, while it runs; whoever calls notes the HTTP status it came to."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = 0


@contextmanager
def client_call(kind: str, name: str) -> Iterator[Call]:
    """Measures a call: `kind` is detector, chunker, generation or openai, `name` the part's id."""
    yield Call()


def trace_headers() -> list[tuple[str, str]]:
    """The headers that carry the trace of the current request on to a service."""
    return [("traceparent", f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01")]


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "event": record.getMessage(),
            "service": SERVICE,
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": _timestamp(record),
        }
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """One line of words; an exception is folded into it."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_timestamp(record), f"{record.levelname:<7}", record.getMessage()]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        if record.exc_info:
            words.append(f"exception={_quoted(self.formatException(record.exc_info))}")
        return " ".join(words)


def set_up_logging(*, style: str | None, level: str, is_quiet: bool) -> None:
    """Send every logger of the process to standard output, or nowhere."""
    root = logging.getLogger()
    handler: logging.Handler = logging.NullHandler() if is_quiet else logging.StreamHandler(sys.stdout)
    is_json = style == "json" if style else not sys.stdout.isatty()
    handler.setFormatter(JsonLines() if is_json else TextLines())
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
