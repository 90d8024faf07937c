# SPDX-License-Identifier: Apache-2.0
"""The documentation site: it builds without network, loads nothing from elsewhere, and all of it can be reached."""

import posixpath
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
import sys
def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError(f"the build asks the network: {args}")
sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli(["build", "--strict", "--site-dir", sys.argv[1]])
"""
LOADS = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
}


class Outline(HTMLParser):
    """What a page loads, where it leads, which places it has, and the words of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.nav_links: list[str] = []
        self.ids: set[str] = set()
        self.paragraphs: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        for name, value in attrs:
            if (tag, name) in LOADS:
                self.loads.append(value or "")
            elif (tag, name) == ("a", "href"):
                (self.nav_links if "nav" in self.inside else self.links).append(value or "")
            elif name == "id":
                self.ids.add(value or "")
        if tag == "p":
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            continue

    def handle_data(self, data: str) -> None:
        if "p" in self.inside and "code" not in self.inside:
            self.paragraphs[-1] += data


def build(clone: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BUILD, str(folder)]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Outline]:
    """Every page by its path in the site."""
    found = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return {name: Outline(text) for name, text in found.items()}


def resolve(page: str, link: str) -> str:
    """The file of the site that a link of a page means."""
    path = unquote(urlsplit(link).path)
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page


def is_elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def test_every_page_of_the_repository_is_in_the_site(pages: dict[str, Outline]) -> None:
    names = [path.relative_to(ROOT).with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    expected = {"README.html", "CONTRIBUTING.html", "CHANGELOG.html", "examples/README.html", *names}
    assert {name.replace("README.html", "index.html") for name in expected} <= set(pages)


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[str, Outline]) -> None:
    loads = [(page, one) for page, outline in pages.items() for one in outline.loads]
    assert len(loads) > 3 * len(pages)
    assert [found for found in loads if is_elsewhere(found[1])] == []
    assert [found for found in loads if found[0] != "404.html" and not (site / resolve(*found)).is_file()] == []
    styles = [path.read_text(encoding="utf-8") for path in [*site.rglob("*.css"), *site.rglob("*.svg")]]
    assert [found for text in styles for found in re.findall(r"@import.*|url\([^)]*\)", text)] == []


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[str, Outline]) -> None:
    lost = []
    for page, outline in pages.items():
        for link in [*outline.links, *outline.nav_links]:
            if page == "404.html" or is_elsewhere(link):
                continue
            target, place = resolve(page, link), urlsplit(link).fragment
            is_there = (site / target).is_file() and (not place or place in pages[target].ids)
            lost += [] if is_there else [f"{page}: {link}"]
    assert lost == []


def test_every_page_is_in_the_nav_and_files_shown_as_text_are_linked(pages: dict[str, Outline]) -> None:
    in_nav = {resolve("index.html", link) for link in pages["index.html"].nav_links}
    linked = {resolve(page, link) for page in pages for link in pages[page].links if not is_elsewhere(link)}
    is_text = re.compile(r"\.\w+\.html$|(?:/|^)(?:Dockerfile|LICENSE|broken|evaluation)\.html$")
    left = set(pages) - in_nav - {"404.html"}
    assert [page for page in left if not is_text.search(page)] == []
    assert left <= linked


def test_lists_and_tables_are_not_left_in_the_running_text(pages: dict[str, Outline]) -> None:
    mark = re.compile(r"\n(?:- |\d+\. |\|)|^\|")
    assert [(page, text) for page in pages for text in pages[page].paragraphs if mark.search(text)] == []


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "site", tmp_path / "docs" / "site")
    shutil.copytree(ROOT / "lockgate" / "server" / "page", tmp_path / "lockgate" / "server" / "page")
    (tmp_path / "docs" / "images").mkdir()
    (tmp_path / "README.md").write_text("# One\n\n[two](docs/two.md#here) and [three](three.py)\n", encoding="utf-8")
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n## There\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [One: README.md, Two: docs/two.md]\n", encoding="utf-8")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "does not contain an anchor '#here'" in built.stderr
    assert "contains a link 'three.py'" in built.stderr
