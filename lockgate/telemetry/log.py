# SPDX-License-Identifier: Apache-2.0
"""The logger: standard output, one event per line.

Exceptions are logged by type and source line only: a message may quote a text or a header. Messages of other libraries
are logged from INFO on, first line only.
"""

import json
import logging
import sys
import time
import traceback
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from lockgate.telemetry.names import SERVICE, LogEvent

if TYPE_CHECKING:
    from lockgate.telemetry.requests import IncomingRequest

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio")
_MAX_CAUSES = 10
# Characters that JSON does not escape, but that some readers of lines take for the end of a line.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}

logger = logging.getLogger(SERVICE)
CURRENT: ContextVar["IncomingRequest | None"] = ContextVar("lockgate_request", default=None)


def log_event(event: LogEvent, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, event.value, extra=fields)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "event": event_of(record),
            "service": SERVICE,
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": _timestamp(record),
        }
        line.update(fields_of(record))
        return json.dumps(line, ensure_ascii=False, default=str).translate(_LINE_ENDS)


class TextLines(logging.Formatter):
    """One line of plain text, an exception included."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_timestamp(record), f"{record.levelname:<7}", event_of(record)]
        words += [f"{name}={_quoted(value)}" for name, value in fields_of(record).items()]
        return " ".join(words)


SILENT = logging.CRITICAL + 1  # above every level: no record is created


def set_up_logging(*, style: str | None, level: str, is_quiet: bool) -> None:
    """Send every logger of the process to standard output, or nowhere."""
    root = logging.getLogger()
    handler: logging.Handler = logging.NullHandler() if is_quiet else logging.StreamHandler(sys.stdout)
    is_json = style == "json" if style else not sys.stdout.isatty()
    handler.setFormatter(JsonLines() if is_json else TextLines())
    root.handlers[:] = [handler]
    logger.setLevel(SILENT if is_quiet else level)
    root.setLevel(max(logger.level, logging.INFO))  # DEBUG records of libraries may contain headers and bodies
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def event_of(record: logging.LogRecord) -> str:
    """The record's message; only the first line if a library wrote it: asyncio quotes exceptions in later lines."""
    message = record.getMessage()
    return message if record.name == SERVICE else message.partition("\n")[0]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The event's own fields, its exception, and the trace id and correlation id of the current request."""
    fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = describe_exception(record.exc_info[1])
    request = CURRENT.get()
    if request is not None:
        fields["trace_id"] = request.trace.trace_id
        if request.correlation_id:
            fields["correlation_id"] = request.correlation_id
    return fields


def name_causes(error: BaseException) -> str:
    """The types of an exception and of its causes, the last one first, without their messages."""
    return " < ".join([type(one).__qualname__ for one in _causes(error)])


def describe_exception(error: BaseException) -> str:
    """The types and source lines of an exception and its causes, one exception per line."""
    return "\n".join([" < ".join([type(one).__qualname__, *_places(one)]) for one in _causes(error)])


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < _MAX_CAUSES:
        one = waiting.pop()
        if one is not None and one not in found:
            found.append(one)
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            waiting.append(one.__cause__ or one.__context__)  # also a context that `from None` hides
    return found


def _places(error: BaseException) -> list[str]:
    stack = traceback.extract_tb(error.__traceback__)
    return [f"{place.filename}:{place.lineno} {place.name}" for place in reversed(stack)]


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
