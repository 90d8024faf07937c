# SPDX-License-Identifier: Apache-2.0
"""Finds the factories of parts: by entry point, or by `module:attribute`.

Built-in parts come in by the same door. Nothing is imported that the settings do not name.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lockgate.errors import ConfigError

GROUPS = (
    "lockgate.chunkers",
    "lockgate.data_sources",
    "lockgate.detectors",
    "lockgate.models",
    "lockgate.sessions",
)


def find_factory(group: str, name: str) -> Any:  # noqa: ANN401 - the group says of what: interfaces.Factory[Detector], ...
    """The factory called `name` in the group, or at `module:attribute`."""
    if ":" in name:
        place = EntryPoint(name, name, group)
    elif found := entry_points(group=group, name=name):
        place = next(iter(found))
    else:
        raise ConfigError(f"no {_kind(group)} `{name}`; known: {_known(group)}", source="plugins", key=name)
    try:
        return place.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load `{place.value}`: {error}", source="plugins", key=name) from error


def is_known(group: str, name: str) -> bool:
    """Whether a part of that name is installed; nothing is imported."""
    return bool(entry_points(group=group, name=name))


def locate(group: str, name: str) -> str:
    """Where a part would come from, in words for people; nothing is imported."""
    if ":" in name:
        return name
    for entry in entry_points(group=group, name=name):
        return entry.value
    return "not found"


def _kind(group: str) -> str:
    return group.removeprefix("lockgate.").removesuffix("s").replace("_", " ")


def _known(group: str) -> str:
    return ", ".join(sorted(entry.name for entry in entry_points(group=group))) or "none"
