# SPDX-License-Identifier: Apache-2.0
"""Writes the ONNX graphs into the package: `make graphs`, after `make setup`."""

import os
from pathlib import Path

from lockgate.models.onnx_session import GRAPHS
from lockgate.models.weights import MINILM, weights_folder
from scripts.graphs import minilm, toxicity

ROOT = Path(__file__).resolve().parents[2]


def build_graphs(minilm_weights: Path) -> dict[str, bytes]:
    """The files that the package ships, by name; the folder has the weights of all-MiniLM-L6-v2."""
    return {
        "minilm.onnx": minilm.build_graph(minilm_weights / "model.safetensors"),
        "toxicity.onnx": toxicity.build_graph(),
    }


def main() -> None:
    """Writes every graph to its place."""
    data_dir = Path(os.environ.get("LOCKGATE_DATA_DIR") or ROOT / ".lockgate")
    for name, graph in build_graphs(weights_folder(data_dir, MINILM)).items():
        (GRAPHS / name).write_bytes(graph)


if __name__ == "__main__":
    main()
