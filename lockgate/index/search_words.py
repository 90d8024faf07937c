# SPDX-License-Identifier: Apache-2.0
"""Which words of a question are worth searching for.

Decides what counts as a word and which words say nothing in English, German, Spanish and French. Refuses to know any
query language: what comes out is words alone, never signs that some search would take for orders.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

MAX_WORDS: Final = 32
MAX_WORD_CHARS: Final = 64
MAX_QUESTION_CHARS: Final = 8_192  # what lies beyond is not looked at

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_ENGLISH = """
a about after again all also although always am an and any anyone anything are aren as at be because been before being
but by can cannot could couldn did didn do does doesn doing don done each either else ever every everyone everything
for from get gets give got had has hasn have haven having he her here hers him his how i if in into is isn it its itself
just let like made make makes many may me might mine more most much must my myself no nobody nor not nothing of off on
only onto or other our ours please same shall she should since so some somebody someone something still such tell than
that the their theirs them then there these they thing things this those though through to too under until up upon us
use used using very want wants was wasn we were weren what when where whether which while who whom whose why will with
within without won would yes yet you your yours
"""
_GERMAN = """
aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis bist bitte da damit dann das dass dem den
denn der des dich die dies diese diesem diesen dieser dieses dir doch du durch ein eine einem einen einer eines er es
etwas euch euer für gibt habe haben hat hatte hatten ich ihm ihn ihnen ihr ihre im in ist ja jede jedem jeden jeder
jedes kann kannst kein keine keinen können könnte man mein meine meinem meinen mich mir mit muss müssen nach nicht
nichts noch nun nur ob oder ohne sehr sein seine sich sie sind so soll sollte über um und uns unser unter vom von vor
wann war waren warum was weil welche welchem welchen welcher welches wem wen wenn wer werden wie wieso wir wird wo wurde
zu zum zur
"""
_SPANISH = """
al algo como con contra cual cuál cuales cuáles cuando cuándo cuanto cuánto de del desde donde dónde durante e el él
ella ellas ellos en entre era es esa ese eso esta está estaba estado están estar estas este esto estos fue ha haber
había han hasta hay la las le les lo los mas más me mi mis muy no nos nosotros nuestra nuestro o os otra otro para pero
poco por porque pues que qué quien quién se sea según ser si sí sin sobre son soy su sus también tan te tengo tiene
tienen toda todo tu tus tú un una uno unos usted y ya yo
"""
_FRENCH = """
au aux avec ce ceci cela ces cet cette chez comme comment dans de des du elle elles en est et été être eu il ils je la
le les leur leurs lui ma mais mes moi mon ne nos notre nous on ou où par pas peut peux plus pour pourquoi qu quand que
quel quelle quelles quels qui quoi sa sans se ses si son sont sur ta te tes toi ton tu un une vos votre vous
"""
STOP_WORDS: Final = tuple(frozenset(text.split()) for text in (_ENGLISH, _GERMAN, _SPANISH, _FRENCH))
_MIN_FOREIGN = 2  # one such word alone may well be an English one: war, die, son


def find_search_words(text: str) -> list[str]:
    """The words worth searching for, each once, in order, at most 32; all words if none is worth more than another."""
    words = dict.fromkeys(_split(text))
    stop_words = _choose_language(words)
    telling = [word for word in words if word not in stop_words]
    return (telling or list(words))[:MAX_WORDS]


def _choose_language(words: Iterable[str]) -> frozenset[str]:
    """The stop words of the language that most of the words belong to; English unless another is plain."""
    asked = frozenset(words)
    best = max(STOP_WORDS, key=lambda known: len(asked & known))  # the first of several
    return best if len(asked & best) >= _MIN_FOREIGN else STOP_WORDS[0]


def _split(text: str) -> list[str]:
    plain = unicodedata.normalize("NFC", text[:MAX_QUESTION_CHARS]).casefold()
    return [re.split("['’]", word)[0][:MAX_WORD_CHARS] for word in _WORD.findall(plain)]
