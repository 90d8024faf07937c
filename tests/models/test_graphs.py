# SPDX-License-Identifier: Apache-2.0
"""The graphs in the package are those that `make graphs` writes, and hold no weights."""

from pathlib import Path

import pytest

from lockgate.models.onnx_session import GRAPHS, read_graph
from scripts.graphs.__main__ import build_graphs

MAX_GRAPH_BYTES = 64_000
NAMES = ("minilm.onnx", "toxicity.onnx")


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_in_the_package_is_what_the_tool_builds(weights_dir: Path, name: str) -> None:
    assert read_graph(name) == build_graphs(weights_dir)[name]


def test_the_package_has_no_other_graphs(weights_dir: Path) -> None:
    assert sorted(path.name for path in GRAPHS.iterdir()) == sorted(build_graphs(weights_dir))


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_has_no_room_for_weights(name: str) -> None:
    assert len(read_graph(name)) < MAX_GRAPH_BYTES
