# SPDX-License-Identifier: Apache-2.0
"""Reports where a text is not valid JSON, XML or YAML; expands no entities and refuses document types."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from xml.parsers import expat

import yaml

from lockgate.detectors.scans import Scan, ScanningDetector, first_surrogate
from lockgate.gate.values import Detection
from lockgate.params import Params

KNOWN = ("format",)
MAX_DEPTH = 200
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class FormatFault(NamedTuple):
    """The place of the first error, and its reason."""

    offset: int
    reason: str


# --- JSON -----------------------------------------------------------------------------------------------------

_JSON_STRING = r'(?s)"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_JSON_STRUCTURE = re.compile(_JSON_STRING + r"|([\[{])|([\]}])")
_JSON_CONSTANT = re.compile(_JSON_STRING + r"|(NaN|-?Infinity)")


class _NotPlainFormat(Exception):
    """A constant that Python's parser accepts and JSON does not, or a document type declaration."""


def _refuse(*found: object) -> None:
    raise _NotPlainFormat(*found)


_READ_JSON = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)  # converts no number


def check_json(text: str) -> FormatFault | None:
    """Returns the first error of the text as JSON, or None."""
    too_deep = _too_deep_json(text)
    if too_deep is not None:
        return too_deep
    try:
        _READ_JSON.decode(text)
    except json.JSONDecodeError as error:
        return FormatFault(error.pos, error.msg)
    except _NotPlainFormat as error:
        place = next((match.start() for match in _JSON_CONSTANT.finditer(text) if match[1]), 0)
        return FormatFault(place, f"{error} is not a JSON value")
    except RecursionError:
        return FormatFault(0, _TOO_DEEP)
    return None


def _too_deep_json(text: str) -> FormatFault | None:
    """Counts the depth before parsing, since the parser recurses; skipped for a text of few brackets."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return None
    depth = 0
    for match in _JSON_STRUCTURE.finditer(text):
        depth += 1 if match[1] else -1 if match[2] else 0
        if depth > MAX_DEPTH:
            return FormatFault(match.start(), _TOO_DEEP)
    return None


# --- XML ------------------------------------------------------------------------------------------------------


def check_xml(text: str) -> FormatFault | None:
    """Returns the first error of the text as XML, or None."""
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        return FormatFault(_char_offset(text, parser.ErrorByteIndex), expat.ErrorString(error.code))
    except _NotPlainFormat:
        offset = _char_offset(text, parser.CurrentByteIndex)
        return FormatFault(max(0, text.rfind("<!", 0, offset + 2)), "document type declarations are not allowed")
    return None


def _char_offset(text: str, byte_offset: int) -> int:
    if text.isascii():
        return byte_offset
    return len(text.encode()[: max(0, byte_offset)].decode(errors="ignore"))


# --- YAML -----------------------------------------------------------------------------------------------------

_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_yaml(text: str) -> FormatFault | None:
    """Returns the first error of the text as YAML, or None; expands no aliases."""
    try:
        return _check_events(text)
    except yaml.reader.ReaderError as error:
        char = error.character if isinstance(error.character, str) else chr(error.character)
        return FormatFault(max(0, text.find(char)), error.reason)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        return FormatFault(mark.index if mark else 0, reason)
    except yaml.YAMLError as error:
        return FormatFault(0, str(error))


def _check_events(text: str) -> FormatFault | None:
    depth = 0
    anchors: set[str] = set()
    for event in yaml.parse(text, Loader=_YAML_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            anchors.clear()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                return FormatFault(_index(event), f"undefined alias {event.anchor}")
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            anchors.add(event.anchor)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return FormatFault(_index(event), _TOO_DEEP)
    return None


def _index(event: yaml.Event) -> int:
    return event.start_mark.index if event.start_mark else 0


# --- The detector ---------------------------------------------------------------------------------------------

_CHECKS: Mapping[str, tuple[str, Callable[[str], FormatFault | None]]] = {
    "json": ("InvalidJson", check_json),
    "xml": ("InvalidXml", check_xml),
    "yaml": ("InvalidYaml", check_yaml),
}


class FormatScan(Scan):
    """Reports at most one finding: the first place where the text is not valid."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._detection, self._check = _CHECKS[name]

    def __call__(self, text: str) -> list[Detection]:
        surrogate = first_surrogate(text)
        fault: FormatFault | None
        if not text.strip():
            fault = FormatFault(0, "empty text")
        elif surrogate >= 0:
            fault = FormatFault(surrogate, "a lone surrogate is no character")
        else:
            fault = self._check(text)
        if fault is None:
            return []
        start = max(0, min(fault.offset, len(text) - 1))
        end = min(start + 1, len(text))
        line_start = text.rfind("\n", 0, start) + 1
        metadata = {
            "rule": self._name,
            "reason": fault.reason,
            "line": text.count("\n", 0, start) + 1,
            "column": start - line_start + 1,
        }
        return [Detection(start, end, text[start:end], self._detection, "format", 1.0, metadata=metadata)]


@asynccontextmanager
async def open_format_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports a text that is not valid in its format. Options: `format`."""
    default = Params.of_options(options, KNOWN).choice("format", tuple(_CHECKS))

    def prepare(params: Params) -> Scan:
        name = params.choice("format", tuple(_CHECKS)) or default
        if name is None:
            raise params.fault("format", "`format` is required, expected one of `json`, `xml`, `yaml`")
        return FormatScan(name)

    yield ScanningDetector(prepare, KNOWN, lookbehind_chars=0)
