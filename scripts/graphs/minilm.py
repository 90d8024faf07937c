# SPDX-License-Identifier: Apache-2.0
"""The computation of all-MiniLM-L6-v2 as an ONNX graph that points into its weight file."""

from pathlib import Path

from lockgate.models.minilm import DIMENSIONS as WIDTH
from scripts.graphs.onnx_writer import FLOAT, INT64, GraphWriter, read_weights

LAYERS, HEADS = 6, 12
EPSILON = 1e-12
_INT32 = 6


def build_graph(weights: Path) -> bytes:
    """The graph: token numbers and their mask in, one vector of length 1 per row out."""
    graph = GraphWriter(weights.name, read_weights(weights))
    ids = graph.input("ids", INT64, ("rows", "tokens"))
    mask = graph.input("mask", FLOAT, ("rows", "tokens"))
    bert = _Bert(graph, graph.node("Shape", [ids]), graph.node("Cast", [mask], to=_INT32))
    hidden = bert.embed(ids)
    for number in range(LAYERS):
        hidden = bert.transform(hidden, f"encoder.layer.{number}.")
    _pool(graph, bert.unfold(hidden), mask)
    return graph.finish()


def _pool(graph: GraphWriter, hidden: str, mask: str) -> None:
    """The mean over the tokens that count. Their sum points the same way, and only the direction is kept."""
    row = graph.node("Unsqueeze", [mask, graph.constant([1])])
    total = graph.node("Squeeze", [graph.node("MatMul", [row, hidden]), graph.constant([1])])
    graph.node("LpNormalization", [total], "vectors", axis=1, p=2)
    graph.output("vectors", FLOAT, ("rows", WIDTH))


class _Bert:
    """The layers. Rows are folded into one list of tokens wherever tokens do not look at each other."""

    def __init__(self, graph: GraphWriter, shape: str, mask: str) -> None:
        self._graph = graph
        self._mask = mask
        width = graph.constant([WIDTH])
        self._tokens = graph.node("Slice", [shape, graph.constant([1]), graph.constant([2])])
        self._unfolded = graph.node("Concat", [shape, width], axis=0)
        self._folded = graph.constant([-1, WIDTH])

    def embed(self, ids: str) -> str:
        """Word, place and kind of each token, added up; the kind is always the first."""
        node, weight, constant = self._graph.node, self._graph.weight, self._graph.constant
        words = node("Gather", [weight("embeddings.word_embeddings.weight"), ids])
        places = weight("embeddings.position_embeddings.weight")
        first = constant([0])
        place = node("Slice", [places, first, self._tokens, first])
        kind = node("Gather", [weight("embeddings.token_type_embeddings.weight"), first])
        total = node("Add", [words, node("Add", [place, kind])])
        return self._fold(self._normalise(total, "embeddings."))

    def transform(self, hidden: str, prefix: str) -> str:
        """One layer: tokens look at each other, then each for itself."""
        seen = self._linear(self._attend(hidden, f"{prefix}attention.self."), f"{prefix}attention.output.dense.")
        hidden = self._normalise(self._graph.node("Add", [seen, hidden]), f"{prefix}attention.output.")
        inner = self._graph.node("Gelu", [self._linear(hidden, f"{prefix}intermediate.dense.")])
        outer = self._linear(inner, f"{prefix}output.dense.")
        return self._normalise(self._graph.node("Add", [outer, hidden]), f"{prefix}output.")

    def unfold(self, hidden: str) -> str:
        """Rows of tokens again."""
        return self._graph.node("Reshape", [hidden, self._unfolded])

    def _fold(self, hidden: str) -> str:
        return self._graph.node("Reshape", [hidden, self._folded])

    def _attend(self, hidden: str, prefix: str) -> str:
        parts = [self.unfold(self._linear(hidden, f"{prefix}{one}.")) for one in ("query", "key", "value")]
        seen = self._graph.node("com.microsoft:MultiHeadAttention", [*parts, "", self._mask], num_heads=HEADS)
        return self._fold(seen)

    def _linear(self, hidden: str, prefix: str) -> str:
        weight = self._graph.weight
        return self._graph.node("Gemm", [hidden, weight(f"{prefix}weight"), weight(f"{prefix}bias")], transB=1)

    def _normalise(self, hidden: str, prefix: str) -> str:
        scale, shift = (self._graph.weight(f"{prefix}LayerNorm.{one}") for one in ("weight", "bias"))
        return self._graph.node("LayerNormalization", [hidden, scale, shift], axis=-1, epsilon=EPSILON)
