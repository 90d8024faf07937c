# SPDX-License-Identifier: Apache-2.0
"""The tools of all clients: their descriptions and what they return, from `tools.json`."""

import json
from pathlib import Path
from typing import Any

_FILE = json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))
SCHEMAS: list[Any] = _FILE["schemas"]
RESULTS: dict[str, str] = _FILE["results"]
