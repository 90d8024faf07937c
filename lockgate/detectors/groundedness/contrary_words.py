# SPDX-License-Identifier: Apache-2.0
"""The words by which two texts contradict each other: denials, opposites, `all` beside `some`.

Knows words in English, Spanish and German, denials also in French. Refuses to know sentences: whether two texts speak
of the same thing at all is decided in `grounds`.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from lockgate.detectors.groundedness.content_words import DENIALS, find_words, fold, fold_word, is_small, stem

_NO_DENIAL = re.compile(
    r"\b(?:not only|not just|no (?:solo|sólo|solamente)|nicht nur|no later|no more than|no less than|no fewer than"
    r"|nothing but|nicht mehr als|nicht weniger als|no más de|no menos de|pas seulement)\b",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(
    r"\b(?:can|don|doesn|didn|won|isn|aren|wasn|weren|hasn|haven|hadn|shouldn|couldn|wouldn|mustn)['’]t\b",
    re.IGNORECASE,
)
_DOUBLES: Final = (  # one denial in two words
    *(("no", other) for other in ("ni", "ningún", "ninguno", "ninguna", "nada", "nadie", "nunca", "tampoco")),
    *(("ne", other) for other in ("pas", "jamais", "aucun", "aucune")),
    ("neither", "nor"),
    ("ni", "ni"),
)
_PHRASES: Final = (
    (re.compile(r"\bturn(?:s|ed)? down\b", re.IGNORECASE), "rejected"),
    (re.compile(r"\b(?:goes|went|go) up\b", re.IGNORECASE), "rose"),
    (re.compile(r"\b(?:goes|went|go) down\b", re.IGNORECASE), "fell"),
)


class Denials(NamedTuple):
    """How often a text says no, and the stems of what it denies."""

    times: int
    denied: frozenset[str]

    @property
    def is_odd(self) -> bool:
        """Whether the text as a whole denies."""
        return self.times % 2 == 1


def join_phrases(text: str) -> str:
    """The text with one word where two say what neither says alone."""
    for pattern, word in _PHRASES:
        text = pattern.sub(word, text)
    return text


def read_denials(text: str, language: str) -> Denials:
    """The denials of a text; what is denied is the next word of meaning, else the one before."""
    plain = _CONTRACTION.sub(" not ", _NO_DENIAL.sub(" ", text))
    words = [word.casefold() for word in find_words(plain)]
    places = [at for at, word in enumerate(words) if word in DENIALS]
    if not places:
        return Denials(0, frozenset())
    is_double = any(words.count(one) > (one == other) and other in words for one, other in _DOUBLES)
    telling = [at for at, word in enumerate(words) if not is_small(word, language) and not word.isdigit()]
    denied = set()
    for place in places:
        after = next((at for at in telling if at > place), None)
        nearest = after if after is not None else max([at for at in telling if at < place], default=None)
        if nearest is not None:
            denied.add(stem(words[nearest]))
    return Denials(len(places) - is_double, frozenset(denied))


# --- Opposites ------------------------------------------------------------------------------------------------

# The words of one side, a colon, those of the other; a line that begins with a space goes on with the one before.
_OPPOSITES = """
open opens opened opening abre abren abrir abrió abierto abierta abiertos geöffnet öffnet öffnen offen
 : closed closes close closing shut cerrado cerrada cerrados cierra cierran cerrar cerró geschlossen schließt schließen
 schloss
allowed permitted allow allows permit permits may permite permiten permitido permitida puede pueden erlaubt zulässig
 gestattet darf dürfen
 : forbidden prohibited banned forbids prohíbe prohibido prohibida prohibidos verboten untersagt unzulässig
accept accepts accepted approved approve approves acepta aceptó aprobó aprobado aprobada angenommen genehmigt akzeptiert
 : reject rejects rejected refused refuse denied declined rechaza rechazó rechazado rechazada abgelehnt verweigert
rise rises rose risen raise raises raised increase increases increased increasing grew grow grows up lengthened longer
 sube subió suben aumentó aumenta aumentar creció crece alargó
 stieg steigt steigen gestiegen erhöht erhöhte wuchs verlängert verlängerte
 : fall falls fell fallen lowered lowers reduced reduces decrease decreases decreased drop drops dropped shrank decline
 declined down shortened shorter baja bajó bajan disminuyó disminuye cayó redujo acortó
 sank sinkt sinken gesunken fiel fällt gefallen verringert verkürzt verkürzte senkte gesenkt
before earlier antes vor vorher bevor : after later después tras nach nachher nachdem danach
more mehr más : less fewer weniger menos
higher larger bigger greater höher größer mayor : lower smaller niedriger kleiner menor
maximum most máximo maximal höchstens : minimum least mínimo minimal mindestens
above over oberhalb encima : below under beneath unterhalb debajo
include includes included including incluye incluyen incluido incluida enthalten inbegriffen inklusive
 : exclude excludes excluded excluding excluye excluido excluida ausgeschlossen exklusive
free gratis gratuito gratuita kostenlos kostenfrei umsonst
 : paid chargeable fee pago kostenpflichtig gebührenpflichtig
required mandatory compulsory obligatory must obligatorio obligatoria obligatorios pflicht verpflichtend vorgeschrieben
 : optional voluntary opcional voluntario voluntaria freiwillig
enable enabled enables activate activated activa activado aktiviert eingeschaltet
 : disable disabled disables deactivated desactiva desactivado deaktiviert ausgeschaltet
first primero primera erste erster ersten : last último última letzte letzter letzten
win won wins gana ganó ganaron gewann gewonnen gewinnt : lose lost loses perdió pierde perdieron verlor verloren
profit beneficio beneficios ganancia ganancias gewinn : loss losses pérdida pérdidas verlust verluste
keep keeps kept preserve preserves retain retains available conserva mantiene disponible disponibles
 behält behalten bewahrt bleibt bleiben erhalten verfügbar
 : delete deletes deleted remove removes removed erase erases unavailable gone discontinued elimina borra borrado
 löscht gelöscht löschen entfernt
always siempre immer : never nunca nie niemals
public público pública öffentlich : private privado privada privat
morning mañana morgens vormittags : evening afternoon night tarde noche abends nachmittags nachts
north northern norte norden nördlich : south southern sur süden südlich
east eastern este osten östlich : west western oeste westen westlich
left izquierda links : right derecha rechts
hot warm caliente heiß : cold cool frío fría kalt
add adds added añade añadió hinzugefügt : subtract remove removes removed quita entfernt
start starts started begin begins began empieza comienza empezó comenzó beginnt begann
 : end ends ended finish finished termina terminó acaba acabó endet endete
buy buys bought compra compró kauft kaufte gekauft : sell sells sold vende vendió verkauft verkaufte
support supports supported apoya apoyó unterstützt : oppose opposes opposed against opone contra gegen
severe serious grave graves schwer schwere : mild slight leve leves leicht leichte
safe seguro segura sicher : dangerous unsafe peligroso peligrosa gefährlich unsicher
true wahr verdadero : false falsch falso
same gleich mismo misma : different verschieden anders distinto distinta
cheaper barato günstiger billiger : dearer pricier caro teurer
faster schneller rápido : slower langsamer lento
"""
_NEGATING = ("un", "in", "im", "dis", "non", "ir", "des")
_MIN_PREFIXED_CHARS = 4


def _read_opposites() -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    lines = _OPPOSITES.strip().replace("\n ", " ").splitlines()
    sides = [[frozenset(map(fold, side.split())) for side in line.split(":")] for line in lines]
    return tuple((one, other) for one, other in sides)


OPPOSITES: Final = _read_opposites()
_TELLING = frozenset(word for pair in OPPOSITES for side in pair for word in side)
ACCEPTING, REJECTING = next(pair for pair in OPPOSITES if "rejected" in pair[1])


def find_opposite(words: frozenset[str], others: frozenset[str]) -> tuple[str, str] | None:
    """A word of the first whose opposite is among the second, where neither has both; all are folded."""
    mine, theirs = words & _TELLING, others & _TELLING
    if mine and theirs:
        for pair in OPPOSITES:
            for left, right in (pair, pair[::-1]):
                if mine & left and theirs & right and not mine & right and not theirs & left:
                    return min(mine & left), min(theirs & right)
    turned = _find_prefixed(others, words)
    return _find_prefixed(words, others) or (turned and turned[::-1])


def _find_prefixed(words: Collection[str], others: Collection[str]) -> tuple[str, str] | None:
    """`available` here and `unavailable` there."""
    for word in words:
        if len(word) >= _MIN_PREFIXED_CHARS and word not in others:
            for prefix in _NEGATING:
                if prefix + word in others:
                    return word, prefix + word
    return None


# --- How many -------------------------------------------------------------------------------------------------


def _fold_all(text: str) -> frozenset[str]:
    return frozenset(map(fold, text.split()))


_ALL_WORDS = _fold_all("""
    all every everyone everything each always entire whole any completely fully
    todo todos toda todas siempre cada cualquier totalmente completamente
    alle allen aller alles jeder jede jedes jeden immer sämtliche stets ganz vollständig ausnahmslos
""")
_SOME_WORDS = _fold_all("""
    some several many most few often usually sometimes partly mainly mostly probably likely selected certain only
    exclusively if unless when provided
    algunos algunas varios varias muchos muchas mayoría pocos pocas menudo veces suele suelen quizá parte ciertos
    ciertas solo sólo solamente únicamente si cuando
    einige einigen einiger manche manchen mehrere viele vielen meisten meist meistens oft manchmal teilweise wenige
    vermutlich wahrscheinlich bestimmte nur ausschließlich lediglich wenn falls sofern
""")
_PART = re.compile(r"\d\s(?:[^\W\d_]+\s)?(?:(?:out\s)?of|de|von)\s(?:(?:the|las|los|den)\s)?\d")
_EVERY_PERIOD = re.compile(
    r"\b(?:each|every|cada|jede[nrs]?|todos los|todas las)\s(?:day|week|month|quarter|year|night|morning|evening|time"
    r"|d[ií]as?|semanas?|mes|meses|trimestre|años?|noche|mañana|vez|tage?|woche|monat|quartal|jahr|nacht|morgen|abend"
    r"|mal)\b",
    re.IGNORECASE,
)
_EVERY_NOUN = re.compile(
    r"\b(?:all|every|each|todos los|todas las|cada|alle|allen|jede[rsn]?)\s(?:(?:of\s)?(?:the|its|our|die)\s)?"
    r"([^\W\d_]+)",
    re.IGNORECASE,
)


def speaks_of_all(text: str) -> str:
    """The word by which a text speaks of all; `every day` says how often, not of how many."""
    words = map(fold_word, find_words(_EVERY_PERIOD.sub(" ", text)))
    return min(_ALL_WORDS.intersection(words), default="")


def find_every_noun(text: str) -> str:
    """Of whom or what a text says `all`."""
    match = _EVERY_NOUN.search(_EVERY_PERIOD.sub(" ", text))
    return match[1] if match else ""


def speaks_of_some(text: str) -> str:
    """The words by which a text speaks of some, or under a condition; `14 of 22` is such too."""
    part = _PART.search(text)
    return min(_SOME_WORDS.intersection(map(fold_word, find_words(text))), default=part[0] if part else "")
