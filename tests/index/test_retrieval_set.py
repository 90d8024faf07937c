# SPDX-License-Identifier: Apache-2.0
"""On the set of our own, both searches together find at least what each finds alone."""

from pathlib import Path

from benchmarks.retrieval import HYBRID, LEXICAL, VECTOR, Recall, build_rows, load_questions, measure_recalls
from lockgate.models.minilm import open_minilm
from tests.weights import require_weights


async def test_both_searches_find_at_least_what_each_finds_alone() -> None:
    weights: Path = require_weights()
    async with open_minilm(weights) as embedder:
        recalls = await measure_recalls(embedder, load_questions())
    rows = build_rows(recalls)
    assert {row.name: row.value for row in rows if row.verdict == "FAIL"} == {}
    assert sum(row.verdict == "PASS" for row in rows) == 3
    assert recalls[LEXICAL].found["words"] >= 66  # nothing is met by both finding little
    assert recalls[VECTOR].found["paraphrase"] >= 52


def test_the_rule_is_the_better_search_on_the_whole_and_two_questions_less_on_a_half() -> None:
    def judge(words: int, paraphrases: int) -> list[str]:
        asked = {"words": 30, "paraphrase": 30}
        recalls = {
            LEXICAL: Recall({"words": 30, "paraphrase": 0}, asked),
            VECTOR: Recall({"words": 20, "paraphrase": 25}, asked),
            HYBRID: Recall({"words": words, "paraphrase": paraphrases}, asked),
        }
        return [row.verdict for row in build_rows(recalls) if row.verdict]

    assert judge(28, 23) == ["PASS", "PASS", "PASS"]
    assert judge(27, 24) == ["PASS", "FAIL", "PASS"]
    assert judge(30, 22) == ["PASS", "PASS", "FAIL"]
    assert judge(28, 16) == ["FAIL", "PASS", "FAIL"]
