# SPDX-License-Identifier: Apache-2.0
"""Lays the site out like the repository, so that links between pages are the same in both. It knows no host.

The README is the first page, docs/ is a folder, and what pages link to outside docs/ comes along: pages as pages,
folders as lists, other files as their text. Code is coloured here, because a command in a block may span lines.
"""

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]\n]*\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
BLOCK = re.compile(r'<pre><code(?: class="language-([\w-]+)")?>(.*?)</code></pre>', re.DOTALL)
LOGO = "lockgate/server/page/logo.svg"
SERVED_AS_THEY_ARE = (".svg", ".png")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that a repository's page gives them; a folder in the nav stands for its pages."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = _slugify
    config.nav = [{title: _open_folder(target)} for item in config.nav or [] for title, target in item.items()]
    return config


def _slugify(heading: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def _open_folder(target: Any) -> Any:
    if not isinstance(target, str) or target.endswith(".md"):
        return target
    first = f"{target}/README.md"
    rest = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / target).glob("*.md"))
    return [first, *(path for path in rest if path != first)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages under docs/ and everything that they lead to, beside the files of the theme."""
    paths = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "images").iterdir()]
    waiting = ["README.md", LOGO, *(path.relative_to(ROOT).as_posix() for path in sorted(paths))]
    laid_out: dict[str, File] = {}
    while waiting:
        path = waiting.pop()
        if path not in laid_out:
            laid_out[path] = _lay_out(path, config)
            waiting += _find_targets(path)
    return Files([*(one for one in files if one.src_dir != config.docs_dir), *laid_out.values()])


def _lay_out(path: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if path.endswith((".md", *SERVED_AS_THEY_ARE)):
        return File.generated(config, path, abs_src_path=str(source))
    text = _list_folder(source) if source.is_dir() else _show_text(source)
    page = f"# {path}\n\n{text}"
    return File.generated(config, _name_page(path), content=page, inclusion=InclusionLevel.NOT_IN_NAV)


def _list_folder(folder: Path) -> str:
    return "\n".join(f"- [{one.name}]({folder.name}/{one.name})" for one in _list_files(folder))


def _list_files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_file())


def _show_text(source: Path) -> str:
    try:
        language = get_lexer_for_filename(source.name).aliases[0]
    except ClassNotFound:
        language = "text"
    return f"```{language}\n{source.read_text(encoding='utf-8').rstrip()}\n```\n"


def _name_page(path: str) -> str:
    """The page that stands for a path of the repository."""
    if path.endswith((".md", *SERVED_AS_THEY_ARE)):
        return path
    return f"{path}/README.md" if (ROOT / path / "README.md").exists() else f"{path}.md"


def _find_targets(path: str) -> Iterator[str]:
    """What a page of the repository links to, as far as that is there; MkDocs tells what is not."""
    if (ROOT / path).is_dir():
        yield from (one.relative_to(ROOT).as_posix() for one in _list_files(ROOT / path))
    elif path.endswith(".md"):
        text = FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))
        for link in LINK.finditer(text):
            target = _resolve(path, link[2])
            page = _name_page(target)
            if (ROOT / target).exists():
                yield page if (ROOT / page).exists() else target


def _resolve(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links to files and folders become links to their pages."""
    path = page.file.src_uri

    def point(link: re.Match[str]) -> str:
        target = _resolve(path, link[2])
        if not (ROOT / target).exists():
            return link[0]
        return link[1] + posixpath.relpath(_name_page(target), posixpath.dirname(path) or ".") + link[3]

    parts = re.split(f"({FENCE.pattern})", markdown, flags=FENCE.flags)
    return "".join(part if number % 2 else LINK.sub(point, part) for number, part in enumerate(parts))


def on_page_content(content: str, **_: object) -> str:
    """Blocks of code in colour."""
    return BLOCK.sub(lambda found: _colour(found[1] or "text", html.unescape(found[2])), content)


def _colour(language: str, code: str) -> str:
    if language == "console":
        inner = "".join(_colour_step(step) for step in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:])
    else:
        inner = highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True))
    return f'<pre class="code {language}"><code>{inner}</code></pre>'


def _colour_step(step: str) -> str:
    """A command, and what it prints in another colour. It ends with the first line that ends outside a quotation."""
    lines = step.splitlines(keepends=True)
    command = ""
    while lines and (not command or command.rstrip().endswith(("\\", "|")) or command.count("'") % 2):
        command += lines.pop(0)
    printed = "".join(lines)
    shown = f'<kbd data-command="{html.escape(command.strip())}"><i>$ </i>{html.escape(command)}</kbd>'
    return shown + (f"<samp>{html.escape(printed)}</samp>" if printed else "")


def on_post_build(config: MkDocsConfig) -> None:
    """The words to search for, as a script: pages that are opened from a disk may load scripts, but nothing else."""
    written = Path(config.site_dir) / "search" / "search_index.json"
    places = json.loads(written.read_text(encoding="utf-8"))["docs"]
    kept = json.dumps([[one["location"], one["title"], one["text"]] for one in places], ensure_ascii=False)
    (Path(config.site_dir) / "assets" / "search.js").write_text(f"window.places = {kept};\n", encoding="utf-8")
    written.unlink()
    written.parent.rmdir()
