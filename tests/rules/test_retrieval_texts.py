# SPDX-License-Identifier: Apache-2.0
"""The retrieval set is what it says: so many texts, and paraphrases that share no content word with their passage."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.retrieval.words import find_content_stems, stem

_HERE = Path(__file__).parents[2] / "benchmarks" / "retrieval"


def _read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_HERE / name).read_text(encoding="utf-8").splitlines()]


PASSAGES = {one["id"]: one for one in _read("passages.jsonl")}
QUESTIONS = _read("questions.jsonl")


def test_there_are_enough_passages_and_questions_each_of_its_own() -> None:
    assert len(PASSAGES) == len(_read("passages.jsonl")) >= 110
    assert len({one["text"] for one in PASSAGES.values()}) == len(PASSAGES)
    assert len({one["id"] for one in QUESTIONS}) == len({one["question"] for one in QUESTIONS}) == len(QUESTIONS) >= 64


def test_every_passage_has_between_40_and_120_words() -> None:
    assert not [one["id"] for one in PASSAGES.values() if not 40 <= len(one["text"].split()) <= 120]


def test_half_of_the_questions_are_paraphrases() -> None:
    kinds = Counter(one["kind"] for one in QUESTIONS)
    assert set(kinds) == {"words", "paraphrase"}
    assert abs(kinds["words"] - kinds["paraphrase"]) <= 1


def test_a_paraphrase_shares_no_content_word_with_its_passage() -> None:
    shared = {one["question"]: _find_shared(one) for one in QUESTIONS if one["kind"] == "paraphrase"}
    assert {question: words for question, words in shared.items() if words} == {}


def test_every_other_question_shares_several() -> None:
    assert all(len(_find_shared(one)) >= 3 for one in QUESTIONS if one["kind"] == "words")


def test_the_stemmer_of_this_rule_joins_the_forms_of_a_word() -> None:
    assert stem("restoring") == stem("restored") == stem("restores") == stem("restore")
    assert stem("policies") == stem("policy")
    assert find_content_stems("What is the server's policy?") == {stem("servers"), stem("policies")}


def _find_shared(question: dict[str, Any]) -> frozenset[str]:
    passage = PASSAGES[question["passage"]]
    return find_content_stems(question["question"]) & find_content_stems(f"{passage['title']} {passage['text']}")
