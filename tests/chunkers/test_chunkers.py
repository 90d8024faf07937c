# SPDX-License-Identifier: Apache-2.0
"""The laws of the embedded chunkers over many scripts and cuts, and a table of sentences."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.chunkers.machines import (
    MAX_ADJUST_CHARS,
    MachineChunker,
    ParagraphMachine,
    WholeTextMachine,
    WordMachine,
    cut,
    is_joined,
    open_paragraph_chunker,
    open_sentence_chunker,
    open_whole_text_chunker,
    open_word_chunker,
)
from lockgate.chunkers.sentences import SentenceMachine, StopJudge, load_stop_judge
from lockgate.errors import ConfigError
from lockgate.gate.values import Chunk, Frame
from lockgate.interfaces import ChunkMachine
from tests.waits import forever

Build = Callable[[int], ChunkMachine]


def build_sentence_machine(max_chars: int) -> ChunkMachine:
    return SentenceMachine(max_chars, load_stop_judge())


CUTTING = [
    pytest.param(build_sentence_machine, id="sentence"),
    pytest.param(ParagraphMachine, id="paragraph"),
    pytest.param(WordMachine, id="word"),
]

# Pieces that are likely to sit badly across a border, so that random joins of them meet every rule.
PIECES = [
    *(".", "!", "?", "...", "…", "。", "！", "？", "।", "॥", "؟", "۔", "．", ". . .", "?!", "‼\ufe0f"),
    *(" ", "  ", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u2029", "\x85"),
    *('"', "'", "”", "“", "»", "«", ")", "(", "]", "**", "」", "「", "』", "\u200f"),
    *("Dr.", "e.g.", "U.S.", "No.", "p.", "z. B.", "Sr.", "etc.", "J.", "5.", "3.14", "д.", "डॉ.", "د."),
    *("- ", "* ", "1. ", "12) ", "# ", "```", "a) ", "Oktober", "Ann said hi", "the", "The", "I", "López", "Zürich"),
    *("你好", "と言った", "ありがとう", "नमस्ते", "مرحبا", "สวัสดี", "한국어", "Привет", "ሰላም", "x" * 20, "word " * 5),
    *("e\u0301", "\u0301", "\u0301" * 40, "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪🇫🇷", "\u200d", "\ufe0f", "\ud83d"),
]
TEXTS = st.one_of(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=40).map("".join),
    st.text(alphabet=".!? \n\r\"')aAb1。「」", max_size=80),
    st.text(max_size=80),
)
MAXIMA = st.sampled_from([16, 17, 24, 40, 64, 200])


def stream(machine: ChunkMachine, pieces: Iterable[str]) -> list[Chunk]:
    return [*(chunk for piece in pieces for chunk in machine.feed(piece)), *machine.finish()]


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    borders = sorted(draw(st.lists(st.integers(0, len(text)), max_size=30)))
    return text, [text[a:b] for a, b in pairwise([0, *borders, len(text)])]


@pytest.mark.parametrize("build", CUTTING)
@given(case=texts_in_pieces(), max_chars=MAXIMA)
def test_any_cut_of_the_text_gives_the_same_chunks(build: Build, case: tuple[str, list[str]], max_chars: int) -> None:
    text, pieces = case
    whole = cut(build(max_chars), text)
    assert stream(build(max_chars), pieces) == whole
    assert stream(build(max_chars), text) == whole


@pytest.mark.parametrize("build", CUTTING)
@given(text=TEXTS, max_chars=MAXIMA)
def test_chunks_join_to_the_text_without_gaps(build: Build, text: str, max_chars: int) -> None:
    chunks = cut(build(max_chars), text)
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.start for chunk in chunks] == [0, *(chunk.end for chunk in chunks)][: len(chunks)]
    assert all(chunk.text == text[chunk.start : chunk.end] and chunk.text for chunk in chunks)


@pytest.mark.parametrize("build", CUTTING)
@given(text=TEXTS, max_chars=MAXIMA)
def test_no_chunk_is_longer_than_the_maximum(build: Build, text: str, max_chars: int) -> None:
    assert all(len(chunk.text) <= max_chars for chunk in cut(build(max_chars), text))


@pytest.mark.parametrize("build", CUTTING)
@given(text=TEXTS, max_chars=MAXIMA)
def test_only_a_cut_at_the_maximum_without_white_space_is_forced(build: Build, text: str, max_chars: int) -> None:
    chunks = cut(build(max_chars), text)
    assert not chunks or not chunks[-1].is_forced
    for chunk in chunks:
        if chunk.is_forced:
            assert max_chars - MAX_ADJUST_CHARS <= len(chunk.text) <= max_chars
            assert not chunk.text[-1].isspace()
            last_quarter = range(chunk.start + max_chars - max_chars // 4, chunk.start + max_chars)
            assert not any(text[at].isspace() and not is_joined(text, at + 1) for at in last_quarter)


@pytest.mark.parametrize("build", CUTTING)
@given(text=TEXTS, max_chars=MAXIMA)
def test_a_cut_never_parts_a_character_from_its_marks(build: Build, text: str, max_chars: int) -> None:
    for chunk in cut(build(max_chars), text)[:-1]:
        reachable = range(chunk.end, max(chunk.start, chunk.end - MAX_ADJUST_CHARS - 1), -1)
        assert not is_joined(text, chunk.end) or all(is_joined(text, at) for at in reachable)


@pytest.mark.parametrize("build", CUTTING)
def test_an_empty_text_has_no_chunks(build: Build) -> None:
    assert cut(build(16), "") == []


@pytest.mark.parametrize("build", CUTTING)
def test_nothing_can_be_fed_after_the_end(build: Build) -> None:
    machine = build(16)
    machine.finish()
    with pytest.raises(RuntimeError):
        machine.feed("more")


@pytest.mark.parametrize("build", CUTTING)
def test_a_megabyte_of_combining_marks_is_cut_too(build: Build) -> None:
    chunks = cut(build(1000), "\u0301" * 1_000_000)
    assert {len(chunk.text) for chunk in chunks} == {1000}


def test_a_forced_cut_falls_after_the_last_white_space_and_is_not_marked() -> None:
    first, second = cut(ParagraphMachine(16), "abcdefghijk mn opq")
    assert (first.text, first.is_forced) == ("abcdefghijk mn ", False)
    assert (second.text, second.is_forced) == ("opq", False)


def test_white_space_before_the_last_quarter_does_not_help() -> None:
    first, second = cut(ParagraphMachine(16), "abcdefg hijklmnopq")
    assert (first.text, first.is_forced) == ("abcdefg hijklmno", True)
    assert (second.text, second.is_forced) == ("pq", False)


def test_a_text_of_exactly_the_maximum_is_not_cut() -> None:
    assert cut(WordMachine(16), "x" * 16) == [Chunk(0, 16, "x" * 16)]


def test_a_family_is_not_torn_by_a_forced_cut() -> None:
    text = "x" * 14 + "👩\u200d👩\u200d👧" + "y" * 20
    assert cut(WordMachine(16), text)[0] == Chunk(0, 14, "x" * 14, is_forced=True)


def texts_of(machine: ChunkMachine, text: str) -> list[str]:
    return [chunk.text for chunk in cut(machine, text)]


@pytest.mark.parametrize(
    "marked",
    [
        "One.\nStill one.\n\n|Two.",
        "One.\r\n \t\r\n|Two.\r\n\r\n\r\n|Three.",
        "One.\r\r|Two.\rStill two.",
        "One.\u2029|Two.\u2028Still two.",
        "\n\n One.\n\n|Two.\n\n",
        "One.\r\nStill one.",
    ],
)
def test_a_paragraph_ends_after_a_blank_line(marked: str) -> None:
    assert texts_of(ParagraphMachine(8000), marked.replace("|", "")) == marked.split("|")


@pytest.mark.parametrize(
    "marked",
    [
        "One |two,  |three.\n|four",
        "  One |two ",
        "你|好，|我|叫 |Ann|们。",
        "「行|こ|う。」|と",
        "ใช่ |ไม่",
        "か\u3099|き",
    ],
)
def test_a_word_keeps_the_white_space_after_it(marked: str) -> None:
    expected = marked.split("|")
    assert texts_of(WordMachine(256), "".join(expected)) == expected


def test_the_whole_text_is_one_chunk_even_when_empty() -> None:
    assert cut(WholeTextMachine(), "") == [Chunk(0, 0, "")]
    assert stream(WholeTextMachine(), ["One. ", "", "Two."]) == [Chunk(0, 9, "One. Two.")]


ENGLISH = [
    "Ann said hi. |She left.",
    "  Ann said hi. |She left. ",
    "Dr. Smith met Mrs. Jones. |They talked.",
    "We need tools, e.g. this one. |Fine.",
    "The U.S. law is clear. |Nobody doubts it.",
    "Pi is 3.14 or so. |It goes on.",
    "See No. 5 for more. |Then stop.",
    "He said no. |Ann left.",
    "Is it true? |Yes! |Good.",
    '"Is it true?" he asked. |She nodded.',
    '"Stop!" |She ran.',
    "“Stop!” |She ran.",
    "He left (at last.) |She stayed.",
    "Wait... what is this? |Nothing.",
    "Wait... |Then it came.",
    "Well . . . |Then it came.",
    "I saw it… |The end.",
    "J. R. R. Tolkien wrote it. |I read it.",
    "Plan B. |The next day we left.",
    "It was cold. |Ann left.",
    "He has cancer. |Paul knows.",
    "Visit example.com. |It works.",
    "At 5 p.m. we left. |It rained.",
    "Acme Inc. said so. |They did.",
    "Version 2.0.1 is out. |Get it.",
    "What?! |No way!!! |Really.",
    "He paid $5. |Then he left.",
    "He met Lt. Col. Brown. |It was late.",
    "He works at St. Mary's. |She does not.",
    "Cats, dogs, etc. are pets. |We know.",
    "Smith et al. found it. |We did not.",
    "See Fig. 3 and p. 5. |Then go on.",
]
LAYOUT = [
    "A heading\n\n|Another line",
    "Shopping:\n|- eggs\n|- milk and bread\n|- tea",
    "Steps:\n|1. Open it.\n|2. Close it. |Done.",
    "A line that is\nwrapped goes on. |Next.",
    "Done.\r\n|Next.",
    "**Bold end.** |Next one.",
    "Text\n|# Heading",
]
SPANISH = [
    "El Sr. López llegó. |La Sra. Gómez no.",
    "¿Cómo estás? |¡Muy bien! |Gracias.",
    "Vive en la Avda. Colón. |Es grande.",
    "Hay frutas, p. ej. manzanas. |También pan.",
    "Ud. tiene razón. |Vale.",
]
GERMAN = [
    "Wir mögen Obst, z. B. Äpfel. |Es ist gesund.",
    "Das ist z.B. gut. |Ja.",
    "Am 3. Oktober war es so. |Danach nicht.",
    "Er sagte: „Ich komme.“ |Dann ging er.",
    "Äpfel, Birnen usw. sind Obst. |Gut so.",
    "Die Kosten bzw. Preise steigen. |Leider.",
    "Prof. Dr. Müller kam. |Sie ging.",
    "»Hallo.« |Er ging.",
    "Vgl. Abb. 3 im Text. |Mehr dort.",
]
FRENCH = [
    "M. Dupont est là. |Mme. Durand aussi.",
    "« Bonjour. » |Puis il part.",
    "Il part. |« Adieu ! » dit-elle. |Elle rit.",
    "Quoi ? |Rien !",
    "C'est fini. |Élise rentre.",
]
CHINESE = [
    "今天天气很好。|我们去公园吧！|好吗？",
    "他说：“你好。”|然后他走了。",
    '他说:"你好。"|然后他走了。',
    "他走了。|“你好。”",
    "真的吗？！|我不信。",
    "（他走了。）|我没走。",
]
JAPANESE = [
    "価格は3.5ドルです。|高いですか？|はい。",
    "「行こう。」と彼は言った。|私も行った。",
    "すごい！　|本当に。",
    "今日は晴れ。|2024年5月です。",
]
HINDI = [
    "मैं घर गया। |वह नहीं आया।",
    "क्या तुम ठीक हो? |हाँ।",
    "डॉ. शर्मा आए। |वे बैठे।",
    "॥१॥ |राम आए।",
]
ARABIC = [
    "هل أنت بخير؟ |نعم.",
    "ذهبت إلى البيت. |ثم نمت.",
    "قابلت د. محمد أمس. |كان سعيدا.",
    "وہ گھر گیا۔ |میں نہیں گیا۔",
]
OTHERS = [
    "저는 학생입니다. |당신은요?",
    "그렇게 합니다. |좋습니다.",
    "Он пришёл. |Она ушла.",
    "ሰላም። |ደህና።",
]
SENTENCES = [*ENGLISH, *LAYOUT, *SPANISH, *GERMAN, *FRENCH, *CHINESE, *JAPANESE, *HINDI, *ARABIC, *OTHERS]


@pytest.mark.parametrize("marked", SENTENCES)
def test_a_sentence_ends_before_the_next_one_begins(marked: str) -> None:
    expected = marked.split("|")
    assert texts_of(build_sentence_machine(2000), "".join(expected)) == expected
    assert [chunk.text for chunk in stream(build_sentence_machine(2000), "".join(expected))] == expected


@pytest.mark.parametrize(("seen", "is_known"), [("Ann left. ", False), ("Ann left. S", True), ("At 5 p.m. The ", True)])
def test_a_sentence_is_known_soon_after_its_end(seen: str, is_known: bool) -> None:
    assert bool(build_sentence_machine(2000).feed(seen)) is is_known


def test_no_sentence_waits_for_more_than_eight_characters() -> None:
    machine = build_sentence_machine(2000)
    assert machine.feed("Well-known. Xyzzyxy") == []
    assert machine.feed("z") == [Chunk(0, 12, "Well-known. ")]


class CountingSplitter:
    """Stands before nupunkt and counts what it is given."""

    def __init__(self) -> None:
        self.chars = 0

    @property
    def abbreviations(self) -> frozenset[str]:
        return frozenset({"etc"})

    def span_tokenize(self, text: str) -> Iterable[tuple[int, int]]:
        self.chars += len(text)
        return [(0, len(text))]


@pytest.mark.parametrize("unit", ["p. ", "etc. ", "..", "... ", "\n", "x", "a1. b2. ", ".) ", "U.S. Xyzzyxyzzy "])
@pytest.mark.parametrize("max_chars", [2000, 1_000_000])
def test_nupunkt_is_given_a_number_of_characters_that_grows_with_the_text(unit: str, max_chars: int) -> None:
    given_chars = []
    for length in (20_000, 40_000):
        splitter = CountingSplitter()
        judge = StopJudge(splitter)
        judge._ask = judge._ask_splitter  # type: ignore[assignment]  # without its memory
        cut(SentenceMachine(max_chars, judge), unit * (length // len(unit)))
        given_chars.append(splitter.chars)
    assert given_chars[0] <= 6 * 20_000
    assert given_chars[1] <= 2 * given_chars[0] + 100


def test_the_model_is_loaded_once() -> None:
    assert load_stop_judge() is load_stop_judge()


async def frames_of(pieces: Iterable[str]) -> AsyncIterator[Frame]:
    for index, piece in enumerate(pieces):
        yield Frame(index, piece)


OPENERS = [open_sentence_chunker, open_paragraph_chunker, open_word_chunker, open_whole_text_chunker]


@pytest.mark.parametrize("open_chunker", OPENERS)
async def test_a_stream_gives_the_chunks_of_the_whole_text(open_chunker: Any) -> None:
    text = "Ann said hi. She left.\n\nDr. Smith stayed. " * 1000
    async with open_chunker({}) as chunker:
        whole = list(await chunker.cut(text))
        assert [chunk async for chunk in chunker.stream(frames_of([text]))] == whole
        assert [chunk async for chunk in chunker.stream(frames_of(text[:500]))] == list(await chunker.cut(text[:500]))
    assert "".join(chunk.text for chunk in whole) == text


async def test_a_chunk_comes_before_the_stream_has_ended() -> None:
    async def endless() -> AsyncIterator[Frame]:
        yield Frame(0, "Ann said hi. She")
        await forever()

    async with open_sentence_chunker({"max_chars": 100}) as chunker:
        chunks = chunker.stream(endless())
        assert await anext(chunks) == Chunk(0, 13, "Ann said hi. ")


async def test_a_long_frame_lets_others_run() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    chunker = MachineChunker(WholeTextMachine)
    assert [len(chunk.text) async for chunk in chunker.stream(frames_of(["x" * 100_000]))] == [100_000]
    other.cancel()
    assert turns > 10


@pytest.mark.parametrize("open_chunker", OPENERS[:3])
@pytest.mark.parametrize("value", [15, 1_000_001, "200", 20.0, True, None])
async def test_a_bad_maximum_is_refused_with_the_allowed_range(open_chunker: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="16 to 1000000") as refusal:
        async with open_chunker({"max_chars": value}):
            pass
    assert (refusal.value.source, refusal.value.key) == ("options", "max_chars")


@pytest.mark.parametrize("open_chunker", OPENERS)
async def test_an_unknown_option_is_refused_by_name(open_chunker: Any) -> None:
    with pytest.raises(ConfigError, match="unknown option") as refusal:
        async with open_chunker({"size": 5}):
            pass
    assert refusal.value.key == "size"
