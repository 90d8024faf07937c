# SPDX-License-Identifier: Apache-2.0
"""The laws of prompts and citations bite: each bug planted there is caught by a named law."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from lockgate.gate import prompt
from lockgate.gate.prompt import Citation, CitationScanner, Sources
from lockgate.gate.values import Document
from tests.gate import test_citations, test_prompt
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()


@BUGS.caught_by(
    test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order,
    test_prompt.test_every_tag_occurs_as_often_as_there_are_documents,
)
def brackets_are_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "escape", lambda text: text.replace("&", "&amp;"))


@BUGS.caught_by(test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order)
def entities_are_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "escape", lambda text: text.replace("<", "&lt;").replace(">", "&gt;"))


@BUGS.caught_by(test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order)
def entities_are_escaped_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prompt, "escape", lambda text: text.replace("<", "&lt;").replace(">", "&gt;").replace("&", "&amp;")
    )


@BUGS.caught_by(
    test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order,
    test_prompt.test_a_name_keeps_its_length_and_flattening_it_again_changes_nothing,
)
def only_line_feeds_in_names_become_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prompt, test_prompt):
        monkeypatch.setattr(module, "flatten_name", lambda name: name.replace("\n", " "))


@BUGS.caught_by(test_prompt.test_a_name_keeps_its_length_and_flattening_it_again_changes_nothing)
def control_characters_in_names_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_prompt, "flatten_name", lambda name: re.sub(r"[\x00-\x1f]", "", name))


@BUGS.caught_by(test_prompt.test_whatever_documents_hold_the_prompt_can_be_sent)
def content_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "make_sendable", str)


@BUGS.caught_by(test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order)
def content_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prompt.make_sendable
    monkeypatch.setattr(prompt, "make_sendable", lambda text: honest(text).strip())


@BUGS.caught_by(test_prompt.test_the_prompt_has_exactly_the_documents_given_in_their_order)
def equal_documents_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prompt.build_prompt

    def build(question: str, documents: Sequence[Document], **options: Any) -> Any:
        return honest(question, list({one.title: one for one in documents}.values()), **options)

    monkeypatch.setattr(test_prompt, "build_prompt", build)


@BUGS.caught_by(test_citations.test_any_cut_of_the_answer_gives_the_same_citations)
def a_mark_that_is_cut_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CitationScanner.feed

    def feed(self: CitationScanner, text: str) -> list[Citation]:
        found = honest(self, text)
        self._open = ""
        return found

    monkeypatch.setattr(CitationScanner, "feed", feed)


@BUGS.caught_by(test_citations.test_no_more_is_kept_than_the_longest_mark)
def an_open_mark_is_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CitationScanner.feed

    def feed(self: CitationScanner, text: str) -> list[Citation]:
        kept = self._open + text
        found = honest(self, text)
        if "[" in kept and "]" not in kept[kept.rfind("[") :]:
            self._open = kept[kept.rfind("[") :]
        return found

    monkeypatch.setattr(CitationScanner, "feed", feed)


@BUGS.caught_by(test_citations.test_any_cut_of_the_answer_gives_the_same_citations)
def places_are_counted_from_the_open_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CitationScanner.feed

    def feed(self: CitationScanner, text: str) -> list[Citation]:
        shift = len(self._open)
        return [one._replace(start=one.start + shift, end=one.end + shift) for one in honest(self, text)]

    monkeypatch.setattr(CitationScanner, "feed", feed)


@BUGS.caught_by(
    test_citations.test_every_citation_quotes_its_path_and_they_come_in_order,
    test_citations.test_the_citations_are_those_of_a_plain_reading,
)
def white_space_before_an_item_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Sources._items

    def items(self: Sources, mark: str, start: int) -> Any:
        for one in honest(self, mark, start):
            lost = one.start - start - mark[: one.start - start].rfind(",") - 1
            yield one._replace(start=one.start - lost, end=one.end - lost)

    monkeypatch.setattr(Sources, "_items", items)


@BUGS.caught_by(test_citations.test_the_citations_are_those_of_a_plain_reading)
def the_outer_pair_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_MARK", re.compile(r"\[([^\]\r\n]{1,512})\]"))


@BUGS.caught_by(test_citations.test_the_citations_are_those_of_a_plain_reading)
def a_mark_may_go_over_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_MARK", re.compile(r"\[([^\[\]]{1,512})\]"))


@BUGS.caught_by(test_citations.test_the_citations_are_those_of_a_plain_reading)
def every_item_beside_a_citation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_WHITE", re.compile(r"(?!)"))


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
