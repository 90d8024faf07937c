# SPDX-License-Identifier: Apache-2.0
"""What documents support, and why not: decided on words alone, nearness in meaning given."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockgate.detectors.groundedness.claims import MAX_ASSERTIONS, read_calendar, read_claim
from lockgate.detectors.groundedness.grounds import (
    DENIED,
    MAX_CANDIDATES,
    NO_DOCUMENTS,
    NO_NAME,
    NO_NUMBER,
    NOT_LACKING,
    NOWHERE,
    OPPOSITE,
    OTHER_DAY,
    OTHER_MONTH,
    OTHER_PERIOD,
    OTHER_UNIT,
    TOO_GENERAL,
    Judgement,
    SourceFacts,
    run_through,
)
from lockgate.detectors.groundedness.words import (
    find_opposite,
    find_stem,
    find_words,
    fold,
    guess_language,
    read_denials,
    stem,
)

LIBRARY = (
    "The city library opens at 9 am from Monday to Friday.",
    "On Sundays it stays closed.",
    "Members may borrow up to eight books for four weeks.",
    "Dogs are not allowed in the reading room, except guide dogs.",
    "Some branches lend tools to members in March.",
    "The yearly fee is 30 euros; Helen Marsh founded the library in 1987.",
)
MUSEUM = (
    "Das Museum ist von Dienstag bis Sonntag zwischen 10 und 18 Uhr geöffnet.",
    "Montags bleibt es geschlossen.",
    "Fahrräder gehören in den Keller, nicht in den Hof.",
    "Im Oktober 2020 übernahm Jana Petersen die Leitung.",
    "Der Antrag, die Hecke zu entfernen, wurde abgelehnt.",
)
POOL = (
    "La piscina abre todos los días excepto los lunes.",
    "No se permite comer dentro del recinto.",
    "La cuota mensual asciende a 1.300 euros.",
    "Algunos clientes se quejaron de los retrasos.",
)


def judge(claim: str, *documents: tuple[str, ...], nearness: float | None = None) -> Judgement:
    """The judgement on a sentence; how near another is, is told by the words that both have, unless it is given."""
    grounds = run_through(SourceFacts.read(documents))
    judged = [Judgement(0.0)]
    for one in read_claim(claim, grounds.language):
        near = {
            place: _compare(one.text, grounds.sentences[place].traits.text) if nearness is None else nearness
            for place in run_through(grounds.find_candidates(one))
        }
        judged += [run_through(grounds.weigh(one, near))]
    return max(judged, key=lambda one: one.score)


def _compare(one: str, other: str) -> float:
    mine, theirs = set(find_words(fold(one))), set(find_words(fold(other)))
    return 0.3 + 0.6 * len(mine & theirs) / max(1, min(len(mine), len(theirs)))


def kinds(claim: str, *documents: tuple[str, ...]) -> set[str]:
    found = judge(claim, *documents)
    return {reason.kind for reason in found.reasons} if found.score >= 0.5 else set()


@pytest.mark.parametrize("document", [LIBRARY, MUSEUM, POOL])
def test_what_a_document_says_is_supported(document: tuple[str, ...]) -> None:
    for sentence in document:
        assert kinds(sentence, document) == set(), sentence


@pytest.mark.parametrize(
    ("claim", "document"),
    [
        ("On Wednesday the library opens at 9:00.", LIBRARY),
        ("Members can borrow 8 books for 28 days.", LIBRARY),
        ("Guide dogs are allowed in the reading room.", LIBRARY),
        ("The fee is €30 per year [city/fees].", LIBRARY),
        ("Am Donnerstag ist das Museum geöffnet.", MUSEUM),
        ("Die Hecke wurde nicht entfernt.", MUSEUM),
        ("Los lunes la piscina no abre.", POOL),
        ("Está prohibido comer dentro del recinto.", POOL),
        ("La cuota asciende a mil trescientos euros.", POOL),
    ],
)
def test_the_same_in_other_words_and_notations_is_supported(claim: str, document: tuple[str, ...]) -> None:
    assert kinds(claim, document) == set()


@pytest.mark.parametrize(
    ("claim", "document", "kind"),
    [
        ("Members may borrow up to seven books.", LIBRARY, NO_NUMBER),
        ("Members may borrow books for four months.", LIBRARY, OTHER_UNIT),
        ("The library opens at 9 pm from Monday to Friday.", LIBRARY, OTHER_UNIT),
        ("The library was founded by Laura Stone.", LIBRARY, NO_NAME),
        ("On Tuesdays it stays closed.", LIBRARY, OTHER_DAY),
        ("Some branches lend tools to members in June.", LIBRARY, OTHER_MONTH),
        ("The monthly fee is 30 euros.", LIBRARY, OTHER_PERIOD),
        ("Dogs are allowed in the reading room.", LIBRARY, DENIED),
        ("On Sundays the library is open.", LIBRARY, OPPOSITE),
        ("All branches lend tools to members.", LIBRARY, TOO_GENERAL),
        ("Photosynthesis turns light into chemical energy.", LIBRARY, NOWHERE),
        ("Im November 2020 übernahm Jana Petersen die Leitung.", MUSEUM, OTHER_MONTH),
        ("Im Oktober 2020 übernahm Karl Behrens die Leitung.", MUSEUM, NO_NAME),
        ("Montags ist das Museum geöffnet.", MUSEUM, OTHER_DAY),
        ("Fahrräder gehören in den Hof.", MUSEUM, DENIED),
        ("Der Antrag, die Hecke zu entfernen, wurde angenommen.", MUSEUM, OPPOSITE),
        ("La piscina abre los lunes.", POOL, OTHER_DAY),
        ("Se permite comer dentro del recinto.", POOL, DENIED),
        ("Todos los clientes se quejaron de los retrasos.", POOL, TOO_GENERAL),
        ("La cuota mensual asciende a 1.400 euros.", POOL, NO_NUMBER),
    ],
)
def test_what_contradicts_is_found_and_says_why(claim: str, document: tuple[str, ...], kind: str) -> None:
    if kind == NOWHERE:
        assert {one.kind for one in judge(claim, document, nearness=0.05).reasons} == {NOWHERE}
    else:
        assert kind in kinds(claim, document)


def test_the_reasons_say_what_exactly_and_the_nearest_sentence_is_told() -> None:
    found = judge("Members may borrow up to seven books.", LIBRARY)
    assert [str(reason) for reason in found.reasons] == ["a number occurs in no document: seven"]
    assert str(judge("On Tuesdays it stays closed.", LIBRARY).reasons[0]) == "the documents name another weekday"
    assert found.nearest == LIBRARY[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Which books may I borrow?",
        "Here is what the library offers:",
        "I hope this helps!",
        "Sure, no problem!",
        "Gracias por tu pregunta.",
        "Natürlich, gerne!",
        "[1] [city/fees]",
        "Yes.",
    ],
)
def test_what_claims_nothing_is_not_judged(text: str) -> None:
    assert read_claim(text, "en") == []


@pytest.mark.parametrize(
    "text",
    [
        "The documents do not say whether parking is free.",
        "I could not find anything about parking.",
        "Los documentos no indican si hay aparcamiento.",
        "Aus den Dokumenten geht nicht hervor, ob man dort parken kann.",
    ],
)
def test_that_something_is_lacking_is_supported_unless_a_sentence_has_all_of_it(text: str) -> None:
    assert judge(text, LIBRARY).score == 0.0
    assert judge(text).score == 0.0
    assert kinds("The documents do not say whether dogs are allowed in the reading room.", LIBRARY) == {NOT_LACKING}


def test_a_lack_excuses_only_its_own_clause() -> None:
    assert kinds("The documents do not mention parking, but the fee is 90 euros.", LIBRARY) == {NO_NUMBER}


def test_without_documents_every_claim_is_unsupported() -> None:
    assert judge("The library opens at 9 am.").reasons[0].kind == NO_DOCUMENTS
    assert judge("The library opens at 9 am.").score == 1.0


def test_a_claim_in_another_language_is_judged_by_its_figures() -> None:
    assert kinds("Die Bücherei verleiht ihren Mitgliedern bis zu acht Bücher.", LIBRARY) == set()
    assert kinds("Die Bücherei verleiht ihren Mitgliedern bis zu zehn Bücher.", LIBRARY) == {NO_NUMBER}


def test_a_claim_is_as_weak_as_its_weakest_part() -> None:
    good = "Members may borrow up to eight books for four weeks"
    assert judge(f"{good}.", LIBRARY).score < 0.5
    assert judge(f"{good}, and the yearly fee is 90 euros.", LIBRARY).score >= 0.5


def test_acronyms_of_what_is_written_out_are_known() -> None:
    document = ("The World Health Organization sent a report to all members.",)
    assert kinds("A report was sent by the WHO to all members.", document) == set()
    assert kinds("A report was sent by the NATO to all members.", document) == {NO_NAME}


# --- Words ----------------------------------------------------------------------------------------------------


def test_relatives_share_a_stem() -> None:
    assert len({stem(word) for word in ("closes", "closed", "closing", "Close")}) == 1
    assert stem("Häuser") == stem("Hauses") == stem("Haus")
    assert find_stem(stem("employs"), {stem("employees")})
    assert not find_stem(stem("house"), {stem("hose")})


def test_languages_are_told_by_their_small_words() -> None:
    assert guess_language("der Hund und die Katze".split()) == "de"  # noqa: SIM905
    assert guess_language(["el", "perro", "y", "la"]) == "es"
    assert guess_language(["Kiel"], "de") == "de"


def test_denials_are_counted_with_what_they_deny() -> None:
    assert read_denials("Dogs are not allowed", "en") == (1, frozenset({stem("allowed")}))
    assert read_denials("We don't sell bread", "en").is_odd
    assert read_denials("No hay nada de pan", "es").times == 1
    assert read_denials("Windows servers do not", "en").denied == {stem("servers")}
    assert not read_denials("not only bread", "en").is_odd


def test_opposites_are_found_both_ways_and_not_where_both_are_said() -> None:
    assert find_opposite(frozenset({"open"}), frozenset({"closed"})) == ("open", "closed")
    assert find_opposite(frozenset({"geschlossen"}), frozenset({"geoffnet"})) == ("geschlossen", "geoffnet")
    assert find_opposite(frozenset({"unworn"}), frozenset({"worn"})) == ("unworn", "worn")
    assert find_opposite(frozenset({"open"}), frozenset({"open", "closed"})) is None


def test_days_are_read_strictly_from_a_claim_and_generously_from_a_document() -> None:
    assert read_calendar("Mon-Fri", is_generous=True).days == set(range(5))
    assert read_calendar("de lunes a viernes", is_generous=True).days == set(range(5))
    assert read_calendar("freitags bis montags", is_generous=True).days == {4, 5, 6, 0}
    assert read_calendar("täglich außer montags", is_generous=True).days == set(range(1, 7))
    assert read_calendar("from Monday to Friday", is_generous=False).days == {0, 4}
    assert read_calendar("the Sun and the sea", is_generous=False).days == set()
    assert read_calendar("you may march in", is_generous=False).months == set()
    assert read_calendar("in May or in March", is_generous=False).months == {3, 5}


# --- Laws -----------------------------------------------------------------------------------------------------

SUBJECTS = ("The library", "The pool", "Every member", "The old bridge", "Paul Ivers")
VERBS = ("opens", "does not open", "closes", "costs 20 euros", "was founded in 1987", "never opens", "lends tools")
TIMES = ("on Mondays", "from Tuesday to Friday", "in March", "in the morning", "at 9 am", "for four weeks", "in winter")
SENTENCES = st.builds("{} {} {}.".format, st.sampled_from(SUBJECTS), st.sampled_from(VERBS), st.sampled_from(TIMES))


@given(st.lists(SENTENCES, min_size=1, max_size=8, unique=True), st.integers(0, 7))
def test_a_sentence_of_the_documents_is_always_supported(sentences: list[str], chosen: int) -> None:
    claim = sentences[chosen % len(sentences)]
    grounds = run_through(SourceFacts.read([tuple(sentences)]))
    for one in read_claim(claim, grounds.language):
        places = run_through(grounds.find_candidates(one))
        nearness = {place: 1.0 if grounds.sentences[place].traits.text == claim else 0.3 for place in places}
        assert run_through(grounds.weigh(one, nearness)).score < 0.5


@given(st.lists(SENTENCES, min_size=1, max_size=6, unique=True), st.integers(100, 10**6))
def test_a_number_that_occurs_nowhere_is_always_reported(sentences: list[str], number: int) -> None:
    if number != 1987:
        assert NO_NUMBER in kinds(f"The library has {number} books.", tuple(sentences))


@given(st.lists(SENTENCES, min_size=1, max_size=6, unique=True), SENTENCES, st.randoms())
def test_the_order_of_the_documents_changes_no_verdict(
    sentences: list[str],
    claim: str,
    chance: Random,
) -> None:
    turned = [(one,) for one in sentences]
    chance.shuffle(turned)
    apart = judge(claim, *[(one,) for one in sentences])
    assert judge(claim, *turned).score == apart.score


@given(st.text(max_size=200), st.lists(st.lists(st.text(max_size=80), max_size=4), max_size=3), st.floats(-1, 1))
def test_any_text_is_judged_and_the_score_is_bounded(claim: str, documents: list[list[str]], nearness: float) -> None:
    found = judge(claim, *[tuple(one) for one in documents], nearness=nearness)
    assert 0.0 <= found.score <= 1.0


@given(SENTENCES, st.floats(-1, 1), st.floats(-1, 1))
@example("Every member lends tools in the morning.", 0.0, 0.484375)
def test_what_is_nearer_in_meaning_is_never_less_supported(claim: str, one: float, other: float) -> None:
    far, near = sorted((one, other))
    assert judge(claim, LIBRARY, nearness=near).score <= judge(claim, LIBRARY, nearness=far).score


def test_the_work_for_one_claim_is_bounded() -> None:
    grounds = run_through(SourceFacts.read([tuple(f"Sentence number {at} speaks of tea." for at in range(100))]))
    (one,) = read_claim("Every sentence speaks of tea.", "en")
    assert len(run_through(grounds.find_candidates(one))) == MAX_CANDIDATES
    assert len(read_claim(", ".join(["tea and bread and milk"] * 200), "en")) == MAX_ASSERTIONS
