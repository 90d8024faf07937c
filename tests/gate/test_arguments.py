# SPDX-License-Identifier: Apache-2.0
"""The laws of tool arguments: any text, any cut of feeds and releases, any masks; and bugs that break them."""

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate import arguments
from lockgate.gate.arguments import ArgumentsReader
from lockgate.gate.verdicts import Mask
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()
SEEDS = st.integers(0, 1 << 32)
LABELS = ['"\\\n', "[CARD]", "Маша", "", "[a label that is longer than any mask]"]

# Any text: JSON, nearly JSON, and escapes of all kinds, whole and broken.
FRAGMENTS = [
    *'{}[]:,"""\\\\ \n', "a\u2028b", "\u00a0", '"a":', "4111", "-1.5e3", "true", "nul", '\\"', "\\n", "\\x", "\\x",
    "\\u00", "\\u0040", "\\ud83d", "\\ude00", "\\uD83D\\uDE00", "\\ud83d\\ud83d\\ude00", "\\ud83d\\u0041", "\\ud83d\\n",
]  # fmt: skip
PIECES = st.lists(st.sampled_from(FRAGMENTS) | st.text(st.characters(), max_size=6), max_size=25)
RAWS = st.builds(lambda start, rest: start + "".join(rest), st.sampled_from(["", '"', '{"a": "']), PIECES)

# Valid JSON: an object is a tuple of pairs, so that equal keys are kept; a lone high surrogate is always an escape.
STRINGS = st.text(st.sampled_from('ab4 "\\/{}[]:,\n\x00é@█\u2028😀\ud83d') | st.characters(codec="utf-8"), max_size=12)
SCALARS = STRINGS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(STRINGS, inner), max_size=4).map(tuple),
    max_leaves=12,
)


class Unit(NamedTuple):
    """One plain code point as it was written; `token` numbers the string or atom that it belongs to, 0 none."""

    plain: str
    raw: str
    token: int = 0
    is_atom: bool = False


class Writer:
    """Writes a value as JSON in a random style, and knows what is what."""

    def __init__(self, value: Any, dice: random.Random) -> None:
        self.dice, self.tokens, self.units = dice, 0, list[Unit]()
        self._write(value)
        self.raw = "".join(unit.raw for unit in self.units)
        self.plain = "".join(unit.plain for unit in self.units)

    def _put(self, structure: str) -> None:
        for mark in structure + self.dice.choice(["", "", " ", "\n\t"]) * (structure != '"'):
            self.units.append(Unit(mark, mark))

    def _write(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            self._put("[" if isinstance(value, list) else "{")
            for place, member in enumerate(value):
                self._put("," * (place > 0))
                if isinstance(value, tuple):
                    self._write(member[0])
                    self._put(":")
                self._write(member[1] if isinstance(value, tuple) else member)
            self._put("]" if isinstance(value, list) else "}")
            return
        self.tokens += 1
        if isinstance(value, str):
            self._put('"')
            self.units += [Unit(c if c != "\ud83d" else "\ufffd", self._style(c), self.tokens) for c in value]
            self._put('"')
        else:
            self.units += [Unit(c, c, self.tokens, is_atom=True) for c in json.dumps(value)]
        self._put("")

    def _style(self, char: str) -> str:
        short = json.dumps(char, ensure_ascii=False)[1:-1]
        units = char.encode("utf-16-be", "surrogatepass").hex()
        long = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        if char == "\ud83d":
            return long
        return self.dice.choice([short, short, long, long.upper().replace("U", "u"), "\\/" if char == "/" else short])


def draw_masks(dice: random.Random, size: int) -> list[Mask]:
    masks, at = list[Mask](), dice.randrange(12)
    while at < size and len(masks) < 9:
        end = min(at + dice.randint(1, 12), size)
        text = dice.choice([*LABELS, "█" * (end - at), "█" * (end - at), "".join(map(chr, range(97, 97 + end - at)))])
        masks.append(Mask(at, end, text))
        at = end + dice.choice([1, 1, 5, 20])
        if text and dice.random() < 0.2 and end < size:
            masks.append(Mask(end, end + 1, "▒"))  # a neighbour
            at += 1
    return masks


def expect(writer: Writer, masks: list[Mask]) -> tuple[str, dict[int, str | None]]:
    """The raw text as it has to leave, and what becomes of each token; None: an atom that nothing touches."""
    covered = {at: mask for mask in masks for at in range(mask.start, mask.end)}
    was_written, out, tokens, at = set(), [], dict[int, str | None](), 0
    for token, group in groupby(writer.units, key=lambda unit: unit.token):
        raw, plain, is_touched, is_atom = "", "", False, False
        for unit in group:
            mask, is_atom = covered.get(at) if token else None, unit.is_atom
            text = None
            if mask:
                is_each = len(mask.text) == mask.end - mask.start
                text = mask.text[at - mask.start] if is_each else "" if mask in was_written else mask.text
                was_written.add(mask)
                is_touched = True
            raw += unit.raw if text is None else json.dumps(text, ensure_ascii=False)[1:-1]
            plain += text if text is not None else "" if is_atom else unit.plain
            at += 1
        tokens[token] = None if is_atom and not is_touched else plain
        out.append(json.dumps(plain, ensure_ascii=False) if is_atom and is_touched else raw)
    return "".join(out), tokens


class Number(NamedTuple):
    """A number as it was written."""

    text: str


def rebuild(value: Any, tokens: dict[int, str | None], numbers: Iterator[int]) -> Any:
    """The value as it has to be read in the end."""
    if isinstance(value, tuple):
        return tuple((rebuild(key, tokens, numbers), rebuild(one, tokens, numbers)) for key, one in value)
    if isinstance(value, list):
        return [rebuild(one, tokens, numbers) for one in value]
    text = tokens.get(next(numbers), "")  # an empty string has no characters that the writer could note
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if text is not None else Number(json.dumps(value)) if is_number else value


def parse(raw: str) -> Any:
    try:
        return _mend(json.loads(raw, object_pairs_hook=tuple, parse_int=Number, parse_float=Number))
    except ValueError as error:
        raise AssertionError(f"broken JSON: {raw}") from error


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\ud83d", "\ufffd")
    if isinstance(value, Number) or not isinstance(value, list | tuple):
        return value
    return type(value)(_mend(one) for one in value)


Watch = Callable[[ArgumentsReader, str, str, int], None]


def play(raw: str, masks: list[Mask], dice: random.Random, watch: Watch | None = None) -> tuple[str, str]:
    """Feed and release in random pieces; the plain text and what left. The watcher sees what was fed and what left."""
    reader, waiting, plain, output, fed, upto = ArgumentsReader(), list(masks), "", "", 0, 0
    size = dice.choice([1, 3, 8, len(raw) + 1])
    while fed < len(raw):
        piece = raw[fed : fed + dice.randint(0, size)]
        plain, fed = plain + reader.feed(piece), fed + len(piece)
        upto = dice.choice([upto, len(plain), dice.randint(upto, len(plain))])
        output += reader.release(upto, _take_masks(waiting, upto, dice))
        if watch:
            watch(reader, raw[:fed], output, upto)
    plain += reader.finish()
    if dice.random() < 0.5:
        output += reader.release(len(plain), _take_masks(waiting, len(plain), dice))
    return plain, output + reader.release(len(plain), waiting, is_final=True)


def _take_masks(waiting: list[Mask], upto: int, dice: random.Random) -> list[Mask]:
    """The masks that begin before `upto`, some of them cut there, their rest put back."""
    taken = []
    while waiting and waiting[0].start < upto:
        start, end, text = waiting.pop(0)
        is_each = len(text) == end - start
        if end > upto and (is_each or not text or len(text) > 12) and dice.random() < 0.5:
            waiting.insert(0, Mask(upto, end, text[upto - start :] if is_each else ""))
            end, text = upto, text[: upto - start] if is_each else text
        taken.append(Mask(start, end, text))
    return taken


def decode(raw: str) -> str:
    reader = ArgumentsReader()
    return reader.feed(raw) + reader.finish()


@given(RAWS, SEEDS)
def test_without_masks_any_text_leaves_as_it_came(raw: str, seed: int) -> None:
    assert play(raw, [], random.Random(seed))[1] == raw


@given(RAWS, SEEDS, SEEDS)
def test_any_cut_gives_the_same_plain_text_and_the_same_masked_text(raw: str, one: int, two: int) -> None:
    masks = draw_masks(random.Random(one), len(decode(raw)))
    assert play(raw, masks, random.Random(one)) == play(raw, masks, random.Random(two))


@given(VALUES, SEEDS)
def test_detectors_read_the_decoded_text(value: Any, seed: int) -> None:
    writer = Writer(value, random.Random(seed))
    assert play(writer.raw, [], random.Random(seed))[0] == writer.plain


@given(VALUES, SEEDS)
def test_masked_json_parses_to_the_same_shape_with_masked_strings(value: Any, seed: int) -> None:
    writer = Writer(value, random.Random(seed))
    masks = draw_masks(writer.dice, len(writer.plain))
    output = play(writer.raw, masks, writer.dice)[1]
    assert parse(output) == rebuild(value, expect(writer, masks)[1], iter(range(1, writer.tokens + 1)))


@given(VALUES, SEEDS)
def test_what_no_mask_covers_keeps_its_raw_characters(value: Any, seed: int) -> None:
    writer = Writer(value, random.Random(seed))
    masks = draw_masks(writer.dice, len(writer.plain))
    assert play(writer.raw, masks, writer.dice)[1] == expect(writer, masks)[0]


@given(RAWS, SEEDS)
def test_masks_change_the_structure_of_no_text(raw: str, seed: int) -> None:
    dice = random.Random(seed)
    raw = '["' + r"\x,\x[\x]" * 5 + '", ' + raw
    masks = [mask._replace(text=dice.choice(LABELS)) for mask in draw_masks(dice, len(decode(raw)))]
    output = play(raw, masks, dice)[1]
    found, expected = ([run[2].replace('"', "") for run in _scan(text) if run[0] == 0] for text in (output, raw))
    assert "".join(found) == "".join(expected)  # but for the quotes of atoms that became strings


def _scan(raw: str) -> list[tuple[int, str, str]]:
    scanner = arguments._JsonScanner()
    runs = scanner.scan(raw)
    scanner.is_finished = True
    return runs + scanner.scan("")


def marked(raw: str, dice: random.Random) -> str:
    """The text with a marker at many places, each marker once."""
    signs = iter(range(0xE000, 0xF000))
    return "".join(char + chr(next(signs)) * (dice.random() < 0.7 and char != "\\") for char in raw.translate(NO_SIGNS))


NO_SIGNS = dict.fromkeys(range(0xE000, 0xF000), "-")


@given(RAWS, SEEDS)
def test_no_character_that_a_mask_covers_leaves(raw: str, seed: int) -> None:
    dice = random.Random(seed)
    raw = marked(raw, dice)
    plain = decode(raw)
    masks = draw_masks(dice, len(plain))
    output = decode(play(raw, masks, dice)[1])
    secret = {char for mask in masks for char in plain[mask.start : mask.end] if "\ue000" <= char < "\uf000"}
    assert not secret.intersection(output)


@given(RAWS, SEEDS)
def test_nothing_leaves_before_it_is_released(raw: str, seed: int) -> None:
    dice = random.Random(seed)
    raw = marked(raw, dice)
    plain = decode(raw)

    def watch(_reader: ArgumentsReader, _fed: str, output: str, upto: int) -> None:
        assert not {char for char in plain[upto:] if "\ue000" <= char < "\uf000"}.intersection(output)

    play(raw, draw_masks(dice, len(plain)), dice, watch)


@given(RAWS, SEEDS)
def test_what_has_left_is_forgotten(raw: str, seed: int) -> None:
    def watch(reader: ArgumentsReader, fed: str, output: str, upto: int) -> None:
        assert reader.held == len(fed) - len(output)
        if upto == len(decode(fed)) and fed.endswith(","):  # hence nothing waits for its end
            assert (reader.held, len(reader._runs)) == (0, 0)

    play(raw + ",", [], random.Random(seed), watch)


@given(VALUES, SEEDS)
def test_a_masked_text_is_forgotten_too(value: Any, seed: int) -> None:
    writer = Writer([value], random.Random(seed))
    reader = ArgumentsReader()
    size = len(reader.feed(writer.raw.rstrip()))
    reader.release(size, draw_masks(writer.dice, size))
    assert (reader.held, len(reader._runs), len(reader._atom)) == (0, 0, 0)


def test_an_example_of_each_rule() -> None:
    reader = ArgumentsReader()
    pieces = ['{"to": "jo', "hn\\u0040exa", 'mple.com", "card": 4111', "1111, ", '"x": [tru', 'e, "\\z\\ud83d"]}']
    assert "".join(map(reader.feed, pieces)) == '{"to": "john@example.com", "card": 41111111, "x": [true, "\\z\ufffd"]}'
    assert reader.release(20, [Mask(8, 24, "[EMAIL]")]) == '{"to": "[EMAIL]'
    assert reader.release(36, [Mask(35, 37, "██")]) == '", "card": '  # the number waits for its end
    assert reader.release(43, [Mask(38, 39, "█")]) == '"███"'
    masks = [Mask(52, 53, "█"), Mask(59, 60, "[Z]")]
    assert reader.release(59, masks[:1]) == ', "x": ["█", "'  # so does a broken escape
    assert reader.release(64, masks[1:], is_final=True) == '\\\\[Z]\\ud83d"]}'


def test_misuse_is_noticed() -> None:
    reader = ArgumentsReader()
    reader.feed('"abcd')
    reader.release(2)
    for upto, masks in [(1, []), (6, []), (4, [Mask(1, 3, "")]), (4, [Mask(3, 4, "x"), Mask(2, 3, "y")])]:
        with pytest.raises(RuntimeError):
            reader.release(upto, masks)
    assert reader.release(3, is_final=True) == "b"  # and the rest is forgotten
    assert reader.held == 0
    for misuse in (reader.release, lambda _: reader.feed("x")):
        with pytest.raises(RuntimeError):
            misuse(5)


@BUGS.caught_by(test_any_cut_gives_the_same_plain_text_and_the_same_masked_text, test_detectors_read_the_decoded_text)
def an_escape_does_not_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_INCOMPLETE", re.compile(r"\\"))


@BUGS.caught_by(test_detectors_read_the_decoded_text)
def half_a_pair_does_not_wait_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_INCOMPLETE", re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?"))


@BUGS.caught_by(test_detectors_read_the_decoded_text)
def only_small_hex_digits_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_VALID", re.compile(arguments._VALID.pattern.replace("A-F", "")))


@BUGS.caught_by(test_masks_change_the_structure_of_no_text)
def a_broken_escape_is_masked_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_up(run: tuple[int, str, str]) -> list[tuple[int, str, str]]:
        return [(2, char, char) for char in run[1]] if run[0] == 2 and run[1] == run[2] else [run]

    honest = arguments._JsonScanner.scan
    scan = lambda self, raw: [one for run in honest(self, raw) for one in break_up(run)]  # noqa: E731
    monkeypatch.setattr(arguments._JsonScanner, "scan", scan)


@BUGS.caught_by(test_any_cut_gives_the_same_plain_text_and_the_same_masked_text)
def an_atom_ends_with_its_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ArgumentsReader._keep_atom

    def keep(self: ArgumentsReader, raw: str, last: int) -> None:
        honest(self, raw, last)
        self._runs.insert(1, (0, "", ""))

    monkeypatch.setattr(ArgumentsReader, "_keep_atom", keep)


@BUGS.caught_by(
    test_masked_json_parses_to_the_same_shape_with_masked_strings, test_no_character_that_a_mask_covers_leaves
)
def what_a_mask_leaves_of_an_atom_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ArgumentsReader._keep_atom

    def keep(self: ArgumentsReader, raw: str, last: int) -> None:
        honest(self, raw, last)
        self._atom.append(raw if self._is_masked else "")

    monkeypatch.setattr(ArgumentsReader, "_keep_atom", keep)


@BUGS.caught_by(test_masked_json_parses_to_the_same_shape_with_masked_strings)
def structure_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = arguments._JsonScanner.scan
    scan = lambda self, raw: [(kind or 1, plain, raw) for kind, plain, raw in honest(self, raw)]  # noqa: E731
    monkeypatch.setattr(arguments._JsonScanner, "scan", scan)


@BUGS.caught_by(
    test_masked_json_parses_to_the_same_shape_with_masked_strings, test_what_no_mask_covers_keeps_its_raw_characters
)
def the_text_of_a_mask_is_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_escape", lambda text: text)


@BUGS.caught_by(test_no_character_that_a_mask_covers_leaves, test_what_no_mask_covers_keeps_its_raw_characters)
def a_mask_ends_with_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = arguments._PendingMasks.add

    def add(self: arguments._PendingMasks, masks: list[Mask], since: int) -> None:
        self._masks.clear()
        honest(self, masks, since)

    monkeypatch.setattr(arguments._PendingMasks, "add", add)


@BUGS.caught_by(test_what_no_mask_covers_keeps_its_raw_characters)
def a_text_that_goes_once_goes_for_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = arguments._PendingMasks._take_text

    def take_text(self: arguments._PendingMasks, cover: arguments._PendingMask, start: int, end: int) -> str:
        self._is_text_written = False
        return honest(self, cover, start, end)

    monkeypatch.setattr(arguments._PendingMasks, "_take_text", take_text)


@BUGS.caught_by(test_without_masks_any_text_leaves_as_it_came, test_what_no_mask_covers_keeps_its_raw_characters)
def clear_text_is_escaped_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = arguments._JsonScanner.scan
    scan = lambda self, raw: [(kind, plain, plain) for kind, plain, _ in honest(self, raw)]  # noqa: E731
    monkeypatch.setattr(arguments._JsonScanner, "scan", scan)


@BUGS.caught_by(test_nothing_leaves_before_it_is_released)
def a_run_leaves_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ArgumentsReader._render

    def render(self: ArgumentsReader, kind: int, plain: str, raw: str, last: int) -> str:
        return honest(self, kind, plain, raw, len(plain) if last else last)

    monkeypatch.setattr(ArgumentsReader, "_render", render)


@BUGS.caught_by(test_what_has_left_is_forgotten, test_a_masked_text_is_forgotten_too)
def an_atom_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ArgumentsReader._close_atom

    def close(self: ArgumentsReader, output: list[str]) -> None:
        size = self._atom_size
        honest(self, output)
        self._atom_size = size

    monkeypatch.setattr(ArgumentsReader, "_close_atom", close)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
