# SPDX-License-Identifier: Apache-2.0
"""Reads the config sections that name services: generation, openai, detectors, chunkers and tls (G-15 to G-25)."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config.draft import Check, Draft, build, read_fields, read_value
from lockgate.config.schema import Path, options_of
from lockgate.config.settings import (
    EMBEDDED_CHUNKERS,
    EMBEDDED_DETECTORS,
    ChunkerSettings,
    DetectorSettings,
    GenerationSettings,
    OpenAISettings,
    Secret,
    ServiceSettings,
    Settings,
    TlsSettings,
)
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, WHOLE_TEXT_CHUNKER

OLD_NAMES = {"chat_generation": "openai", "chat_completions": "openai"}
SPECIAL_KEYS = ("generation", "openai", "chunkers", "detectors", "tls")
# Default thresholds of embedded detectors where not 0.5, as measured on benchmarks/labelled.
_THRESHOLDS = {"prompt_injection": 0.8, "toxicity": 0.8}
GENERATION_PORTS = {"tgis": 8033, "nlp": 8085}
_ANSWER_SECTIONS = ("aggregator", "models", "sources")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)


class _ServiceKind(NamedTuple):
    """The settings of a section's entries, the default port of a service, and the check of its host name."""

    settings: type
    port: int
    host_check: Check


_PARTS = {
    "generation": _ServiceKind(GenerationSettings, 8033, Check.GENERATION_HOST),
    "openai": _ServiceKind(OpenAISettings, 8080, Check.OPENAI_HOST),
    "detectors": _ServiceKind(DetectorSettings, 8080, Check.DETECTOR_HOST),
    "chunkers": _ServiceKind(ChunkerSettings, 8085, Check.CHUNKER_HOST),
}


def default_tree() -> dict[str, Any]:
    """Return the settings that replace a config file when there is none."""
    return {"detectors": {name: {"embedded": name} for name in EMBEDDED_DETECTORS}}


def rename_old_keys(draft: Draft) -> None:
    """Rename sections with old names; a file with the old and the new name is a fault (G-15)."""
    for old, new in OLD_NAMES.items():
        if old not in draft.tree:
            continue
        draft.warn(f"`{old}` is deprecated; use `{new}`")
        value = draft.tree.pop(old)
        if new in draft.tree:
            draft.add_fault((old,), f"duplicate field `{new}`: `{old}` is its old name, keep one of them")
        draft.tree.setdefault(new, value)


def add_embedded_chunkers(draft: Draft) -> None:
    """Add the embedded chunkers under their names. The file may replace all but whole_doc_chunker (G-123)."""
    chunkers = draft.read_map(draft.tree.get("chunkers"), ("chunkers",))
    draft.tree["chunkers"] = chunkers
    built_in = {"embedded": WHOLE_TEXT_CHUNKER}
    if chunkers.pop(WHOLE_TEXT_CHUNKER, built_in) != built_in:
        draft.warn(f"chunkers.{WHOLE_TEXT_CHUNKER} is ignored: the built-in chunker of that name is used")
    for name in EMBEDDED_CHUNKERS:
        chunkers.setdefault(name, {"embedded": name})


def is_hostname(text: str) -> bool:
    """Return whether a text is a host name: labels of letters, digits and hyphens, joined by dots (G-23)."""
    return len(text) <= 253 and all(_LABEL.fullmatch(label) for label in text.split("."))


def read_service_sections(draft: Draft) -> dict[str, Any]:
    """Return the sections as fields of Settings."""
    reader = _SectionReader(draft)
    return {
        "tls": reader.tls,
        "generation": reader.read_single("generation"),
        "openai": reader.read_single("openai"),
        "detectors": reader.read_detectors(),
        "chunkers": reader.read_chunkers(),
    }


class _SectionReader:
    """Reads the sections with services; `tls` comes first, because services name its entries."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.tree
        self.tls = read_value(draft, options_of(Settings)["tls"].kind, self._tree.get("tls"), ("tls",))

    def read_single(self, section: str) -> Any:
        """Return the section `generation` or `openai`; None if it is missing (G-16, G-17)."""
        if (raw := self._tree.get(section)) is None:
            return None
        return build(_PARTS[section].settings, self._read_part(raw, (section,)))

    def read_detectors(self) -> MappingProxyType[str, DetectorSettings | None]:
        """Return the detectors. None at all is a fault, unless the file has sections that only Lockgate has (G-19)."""
        detectors = self._draft.read_map(self._tree.get("detectors"), ("detectors",))
        if not detectors and not any(self._tree.get(key) for key in _ANSWER_SECTIONS):
            self._draft.add_fault(("detectors",), "no detectors configured", Check.NO_DETECTORS)
        return MappingProxyType({name: self._read_detector(name, raw) for name, raw in detectors.items()})

    def _read_detector(self, name: str, raw: object) -> DetectorSettings | None:
        path = ("detectors", name)
        embedded = raw.get("embedded") if isinstance(raw, dict) else None
        found = self._read_part(raw, path, embedded_defaults(embedded) if embedded is not None else {})
        chunker = found.get("chunker_id")
        if chunker is not None and chunker not in self._tree["chunkers"]:
            message = f"chunker `{chunker}` not found for detector `{name}`"
            self._draft.add_fault((*path, "chunker_id"), message, Check.CHUNKER_KNOWN)
        detector: DetectorSettings | None = build(DetectorSettings, found)
        return detector

    def read_chunkers(self) -> MappingProxyType[str, ChunkerSettings | None]:
        """Return the remote chunkers and the embedded ones (G-18)."""
        chunkers: dict[str, ChunkerSettings | None] = {}
        for name, raw in self._tree["chunkers"].items():
            path = ("chunkers", name)
            if isinstance(raw, dict) and raw.get("service") is not None and raw.get("type") is None:
                self._draft.add_fault((*path, "type"), "is required")
            chunkers[name] = build(ChunkerSettings, self._read_part(raw, path))
        return MappingProxyType(chunkers)

    def _read_part(
        self, value: object, path: Path, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return the fields of an entry that is a service, or embedded where the section allows it."""
        section, part = path[0], _PARTS[path[0]]
        raw = self._draft.read_map(value, path)
        services = [key for key in ("service", "health_service") if key in options_of(part.settings)]
        found = read_fields(self._draft, part.settings, raw, path, special=services, defaults=defaults)
        if len(path) > 1:
            self._check_place(raw, path, section.removesuffix("s"))
        elif raw.get("service") is None:
            self._draft.add_fault((*path, "service"), "is required")
        port = GENERATION_PORTS.get(found.get("provider", ""), part.port)
        for key in services:
            if raw.get(key) is not None and (service := self._read_service(raw[key], (*path, key), port)) is not None:
                found[key] = service
        self._check_host(raw, path, part.host_check)
        return found

    def _check_place(self, raw: dict[str, Any], path: Path, part: str) -> None:
        """Add a fault unless the entry has exactly one of `service` and `embedded` (D-23)."""
        is_remote, is_embedded = raw.get("service") is not None, raw.get("embedded") is not None
        if is_remote and is_embedded:
            self._draft.add_fault(path, "has both `service` and `embedded`: keep one of them")
        elif not is_remote and not is_embedded:
            self._draft.add_fault(path, f"needs `service` (a remote {part}) or `embedded` (one inside Lockgate)")
        elif is_remote and raw.get("options"):
            self._draft.warn(f"{'.'.join(path)}.options is ignored: only an embedded {part} has options")

    def _read_service(self, value: object, path: Path, port: int) -> ServiceSettings | None:
        """Return the service, with the unchanged value of the variable that it names as its token (G-20)."""
        raw = self._draft.read_map(value, path)
        if not isinstance(value, dict):
            return None
        found = read_fields(self._draft, ServiceSettings, raw, path, special=("tls",), defaults={"port": port})
        found["tls"] = self._read_tls(raw, (*path, "tls"))
        if found.get("api_token") is not None:
            name = found["api_token"]
            value = self._draft.environ.get(name)
            found["api_token_value"] = None if value is None else Secret(value)
            if value is None:
                self._draft.add_missing_variable((*path, "api_token"), name, "token")
        service: ServiceSettings | None = build(ServiceSettings, found)
        return service

    def _read_tls(self, raw: dict[str, Any], path: Path) -> TlsSettings | None:
        """Return TLS settings: the entry of `tls` that is named, which must exist (G-22), or those written in place."""
        value = raw.get("tls")
        if not isinstance(value, str):
            tls: TlsSettings | None = None
            if value is not None:
                tls = read_value(self._draft, options_of(ServiceSettings)["tls"].kind, value, path)
            return tls
        if value not in self.tls:
            port = raw["port"] if isinstance(raw.get("port"), int) else 0
            message = f"tls config `{value}` not found for service `{raw.get('hostname')}:{port}`"
            self._draft.add_fault(path, message, Check.TLS_NAME)
        named: TlsSettings | None = self.tls.get(value)
        return named

    def _check_host(self, raw: dict[str, Any], path: Path, check: Check) -> None:
        service = raw.get("service")
        hostname = service.get("hostname") if isinstance(service, dict) else None
        if isinstance(hostname, str) and not is_hostname(hostname):
            owner = f"{path[0].removesuffix('s')} `{path[1]}`" if len(path) > 1 else f"`{path[0]}`"
            message = f"invalid hostname: {owner} has an invalid hostname"
            self._draft.add_fault((*path, "service", "hostname"), message, check)


def embedded_defaults(embedded: object) -> dict[str, Any]:
    """Return the defaults of an embedded detector."""
    chunker = WHOLE_TEXT_CHUNKER if embedded == "format" else "sentence"
    kind = TEXT_CONTEXT_DOC if embedded == "groundedness" else TEXT_CONTENTS
    return {"type": kind, "chunker_id": chunker, "default_threshold": _THRESHOLDS.get(str(embedded), 0.5)}
