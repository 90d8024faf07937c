# SPDX-License-Identifier: Apache-2.0
"""Settings that stay as they are until a restart, and the place of the pid file."""

import dataclasses
from pathlib import Path

from lockgate.config.settings import Settings

# Sections as a whole, and keys of sections.
_FIXED_SECTIONS = ("data_dir", "log", "quiet", "otlp")
_FIXED_KEYS = {
    "server": (
        "host", "http_port", "health_port", "grpc_port", "workers", "shutdown_timeout_s", "pid_file", "tls", "trace",
    ),
    "limits": ("agent_request_bytes",),
}  # fmt: skip
PID_FILE = "lockgate.pid"


def keep_fixed(running: Settings, given: Settings) -> Settings:
    """Return the given settings with the running values of all that only a restart can change."""
    changes = {name: getattr(running, name) for name in (*_FIXED_SECTIONS, "listeners")}
    for section, keys in _FIXED_KEYS.items():
        old, new = getattr(running, section), getattr(given, section)
        changes[section] = dataclasses.replace(new, **{key: getattr(old, key) for key in keys})
    return dataclasses.replace(given, **changes)


def list_fixed(running: Settings, given: Settings) -> list[str]:
    """Return a warning for each changed setting that only a restart can change."""
    found = [name for name in _FIXED_SECTIONS if getattr(running, name) != getattr(given, name)]
    for section, keys in _FIXED_KEYS.items():
        old, new = getattr(running, section), getattr(given, section)
        found += [f"{section}.{key}" for key in keys if getattr(old, key) != getattr(new, key)]
    warnings = [f"`{key}` has changed: it takes effect at the next start" for key in found]
    if given.agents and running.listeners.agent is None:
        warnings.append("the agents' gRPC port opens at the next start")
    return warnings


def find_pid_file(settings: Settings) -> Path | None:
    """Return the place of the pid file; None if there is none."""
    if settings.server.pid_file is not None:
        return settings.server.pid_file
    return settings.data_dir / PID_FILE if settings.agents else None
