# SPDX-License-Identifier: Apache-2.0
"""The weight files that tests read: `make test` calls `lockgate setup` before, no test downloads anything."""

import os
from pathlib import Path

import pytest

from lockgate.models.weights import find_weights

ROOT = Path(__file__).resolve().parents[1]


def require_weights(name: str = "minilm") -> Path:
    """The folder of a package's weights; a test without them fails, it is not skipped."""
    data_dir = Path(os.environ.get("LOCKGATE_DATA_DIR") or ROOT / ".lockgate")
    folder = find_weights(data_dir, name)
    if folder is None:
        pytest.fail(f"no weights of `{name}` in {data_dir}: run `make setup`", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def weights_dir() -> Path:
    """The weights of the embedder."""
    return require_weights()
