# SPDX-License-Identifier: Apache-2.0
"""The words of numbers and units in English, Spanish and German.

Knows words only; what is done with them is decided in `numerals`.
"""

import re
from typing import Final, NamedTuple


class Unit(NamedTuple):
    """A unit: what kind of thing it measures, and how many of the kind's smallest it is."""

    kind: str
    factor: float = 1.0


def _count(words: str, first: int = 0, step: int = 1) -> dict[str, float]:
    """The words of a list, each with its number; several ways to write one are parted by a stroke."""
    found: dict[str, float] = {}
    for number, names in enumerate(words.split()):
        found.update(dict.fromkeys(names.split("|"), float(first + number * step)))
    return found


_HUNDREDS_ES = "doscientos|doscientas trescientos|trescientas cuatrocientos|cuatrocientas quinientos|quinientas"
SCALES: Final[dict[str, float]] = {
    **dict.fromkeys(("thousand", "mil", "tausend", "tsd", "k"), 1e3),
    **dict.fromkeys(("million", "millions", "millón", "millones", "millionen", "mio", "mill", "mn"), 1e6),
    **dict.fromkeys(("billion", "billions", "bn", "milliarde", "milliarden", "mrd"), 1e9),
    **dict.fromkeys(("dozen", "docena", "docenas", "dutzend"), 12.0),
}
WORDS: Final[dict[str, dict[str, float]]] = {
    "en": {
        **_count("zero one two three four five six seven eight nine ten eleven twelve"),
        **_count("thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 13),
        **_count("twenty thirty forty fifty sixty seventy eighty ninety hundred", 20, 10),
        "thousand": 1e3,
        "million": 1e6,
        "billion": 1e9,
        "dozen": 12.0,
    },
    "es": {
        **_count("cero uno|un|una dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince"),
        **_count("dieciséis diecisiete dieciocho diecinueve veinte veintiuno|veintiún|veintiuna veintidós", 16),
        **_count("veintitrés veinticuatro veinticinco veintiséis veintisiete veintiocho veintinueve", 23),
        **_count("treinta cuarenta cincuenta sesenta setenta ochenta noventa cien|ciento", 30, 10),
        **_count(_HUNDREDS_ES, 200, 100),
        "mil": 1e3,
        "millón": 1e6,
        "millones": 1e6,
        "docena": 12.0,
    },
    "de": {
        **_count("null eins|ein|eine|einen|einem|einer zwei|zwo drei vier fünf sechs sieben acht neun zehn elf zwölf"),
        **_count("dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn", 13),
        **_count("zwanzig dreißig|dreissig vierzig fünfzig sechzig siebzig achtzig neunzig hundert", 20, 10),
        "tausend": 1e3,
        "million": 1e6,
        "millionen": 1e6,
        "milliarde": 1e9,
        "milliarden": 1e9,
        "dutzend": 12.0,
        "anderthalb": 1.5,
        "eineinhalb": 1.5,
    },
}
# First and second are left out: both are said of much that is not counted.
ORDINALS: Final[dict[str, dict[str, float]]] = {
    "en": _count("third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth", 3),
    "es": _count("tercer|tercero|tercera cuarto|cuarta quinto|quinta sexto|sexta séptimo|séptima octavo|octava", 3),
    "de": {
        form + ending: value
        for form, value in _count("dritt viert fünft sechst siebt acht neunt zehnt elft zwölft", 3).items()
        for ending in ("e", "en", "er", "es", "em")
    },
}
for _language, _words in ORDINALS.items():
    WORDS[_language].update(_words)
ONES: Final = frozenset(("one", "uno", "un", "una", "eins", "ein", "eine", "einen", "einem", "einer"))
_MAX_CHARS = 48  # of a number in one word
JOINERS: Final = frozenset(("and", "y", "und"))


def read_german(word: str) -> float | None:
    """A number written in one word: `fünfundzwanzig`, `zweihundert`, `dreitausend`."""
    known = WORDS["de"]
    if len(word) > _MAX_CHARS:
        return None
    for scale, factor in (("tausend", 1e3), ("hundert", 1e2)):
        head, found, tail = word.partition(scale)
        if found:
            many = known.get(head) if head else 1.0
            rest = read_german(tail) if tail and tail not in known else known.get(tail, 0.0)
            return None if many is None or rest is None else many * factor + rest
    unit, found, tens = word.partition("und")
    if found and unit in known and known.get(tens, 0.0) >= 20 and known[unit] < 10:
        return known[unit] + known[tens]
    return None


_TIME, _LONG_TIME = "time", "months"
_UNIT_WORDS = {
    Unit(_TIME, 1): "second seconds sec segundo segundos sekunde sekunden sek",
    Unit(_TIME, 60): "minute minutes min mins minuto minutos minuten",
    Unit(_TIME, 3600): "hour hours hr hrs h hora horas stunde stunden std",
    Unit(_TIME, 86400): "day days día días dia dias tag tage tagen",
    Unit(_TIME, 604800): "week weeks semana semanas woche wochen",
    Unit(_LONG_TIME, 1): "month months mes meses monat monate monaten",
    Unit(_LONG_TIME, 12): "year years yr yrs año años jahr jahre jahren",
    Unit("length", 1): "mm millimetre millimetres millimeter millimeters milímetro milímetros millimetern",
    Unit("length", 10): "cm centimetre centimetres centimeter centimeters centímetro centímetros"
    " zentimeter zentimetern",
    Unit("length", 1e3): "m metre metres meter meters metro metros metern",
    Unit("length", 1e6): "km kilometre kilometres kilometer kilometers kilómetro kilómetros kilometern",
    Unit("mile"): "mile miles milla millas meile meilen",
    Unit("foot"): "foot feet ft pie pies",
    Unit("inch"): "inch inches zoll pulgada pulgadas",
    Unit("weight", 1): "g gram grams gramm gramo gramos",
    Unit("weight", 1e3): "kg kilo kilos kilogram kilograms kilogramm kilogramo kilogramos",
    Unit("weight", 1e6): "ton tons tonne tonnes tonelada toneladas tonnen",
    Unit("volume", 1): "ml millilitre millilitres milliliter milliliters mililitro mililitros",
    Unit("volume", 1e3): "l litre litres liter liters litro litros litern",
    Unit("bytes", 1e3): "kb",
    Unit("bytes", 1e6): "mb megabyte megabytes",
    Unit("bytes", 1e9): "gb gigabyte gigabytes",
    Unit("bytes", 1e12): "tb terabyte terabytes",
    Unit("euro"): "€ euro euros eur",
    Unit("dollar"): "$ dollar dollars dólar dólares usd",
    Unit("pound"): "£ pound pounds libra libras pfund gbp",
    Unit("yen"): "¥ yen",
    Unit("franc"): "chf franken francos franc francs",
    Unit("cent"): "cent cents céntimo céntimos centavo centavos",
    Unit("percent"): "% percent prozent pct porciento",
    Unit("degree"): "° °c °f degree degrees grado grados grad",
}
UNITS: Final[dict[str, Unit]] = {word: unit for unit, words in _UNIT_WORDS.items() for word in words.split()}
CURRENCIES: Final = frozenset(("euro", "dollar", "pound", "franc"))
CENT: Final = UNITS["cent"].kind
HALF_HOURS: Final = re.compile(r"\b(?:half an hour|half-hour|media hora|halbe Stunde|halben Stunde)\b", re.IGNORECASE)


def _before(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{words})\s(?:de\s|of\s)?[$€£¥]?\s?\Z")


_ABOUT = "about|around|roughly|approximately|nearly|almost|some|circa|ca\\.?|etwa|rund|ungefähr|fast|knapp|gut" + (
    "|unos|unas|casi|cerca|aproximadamente|alrededor"
)
_MORE = "more than|over|above|mehr als|über|más"
_LESS = "less than|under|fewer than|below|weniger als|unter|menos"
LOOSE: Final = (
    (_before(_ABOUT), (0.94, 1.06)),
    (_before(_MORE), (1.0, 1.25)),
    (_before(_LESS), (0.8, 1.0)),
)
CLOCK: Final = re.compile(
    r"\b(?:at|from|(?<!up\s)to|till|until|by|before|after|between|and|um|ab|bis|von|vor|nach|zwischen|und|la|las|y)\s\Z|[-–]\Z"
)
"""What stands before an hour of the day."""
