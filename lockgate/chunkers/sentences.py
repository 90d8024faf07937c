# SPDX-License-Identifier: Apache-2.0
"""The sentence machine: finds where a sentence ends, in many scripts, at most one word later."""

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from nupunkt import load_default_model

from lockgate.chunkers.machines import CuttingMachine, has_blank_line
from lockgate.data_files import Table, read_table, split_words

# How many characters of the next word, and how many before the boundary, a decision may read.
_GUARD_CHARS = 8
_TOKEN_CHARS = 40
_QUOTE_CHARS = 200
_REMEMBERED_ANSWERS = 4096

_SPACED_MARKS = ".!?…‼⁇⁈⁉"
_FREE_MARKS = "。｡．！？︒﹒﹖﹗।॥؟۔።፧፨։။។៕།༎᠃᠉"
_MARKS = _SPACED_MARKS + _FREE_MARKS
# Free marks that also occur inside numbers, verses and names.
_MARKS_IN_NUMBERS = "．।॥۔։"
# With the invisible characters that may follow a mark: direction marks, the emoji form of ‼.
_FREE_CLOSERS = "」』）】》〉〕］｝”’»›)]}\"'\u200e\u200f\ufe0f"
# “ and « close as well (German); * _ ` ~ close markdown.
_CLOSERS = _FREE_CLOSERS + "“‘«‹*_`~"
# Characters that close a sentence even between spaces: « Bonjour. » Puis
_LONE_CLOSERS = "\"'”’»›)]}"
_OPENERS = "([{<\"'“‘„‚«»‹›*_`~¿¡「『（【《〈-–—"
# 「…。」と言った: the sentence goes on after the quotation.
_QUOTE_CONTINUERS = "とっを、，,"

_CANDIDATE = re.compile(
    rf"(?<=[{re.escape(_MARKS + _CLOSERS)}])\s"
    rf"|(?<=[{re.escape(_FREE_MARKS + _FREE_CLOSERS)}])[^\s{re.escape(_MARKS + _FREE_CLOSERS)}]"
    "|[\r\n\u2029]"
)
_WHITE = re.compile(r"\s")
_LINE_END = re.compile("[\r\n\u2029]")
_LIST_MARKER = re.compile(r"[-*+•‣◦▪●○–—]|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})\)|\d{1,3}\.|#{1,6}")
_ENUMERATOR = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivxlcIVXLC]{1,6})\)?\.")
_ORDINAL = re.compile(r"\d{1,2}\.")


class SentenceFile(Table, frozen=True):
    """The word lists of `sentences.toml`."""

    months: str
    after_no_initial: str
    long_abbreviations: str
    ordinary_words: str
    more_abbreviations: str
    caseless_abbreviations: str


_FILE = read_table(Path(__file__).with_name("sentences.toml"), SentenceFile)
_MONTHS = tuple(_FILE.months.split())
_AFTER_NO_INITIAL = split_words(_FILE.after_no_initial)
_LONG_ABBREVIATIONS = split_words(_FILE.long_abbreviations)
_ORDINARY_WORDS = split_words(_FILE.ordinary_words)
_CASELESS_ABBREVIATIONS = split_words(_FILE.caseless_abbreviations)


class Splitter(Protocol):
    """The part of nupunkt's tokenizer that is used here."""

    @property
    def abbreviations(self) -> frozenset[str]:
        """The abbreviations it knows, in lower case, without the last full stop."""

    def span_tokenize(self, text: str) -> Iterable[tuple[int, int]]:
        """Start and end of each sentence."""


class StopJudge:
    """Decides whether a full stop or an ellipsis ends a sentence. Its cache does not change results."""

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter
        self.abbreviations = splitter.abbreviations
        self._ask = lru_cache(_REMEMBERED_ANSWERS)(self._ask_splitter)

    def ends(self, token: str, word: str, following: str) -> bool:
        """Whether `token`, which is `word` with its marks, ends a sentence before `following`."""
        if word in _CASELESS_ABBREVIATIONS:
            return False
        if len(word) == 1 and word.isalpha() and (following[0].isalpha() or word.lower() == word.upper()):
            # An initial; nupunkt decides the same, except for a capital that the next word shows to be no initial.
            return word.isupper() and following.rstrip(",:") in _AFTER_NO_INITIAL
        if word.lower() == "no":
            return not following[0].isdigit()
        if "." in word.strip(".") and following[0].islower():
            return False
        if _ORDINAL.fullmatch(word + ".") and following.startswith(_MONTHS):
            return False
        return self._ask(token, following)

    def _ask_splitter(self, token: str, following: str) -> bool:
        # The word in front keeps nupunkt from taking the token for the number of a list item.
        window = f"so {token} {following}"
        at = len(window) - len(following)
        return any(start == at for start, _ in self._splitter.span_tokenize(window))


@cache
def load_stop_judge() -> StopJudge:
    """Loads the judge with nupunkt's own model, once; it never changes after that."""
    splitter = load_default_model()
    for abbreviation in splitter.abbreviations:
        if _is_noise(abbreviation):
            splitter.remove_abbreviation(abbreviation)
    splitter.add_abbreviations(sorted(_FILE.more_abbreviations.split()))
    judge = StopJudge(splitter)
    judge.ends("etc.", "etc", "and")  # nupunkt compiles its patterns at the first call
    return judge


def _is_noise(abbreviation: str) -> bool:
    if not abbreviation.isalpha() or abbreviation in _LONG_ABBREVIATIONS:
        return False
    return len(abbreviation) > 5 or abbreviation > "ɏ" or abbreviation in _ORDINARY_WORDS


class SentenceMachine(CuttingMachine):
    """A sentence ends after its mark, its closing quotes and brackets, and the white space that follows them."""

    _candidate = _CANDIDATE
    _guard_chars = _GUARD_CHARS

    def __init__(self, max_chars: int, judge: StopJudge) -> None:
        super().__init__(max_chars)
        self._stops = judge

    def _judge(self, text: str, begin: int, gap: int, at: int, is_final: bool) -> int | None:
        if gap == at:
            return self._judge_free_mark(text, begin, at)
        white = text[gap:at]
        has_line_end = _LINE_END.search(white) is not None
        if has_line_end and has_blank_line(white):
            return at
        ends = self._ends_spaced(text, begin, gap, at, is_final)
        if ends is False and has_line_end:
            ends = _begins_item(text, at, is_final)
        if ends is None:
            return None
        return at if ends else 0

    def _judge_free_mark(self, text: str, begin: int, at: int) -> int:
        """The end after a mark that needs no white space, directly before the next sentence, or 0."""
        tail = text[max(begin, at - _TOKEN_CHARS) : at]
        core = tail.rstrip(_CLOSERS)
        if not core or core[-1] not in _FREE_MARKS:
            return 0
        following = text[at]
        if core[-1] in _MARKS_IN_NUMBERS and (following.isdigit() or following.upper() != following.lower()):
            return 0
        if core != tail and following in _QUOTE_CONTINUERS:
            return 0
        # A straight quote opens or closes: it opens the next sentence if it is an odd one.
        if tail[-1] == '"' and text.count('"', max(begin, at - _QUOTE_CHARS), at) % 2:
            return at - 1
        return at

    def _ends_spaced(self, text: str, begin: int, gap: int, at: int, is_final: bool) -> bool | None:
        """Whether a mark before the white space ends a sentence; None if more of the next word is needed."""
        if text[gap - 1].isspace():
            return False
        tail = text[max(begin, gap - _TOKEN_CHARS) : gap]
        token = tail.split()[-1]
        core = token.rstrip(_CLOSERS)
        is_lone = not core
        if is_lone:
            core = tail[: -len(token)].rstrip()
        if not core or core[-1] not in _MARKS or text[at] in _MARKS:
            return False
        if text[at] in _LONE_CLOSERS:
            following = _next_word(text, at, is_final)
            if following is None or not following.strip(_LONE_CLOSERS):
                return None if following is None else False
        # "Is it?" he asked.
        if core != token and text[at].islower() and _LINE_END.search(text, gap, at) is None:
            return False
        if is_lone or core[-1] not in ".…":
            return True
        word = core.lstrip(_OPENERS)[:-1]
        if len(word) > 1 and word.isalpha() and word.lower() not in self._stops.abbreviations:
            return True  # an ordinary word: the following word does not matter
        following = _next_word(text, at, is_final)
        if following is None:
            return None
        before = tail[: len(tail) - len(token)].rstrip(" \t")
        if _ENUMERATOR.fullmatch(core.lstrip(_OPENERS)) and (not before or before[-1] in "\r\n\u2029"):
            return False
        return self._stops.ends(token, word, following)


def _begins_item(text: str, at: int, is_final: bool) -> bool | None:
    following = _next_word(text, at, is_final)
    if following is None:
        return None
    return _LIST_MARKER.fullmatch(following) is not None or following.startswith("```")


def _next_word(text: str, at: int, is_final: bool) -> str | None:
    """The word at `at`, at most as much of it as a decision may read; None if that has not arrived."""
    end = at + _GUARD_CHARS
    white = _WHITE.search(text, at, end)
    if white is not None:
        return text[at : white.start()]
    return text[at:end] if is_final or len(text) >= end else None
