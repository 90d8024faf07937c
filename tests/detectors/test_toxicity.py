# SPDX-License-Identifier: Apache-2.0
"""Toxic text is found as its model and our phrases say, whoever else asks at the same time."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.detectors.plain_text import RuleTable
from lockgate.detectors.toxicity.detector import (
    FILE_NAME,
    LABELS,
    RULES,
    load_toxicity_model,
    load_words,
    open_toxicity_detector,
)
from lockgate.detectors.windows import WindowDetector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from tests.weights import ROOT, require_weights

THRESHOLD = 0.8
INSULT = "You are so dumb and stupid!"


@pytest.fixture(scope="module")
def house() -> Any:
    return SimpleNamespace(data_dir=require_weights("toxicity").parents[1])


@pytest.fixture
async def detector(house: Any) -> AsyncIterator[WindowDetector[Any]]:
    async with open_toxicity_detector({}, house) as opened:
        yield opened


async def read(detector: WindowDetector[Any], *texts: str, **params: Any) -> list[list[Detection]]:
    return await detector.accept(params, ()).read([Excerpt(text) for text in texts])


async def test_the_model_says_what_its_makers_say_it_says(house: Any) -> None:
    model = await asyncio.to_thread(load_toxicity_model, house.data_dir / "weights" / "toxicity")
    (window,) = model.cutter.cut(INSULT)
    (heard,) = model.run([window])
    expected = (0.9889402985572815, 0.07256772369146347, 0.620429277420044, 0.01934845559298992, 0.8664075136184692)
    assert [heard.model[label] for label in LABELS[:5]] == pytest.approx(expected, abs=1e-6)
    means = {"I hate you so much!": 0.1395, "This is wonderful news.": 0.0013, "Have a nice day :)": 0.0115}
    for text, mean in means.items():
        (heard,) = model.run(list(model.cutter.cut(text)))
        assert sum(heard.model.values()) / len(LABELS) == pytest.approx(mean, abs=1e-4)


async def test_a_finding_covers_the_chunk_without_outer_white_space_and_tells_all_scores(
    detector: WindowDetector[Any],
) -> None:
    ((hit,),) = await read(detector, f"  {INSULT}\n")
    assert (hit.start, hit.end, hit.text) == (2, 2 + len(INSULT), INSULT)
    assert (hit.detection, hit.detection_type, hit.score) == ("toxic", "toxicity", 0.9889)
    assert hit.metadata is not None
    assert hit.metadata["tier"] == "model"
    assert list(hit.metadata["scores"]) == list(LABELS)


async def test_odd_characters_hide_no_insult_and_belong_to_the_finding(detector: WindowDetector[Any]) -> None:
    for mark in "\u200b\u00ad\u0336\u0301\u2060":
        hidden = mark.join(INSULT)
        ((hit,),) = await read(detector, f" {hidden} ")
        assert (hit.start, hit.text, hit.detection) == (1, hidden, "toxic")
        assert hit.score == pytest.approx(0.9889, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("I know where you live and I will kill you.", "threat"),
        ("Go back to your own country.", "identity_hate"),
        ("Te voy a matar si vuelves por aquí.", "threat"),
        ("Eres un imbécil de mierda.", "insult"),
        ("Ich bring dich um, wenn du noch einmal kommst!", "threat"),
        ("Was bist du für ein Arschloch?", "insult"),
        ("Du Arschl*ch!", "obscene"),
    ],
)
async def test_phrases_speak_where_the_model_is_silent(detector: WindowDetector[Any], text: str, label: str) -> None:
    ((hit,),) = await read(detector, text)
    assert hit.score >= THRESHOLD
    assert hit.detection == label
    assert hit.metadata is not None
    assert hit.metadata["tier"] == "patterns"
    assert hit.metadata["rule"]


@pytest.mark.parametrize(
    "text",
    [
        "The woman buys milk at the store on the corner.",
        "Die Frau kauft die Milch, die sie die ganze Woche trinkt.",  # `die` is no curse
        "Wer die Wahl hat, hat die Qual.",
        "El gato negro duerme en el sofá.",
        "Ich bringe dich um halb neun nach Hause.",
        "How do I kill a process in Linux?",
        "I will beat you at chess.",
        "???",
        " \n ",
        "",
    ],
)
async def test_ordinary_text_is_left_alone(detector: WindowDetector[Any], text: str) -> None:
    ((*hits,),) = await read(detector, text)
    assert [hit for hit in hits if hit.score >= THRESHOLD] == []


@pytest.mark.parametrize(
    "text", ["You are a stuuupid 1diot", "You’re a piece of sh1t", "What a b!tch", "Ｙｏｕ　ｉｄｉｏｔ"]
)
async def test_odd_spellings_are_read(detector: WindowDetector[Any], text: str) -> None:
    ((hit,),) = await read(detector, text)
    assert hit.score >= THRESHOLD


async def test_a_score_does_not_depend_on_who_else_asks(detector: WindowDetector[Any]) -> None:
    texts = [
        INSULT,
        "This is wonderful news.",
        "I hate you so much!",
        "You're disgusting!",
        "Have a nice day.",
        "Moron",
    ]
    together = await read(detector, *texts)
    alone = [(await read(detector, text))[0] for text in texts]
    crowd = await asyncio.gather(*[read(detector, text, *texts) for text in texts])
    assert together == alone == [found[0] for found in crowd]


async def test_of_a_long_text_the_toxic_part_is_found(detector: WindowDetector[Any]) -> None:
    calm = "The museum opens at nine, and visitors may leave their coats in the room next to the entrance. "
    text = calm * 20 + INSULT + " " + calm * 20
    ((*hits,),) = await read(detector, text)
    sure = [hit for hit in hits if hit.score >= THRESHOLD]
    assert sure
    for hit in sure:
        assert "dumb" in hit.text
        assert hit.text == text[hit.start : hit.end]
        assert len(hit.text) < len(text) / 4


async def test_only_the_labels_that_are_asked_for_are_reported(house: Any) -> None:
    async with open_toxicity_detector({"labels": ["threat"]}, house) as detector:
        assert await read(detector, INSULT) == [[]]
        ((hit,),) = await read(detector, "I will kill you.")
        assert hit.detection == "threat"
        ((hit,),) = await read(detector, INSULT, labels=["insult", "obscene"])
        assert (hit.detection, hit.score) == ("insult", 0.8664)


async def test_without_patterns_only_the_model_speaks(house: Any) -> None:
    async with open_toxicity_detector({"patterns": False}, house) as detector:
        assert await read(detector, "Eres un imbécil de mierda.") == [[]]
        ((hit,),) = await read(detector, "Eres un imbécil de mierda.", patterns=True)
        assert hit.detection == "insult"


async def test_behind_a_forced_cut_what_stands_before_is_read_too(detector: WindowDetector[Any]) -> None:
    reading = detector.accept({}, ())
    ((hit,),) = await reading.read([Excerpt("bin you stupid idiot", "and he put it into the ")])
    assert hit.start == -len("and he put it into the ")
    assert await reading.read([Excerpt("   ", "You stupid idiot ")]) == [[]]  # it was read with the chunk before


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"threshold": 1}, "unknown parameter `threshold`, expected `labels` or `patterns`"),
        ({"labels": ["rude"]}, "`labels` has `rude`"),
        ({"labels": []}, "`labels` must not be empty"),
        ({"patterns": "yes"}, "`patterns` must be true or false"),
    ],
)
async def test_wrong_parameters_and_options_are_told(
    detector: WindowDetector[Any], house: Any, params: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        detector.accept(params, ())
    with pytest.raises(ConfigError, match=words):
        async with open_toxicity_detector(params, house):
            pass


async def test_missing_and_damaged_weights_are_told(house: Any, tmp_path: Path) -> None:
    away = SimpleNamespace(data_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"no weights of `toxicity` in .* run `lockgate setup`"):
        async with open_toxicity_detector({}, away):
            pass
    folder = tmp_path / "weights" / "toxicity"
    shutil.copytree(house.data_dir / "weights" / "toxicity", folder)
    size = (folder / FILE_NAME).stat().st_size
    (folder / FILE_NAME).write_bytes(bytes(size))
    with pytest.raises(ConfigError, match=r"cannot be used \(.* is no HDF5 file\): run `lockgate setup`"):
        async with open_toxicity_detector({}, away):
            pass


async def test_a_missing_library_is_told_with_the_extra(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs onnxruntime: pip install 'lockgate\[detectors\]'"):
        async with open_toxicity_detector({}, house):
            pass


def test_a_text_must_be_english_for_the_model(house: Any) -> None:
    words = load_words(house.data_dir / "weights" / "toxicity" / "words.txt")
    for text in ("You stupid idiot", "Kubernetes pods crashloop when the readiness probe fails."):
        assert words.is_readable(words.tokenize(text))
    for text in ("Die Sitzung beginnt um zehn Uhr.", "Negro es mi color favorito.", "Danke, gut!", ""):
        assert not words.is_readable(words.tokenize(text))


def test_no_phrase_meets_ordinary_pages() -> None:
    table = RuleTable(RULES)
    for path in sorted((ROOT / "docs").glob("*.md")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            assert paragraph.startswith("```console") or table.meet(paragraph) == [], paragraph  # examples may insult
