# SPDX-License-Identifier: Apache-2.0
"""Parses YAML (the 1.2 core schema) into plain values, limits depth and size, and lists duplicate keys."""

import re
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 64
MAX_NODES = 200_000
TAG = "tag:yaml.org,2002:"


class BadYaml(ValueError):
    """The text is not YAML that Lockgate accepts; the message has line and column if they are known."""


class Duplicate(NamedTuple):
    """A key that occurs twice in a map."""

    path: tuple[str, ...]
    first_line: int
    line: int


class _Composer(yaml.SafeLoader):
    """Composes YAML nodes, at most MAX_DEPTH levels deep."""

    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadYaml(f"nested deeper than {MAX_DEPTH} levels{_place(self.get_mark())}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Composer.yaml_implicit_resolvers = {}  # removes those of YAML 1.1
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
    ("merge", "<<", ["<"]),
):
    _Composer.add_implicit_resolver(TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def parse_yaml(text: str) -> tuple[Any, list[Duplicate]]:
    """Return the value of the text, and its duplicate keys; the last one of each counts."""
    if bad := yaml.reader.Reader.NON_PRINTABLE.search(text):
        raise BadYaml(f"a character that YAML does not allow at line {text.count(chr(10), 0, bad.start()) + 1}")
    loader = _Composer(text)
    try:
        node = loader.get_single_node()
        builder = _Builder()
        return (builder.build(node, (), 0) if node is not None else None), builder.duplicates
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadYaml(f"{error.problem or error.context}{_place(mark)}") from error
    except BadYaml:
        raise
    except (ValueError, OverflowError) as error:  # an escape beyond Unicode
        raise BadYaml(str(error)) from error
    finally:
        loader.dispose()


def _place(mark: yaml.Mark | None) -> str:
    return f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""


class _Builder:
    """Builds plain values from nodes; each use of an alias counts as all its values."""

    def __init__(self) -> None:
        self.duplicates: list[Duplicate] = []
        self._count = 0

    def build(self, node: Node, path: tuple[str, ...], depth: int) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_NODES:
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_NODES} values"
            raise BadYaml(f"{what}, aliases counted{_place(node.start_mark)}")
        if isinstance(node, MappingNode) and node.tag == TAG + "map":
            return self._build_map(node, path, depth)
        if isinstance(node, SequenceNode) and node.tag == TAG + "seq":
            return [self.build(item, (*path, str(i)), depth + 1) for i, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return _build_scalar(node)
        raise BadYaml(f"tag `{node.tag}` is not supported{_place(node.start_mark)}")

    def _build_map(self, node: MappingNode, path: tuple[str, ...], depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise BadYaml(f"a key must be a string{_place(key_node.start_mark)}")
            key, line = key_node.value, key_node.start_mark.line + 1
            value = self.build(value_node, (*path, key), depth + 1)
            if key in lines:
                self.duplicates.append(Duplicate((*path, key), lines[key], line))
            lines.setdefault(key, line)
            if key_node.tag == TAG + "merge":
                merged.update(_merge(value, key_node))
            else:
                built[key] = value
        return {**merged, **built}


def _merge(value: object, key_node: Node) -> dict[str, Any]:
    maps = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in maps):
        raise BadYaml(f"`<<` needs a map or a list of maps{_place(key_node.start_mark)}")
    return {key: item[key] for item in reversed(maps) for key in item}


def _build_scalar(node: ScalarNode) -> str | int | float | bool | None:
    text: str = node.value
    match node.tag.removeprefix(TAG):
        case "str" | "merge":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            return _read_number(node, lambda digits: int(digits[2:] if base != 10 else digits, base))
        case "float":
            return _read_number(
                node, lambda digits: float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
            )
    raise BadYaml(f"tag `{node.tag}` is not supported{_place(node.start_mark)}")


def _read_number(node: ScalarNode, parse: Any) -> int | float:
    try:
        number: int | float = parse(node.value)
    except ValueError as error:
        raise BadYaml(f"not a usable number{_place(node.start_mark)}") from error
    return number
