# SPDX-License-Identifier: Apache-2.0
"""What commands ask for, and how detectors are named on the command line.

Decides the request that the playground's page makes, and what `ID=JSON` means. Refuses to know who answers, and
whether there are such detectors.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lockgate.config.refs import HERE
from lockgate.errors import ConfigError

LOWEST_SCORE: Final = 0.35  # of a document that counts, unless another is wished


def build_request(
    question: str,
    model: str,
    sources: Iterable[str],
    guards: Mapping[str, Any],
    lowest_score: float = LOWEST_SCORE,
) -> dict[str, Any]:
    """A question to a model of the instance that gets it, answered from its sources."""
    return {
        "prompt": question,
        "model": {"url": HERE, "slug": model},
        "data_sources": [{"url": HERE, "slug": one} for one in sources],
        **({"detectors": dict(guards)} if guards else {}),
        "citations": True,
        "similarity_threshold": lowest_score,
        "temperature": 0,
    }


def read_detector(word: str, flag: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of `NAME` or `NAME=JSON`, which was given with this flag; raises ConfigError."""
    name, _, raw = word.partition("=")
    try:
        params = json.loads(raw) if raw else {}
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", source=flag, key=name) from error
    if not isinstance(params, dict):
        raise ConfigError("parameters must be a JSON object", source=flag, key=name)
    return name, params
