# SPDX-License-Identifier: Apache-2.0
"""Nothing in the repository depends on the machine it was made on; the papers are complete."""

import re
from importlib.metadata import requires

import pytest

from lockgate import __version__
from tests.rules.tree import ROOT, read_texts

# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|Users|home/(?!someone\b)\w+)/\w")
REGISTRY_HOST = re.compile(r"//\S+/\+?[s]imple\b|--(?:extra-)?index-[u]rl|files\.python[h]osted|[p]ypi\.org")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
DECISIONS = ROOT / "docs" / "decisions"


def find_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in read_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_path_of_a_machine_is_in_the_repository() -> None:
    assert find_lines(MACHINE_PATH) == []


def test_no_package_index_is_in_the_repository() -> None:
    assert find_lines(REGISTRY_HOST) == []


def test_nothing_is_left_unfinished() -> None:
    assert find_lines(UNFINISHED) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, "see " + "/root" + "/notes.txt"),
        (MACHINE_PATH, '"' + "/home" + '/ana/lockgate"'),
        (REGISTRY_HOST, "--index-" + "url http://x"),
        (REGISTRY_HOST, "https://py" + "pi.org/project/x"),
        (REGISTRY_HOST, "https://mirror.example/si" + "mple/x"),
        (REGISTRY_HOST, "http://mirror.example:8080/" + "root/pypi/+" + "simple"),
        (UNFINISHED, "# TO" + "DO: later"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize("line", ["~/root/x", "https://example.org/project/nupunkt/", "POST /api/v2/text", "a/work/b"])
def test_the_patterns_leave_ordinary_lines_alone(line: str) -> None:
    assert not any(pattern.search(line) for pattern in (MACHINE_PATH, REGISTRY_HOST, UNFINISHED))


def test_decision_records_are_numbered_and_indexed() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    names = sorted(path.name for path in DECISIONS.glob("*.md") if path.name != "README.md")
    numbers = [name[:4] for name in names]
    assert all(number.isdigit() for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert re.findall(r"\]\((\d{4}-[\w.-]+\.md)\)", index) == names


def test_decision_records_have_the_same_three_parts() -> None:
    for path in DECISIONS.glob("0*.md"):
        heads = re.findall(r"^(#+ .+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert heads[0].startswith(f"# {path.name[:4]} "), path.name
        assert heads[1:] == ["## Context", "## Decision", "## Consequence"], path.name


def test_decision_records_named_in_the_code_exist() -> None:
    for name, text in read_texts():
        for record in re.findall(r"docs/decisions/(\d{4}-[\w-]+\.md)", text):
            assert (DECISIONS / record).exists(), f"{name} names {record}"


def test_the_changelog_has_the_current_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\]", text, re.MULTILINE)


def test_links_between_pages_lead_somewhere() -> None:
    lost = []
    for name, text in read_texts():
        if not name.endswith(".md"):
            continue
        for link in ("".join(found) for found in LINK.findall(text)):
            target, _, part = link.partition("#")
            if "://" in link:
                continue
            path = (ROOT / name).parent / target if target else ROOT / name
            if not path.exists() or (part and part not in anchors(path.read_text(encoding="utf-8"))):
                lost.append(f"{name}: {link}")
    assert lost == []


def anchors(text: str) -> set[str]:
    """The anchors that headings get."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_the_notice_names_every_dependency() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8").lower()
    needed = [line for line in requires("lockgate") or [] if "extra ==" not in line]
    names = [re.split(r"[^\w.-]", line)[0].lower() for line in needed]
    assert names
    assert [name for name in names if name not in notice] == []
