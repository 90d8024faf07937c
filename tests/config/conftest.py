# SPDX-License-Identifier: Apache-2.0
"""One loader per test, with the working directory where no default config file is."""

from pathlib import Path

import pytest

from tests.config.config_cases import Loader


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.chdir(tmp_path)
    return Loader(tmp_path)
