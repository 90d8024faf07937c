# SPDX-License-Identifier: Apache-2.0
"""The package ships every data file that lies in it, and tables are read strictly."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from lockgate.data_files import Table, fill_parts, fill_pattern, join_lines, read_table, split_words
from tests.rules.tree import PACKAGE, ROOT, list_files

PATTERNS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["lockgate"]


class Words(Table, frozen=True):
    words: str


def test_every_file_of_the_package_is_shipped() -> None:
    shipped = {path for pattern in PATTERNS for path in PACKAGE.glob(pattern)}
    files = [path for path in list_files() if path.is_relative_to(PACKAGE) and path.suffix != ".py"]
    assert files
    assert [path.name for path in files if path not in shipped] == []


def test_every_table_says_what_it_is() -> None:
    tables = [path for path in list_files() if path.is_relative_to(PACKAGE) and path.suffix == ".toml"]
    assert tables
    assert [path.name for path in tables if not path.read_text("utf-8").startswith("# ")] == []


def test_a_table_is_read_in_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "words.toml"
    path.write_text("# Words.\nwords = '''\n    one two\n    three\n'''\n", encoding="utf-8")
    assert split_words(read_table(path, Words).words) == {"one", "two", "three"}


@pytest.mark.parametrize("text", ["words = 1", "", "words = 'a'\nword = 'b'"])
def test_a_table_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "words.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(msgspec.ValidationError):
        read_table(path, Words)


def test_line_breaks_and_indentation_are_no_part_of_a_pattern() -> None:
    assert join_lines("    a b\n        |c\n    |d") == "a b|c|d"


def test_parts_stand_in_patterns_and_in_later_parts() -> None:
    parts = fill_parts([("digit", r"\d"), ("pair", "{digit}{2}")])
    assert fill_pattern(r"x{pair}{1,3}", parts) == r"x\d{2}{1,3}"


def test_a_part_that_no_file_names_is_refused() -> None:
    with pytest.raises(KeyError):
        fill_pattern("{other}", {"digit": r"\d"})
