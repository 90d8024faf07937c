# SPDX-License-Identifier: Apache-2.0
"""Which endpoint and protocol each exported signal has; the checks are the existing orchestrator's (G-3)."""

import dataclasses
from urllib.parse import urlsplit

from lockgate.config.draft import Check, Draft
from lockgate.config.kinds import OTLP_PROTOCOLS
from lockgate.config.settings import OtlpSettings

DEFAULT_ENDPOINTS = {"grpc": "http://localhost:4317", "http": "http://localhost:4318"}


def resolve_otlp(draft: Draft, otlp: OtlpSettings) -> OtlpSettings:
    """Fill in what was not asked for, and check the rest."""
    protocol = _pick_protocol(draft, otlp, "protocol", "grpc")
    endpoint = otlp.endpoint if draft.is_asked_for("otlp", "endpoint") else DEFAULT_ENDPOINTS[protocol]
    if _path_of(endpoint) != "/":
        draft.blame(("otlp", "endpoint"), "invalid otlp_endpoint", Check.OTLP)
    changes = {"protocol": protocol, "endpoint": endpoint}
    for signal in ("traces", "metrics"):
        changes[f"{signal}_protocol"] = _pick_protocol(draft, otlp, f"{signal}_protocol", protocol)
        changes[f"{signal}_endpoint"] = _pick_endpoint(draft, otlp, signal, changes)
    return dataclasses.replace(otlp, **changes)  # type: ignore[arg-type]


def _pick_protocol(draft: Draft, otlp: OtlpSettings, key: str, default: str) -> str:
    if not draft.is_asked_for("otlp", key):
        return default
    word: str = getattr(otlp, key)
    if word not in OTLP_PROTOCOLS:
        draft.warn(f"unknown otlp.{key} `{word[:40]}`: using grpc")
    return word if word in OTLP_PROTOCOLS else "grpc"


def _pick_endpoint(draft: Draft, otlp: OtlpSettings, signal: str, changes: dict[str, str]) -> str:
    protocol = changes[f"{signal}_protocol"]
    key = f"{signal}_endpoint"
    expected = "/" if protocol == "grpc" else f"/v1/{signal}"
    if draft.is_asked_for("otlp", key):
        endpoint: str = getattr(otlp, key)
        if _path_of(endpoint) != expected:
            hint = f": path should be {expected}" if protocol == "http" else ""
            draft.blame(("otlp", key), f"invalid otlp_{key} for {protocol} protocol{hint}", Check.OTLP)
        return endpoint
    base = changes["endpoint"] if draft.is_asked_for("otlp", "endpoint") else DEFAULT_ENDPOINTS[protocol]
    return base.rstrip("/") + expected.rstrip("/")


def _path_of(url: str) -> str:
    """The path of an http(s) URL; empty when it is none."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != -1
    except ValueError:
        return ""
    return (parts.path or "/") if is_url else ""
