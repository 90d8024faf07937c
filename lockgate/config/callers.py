# SPDX-License-Identifier: Apache-2.0
"""The `callers` section: names, and keys that lie in environment variables.

Decides which keys can be used. No fault repeats a key, nor what may be one in the wrong place.
"""

from types import MappingProxyType

from lockgate.config.draft import Draft, build, read_fields, read_secret
from lockgate.config.options import Secret
from lockgate.config.settings import CallerSettings

SECTION = "callers"


def read_callers(draft: Draft) -> MappingProxyType[str, CallerSettings | None]:
    """The callers by name, in the order of the file."""
    entries = draft.take_map(draft.tree.get(SECTION), (SECTION,))
    holders: dict[Secret, str] = {}
    return MappingProxyType({name: _read_caller(draft, name, raw, holders) for name, raw in entries.items()})


def _read_caller(draft: Draft, name: str, value: object, holders: dict[Secret, str]) -> CallerSettings | None:
    path = (SECTION, name)
    if not name:
        draft.blame(path, "a caller needs a name")
    found = read_fields(draft, CallerSettings, draft.take_map(value, path), path)
    key = read_secret(draft, found["key_env"], (*path, "key_env"), "key") if "key_env" in found else None
    if key is None:
        return None
    holder = holders.setdefault(key, name)
    if holder != name:
        draft.blame((*path, "key_env"), f"has the same key as `{holder}`")
    caller: CallerSettings | None = build(CallerSettings, {**found, "name": name, "key": key})
    return caller
