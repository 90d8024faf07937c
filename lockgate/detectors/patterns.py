# SPDX-License-Identifier: Apache-2.0
"""Reports matches of patterns and keywords, with an engine whose time is linear in the text."""

import re
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import re2

from lockgate.detectors.scans import LOOKBEHIND_CHARS, Scan, ScanningDetector, at_most, encode_utf8
from lockgate.gate.values import Detection
from lockgate.params import Params, shown

MAX_COUNT = 64
MAX_CHARS = 1_000
MAX_CONFIGURED = 10_000
MAX_PATTERN_MEM = 2 << 20  # bytes per pattern for its program and states; those of a request stay below 128 MiB
MAX_ASKED_STEPS = 200_000  # the cost per character of all patterns of a request together

# --- Patterns -------------------------------------------------------------------------------------------------

PATTERN_PARAMS = ("patterns", "ignore_case")
_PATTERN_FIELDS = ("name", "pattern", "score")
_UNSUPPORTED = (
    (re.compile(r"\(\?<?[=!]"), "look-around is not supported"),
    (re.compile(r"\\[1-9]|\\[kg]|\(\?P[=>]"), "back references are not supported"),
    (re.compile(r"\(\?>"), "atomic groups are not supported"),
)
# Escapes, quoted parts and classes, in which a parenthesis is only a character.
_PARENTHESES = re.compile(r"(?s)\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|([()])")


class PatternRule(NamedTuple):
    """One pattern before it is compiled; `number` is its place in the caller's list, from 1."""

    number: int
    name: str
    pattern: str
    score: float


class CompiledRule(NamedTuple):
    """A rule with its compiled pattern."""

    rule: PatternRule
    regex: Any


def read_patterns(params: Params, max_count: int) -> list[PatternRule]:
    """Reads the rules in `patterns`: strings, or objects with a name and a score."""
    entries = params.items("patterns", max_count)
    return [_read_pattern(params, number, entry) for number, entry in enumerate(entries, 1)]


def _read_pattern(params: Params, number: int, entry: object) -> PatternRule:
    place = f"patterns[{number - 1}]"
    if not isinstance(entry, Mapping):
        return PatternRule(number, "", params.text("patterns", place, entry, MAX_CHARS), 1.0)
    for field in entry:
        if field not in _PATTERN_FIELDS:
            raise params.fault("patterns", f"`{place}` has {shown(field)}, expected one of `name`, `pattern`, `score`")
    pattern = params.text("patterns", f"{place}.pattern", entry.get("pattern"), MAX_CHARS)
    name = entry.get("name")
    if name is not None:
        name = params.text("patterns", f"{place}.name", name, MAX_CHARS)
    score = entry.get("score", 1.0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise params.fault("patterns", f"`{place}.score` must be a number from 0 to 1, not {shown(score)}")
    return PatternRule(number, name or "", pattern, float(score))


def compile_patterns(
    params: Params, rules: Iterable[PatternRule], ignore_case: bool, max_steps: int | None = None
) -> list[CompiledRule]:
    """Compiles the patterns, which together may need at most `max_steps` per character."""
    options = _engine_options(ignore_case)
    compiled, steps = [], 0
    for rule in rules:
        try:
            compiled.append(CompiledRule(rule, re2.compile(rule.pattern, options)))
        except (re2.error, UnicodeEncodeError) as error:
            raise params.fault("patterns", _describe(rule, error)) from None
        steps += compiled[-1].regex.programsize
        if max_steps is not None and steps > max_steps:
            raise params.fault("patterns", f"too complex from pattern {rule.number} on: use fewer or simpler patterns")
    return compiled


def _engine_options(ignore_case: bool) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = MAX_PATTERN_MEM
    return options


def _describe(rule: PatternRule, error: Exception) -> str:
    """Returns the message for a refused pattern: its number, the place of the error, the reason."""
    if isinstance(error, UnicodeEncodeError):
        return f"bad pattern {rule.number} at position {error.start}: a lone surrogate is no character"
    message = _message(error)
    if message.startswith("pattern too large"):
        return f"bad pattern {rule.number} at position 0: it needs more memory than is allowed"
    position = _fault_position(rule.pattern, message)
    for form, reason in _UNSUPPORTED:
        if form.match(rule.pattern, position):
            message = f"{reason}: {form.match(rule.pattern, position)[0]}"  # type: ignore[index]
    return f"bad pattern {rule.number} at position {position}: {message}"


def _message(error: Exception) -> str:
    """Returns the engine's message, which comes as bytes."""
    message = error.args[0] if error.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


def _fault_position(pattern: str, message: str) -> int:
    """Returns where the engine stopped. It names only a fragment: the right one ends the shortest prefix that fails."""
    reason, _, fragment = message.partition(": ")
    if reason in ("missing )", "unexpected )"):
        return _odd_parenthesis(pattern)
    if not fragment:
        return max(0, len(pattern) - 1)
    position = pattern.find(fragment)
    while position >= 0:
        # Two more characters distinguish the `(?P` of `(?P=name)` from that of `(?P<name>`.
        if _refusal(pattern[: position + len(fragment) + 2]) == message:
            return position
        position = pattern.find(fragment, position + 1)
    return max(0, pattern.find(fragment))


def _refusal(pattern: str) -> str:
    try:
        re2.compile(pattern, _engine_options(False))
    except re2.error as error:
        return _message(error)
    return ""


def _odd_parenthesis(pattern: str) -> int:
    """Returns the place of the first `)` without its `(`, else of the last `(` without its `)`."""
    unclosed: list[int] = []
    for match in _PARENTHESES.finditer(pattern):
        if match[1] == "(":
            unclosed.append(match.start())
        elif match[1] and not unclosed:
            return match.start()
        elif match[1]:
            unclosed.pop()
    return unclosed[-1] if unclosed else 0


# After this many findings of one pattern in one text, a match is first searched in a small window, which then doubles.
# A pattern such as `a.*b|a` reads to the end of the text for each match, which would take quadratic time; this way the
# time is linear, but of two possible matches the shorter may be reported.
_FAR_SEARCHES = 256
_NEAR_BYTES = 1_024


def _matches(regex: Any, data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the matches that are not empty, in bytes."""
    pos, count, size = 0, 0, len(data)
    while pos <= size:
        match = regex.search(data, pos) if count < _FAR_SEARCHES else _search_near(regex, data, pos)
        if match is None:
            return
        start, end = match.span()
        if end > start:
            yield start, end
        pos = end if end > start else end + 1
        while pos < size and data[pos] & 0xC0 == 0x80:  # a search must not begin inside a character
            pos += 1
        count += 1


def _search_near(regex: Any, data: bytes, pos: int) -> Any:
    window = _NEAR_BYTES
    while pos + window < len(data):
        if match := regex.search(data, pos, pos + window):
            return match
        window *= 2
    return regex.search(data, pos)


def _char_spans(spans: Iterable[tuple[int, int]], data: bytes, is_ascii: bool) -> Iterator[tuple[int, int]]:
    """Converts ascending, separate spans from bytes to code points; decodes each byte once."""
    if is_ascii:
        yield from spans
        return
    at, chars = 0, 0
    for start, end in spans:
        first = chars + len(data[at:start].decode())
        at, chars = end, first + len(data[start:end].decode())
        yield first, chars


class PatternScan(Scan):
    """Reports every match of every rule; rules may overlap."""

    reads_folded = True

    def __init__(self, rules: Sequence[CompiledRule]) -> None:
        self._rules = rules
        self.weight = 1 + sum(rule.regex.programsize for rule in rules) // 100

    def __call__(self, text: str) -> list[Detection]:
        data = encode_utf8(text)
        is_ascii = len(data) == len(text)
        found = at_most(
            _pattern_hit(rule, text, start, end)
            for rule, regex in self._rules
            for start, end in _char_spans(_matches(regex, data), data, is_ascii)
        )
        found.sort(key=lambda hit: (hit.start, hit.end))
        return found


def _pattern_hit(rule: PatternRule, text: str, start: int, end: int) -> Detection:
    metadata = {"rule": rule.name or rule.pattern}
    return Detection(start, end, text[start:end], rule.name or "Regex", "regex", rule.score, metadata=metadata)


@asynccontextmanager
async def open_regex_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports matches of patterns. Options: `patterns`, `ignore_case`."""
    given = Params.of_options(options, PATTERN_PARAMS)
    default_ignore_case = given.flag("ignore_case", False)
    rules = read_patterns(given, MAX_CONFIGURED)
    configured = {case: compile_patterns(given, rules, case) for case in (False, True)}

    def prepare(params: Params) -> Scan:
        ignore_case = params.flag("ignore_case", default_ignore_case)
        added = compile_patterns(params, read_patterns(params, MAX_COUNT), ignore_case, MAX_ASKED_STEPS)
        if not rules and not added:
            raise params.fault("patterns", "`patterns` is required")
        return PatternScan(configured[ignore_case] + added)

    yield ScanningDetector(prepare, PATTERN_PARAMS, LOOKBEHIND_CHARS)


# --- Keywords -------------------------------------------------------------------------------------------------

KEYWORD_PARAMS = ("keywords", "ignore_case", "whole_words")
# Scripts that do not put spaces between words: Thai to Myanmar, Khmer, Kana, Han, Hangul and their extensions.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u2e80-\u2fdf\u3005-\u30ff\u3130-\u318f"
    "\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(rf"[^\W{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
# So many keywords are searched one by one; of more, only those whose first word occurs in the text, or whose first
# two characters do if parts of words match.
_FEW_KEYWORDS = 48


def fold(text: str) -> str:
    """Returns the text in lower case with as many code points, and the forms of one letter made equal."""
    if text.isascii():
        return text.lower()
    lowered = text.replace("\u0130", "i").lower()
    return lowered.replace("ς", "σ").replace("ſ", "s").replace("\u00b5", "\u03bc")


def _is_joined(left: str, right: str) -> bool:
    """Returns whether two neighbours belong to one word. Marks belong to the letter before them."""
    return _is_word_char(left) and _is_word_char(right)


def _is_word_char(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char == "_"
    if _IS_UNSPACED.match(char):
        return False
    return char.isalnum() or unicodedata.category(char)[0] == "M"


class Keyword(NamedTuple):
    """A keyword as written, and as it is searched."""

    text: str
    needle: str


class KeywordScan(Scan):
    """Reports every place of every keyword; keywords may overlap each other."""

    reads_folded = True

    def __init__(self, keywords: Iterable[str], *, ignore_case: bool, whole_words: bool) -> None:
        self._fold: Callable[[str], str] = fold if ignore_case else str
        self._whole_words = whole_words
        self._keywords = [Keyword(text, self._fold(text)) for text in dict.fromkeys(keywords)]
        self._by_word: dict[str, list[Keyword]] = {}
        self._by_start: dict[str, list[Keyword]] = {}
        if len(self._keywords) > _FEW_KEYWORDS:
            self._index()

    def __call__(self, text: str) -> list[Detection]:
        folded = self._fold(text)
        found = at_most(
            _keyword_hit(keyword, text, start)
            for keyword in self._occurring(folded)
            for start in self._places(keyword.needle, folded)
        )
        found.sort(key=lambda hit: (hit.start, hit.end))
        return found

    def _index(self) -> None:
        for keyword in self._keywords:
            first = _WORD.match(keyword.needle) if self._whole_words else None
            if first:
                self._by_word.setdefault(first[0], []).append(keyword)
            else:
                self._by_start.setdefault(keyword.needle[:2], []).append(keyword)

    def _occurring(self, folded: str) -> Iterable[Keyword]:
        """Returns the keywords to search for."""
        if len(self._keywords) <= _FEW_KEYWORDS:
            return self._keywords
        words = set((_ASCII_WORD if folded.isascii() else _WORD).findall(folded))
        near = [keyword for word in words & self._by_word.keys() for keyword in self._by_word[word]]
        if self._by_start:
            starts = {folded[at : at + 2] for at in range(len(folded))} | set(folded)
            near += [keyword for start in starts & self._by_start.keys() for keyword in self._by_start[start]]
        return near

    def _places(self, needle: str, folded: str) -> Iterator[int]:
        start = folded.find(needle)
        while start >= 0:
            end = start + len(needle)
            is_place = not self._whole_words or self._is_whole(folded, start, end)
            if is_place:
                yield start
            start = folded.find(needle, end if is_place else start + 1)

    @staticmethod
    def _is_whole(folded: str, start: int, end: int) -> bool:
        is_open_left = start == 0 or not _is_joined(folded[start - 1], folded[start])
        return is_open_left and (end == len(folded) or not _is_joined(folded[end - 1], folded[end]))


def _keyword_hit(keyword: Keyword, text: str, start: int) -> Detection:
    end = start + len(keyword.needle)
    return Detection(start, end, text[start:end], "Keyword", "keyword", 1.0, metadata={"rule": keyword.text})


class JoinedScan(Scan):
    """Joins the findings of several scans; a finding of two counts once."""

    reads_folded = True

    def __init__(self, *scans: Scan) -> None:
        self._scans = scans

    def __call__(self, text: str) -> list[Detection]:
        found = {(hit.start, hit.end, str(hit.metadata)): hit for scan in self._scans for hit in scan(text)}
        return sorted(found.values(), key=lambda hit: (hit.start, hit.end))


@asynccontextmanager
async def open_keywords_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports keywords. Options: `keywords`, `ignore_case`, `whole_words`."""
    given = Params.of_options(options, KEYWORD_PARAMS)
    configured = given.texts("keywords", MAX_CONFIGURED, MAX_CHARS)
    default_case = given.flag("ignore_case", True)
    default_whole = given.flag("whole_words", True)
    scans = {
        (case, whole): KeywordScan(configured, ignore_case=case, whole_words=whole)
        for case in (False, True)
        for whole in (False, True)
    }

    def prepare(params: Params) -> Scan:
        added = params.texts("keywords", MAX_COUNT, MAX_CHARS)
        if not configured and not added:
            raise params.fault("keywords", "`keywords` is required")
        ignore_case = params.flag("ignore_case", default_case)
        whole_words = params.flag("whole_words", default_whole)
        scan = scans[ignore_case, whole_words]
        if not added:
            return scan
        return JoinedScan(scan, KeywordScan(added, ignore_case=ignore_case, whole_words=whole_words))

    yield ScanningDetector(prepare, KEYWORD_PARAMS, LOOKBEHIND_CHARS)
