# SPDX-License-Identifier: Apache-2.0
"""How often the embedded detectors are right on labelled sets of our own, and how long they take.

The sets were written by people who did not write the detectors, and stored in the repository before any threshold was
chosen. Detectors are opened as the gateway opens them, with their default threshold; texts are cut into sentences. An
item counts as reported if any of its chunks has a finding.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import Effort, Row, leave_out_of_collections
from lockgate.config.service_sections import embedded_defaults
from lockgate.config.settings import DetectorSettings, Settings
from lockgate.errors import ConfigError
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, Claim, Detection, Excerpt
from lockgate.gate.verdicts import keep
from lockgate.gateway import Gateway, open_gateway
from lockgate.guard.detectors import ActiveGuard, ActiveReview, ChosenDetectors, Rules, choose
from lockgate.telemetry.log import SILENT, logger

SETS = Path(__file__).parent / "labelled"
LANGUAGES = ("en", "es", "de")
GROUNDEDNESS, LANGUAGE, PII = "groundedness", "language", "pii"
NAMES = ("prompt_injection", "toxicity", LANGUAGE, GROUNDEDNESS, PII, "secrets")
# The set has telephone numbers as people of these countries write them.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    PII: {"regions": ["US", "GB", "AU", "DE", "ES", "FR", "IT", "NL", "PL", "PT"]},
    LANGUAGE: {"allow": list(LANGUAGES)},
}
_NO_LANGUAGE = "und"
_PLAIN_KINDS = frozenset(("sentence", "question"))  # of the set of languages; in the others the hard ones say so
_ALSO_RIGHT = {"no": ["no", "nn"]}
_MILLI = 1e3


class Sample(NamedTuple):
    """An item of a set. `label`: it should be reported."""

    id: str
    language: str
    kind: str
    text: str
    label: bool
    documents: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def is_hard(self) -> bool:
        """Whether it is a negative that looks like a positive."""
        return not self.label and self.kind.startswith("hard_")


class Outcome(NamedTuple):
    """What a detector found in an item, and how long it took for each chunk."""

    sample: Sample
    found: tuple[Detection, ...]
    taken_s: tuple[float, ...]

    @property
    def is_reported(self) -> bool:
        return bool(self.found)


class Figures(NamedTuple):
    """How often a detector was right."""

    hits: int
    misses: int
    false_alarms: int

    @property
    def precision(self) -> float:
        """The share of reports that were right, in percent; 100 where nothing was reported."""
        reported = self.hits + self.false_alarms
        return 100 * self.hits / reported if reported else 100.0

    @property
    def recall(self) -> float:
        """The share of what should be reported that was, in percent."""
        there = self.hits + self.misses
        return 100 * self.hits / there if there else 100.0


def measure_detectors(effort: Effort) -> list[Row]:
    """The figures of every detector that has a set."""
    logger.setLevel(SILENT)
    try:
        return asyncio.run(_measure(effort))
    except ConfigError as error:
        return [Row(f"detectors cannot be opened: {error.message}", 0, "", 1, is_minimum=True)]


async def _measure(effort: Effort) -> list[Row]:
    async with open_gateway(_build_settings()) as gateway:
        leave_out_of_collections()
        rows: list[Row] = []
        for name in NAMES:
            rows += await _measure_one(gateway, name, effort)
        return rows


def _build_settings() -> Settings:
    detectors = {
        name: DetectorSettings(**embedded_defaults(name), embedded=name, options=OPTIONS.get(name, {}))
        for name in NAMES
    }
    data_dir = Path(os.environ.get("LOCKGATE_DATA_DIR", SETS.parents[1] / ".lockgate"))
    return replace(Settings(), detectors=detectors, data_dir=data_dir)


async def _measure_one(gateway: Gateway, name: str, effort: Effort) -> list[Row]:
    samples = choose_samples(load_samples(name), effort.questions)
    if name == LANGUAGE:
        return await _measure_languages(gateway, samples)
    outcomes = [await _ask(gateway, name, {}, sample) for sample in samples]
    rows = build_rows(name, outcomes)
    if name == PII:
        rows += build_span_rows(name, outcomes)
    if name == GROUNDEDNESS:
        known = [await _time_known(gateway, sample) for sample in samples]
        rows.append(
            Row(f"{name}, a claim about documents that are known, p50", statistics.median(known) * _MILLI, "ms")
        )
    return rows


def load_samples(name: str) -> list[Sample]:
    """A labelled set; for `language`, texts in no wanted language are to be reported."""
    lines = (SETS / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [_read_sample(json.loads(line)) for line in lines]


def _read_sample(item: Mapping[str, Any]) -> Sample:
    return Sample(
        item["id"],
        item["language"],
        item["kind"],
        item.get("claim") or item["text"],
        bool(item.get("label", False)),
        tuple(item.get("documents", ())),
        tuple((span[0], span[1]) for span in item.get("spans", ())),
    )


def choose_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """All, or so many of all kinds alike."""
    return list(samples[:: max(1, len(samples) // count)])


async def _ask(gateway: Gateway, name: str, params: Mapping[str, Any], sample: Sample) -> Outcome:
    """One request about one item."""
    chosen = choose(gateway.guards, {name: params}, Rules(types=(TEXT_CONTENTS, TEXT_CONTEXT_DOC)))
    if sample.documents:
        return await _ask_review(chosen.reviews[0], sample)
    return await _ask_guard(chosen.contents[0], sample)


async def _ask_guard(active: ActiveGuard, sample: Sample) -> Outcome:
    found: list[Detection] = []
    taken: list[float] = []
    chunker = active.guard.chunker
    for chunk in await chunker.cut(sample.text) if chunker else ():
        started = time.perf_counter()
        (of_chunk,) = await active.reading.read([Excerpt(chunk.text)])
        taken.append(time.perf_counter() - started)
        kept = keep(of_chunk, active.threshold)
        found += [one._replace(start=one.start + chunk.start, end=one.end + chunk.start) for one in kept]
    return Outcome(sample, tuple(found), tuple(taken))


async def _ask_review(active: ActiveReview, sample: Sample) -> Outcome:
    started = time.perf_counter()
    found = await active.review.review(Claim(sample.text, "docs", sample.documents))
    return Outcome(sample, keep(found, active.threshold), (time.perf_counter() - started,))


async def _time_known(gateway: Gateway, sample: Sample) -> float:
    """A second claim of the same request."""
    chosen: ChosenDetectors = choose(gateway.guards, {GROUNDEDNESS: {}}, Rules(types=(TEXT_CONTEXT_DOC,)))
    await _ask_review(chosen.reviews[0], sample)
    again = await _ask_review(chosen.reviews[0], sample)
    return again.taken_s[0]


def count(outcomes: Iterable[Outcome]) -> Figures:
    """How often a detector was right."""
    pairs = [(one.sample.label, one.is_reported) for one in outcomes]
    return Figures(pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True)))


def build_rows(name: str, outcomes: Sequence[Outcome]) -> list[Row]:
    """The figures of a detector, of all languages and of those that have enough items."""
    hard = [one for one in outcomes if one.sample.is_hard]
    taken = [took for one in outcomes for took in one.taken_s]
    rows = [
        *_rate(f"{name}, {len(outcomes)} items", outcomes),
        Row(f"{name}, false alarms on {len(hard)} hard negatives", sum(one.is_reported for one in hard), ""),
    ]
    for language in LANGUAGES:
        of_language = [one for one in outcomes if one.sample.language == language]
        rows += _rate(f"{name}, {language}, {len(of_language)} items", of_language)
    rows.append(Row(f"{name}, default threshold", embedded_defaults(name)["default_threshold"], ""))
    rows.append(Row(f"{name}, per chunk, p50", statistics.median(taken) * _MILLI if taken else 0.0, "ms"))
    return rows


def _rate(title: str, outcomes: Sequence[Outcome]) -> list[Row]:
    figures = count(outcomes)
    return [Row(f"{title}: precision", figures.precision, "%"), Row(f"{title}: recall", figures.recall, "%")]


def build_span_rows(name: str, outcomes: Sequence[Outcome]) -> list[Row]:
    """How many of the marked spans lie inside a finding, and how many findings touch none."""
    spans = [(one, span) for one in outcomes for span in one.sample.spans]
    covered = sum(any(hit.start <= start and end <= hit.end for hit in one.found) for one, (start, end) in spans)
    found = [(one, hit) for one in outcomes for hit in one.found]
    beside = sum(all(hit.end <= start or end <= hit.start for start, end in one.sample.spans) for one, hit in found)
    return [
        Row(f"{name}, of {len(spans)} spans found whole", covered, ""),
        Row(f"{name}, of {len(found)} findings beside every span", beside, ""),
    ]


# --- Languages ------------------------------------------------------------------------------------------------


async def _measure_languages(gateway: Gateway, samples: Sequence[Sample]) -> list[Row]:
    """Asked about several languages at once, about each alone, and for the language of each text.

    A text without any language is one that must not be reported.
    """

    async def ask(wanted: Sequence[str]) -> list[Outcome]:
        marked = [mark_unwanted(sample, wanted) for sample in samples]
        return [await _ask(gateway, LANGUAGE, {"allow": list(wanted)}, one) for one in marked]

    outcomes = await ask(LANGUAGES)
    rows = [row for row in build_rows(LANGUAGE, outcomes) if not row.name.startswith(_alone_titles())]
    for wanted in LANGUAGES:
        rows += _rate(f"{LANGUAGE}, {wanted} alone allowed, {len(samples)} items", await ask([wanted]))
    return [*rows, *await _tell_languages(gateway, samples)]


def _alone_titles() -> tuple[str, ...]:
    return tuple(f"{LANGUAGE}, {language}," for language in LANGUAGES)


def mark_unwanted(sample: Sample, wanted: Sequence[str]) -> Sample:
    """The item as one that is to be reported where its language is not wanted."""
    is_unwanted = sample.language != _NO_LANGUAGE and sample.language not in wanted
    kind = sample.kind if sample.kind in _PLAIN_KINDS else f"hard_{sample.kind}"
    return sample._replace(label=is_unwanted, kind=kind)


async def _tell_languages(gateway: Gateway, samples: Sequence[Sample]) -> list[Row]:
    """How often the language itself is right: each is denied in its turn, so that it must be reported."""
    right, judged, spoken = 0, 0, [one for one in samples if one.language != _NO_LANGUAGE]
    for sample in spoken:
        codes = _ALSO_RIGHT.get(sample.language, [sample.language])
        known = await _ask(gateway, LANGUAGE, {"deny": codes}, sample)
        other = await _ask(gateway, LANGUAGE, {"allow": codes}, sample)
        right += known.is_reported and not other.is_reported
        judged += known.is_reported or other.is_reported
    return [
        Row(f"{LANGUAGE}, of {len(spoken)} texts long and sure enough to be judged", judged, ""),
        Row(f"{LANGUAGE}, of those the language is right", right, ""),
    ]
