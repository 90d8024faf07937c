# SPDX-License-Identifier: Apache-2.0
"""Collects a document's sections: which headings stand above each block.

Decides how headings of several levels become the name of a section. Refuses to know any format.
"""

from lockgate.index.passages import Section, join_title


class SectionCollector:
    """Takes headings and blocks in order."""

    def __init__(self) -> None:
        self._above: dict[int, str] = {}
        self._is_bare = False  # nothing stands below the last heading yet
        self._blocks: list[str] = []
        self._sections: list[Section] = []
        self.title = ""

    def open(self, level: int, heading: str) -> None:
        """A heading; the first of the highest level is the document's title."""
        self._close(level)
        heading = " ".join(heading.split())
        if level == 1 and not self.title:
            self.title = heading
        self._is_bare = True
        self._above = {of: text for of, text in self._above.items() if of < level} | {level: heading}

    def add(self, block: str) -> None:
        """A block below the last heading."""
        if block.strip():
            self._blocks.append(block.strip("\n"))

    def finish(self) -> list[Section]:
        """All sections."""
        self._close(0)
        return self._sections

    def _close(self, level: int) -> None:
        """A heading with nothing below it, not even another, is text like any other, so that no word is lost."""
        if self._is_bare and not self._blocks and level <= max(self._above):
            self.add(self._above[max(self._above)])
        if self._blocks:
            self._sections.append(Section(self._name_section(), tuple(self._blocks)))
        self._blocks, self._is_bare = [], False

    def _name_section(self) -> str:
        heading = ""
        for level in sorted(self._above):
            text = self._above[level]
            heading = heading if text == self.title else join_title(heading, text)
        return heading
