# SPDX-License-Identifier: Apache-2.0
"""Whatever a file, a variable or a flag says: settings that can be shown, or every fault."""

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.load import load_settings
from lockgate.config.report import render_check
from lockgate.config.schema import list_settings, options_of
from lockgate.config.settings import Settings
from lockgate.errors import ConfigFaults

WORDS = sorted({part for item in list_settings() for part in item.path.split(".") if "<" not in part})
VALUES = ["pii", "sentence", "text_contents", "whole_doc_chunker", "fms", "hold", "a.internal", "A_TOKEN", "http://a/"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(VALUES)
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
)
KEYS = st.sampled_from(WORDS) | st.sampled_from(["pii", "a", "A__B", "<<"])
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=25
)
DETECTORS = st.dictionaries(
    st.sampled_from(["pii", "b"]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("embedded", "service", "type", "options", "chunker_id"), TREES))
    | st.just({"embedded": "pii"}),
)
FILES = st.dictionaries(st.sampled_from(sorted(options_of(Settings))), TREES) | st.fixed_dictionaries(
    {"detectors": st.just({"pii": {"embedded": "pii"}}) | DETECTORS},
    optional={key: TREES for key in options_of(Settings) if key != "detectors"},
)
VARIABLES = st.dictionaries(
    st.sampled_from(sorted({name for item in list_settings() for name in item.variables}))
    | st.sampled_from(["LOCKGATE_X", "AGGREGATOR_HOST", "AGGREGATOR_PORT", "AGGREGATOR_DEBUG", "A_TOKEN"]),
    st.text(max_size=8) | st.sampled_from(VALUES) | TREES.map(repr),
    max_size=4,
)
FLAGS = st.dictionaries(st.sampled_from([item.path for item in list_settings()]), TREES, max_size=3)


def _load(data: bytes, environ: dict[str, str], flags: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_bytes(data)
        try:
            settings = load_settings(config_path=path, flags=flags, environ=environ)
        except ConfigFaults as error:
            shown = [str(error), *map(str, error.faults)]
        else:
            shown = [render_check(settings)]
        assert all(shown)


@given(FILES, VARIABLES, FLAGS)
def test_any_structure_gives_settings_or_faults(tree: Any, environ: dict[str, str], flags: dict[str, Any]) -> None:
    _load(yaml.safe_dump(tree).encode(), environ, flags)


@given(TREES)
def test_any_tree_gives_settings_or_faults(tree: Any) -> None:
    _load(yaml.safe_dump(tree).encode(), {}, {})


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_give_settings_or_faults(data: bytes) -> None:
    _load(data, {}, {})
