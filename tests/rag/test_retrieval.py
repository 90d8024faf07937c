# SPDX-License-Identifier: Apache-2.0
"""Documents of many sources in one order and under one name each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.values import Document
from lockgate.guard.policy import Meter, Policy
from lockgate.rag.sources import DocumentReader, Retrieval, Status, merge_documents, name_documents

TITLES = st.sampled_from(["", "A", "A (2)", "A (3)", "B", "Document from o/a", "Document from o/a (2)"])
SCORES = st.sampled_from([0.0, 0.5, 0.5, 0.9, -1.0])


@st.composite
def retrievals(draw: st.DrawFn) -> list[Retrieval]:
    """What some sources gave; each text is told apart."""
    found = []
    for place in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(["o/a", "o/b"]))
        documents = [
            Document(draw(TITLES), f"{place}.{number}", draw(SCORES), None, path)
            for number in range(draw(st.integers(0, 4)))
        ]
        found.append(Retrieval(path, Status.SUCCESS, tuple(documents)))
    return found


@given(retrievals())
def test_every_document_is_merged_once_the_best_first_and_equals_in_order(found: list[Retrieval]) -> None:
    merged = merge_documents(found)
    given = [one for retrieval in found for one in retrieval.documents]
    assert sorted(one.text for one in merged) == sorted(one.text for one in given)
    places = {one.text: place for place, one in enumerate(given)}
    keys = [(-one.score, places[one.text]) for one in merged]
    assert keys == sorted(keys)


@given(retrievals())
def test_every_document_has_a_name_of_its_own(found: list[Retrieval]) -> None:
    given = [one.text for retrieval in found for one in retrieval.documents]
    assert [one.text for one in name_documents(found).values()] == given


def test_a_second_document_of_a_title_gets_a_number() -> None:
    documents = tuple(Document(title, title, 0.5) for title in ("A", "A", "A (2)", "A"))
    named = name_documents([Retrieval("o/a", Status.SUCCESS, documents)])
    assert list(named) == ["A", "A (2)", "A (2) (2)", "A (3)"]


def test_a_document_without_a_title_is_named_by_its_source() -> None:
    documents = (Document("", "x", 0.5), Document("", "y", 0.5))
    assert list(name_documents([Retrieval("o/a", Status.SUCCESS, documents)])) == [
        "Document from o/a",
        "Document from o/a (2)",
    ]


@pytest.mark.parametrize(("until", "asked"), [(0.0, []), (1e9, ["o/a"])])
async def test_a_receipt_names_only_sources_that_were_asked(until: float, asked: list[str]) -> None:
    meter, given = Meter(), list[str]()
    meter.receipt.prompt_sent_to = []

    async def search() -> list[Document]:
        given.append("o/a")
        return []

    await DocumentReader(Policy(), meter).ask("o/a", search, 1, until)
    assert (given, meter.receipt.prompt_sent_to) == (asked, asked)
