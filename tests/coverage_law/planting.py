# SPDX-License-Identifier: Apache-2.0
"""Puts a marked string at every place of a JSON value: in each text, as each key, and as an unknown field."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeVar

MARK = "zebrafish7"
T = TypeVar("T")
Path = tuple[str | int, ...]


class Planted(NamedTuple):
    """A value with the mark in it, and where it is."""

    place: str
    value: Any
    is_key: bool = False


def plant_everywhere(value: Any) -> Iterator[Planted]:
    """The value with the mark at each place, one place at a time."""
    for path, found in _walk(value):
        if isinstance(found, str):
            yield Planted(_describe(path), _put(value, path, MARK))
            yield Planted(f"in {_describe(path)}", _put(value, path, f"{found} {MARK}"))
        elif isinstance(found, dict):
            yield Planted(f"key of {_describe(path)}", _put(value, path, {**found, MARK: "x"}), is_key=True)
            yield Planted(f"field of {_describe(path)}", _put(value, path, {**found, "extra": MARK}))
            deep = {"extra": [{"a": [1, {"b": MARK}]}]}
            yield Planted(f"deep field of {_describe(path)}", _put(value, path, {**found, **deep}))
        elif isinstance(found, list):
            yield Planted(f"item of {_describe(path)}", _put(value, path, [*found, MARK]))
        else:
            yield Planted(f"{type(found).__name__} {_describe(path)}", _put(value, path, MARK))


def plant_at_random(value: Any, random: Random) -> Planted:
    """The value with some fields more, and the mark at one place of all."""
    for _ in range(random.randrange(3)):
        objects = [(path, found) for path, found in _walk(value) if isinstance(found, dict)]
        path, found = random.choice(objects)
        value = _put(value, path, {**found, random.choice(_KEYS): _build(random, 0)})
    return random.choice(list(plant_everywhere(value)))


def draw(cases: Iterable[T], most: int, random: Random) -> list[T]:
    """So many of the cases, all if there are no more."""
    listed = list(cases)
    return random.sample(listed, most) if len(listed) > most else listed


_KEYS = ("name", "text", "content", "type", "id", "url", "data", "refusal", "metadata", "x_note", "annotations", "role")
_VALUES: tuple[Any, ...] = ("", "a", "text", "user", "image_url", 0, 1.5, True, None)


def _build(random: Random, depth: int) -> Any:
    kind = random.randrange(4) if depth < 3 else 0
    if kind == 1:
        return [_build(random, depth + 1) for _ in range(random.randrange(3))]
    if kind >= 2:
        return {random.choice(_KEYS): _build(random, depth + 1) for _ in range(random.randrange(3))}
    return random.choice(_VALUES)


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        yield from _walk(inner, (*path, key))


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


def _describe(path: Path) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".") or "the body"
