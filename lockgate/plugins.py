# SPDX-License-Identifier: Apache-2.0
"""Finds the factories of parts, by entry point or by `module:attribute`, and opens their parts."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lockgate.errors import ConfigError
from lockgate.interfaces import ContextFactory, PartContext


def find_factory(group: str, name: str) -> Any:
    """The factory called `name` in the group, or at `module:attribute`."""
    if ":" in name:
        place = EntryPoint(name, name, group)
    elif found := entry_points(group=group, name=name):
        place = next(iter(found))
    else:
        kind = group.removeprefix("lockgate.").removesuffix("s").replace("_", " ")
        kind = "session store" if kind == "session" else kind
        known = ", ".join(sorted(entry.name for entry in entry_points(group=group))) or "none"
        raise ConfigError(f"no {kind} `{name}`; known: {known}", source="plugins", key=name)
    try:
        return place.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load `{place.value}`: {error}", source="plugins", key=name) from error


@asynccontextmanager
async def open_plugin(
    group: str, name: str, options: Mapping[str, Any], context: PartContext, raises: tuple[type[Exception], ...] = ()
) -> AsyncIterator[Any]:
    """Opens the part of a factory. Errors of the factory become ConfigError, except those in `raises`."""
    async with AsyncExitStack() as stack:
        try:
            factory: Any = find_factory(group, name)
            opening = factory(options, context) if isinstance(factory, ContextFactory) else factory(options)
            part = await stack.enter_async_context(opening)
        except ConfigError:
            raise
        except raises:
            raise
        except Exception as error:
            message = f"`{name}` cannot be opened: {type(error).__name__}: {error}"
            raise ConfigError(message, source="plugins", key=name) from error
        yield part


def is_known(group: str, name: str) -> bool:
    """Whether a part of that name is installed; imports nothing."""
    return bool(entry_points(group=group, name=name))


def locate(group: str, name: str) -> str:
    """The import path of a part as text for users; imports nothing."""
    if ":" in name:
        return name
    for entry in entry_points(group=group, name=name):
        return entry.value
    return "not found"


def is_foreign(group: str, name: str) -> bool:
    """Whether the part is not one of Lockgate's own package; imports nothing."""
    return not locate(group, name).startswith(f"{__package__}.")


def place_fault(error: ConfigError, source: str, key: str) -> ConfigError:
    """The fault of a part with the part's key in the settings."""
    place = f"{key}.options.{error.key}" if error.source == "options" else f"{key}.embedded"
    return ConfigError(error.message, source=source, key=place)
