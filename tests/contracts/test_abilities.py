# SPDX-License-Identifier: Apache-2.0
"""The second protocols: which parts have one, and that a part without it is used all the same."""

import pytest

from lockgate.chunkers.machines import MachineChunker, WordMachine
from lockgate.detectors.citations import CitationReading
from lockgate.gate.values import TEXT_CONTENTS
from lockgate.guard.detectors import ActiveGuard, Guard
from lockgate.guard.policy import pass_sources
from lockgate.index.elasticsearch import ElasticsearchSource
from lockgate.index.fts import FtsDataSource
from lockgate.index.postgres import PostgresIndex
from lockgate.interfaces import GroundedModel, HybridSource
from lockgate.models.llamacpp import LlamaModel, ShortLlamaModel
from lockgate.testing import FixedChunker, ScriptedDetector


@pytest.mark.parametrize("kind", [ElasticsearchSource, FtsDataSource, PostgresIndex])
def test_an_index_searches_by_words_and_by_meaning(kind: type) -> None:
    assert issubclass(kind, HybridSource)


def test_only_a_small_model_writes_its_own_prompt() -> None:
    assert issubclass(ShortLlamaModel, GroundedModel)
    assert not issubclass(LlamaModel, GroundedModel)


def test_a_guard_knows_whether_text_is_fed_to_its_chunker_in_place() -> None:
    chunker = MachineChunker(lambda: WordMachine(10))
    assert Guard("d", TEXT_CONTENTS, ScriptedDetector(), "c", chunker, 0.5).in_place is chunker
    assert Guard("d", TEXT_CONTENTS, ScriptedDetector(), "c", FixedChunker(3), 0.5).in_place is None


def test_a_detector_looks_back_as_far_as_it_says_and_else_not_at_all() -> None:
    class Bare:
        accept = ScriptedDetector.accept

    looking = ScriptedDetector()
    looking.lookbehind_chars = 7
    assert Guard("d", TEXT_CONTENTS, looking, "c", FixedChunker(3), 0.5).lookbehind_chars == 7
    assert Guard("d", TEXT_CONTENTS, Bare(), "c", FixedChunker(3), 0.5).lookbehind_chars == 0


def test_a_reading_learns_the_sources_of_an_answer_only_if_it_takes_them() -> None:
    guard = Guard("d", TEXT_CONTENTS, ScriptedDetector(), "c", FixedChunker(3), 0.5)
    takes = ActiveGuard(guard, CitationReading(()), 0.5, holds=True)
    plain = ActiveGuard(guard, ScriptedDetector(), 0.5, holds=True)
    told = pass_sources([takes, plain], {"al/c"})
    assert told[1] is plain
    assert isinstance(told[0].reading, CitationReading)
    assert told[0].reading._paths == ("al/c",)
