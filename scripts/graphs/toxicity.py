# SPDX-License-Identifier: Apache-2.0
"""The computation of toxic-comment-classifier as an ONNX graph that points into its weight file.

The file is HDF5. It is pinned by its hash, and its arrays are neither compressed nor chunked: a table of their places
is enough, no reader of the format is needed.
"""

from lockgate.detectors.toxicity.detector import FILE_NAME, LABELS, WORDS
from scripts.graphs.onnx_writer import FLOAT, INT64, GraphWriter, Weight

UNITS = 50

_FORWARD, _BACKWARD = "forward", "backward"
_PLACES: dict[str, tuple[int, tuple[int, ...]]] = {
    "embedding": (6_608, (WORDS, 50)),
    f"{_FORWARD}/kernel": (4_099_192, (50, 4 * UNITS)),
    f"{_FORWARD}/recurrent": (4_141_240, (UNITS, 4 * UNITS)),
    f"{_FORWARD}/bias": (4_095_264, (4 * UNITS,)),
    f"{_BACKWARD}/kernel": (4_012_416, (50, 4 * UNITS)),
    f"{_BACKWARD}/recurrent": (4_054_464, (UNITS, 4 * UNITS)),
    f"{_BACKWARD}/bias": (4_094_464, (4 * UNITS,)),
    "inner/kernel": (4_187_320, (2 * UNITS, 50)),
    "inner/bias": (4_096_064, (50,)),
    "outer/kernel": (4_211_664, (50, len(LABELS))),
    "outer/bias": (4_096_264, (len(LABELS),)),
}


def build_graph() -> bytes:
    """The graph: word numbers in, a column per text, and one probability per label out, a row per text."""
    graph = GraphWriter(FILE_NAME, {name: _place(name) for name in _PLACES})
    ids = graph.input("ids", INT64, ("words", "texts"))
    words = graph.node("Gather", [graph.weight("embedding"), ids])
    last, before_first, first = graph.constant([-1]), graph.constant([-(1 << 31)]), graph.constant([0])
    turned = graph.node("Slice", [words, last, before_first, first, last])
    order = graph.constant(_order_of_gates())
    strongest = [_read(graph, words, _FORWARD, order), _read(graph, turned, _BACKWARD, order)]
    inner = graph.node("Relu", [_linear(graph, graph.node("Concat", strongest, axis=1), "inner")])
    graph.node("Sigmoid", [_linear(graph, inner, "outer")], "scores")
    graph.output("scores", FLOAT, ("texts", len(LABELS)))
    return graph.finish()


def _place(name: str) -> Weight:
    offset, shape = _PLACES[name]
    length = 4
    for size in shape:
        length *= size
    return Weight(name, FLOAT, shape, offset, length)


def _order_of_gates() -> list[int]:
    """Keras keeps input, forget, cell, output; ONNX wants input, output, forget, cell."""
    return [gate * UNITS + unit for gate in (0, 3, 1, 2) for unit in range(UNITS)]


def _read(graph: GraphWriter, words: str, direction: str, order: str) -> str:
    """Reads the words in one direction; of each unit its strongest moment is kept."""
    node, first = graph.node, graph.constant([0])

    def arrange(name: str) -> str:
        turned = node("Transpose", [graph.weight(f"{direction}/{name}")])
        return node("Unsqueeze", [node("Gather", [turned, order], axis=0), first])

    bias = node("Gather", [graph.weight(f"{direction}/bias"), order], axis=0)
    biases = node("Unsqueeze", [node("Concat", [bias, node("Sub", [bias, bias])], axis=0), first])
    states = node("LSTM", [words, arrange("kernel"), arrange("recurrent"), biases], hidden_size=UNITS)
    return node("ReduceMax", [states, graph.constant([0, 1])], keepdims=0)


def _linear(graph: GraphWriter, hidden: str, name: str) -> str:
    return graph.node("Gemm", [hidden, graph.weight(f"{name}/kernel"), graph.weight(f"{name}/bias")])
