# SPDX-License-Identifier: Apache-2.0
"""Writes small ONNX graphs whose weights stay in a file of their own.

A graph holds no weights: each tensor is the name of the file, an offset and a length. The format is protobuf
(onnx.proto of the ONNX project); the numbers of its fields stand in the functions below.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FLOAT, INT64 = 1, 7
IR_VERSION, OPSET = 9, 20
MAX_HEADER_BYTES = 1 << 20

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_TYPES_BY_NAME = {"F32": FLOAT, "I64": INT64}

Attribute = int | float


class Weight(NamedTuple):
    """One tensor of a safetensors file: where its bytes are."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    length: int


def read_weights(path: Path) -> dict[str, Weight]:
    """The tensors of a safetensors file, by name; raises ValueError if it is none."""
    with path.open("rb") as file:
        size = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))[0]
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} is no safetensors file")
        header = json.loads(file.read(size))
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _read_weight(name, entry, 8 + size) for name, entry in entries.items()}


def _read_weight(name: str, entry: Mapping[str, object], base: int) -> Weight:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            sizes = tuple(int(str(size)) for size in shape)
            return Weight(name, _TYPES_BY_NAME.get(kind, 0), sizes, base + start, end - start)
    raise ValueError(f"tensor {name} has no place in the file")


class GraphWriter:
    """Collects nodes and tensors; every method that adds one returns its name, for the next to use."""

    def __init__(self, location: str, weights: Mapping[str, Weight]) -> None:
        self._location = location
        self._weights = weights
        self._used: set[str] = set()
        self._nodes: list[bytes] = []
        self._tensors: list[bytes] = []
        self._ends: list[bytes] = []

    def input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        """An input of the graph; words in the shape are sizes that are known when it runs."""
        self._ends.append(_field(11, _value(name, kind, shape)))
        return name

    def output(self, name: str, kind: int, shape: Sequence[str | int]) -> None:
        """An output of the graph."""
        self._ends.append(_field(12, _value(name, kind, shape)))

    def weight(self, name: str) -> str:
        """A tensor of the safetensors file."""
        if name not in self._used:
            self._used.add(name)
            self._tensors.append(_external(self._weights[name], self._location))
        return name

    def constant(self, values: Sequence[int]) -> str:
        """A list of whole numbers inside the graph."""
        name = f"constant_{len(self._tensors)}"
        raw = struct.pack(f"<{len(values)}q", *values)
        self._tensors.append(_number(1, len(values)) + _number(2, INT64) + _text(8, name) + _field(9, raw))
        return name

    def node(self, operation: str, inputs: Sequence[str], name: str = "", **attributes: Attribute) -> str:
        """An operation with one result; `domain:Operation` is one that only onnxruntime has."""
        name = name or f"node_{len(self._nodes)}"
        domain, _, kind = operation.rpartition(":")
        parts = [*(_text(1, one) for one in inputs), _text(2, name), _text(4, kind)]
        parts += [_field(5, _attribute(key, value)) for key, value in attributes.items()]
        self._nodes.append(b"".join([*parts, _text(7, domain)]))
        return name

    def finish(self) -> bytes:
        """The model: what onnxruntime loads."""
        nodes = [_field(1, one) for one in self._nodes]
        tensors = [_field(5, one) for one in self._tensors]
        graph = b"".join([*nodes, _text(2, "lockgate"), *tensors, *self._ends])
        sets = [_text(1, domain) + _number(2, version) for domain, version in (("", OPSET), ("com.microsoft", 1))]
        return b"".join([_number(1, IR_VERSION), _field(7, graph), *(_field(8, one) for one in sets)])


def _external(weight: Weight, location: str) -> bytes:
    place = {"location": location, "offset": str(weight.offset), "length": str(weight.length)}
    dims = [_number(1, size) for size in weight.shape]
    entries = [_field(13, _text(1, key) + _text(2, value)) for key, value in place.items()]
    return b"".join([*dims, _number(2, weight.type), _text(8, weight.name), *entries, _number(14, 1)])


def _value(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    sizes = [_field(1, _number(1, one) if isinstance(one, int) else _text(2, one)) for one in shape]
    tensor = _number(1, kind) + _field(2, b"".join(sizes))
    return _text(1, name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _text(1, name) + _key(2, _FIXED32) + struct.pack("<f", value) + _number(20, 1)
    return _text(1, name) + _number(3, value) + _number(20, 2)


def _text(number: int, words: str) -> bytes:
    return _field(number, words.encode())


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
