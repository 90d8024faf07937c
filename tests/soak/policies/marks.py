# SPDX-License-Identifier: Apache-2.0
"""The catalogue of a run: what detectors are to find, character by character, and how it is written in JSON.

Drawn once from the seed, so that over many streams the same few marks can be cut at every place. What is found in a
mark is known from how it was made; no detector is asked. Knows nothing of policies.
"""

import json
import random
import re
from collections.abc import Callable
from typing import NamedTuple

NAMES = ("bluebird", "größenwahn", "silberfuchs", "Quetzal", "zinnober")
PHRASES = ("Operation Nightfall", "projekt mondlicht", "seven grey doors")
CODE = re.compile(r"\bvq[a-z]+(?: [A-Z]{2}\d\d)?")  # what the distant detector of sentences looks for
TAG = re.compile(r"\b(wq[a-z]{3})([a-z]*)\b")  # what the distant detector of words looks for: two findings that touch
POISON = re.compile(r"\bpz([unetc])[a-z]+\b")  # where the distant detector of sentences fails, and how
NOTED = (r"\bmemo [a-z0-9.]+@", r"\bmemos\b")
_SYLLABLES = (
    "ba",
    "du",
    "ki",
    "lo",
    "mer",
    "nat",
    "pol",
    "rus",
    "tav",
    "vel",
    "fim",
    "gor",
    "hul",
    "jas",
    "ket",
    "lys",
)
_DIGITS, _UPPER = "0123456789", "ABCDEFGHIJKLMNOPRSTUVWYZ"
_MIXED = _UPPER + _UPPER.lower() + _DIGITS
_LETTER_VALUES = {ord("A") + number: str(10 + number) for number in range(26)}
_LEAST_DISTINCT = 10  # of the characters of a key: one with fewer looks like no key


class Find(NamedTuple):
    """What one kind of detector finds: where, and what a mask calls it."""

    start: int
    end: int
    eye: str
    label: str


class Mark(NamedTuple):
    """A text in which something is found. `raw` is the same inside a string of JSON, with some escapes."""

    name: str
    text: str
    raw: tuple[str, ...]
    finds: tuple[Find, ...]

    @property
    def written(self) -> str:
        """How it stands in JSON."""
        return "".join(self.raw)


def draw_catalogue(seed: int) -> tuple[Mark, ...]:
    """The marks of a run."""
    rng = random.Random(f"marks/{seed}")
    found: list[tuple[str, str, tuple[Find, ...]]] = []

    def add(kind: str, text: str, *finds: Find) -> None:
        found.append((f"{kind}{len(found)}", text, finds or (Find(0, len(text), *_EYES[kind]),)))

    for make in (_draw_mail, _draw_mail, _draw_tagged_mail, _draw_foreign_mail):
        add("mail", make(rng))
    for country, pattern, gap in _IBANS:
        add("iban", _draw_iban(rng, country, pattern, gap))
    for prefix, groups, gap in _CARDS:
        add("card", _draw_card(rng, prefix, groups, gap))
    for prefix, alphabet, size, label in _KEYS:
        text = prefix + _draw_key(rng, alphabet, size)
        add("key", text, Find(0, len(text), "keys", label))
    block = _draw_block(rng)
    add("key", block, Find(0, len(block), "keys", "MASKED"))  # its kind is a part of it, so the mask does not name it
    for name in NAMES:
        add("name", rng.choice((str, str.upper, str.lower, str.capitalize))(name) if name.isascii() else name)
    for phrase in PHRASES:
        add("phrase", phrase)
    for _ in range(3):
        add("code", "vq" + _draw_word(rng))
    for _ in range(2):
        add("tag", "wq" + "".join(rng.choices("abdefg", k=3)))
    _add_overlaps(rng, add)
    return tuple(Mark(name, text, _write(rng, text), finds) for name, text, finds in found)


_EYES = {
    "mail": ("pii", "EMAIL"),
    "iban": ("pii", "IBAN"),
    "card": ("pii", "CREDIT_CARD"),
    "name": ("names", "KEYWORD"),
    "phrase": ("phrases", "KEYWORD"),
    "code": ("codes", "CODENAME"),
    "tag": ("tags", "TAG"),
    "noted": ("noted", ""),
}


def _add_overlaps(rng: random.Random, add: Callable[..., None]) -> None:
    """Marks of which several detectors find a part, one inside the other, side by side, or half and half."""
    for name in ("bluebird", "zinnober"):
        mail = f"{name}@{_draw_domain(rng)}"
        add("named-mail", mail, Find(0, len(mail), "pii", "EMAIL"), Find(0, len(name), "names", "KEYWORD"))
    for country, pattern, gap in _IBANS[:2]:
        code, iban = "vq" + _draw_word(rng), _draw_iban(rng, country, pattern, gap)
        text, at = f"{code} {iban}", len(code) + 1
        add("code-iban", text, Find(0, at + 4, "codes", "CODENAME"), Find(at, len(text), "pii", "IBAN"))
    for _ in range(2):
        tag = "wq" + "".join(rng.choices("abdefg", k=8))
        add("two-tags", tag, Find(0, 5, "tags", "TAG"), Find(5, len(tag), "tags", "TAIL"))
        mail = _draw_mail(rng)
        text, at = f"memo {mail}", mail.index("@") + 6
        add("memo-mail", text, Find(5, len(text), "pii", "EMAIL"), Find(0, at, "noted", ""))
    add("noted", "memos")


def draw_poison(rng: random.Random) -> Mark:
    """A word in which nothing is found, for the detector fails that reads it."""
    text = "pz" + rng.choice("unetc") + _draw_word(rng)
    return Mark("poison", text, tuple(text), ())


def _draw_word(rng: random.Random) -> str:
    return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))


def _draw_domain(rng: random.Random) -> str:
    return ".".join(_draw_word(rng) for _ in range(rng.randint(1, 2))) + rng.choice((".org", ".net", ".dev", ".it"))


def _draw_mail(rng: random.Random) -> str:
    return f"{_draw_word(rng)}.{_draw_word(rng)}{rng.randint(1, 99)}@{_draw_domain(rng)}"


def _draw_tagged_mail(rng: random.Random) -> str:
    return f"{_draw_word(rng)}+{_draw_word(rng)}_{rng.randint(1, 9)}@{_draw_domain(rng)}"


def _draw_foreign_mail(rng: random.Random) -> str:
    return f"jür{_draw_word(rng)}@{_draw_domain(rng)}"


# Country, what the number is made of (d: digit, a: letter), what stands between groups of four.
_IBANS = (("DE", "d" * 18, " "), ("GB", "aaaa" + "d" * 14, " "), ("DE", "d" * 18, ""), ("NL", "aaaa" + "d" * 10, ""))


def _draw_iban(rng: random.Random, country: str, pattern: str, gap: str) -> str:
    body = "".join(rng.choice(_DIGITS if one == "d" else _UPPER) for one in pattern)
    rest = int((body + country + "00").translate(_LETTER_VALUES)) % 97
    value = f"{country}{98 - rest:02d}{body}"
    return gap.join(value[at : at + 4] for at in range(0, len(value), 4))


# First digits, sizes of the groups, what stands between them.
_CARDS = (("4", (4, 4, 4, 4), " "), ("51", (4, 4, 4, 4), "-"), ("4", (16,), ""), ("37", (4, 6, 5), " "))


def _draw_card(rng: random.Random, prefix: str, groups: tuple[int, ...], gap: str) -> str:
    size = sum(groups)
    body = prefix + "".join(rng.choices(_DIGITS, k=size - len(prefix) - 1))
    total = 0
    for place, digit in enumerate(reversed(body)):
        doubled = int(digit) * (1 if place % 2 else 2)
        total += doubled - 9 if doubled > 9 else doubled
    value = body + str(-total % 10)
    cuts = [sum(groups[:number]) for number in range(len(groups) + 1)]
    return gap.join(value[low:high] for low, high in zip(cuts, cuts[1:], strict=False))


# How a key begins, what follows it and how long, and what a mask calls it.
_KEYS = (
    ("AKIA", _UPPER + _DIGITS, 16, "AWS_ACCESS_KEY"),
    ("ghp_", _MIXED, 36, "GIT_HUB_TOKEN"),
    ("glpat-", _MIXED, 20, "GIT_LAB_TOKEN"),
    ("AIza", _MIXED, 35, "GOOGLE_API_KEY"),
    ("npm_", _MIXED, 36, "NPM_TOKEN"),
)


def _draw_key(rng: random.Random, alphabet: str, size: int) -> str:
    while True:
        key = "".join(rng.choices(alphabet, k=size))
        if len(set(key)) >= _LEAST_DISTINCT and any(map(str.isdigit, key)):
            return key


def _draw_block(rng: random.Random) -> str:
    """A private key, over several lines."""
    lines = ["-----BEGIN PRIVATE KEY-----", *("".join(rng.choices(_MIXED, k=40)) for _ in range(2))]
    return "\n".join([*lines, "-----END PRIVATE KEY-----"])


def _write(rng: random.Random, text: str) -> tuple[str, ...]:
    """The text in a string of JSON, character by character. Of digits alone none is escaped: they may be a number."""
    share = 0.0 if text.isdigit() else rng.choice((0.05, 0.2, 0.5))
    return tuple(write_character(rng, one, share) for one in text)


def write_character(rng: random.Random, one: str, share: float) -> str:
    """One character in a string of JSON; so often with an escape although it needs none."""
    if rng.random() < share:
        raw = json.dumps(one) if not one.isascii() else f'"\\u{ord(one):04{rng.choice("xX")}}"'
        return raw[1:-1]
    return "\\/" if one == "/" and rng.random() < 0.5 else json.dumps(one, ensure_ascii=False)[1:-1]
