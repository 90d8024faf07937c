# SPDX-License-Identifier: Apache-2.0
"""Lists every text of a request or an answer, so that none passes unread.

A table of FieldRules says, for each place of a wire format, how a string there is read. `survey` puts every string of
a JSON value into one of three groups: texts, which detectors read; values that cannot be read, such as images; and
technical strings, which are the keys that the table knows and the values of a closed list. A place that the table does
not know is read, key and value. Numbers, booleans and null pass.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

MAX_DEPTH = 200  # of a value; what lies deeper cannot be read
DEEP = "depth"  # the kind of values that lie too deep
KINDS = ("image", "audio", "file", "encrypted", "reference", "numbers")  # of other values that cannot be read

_SEALED = re.compile(r"[A-Za-z0-9+/=_.~-]{32,}")  # the letters of encrypted content, in base64 or a token
_BEGINS_JSON = re.compile(r"\s*[\[{]")
Path = tuple[str | int, ...]


class TextKind(Enum):
    """How a text is read, and the consequence of a finding in it."""

    CONTENT = auto()  # prose: masked in place
    JSON = auto()  # a string that holds JSON: its strings, keys and numbers are read, and it stays JSON when masked
    NAME = auto()  # key, name, id, schema: cannot be masked; a request with a finding is refused, an answer's drops it


class FieldText(NamedTuple):
    """A text at its place. `role` is that of its message, or empty. The text of a key has the path of its value."""

    path: Path
    text: str
    kind: TextKind
    role: str = ""


class Unreadable(NamedTuple):
    """A value that detectors cannot read: image, audio, file, encrypted, reference, numbers or depth."""

    path: Path
    kind: str


class Survey(NamedTuple):
    """All texts of a value, in their order, and the values that cannot be read."""

    texts: list[FieldText]
    unreadable: list[Unreadable]


@dataclass(eq=False)
class FieldRule:
    """What may stand at a place of a wire format. Items of a list follow the rule of the list, unless `items` is set.

    `keys` are the known keys of an object; other keys are read, and their values follow `others`. `values` are the
    technical values of a string. `unreadable` is the kind of a value that cannot be read; only if it looks encrypted
    for the kind `encrypted`. With `numbers`, a list of numbers stands for text. An object with `has_role` is a message.
    `json_roles` are the roles in whose messages a text that holds valid JSON is read as JSON.
    """

    kind: TextKind = TextKind.NAME
    keys: Mapping[str, "FieldRule"] = field(default_factory=dict)
    others: "FieldRule | None" = None  # None: read as names
    items: "FieldRule | None" = None
    values: frozenset[str] = frozenset()
    unreadable: str = ""
    numbers: bool = False
    has_role: bool = False
    json_roles: frozenset[str] = frozenset()


UNKNOWN = FieldRule()


def known(keys: str, rule: FieldRule = UNKNOWN) -> dict[str, FieldRule]:
    """Returns a rule for each of these keys, which are given as words."""
    return dict.fromkeys(keys.split(), rule)


def spread(kind: TextKind, keys: Mapping[str, FieldRule] | None = None) -> FieldRule:
    """Returns a rule by which all strings of a value are read alike, at any depth."""
    rule = FieldRule(kind, keys or {})
    rule.others = rule
    return rule


def technical(*values: str) -> FieldRule:
    """Returns the rule of a string with these values; others are read as names."""
    return FieldRule(values=frozenset(values))


def survey(value: Any, table: FieldRule, path: Path = (), role: str = "") -> Survey:
    """Returns all texts of a value, and what cannot be read; `path` and `role` are those of the value."""
    found = Survey([], [])
    waiting: list[tuple[Path, Any, FieldRule, str]] = [(path, value, table, role)]
    while waiting:
        path, one, rule, role = waiting.pop()
        if isinstance(one, str):
            _add_text(found, path, one, rule, role)
        elif isinstance(one, dict | list | tuple) and one:
            kind = _find_unreadable(one, rule, path)
            if kind:
                found.unreadable.append(Unreadable(path, kind))
            elif isinstance(one, dict):
                waiting += _list_fields(found, path, one, rule, role)
            else:
                items = rule.items or rule
                waiting += [((*path, at), one[at], items, role) for at in range(len(one) - 1, -1, -1)]
    return found


def _add_text(found: Survey, path: Path, text: str, rule: FieldRule, role: str) -> None:
    if not text or text in rule.values:
        return
    if rule.unreadable and (rule.unreadable != "encrypted" or _SEALED.fullmatch(text)):
        found.unreadable.append(Unreadable(path, rule.unreadable))
        return
    kind = rule.kind
    if kind is not TextKind.JSON and role in rule.json_roles and _holds_json(text):
        kind = TextKind.JSON
    found.texts.append(FieldText(path, text, kind, role))


def _find_unreadable(value: Any, rule: FieldRule, path: Path) -> str:
    if len(path) >= MAX_DEPTH:
        return DEEP
    if rule.unreadable and rule.unreadable != "encrypted":
        return rule.unreadable
    is_numbers = rule.numbers and isinstance(value, list | tuple) and any(_is_number(one) for one in value)
    return "numbers" if is_numbers else ""


def _list_fields(
    found: Survey, path: Path, value: Mapping[str, Any], rule: FieldRule, role: str
) -> list[tuple[Path, Any, FieldRule, str]]:
    """Returns the fields of an object, last first, and adds its unknown keys to the texts."""
    if rule.has_role:
        own = value.get("role")
        role = own if isinstance(own, str) and own in rule.keys["role"].values else ""
    fields = []
    others = rule.others or UNKNOWN
    for key, one in value.items():
        own_rule = rule.keys.get(key)
        place = (*path, key)
        if own_rule is None and key:
            found.texts.append(FieldText(place, key, TextKind.NAME, role))
        fields.append((place, one, own_rule or others, role))
    fields.reverse()
    return fields


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _holds_json(text: str) -> bool:
    if not _BEGINS_JSON.match(text):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def put_texts(value: Any, changes: Mapping[Path, str]) -> Any:
    """Returns a copy of a value with these texts replaced; it shares with the value all that did not change."""
    if not changes:
        return value
    return _put(value, [(path, text) for path, text in changes.items()], 0)


def _put(value: Any, changes: Sequence[tuple[Path, str]], depth: int) -> Any:
    if len(changes[0][0]) == depth:
        return changes[0][1]
    by_key: dict[str | int, list[tuple[Path, str]]] = {}
    for change in changes:
        by_key.setdefault(change[0][depth], []).append(change)
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    for key, inner in by_key.items():
        copied[key] = _put(value[key], inner, depth + 1)
    return copied


def drop_fields(value: Any, paths: Iterable[Path]) -> Any:
    """Returns a copy of a value without the fields at these paths; items of lists become null."""
    for path in paths:
        value = _drop(value, path, 0)
    return value


def _drop(value: Any, path: Path, depth: int) -> Any:
    key: Any = path[depth]
    if isinstance(value, dict):
        if key not in value:
            return value  # dropped before
        if len(path) == depth + 1:
            return {name: one for name, one in value.items() if name != key}
    elif not isinstance(value, list):
        return value
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = None if len(path) == depth + 1 else _drop(value[key], path, depth + 1)
    return copied


def describe(path: Path, table: FieldRule | None = None, *, has_positions: bool = True) -> str:
    """Returns a path in words, such as `messages[0].content`. With the table, `*` stands for keys that it lacks.

    Without positions, all items of a list have the same words.
    """
    words = ""
    rule = table
    for step in path:
        if isinstance(step, int):
            words += f"[{step}]" if has_positions else "[]"
            rule = rule and (rule.items or rule)
        else:
            own = rule.keys.get(step) if rule is not None else None
            shown = step if table is None or own is not None else "*"
            words += f".{shown}" if words else shown
            rule = own or (rule and rule.others) or (None if table is None else UNKNOWN)
    return words
