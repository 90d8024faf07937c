# SPDX-License-Identifier: Apache-2.0
"""`requirements.lock` serves every Python that we claim: it is resolved for each, and nothing is installed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.rules.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = ROOT / "requirements.lock"
VERSIONS = [
    version
    for one in PROJECT["classifiers"]
    if (version := one.rpartition(" :: ")[2]).startswith("3.") and one.startswith("Programming Language")
]
UV = Path(sys.executable).with_name("uv")
NO_INDEX = "Failed to fetch"


def resolve(lock: Path, version: str, target: Path) -> subprocess.CompletedProcess[str]:
    """Asks the package index what would be installed, from wheels only."""
    options = ["--dry-run", "--python-version", version, "--only-binary", ":all:", "--require-hashes", "--no-config"]
    command = [str(UV), "pip", "install", *options, "--target", str(target), "-r", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if NO_INDEX in done.stderr:
        pytest.skip("the package index cannot be reached")
    return done


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lock_is_complete_for_each_python(version: str, tmp_path: Path) -> None:
    done = resolve(LOCK, version, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_found(tmp_path: Path) -> None:
    text = re.sub(r"^fasttext-predict-v2==.*\n(?:    .*\n)*", "", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    planted = tmp_path / "planted.lock"
    planted.write_text(text, encoding="utf-8")
    assert resolve(planted, "3.13", tmp_path).returncode == 0
    assert resolve(planted, "3.14", tmp_path).returncode != 0


def test_the_lock_has_a_fitting_version_of_everything_that_the_project_asks_for() -> None:
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^ ]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        pins.setdefault(name, []).append(version)
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    for requirement in map(Requirement, asked):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert pins.get(name), f"{requirement}: run `make lock`"
        assert all(map(requirement.specifier.contains, pins[name])), f"{requirement}: run `make lock`"


def test_the_versions_that_we_claim_are_those_that_make_knows() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^VERSIONS := (.+)$", makefile, re.MULTILINE)
    assert found is not None
    assert found[1].split() == VERSIONS
