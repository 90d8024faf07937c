# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md is the reference: it has every setting as the code has it."""

import re
from pathlib import Path

import pytest

from lockgate.config.environment import AGENT_VARIABLES, AGGREGATOR_VARIABLES
from lockgate.config.schema import Setting, list_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = {line.split("`")[1]: line.replace("\\|", "|") for line in PAGE.splitlines() if line.startswith("| `")}


@pytest.mark.parametrize("setting", list_settings(), ids=lambda setting: setting.path)
def test_every_setting_has_its_row(setting: Setting) -> None:
    row = ROWS[setting.path]
    for cell in (setting.type, setting.default, setting.help):
        assert f"| {cell} |".replace("`", "") in row.replace("`", "")
    for variable in setting.variables:
        assert f"`{variable}`" in row


def test_no_row_describes_a_setting_that_does_not_exist() -> None:
    assert (
        ROWS.keys()
        == {setting.path for setting in list_settings()} | AGGREGATOR_VARIABLES.keys() | AGENT_VARIABLES.keys()
    )


def test_every_other_variable_is_mentioned() -> None:
    for name in (*AGGREGATOR_VARIABLES, "ORCHESTRATOR_CONFIG", "XDG_DATA_HOME"):
        assert name in PAGE
    for name, meaning in AGENT_VARIABLES.items():
        assert ROWS[name] == f"| `{name}` | {meaning} |"


def test_every_example_is_linked_and_every_link_exists() -> None:
    links = set(re.findall(r"\]\(\.\./(examples/[^)]*)\)", PAGE))
    assert links == {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.name != "README.md"}


def test_settings_have_a_help_text_and_a_path_of_their_own() -> None:
    settings = list_settings()
    assert all(setting.help for setting in settings)
    assert len({setting.path for setting in settings}) == len(settings)
