# SPDX-License-Identifier: Apache-2.0
"""Loads settings: flag > variable > config file > default. Reports every fault at once."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from lockgate.config.access import check_access
from lockgate.config.agent_sections import (
    AGENT_SECTIONS,
    add_index,
    check_upstreams,
    read_agent_sections,
    read_models,
    read_sources,
)
from lockgate.config.draft import Check, Draft, build, read_fields, read_secret
from lockgate.config.environment import (
    add_unknown_variables,
    apply_agent_variables,
    apply_flags,
    apply_variables,
    read_aggregator_listener,
)
from lockgate.config.kinds import OTLP_PROTOCOLS, Secret, describe
from lockgate.config.policies import check_default_policies, check_judges, read_policies
from lockgate.config.restart import PID_FILE
from lockgate.config.schema import options_of
from lockgate.config.service_sections import (
    SPECIAL_KEYS,
    add_embedded_chunkers,
    default_tree,
    read_service_sections,
    rename_old_keys,
)
from lockgate.config.settings import (
    EMBEDDED_DEFAULT,
    PART_GROUPS,
    AggregatorSettings,
    CallerSettings,
    Listener,
    Listeners,
    OtlpSettings,
    ServerSettings,
    Settings,
)
from lockgate.config.yaml_text import BadYaml, Duplicate, parse_yaml
from lockgate.errors import ConfigError, ConfigFaults, UnusableFile

DEFAULT_PATH = Path("config/config.yaml")
DEFAULT_ENDPOINTS = {"grpc": "http://localhost:4317", "http": "http://localhost:4318"}
MAX_FILE_BYTES = 8 * 1024 * 1024
SPECIALLY_READ = (*SPECIAL_KEYS, "policies", "callers", "models", "sources", *AGENT_SECTIONS)

TryPart = Callable[[str, str, Mapping[str, Any], Path], ConfigError | None]


def load_settings(
    *,
    config_path: Path | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    try_part: TryPart | None = None,
    needs_callers: bool = True,
) -> Settings:
    """Return the settings or raise ConfigFaults. `flags`: values by dotted path; `try_part` opens an embedded part."""
    draft = _start_draft(config_path, environ)
    rename_old_keys(draft)
    add_embedded_chunkers(draft)
    unknown = apply_variables(draft)
    apply_flags(draft, flags)
    apply_agent_variables(draft)
    add_index(draft)
    add_embedded_chunkers(draft)  # again: a variable or a flag may have set `chunkers` as a whole
    add_unknown_variables(draft, unknown)
    found = read_fields(draft, Settings, draft.tree, (), special=SPECIALLY_READ)
    found |= read_service_sections(draft)
    found["policies"] = read_policies(draft, found["detectors"], found.get("grounding", "hold"))
    found["callers"] = _read_callers(draft) if needs_callers else {}
    found["models"], found["sources"] = read_models(draft), read_sources(draft)
    check_default_policies(draft, found)
    check_judges(draft, found)
    found["data_dir"] = _expand(found.get("data_dir"), environ)
    found |= read_agent_sections(draft, found)
    check_access(draft, found)
    if try_part is not None:
        _try_parts(draft, found, try_part)
    settings = Settings(source=draft.base, **found)
    if settings.router.enabled:  # a file may have the section if it is off (D-22)
        message = "router mode is not supported; remove `router` or set `enabled: false`"
        draft.add_fault(("router", "enabled"), message, Check.ROUTER)
    check_upstreams(draft, settings.upstreams)
    aggregator = _resolve_aggregator(draft, settings.aggregator)
    server = _resolve_server(draft, settings.server)
    otlp = _resolve_otlp(draft, settings.otlp)
    listeners = _build_listeners(draft, server, bool(settings.agents))
    warnings = tuple(draft.warnings)
    if draft.faults:
        raise ConfigFaults(_sort_faults(draft), warnings)  # an unknown key is only a warning, and may be the cause
    return dataclasses.replace(
        settings, aggregator=aggregator, server=server, otlp=otlp, listeners=listeners, warnings=warnings
    )


def find_pid_file(*, config_path: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Return where a server with these settings has its pid file, also if the file has faults."""
    try:
        draft = _start_draft(config_path, environ)
    except ConfigError:
        draft = Draft(EMBEDDED_DEFAULT, {}, environ)
    apply_variables(draft)
    apply_flags(draft, flags)
    server, place = draft.tree.get("server"), draft.tree.get("data_dir")
    given = server.get("pid_file") if isinstance(server, dict) else None
    data_dir = _expand(Path(place) if isinstance(place, str) else None, environ)
    return Path(given) if isinstance(given, str) else data_dir / PID_FILE


def _try_parts(draft: Draft, found: Mapping[str, Any], try_part: TryPart) -> None:
    for section, group in PART_GROUPS.items():
        for name, part in found[section].items():
            is_tried = part is not None and part.embedded
            error = try_part(group, part.embedded, part.options, found["data_dir"]) if is_tried else None
            if error is not None:
                place = ("options", error.key) if error.source == "options" else ("embedded",)
                draft.add_fault((section, name, *place), error.message)


def _sort_faults(draft: Draft) -> tuple[ConfigError, ...]:
    """Return the faults by check, then by section as the settings list them, then in the order of reading."""
    sections = list(options_of(Settings))

    def rank(entry: tuple[Check, ConfigError]) -> tuple[int, int]:
        section = entry[1].key.split(".")[0]
        return entry[0], sections.index(section) if section in sections else len(sections)

    return tuple(fault for _, fault in sorted(draft.faults, key=rank))


def _start_draft(config_path: Path | None, environ: Mapping[str, str]) -> Draft:
    explicit = config_path or (Path(environ["ORCHESTRATOR_CONFIG"]) if environ.get("ORCHESTRATOR_CONFIG") else None)
    path = explicit or DEFAULT_PATH
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if explicit is None and isinstance(error, FileNotFoundError | NotADirectoryError):
            return Draft(EMBEDDED_DEFAULT, default_tree(), environ)
        number = getattr(error, "errno", None)
        detail = str(error) if number is None else f"{os.strerror(number)} (os error {number})"
        raise _unusable_file(path, f"failed to read config from `{path}`: {detail}") from error
    tree, duplicates = _parse(path, data)
    draft = Draft(str(path), tree, environ)
    for item in duplicates:
        draft.add_fault(item.path, f"duplicate key at line {item.line}, first at line {item.first_line}: remove one")
    return draft


def _parse(path: Path, data: bytes) -> tuple[dict[str, Any], list[Duplicate]]:
    try:
        if len(data) > MAX_FILE_BYTES:
            raise BadYaml(f"larger than {MAX_FILE_BYTES} bytes, the most that is read")
        tree, duplicates = parse_yaml(data.decode("utf-8-sig"))
        if tree is not None and not isinstance(tree, dict):
            raise BadYaml(f"must be a map of settings, not {describe(tree)}")
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 at byte {error.start}: save it as UTF-8"
        raise _unusable_file(path, f"invalid config file: {path}: {fault}") from error
    except BadYaml as error:
        raise _unusable_file(path, f"invalid config file: {path}: {error}") from error
    return tree or {}, duplicates


def _unusable_file(path: Path, message: str) -> ConfigFaults:
    return ConfigFaults((UnusableFile(message, source=str(path)),))


def _expand(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the data directory (D-26)."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if path is None:
        shared = Path(environ.get("XDG_DATA_HOME") or "")
        return (shared if shared.is_absolute() else home / ".local" / "share") / "lockgate"
    return home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def _resolve_server(draft: Draft, server: ServerSettings) -> ServerSettings:
    """Listen on 127.0.0.1 only when there is no config file; check that a certificate has its key (G-4)."""
    tls = server.tls
    if (tls.cert_path is None) != (tls.key_path is None):
        key = "key_path" if tls.cert_path is None else "cert_path"
        draft.add_fault(("server", "tls", key), "tls: must provide both cert and key", Check.SERVER_TLS)
    elif tls.client_ca_cert_path is not None and tls.cert_path is None:
        path = ("server", "tls", "client_ca_cert_path")
        draft.add_fault(path, "tls: cannot provide client ca cert without keypair", Check.SERVER_TLS)
    is_private = draft.base == EMBEDDED_DEFAULT and not draft.is_set("server", "host")
    return dataclasses.replace(server, host="127.0.0.1") if is_private else server


def _resolve_aggregator(draft: Draft, aggregator: AggregatorSettings) -> AggregatorSettings:
    """Lower an unset `default_top_k` to `max_top_k`; a larger one in the settings is a fault."""
    if aggregator.default_top_k <= aggregator.max_top_k:
        return aggregator
    if draft.is_set("aggregator", "default_top_k"):
        path = ("aggregator", "default_top_k")
        draft.add_fault(path, f"must be at most {aggregator.max_top_k}, which is `aggregator.max_top_k`")
    return dataclasses.replace(aggregator, default_top_k=aggregator.max_top_k)


def _build_listeners(draft: Draft, server: ServerSettings, has_agents: bool) -> Listeners:
    """Return the listeners with their ports, and whether a setting names each port (D-16)."""

    def listen(name: str, key: str) -> Listener:
        return Listener(name, server.host, getattr(server, key), draft.is_set("server", key))

    agent = listen("agent", "grpc_port") if has_agents else None
    aggregator = read_aggregator_listener(draft)
    return Listeners(listen("api", "http_port"), listen("health", "health_port"), agent, aggregator)


def _read_callers(draft: Draft) -> MappingProxyType[str, CallerSettings | None]:
    """Return the callers by name, in the order of the file; a faulty one is None."""
    callers: dict[str, CallerSettings | None] = {}
    holders: dict[Secret, str] = {}
    for name, value in draft.read_map(draft.tree.get("callers"), ("callers",)).items():
        path = ("callers", name)
        if not name:
            draft.add_fault(path, "a caller needs a name: the key must not be empty")
        found = read_fields(draft, CallerSettings, draft.read_map(value, path), path)
        key = read_secret(draft, found["key_env"], (*path, "key_env"), "key") if "key_env" in found else None
        holder = holders.setdefault(key, name) if key is not None else name
        if holder != name:
            draft.add_fault((*path, "key_env"), f"has the same key as `{holder}`: give each caller a different one")
        callers[name] = build(CallerSettings, {**found, "name": name, "key": key}) if key is not None else None
    return MappingProxyType(callers)


def _resolve_otlp(draft: Draft, otlp: OtlpSettings) -> OtlpSettings:
    """Fill in protocols and endpoints that are not set, and check the others."""
    protocol = _pick_protocol(draft, otlp, "protocol", "grpc")
    endpoint = otlp.endpoint if draft.is_set("otlp", "endpoint") else DEFAULT_ENDPOINTS[protocol]
    if _path_of(endpoint) != "/":
        draft.add_fault(("otlp", "endpoint"), "invalid otlp_endpoint", Check.OTLP)
    changes = {"protocol": protocol, "endpoint": endpoint}
    for signal in ("traces", "metrics"):
        changes[f"{signal}_protocol"] = _pick_protocol(draft, otlp, f"{signal}_protocol", protocol)
        changes[f"{signal}_endpoint"] = _pick_endpoint(draft, otlp, signal, changes)
    return dataclasses.replace(otlp, **changes)  # type: ignore[arg-type]


def _pick_protocol(draft: Draft, otlp: OtlpSettings, key: str, default: str) -> str:
    if not draft.is_set("otlp", key):
        return default
    word: str = getattr(otlp, key)
    if word not in OTLP_PROTOCOLS:
        draft.warn(f"unknown otlp.{key} `{word[:40]}`: using grpc; write grpc or http")
    return word if word in OTLP_PROTOCOLS else "grpc"


def _pick_endpoint(draft: Draft, otlp: OtlpSettings, signal: str, changes: dict[str, str]) -> str:
    protocol = changes[f"{signal}_protocol"]
    key = f"{signal}_endpoint"
    expected = "/" if protocol == "grpc" else f"/v1/{signal}"
    if draft.is_set("otlp", key):
        endpoint: str = getattr(otlp, key)
        if _path_of(endpoint) != expected:
            hint = f": path should be {expected}" if protocol == "http" else ""
            draft.add_fault(("otlp", key), f"invalid otlp_{key} for {protocol} protocol{hint}", Check.OTLP)
        return endpoint
    base = changes["endpoint"] if draft.is_set("otlp", "endpoint") else DEFAULT_ENDPOINTS[protocol]
    return base.rstrip("/") + expected.rstrip("/")


def _path_of(url: str) -> str:
    """Return the path of an http(s) URL; an empty text when it is not one."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != -1
    except ValueError:
        return ""
    return (parts.path or "/") if is_url else ""
