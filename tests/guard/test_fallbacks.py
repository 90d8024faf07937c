# SPDX-License-Identifier: Apache-2.0
"""The law of fallbacks over real sentences: whole sentences, then a line break and the fallback, at any cut."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lockgate.chunkers.machines import MachineChunker, WordMachine, cut
from lockgate.chunkers.sentences import SentenceMachine, load_stop_judge
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import Action, Judge, Measures
from lockgate.guard.policy import Chunking, find_sentence

SENTENCES = (
    "Of course. ",
    "Ask Dr. Ana Lee, e.g. at noon! ",
    "Is it 3.14 or so?\n",
    "「門は九時に開く。」",
    "- one item\n- another item\n\n",
    "  So (as they say) we go on… ",
    "It costs 5 €.\n\n",
    "no mark at the end",
)
FALLBACK, SECRET = "(withheld)", "bluebird"
_build_machine = partial(SentenceMachine, 2000, load_stop_judge())
_CHUNKING = Chunking("sentence", MachineChunker(_build_machine))
TEXTS = st.tuples(
    st.lists(st.sampled_from(SENTENCES), max_size=6), st.sampled_from(["", "The key is ", "So. "]),
    st.lists(st.sampled_from(SENTENCES), max_size=3),
).map(lambda parts: ("".join(parts[0]) + parts[1], " it is. " + "".join(parts[2])))  # fmt: skip


def _play(before: str, after: str, borders: Sequence[int], action: Action) -> str:
    """What a client reads of a text with a finding, released in these pieces."""
    text = f"{before}{SECRET}{after}"
    found = Detection(len(before), len(before) + len(SECRET), SECRET, "d", "t", 1.0, "keywords")
    judge = Judge(Measures(action, fallback=FALLBACK), None, partial(find_sentence, _CHUNKING))
    said = ""
    for start, end in pairwise([0, *borders, len(text)]):
        known = [found] if start <= found.start < end else []
        verdict = judge.judge(start, text[start:end], known)
        said += verdict.text
        if verdict.is_blocked:
            break
    return said


def _find_starts(text: str) -> list[int]:
    return [chunk.start for chunk in cut(_build_machine(), text)]


@given(TEXTS, st.data())
def test_any_cut_of_a_stream_into_sentences_stops_with_the_same_text(
    text: tuple[str, str], data: st.DataObject
) -> None:
    before, after = text
    starts = _find_starts(f"{before}{SECRET}{after}")
    borders = sorted(data.draw(st.sets(st.sampled_from(starts))) - {0})
    kept = before[: max(start for start in starts if start <= len(before))]
    expected = f"{kept}\n{FALLBACK}" if kept else FALLBACK
    assert _play(before, after, borders, Action.STOP) == expected == _play(before, after, [], Action.STOP)


@given(TEXTS, st.data(), st.sampled_from([Action.STOP, Action.BLOCK]))
def test_any_release_leaves_a_beginning_and_then_the_fallback_on_a_new_line(
    text: tuple[str, str], data: st.DataObject, action: Action
) -> None:
    before, after = text
    words = [chunk.start for chunk in cut(WordMachine(256), before + SECRET)]
    borders = sorted(data.draw(st.sets(st.sampled_from(words))) - {0})
    said = _play(before, after, borders, action)
    left = said.removesuffix(FALLBACK)
    released = max([0, *[border for border in borders if border <= len(before)]])
    assert said == left + FALLBACK
    assert not left or (left.endswith("\n") and before.startswith(left[:-1]))
    if action is Action.BLOCK:
        assert left.removesuffix("\n") == before[:released]
    else:
        assert len(left) >= released


def test_the_sentence_of_a_very_long_text_is_found_near_its_place() -> None:
    text = "One more sentence stands here. " * 40_000
    at = len(text) - 5
    assert find_sentence(_CHUNKING, text, at) == len(text) - len("One more sentence stands here. ")


def test_without_a_chunker_of_this_process_no_sentence_is_known() -> None:
    assert find_sentence(None, "So. It is.", 8) == 0
