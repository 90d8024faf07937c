# SPDX-License-Identifier: Apache-2.0
"""Numbers are the same however they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors.groundedness.numerals import WORDS, AmountSet, find_amounts, list_sums
from tests.waits import assert_linear


def supports(document: str, claim: str) -> bool:
    """Whether every firm amount of the claim is among those of the document."""
    ledger = AmountSet(find_amounts(document)[0])
    return all(ledger.has(one) for one in find_amounts(claim)[0] if one.is_firm)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,000 people", "1.000 Menschen"),
        ("one thousand", "mil"),
        ("1 000 km", "1000 km"),
        ("1'000'000", "one million"),
        ("3.2 million pounds", "3,200,000 pounds"),
        ("1,5 Milliarden Euro", "1.500 Mio. Euro"),
        ("4,50 €", "$4.50 and 4.50 euros"),
        ("EUR 20", "20 euros"),
        ("50 cents", "0.50 euros"),
        ("twenty-five", "25"),
        ("treinta y cinco", "35"),
        ("fünfundzwanzig", "25"),
        ("zweihundert", "200"),
        ("mil trescientos", "1.300"),
        ("two hundred and five", "205"),
        ("anderthalb Stunden", "90 minutes"),
        ("two weeks", "14 days"),
        ("24 months", "2 years"),
        ("1.5 km", "1500 m"),
        ("60 Zentimetern", "600 mm"),
        ("8 pm", "20:00"),
        ("8:30 p.m.", "20.30 Uhr"),
        ("um 10 Uhr", "10:00"),
        ("9h30", "9:30 a.m."),
        ("38 %", "38 por ciento"),
        ("2024-03-12", "12.03.2024"),
        ("the third day", "day 3"),
        ("am fünften Tag", "Tag 5"),
        ("half an hour", "30 minutes"),
    ],
)
def test_two_notations_of_one_number_are_the_same(one: str, other: str) -> None:
    assert supports(one, other) or supports(other, one)


@pytest.mark.parametrize(
    ("document", "claim"),
    [
        ("12 days", "12 weeks"),
        ("20 euros", "20 dollars"),
        ("60 Zentimeter", "60 Millimeter"),
        ("8 am", "8 pm"),
        ("1,200", "1,300"),
        ("-5 °C", "5 °C"),
        ("up to eight", "up to ten"),
        ("4.50 euros", "4.05 euros"),
        ("third", "fifth"),
        ("version 3.11", "version 3.12"),
    ],
)
def test_another_number_or_unit_is_another_amount(document: str, claim: str) -> None:
    assert not supports(document, claim)


def test_about_and_more_than_leave_room() -> None:
    assert supports("1,240 people", "around 1,200 people")
    assert not supports("1,240 people", "around 1,000 people")
    assert supports("1,240 people", "more than 1,200")
    assert not supports("1,240 people", "exactly 1,200")


def test_an_article_is_no_number_that_must_occur() -> None:
    assert [one for one in find_amounts("one of a kind, un caso, ein Haus")[0] if one.is_firm] == []
    assert supports("one week", "7 days")


def test_a_word_counts_in_its_language_only() -> None:
    assert find_amounts("once a day", ("en",))[0] == []
    assert find_amounts("once euros", ("es",))[0][0].values == (11.0,)


def test_dates_give_their_month() -> None:
    assert find_amounts("on 2024-03-12")[1] == {3}
    assert find_amounts("am 12.03.2024")[1] == {3}
    assert find_amounts("on 3/4/2024")[1] == {3, 4}
    assert find_amounts("99.99.2024")[1] == set()


def test_sums_and_differences_of_like_amounts_are_reckoned() -> None:
    ledger = AmountSet(list_sums(find_amounts("raised from $3.50 to $4 after 3 days")[0]))
    (half,) = find_amounts("by 50 cents")[0]
    (other,) = find_amounts("by 1 dollar")[0]
    assert ledger.has(half)
    assert not ledger.has(other)


GROUPED = st.sampled_from([",", ".", " ", "\u00a0", "'", ""])


@given(st.integers(0, 10**9), GROUPED, GROUPED)
def test_grouping_does_not_change_a_number(number: int, mark: str, other: str) -> None:
    one, two = (f"{number:,}".replace(",", sign) for sign in (mark, other))
    assert supports(f"There are {one} of them.", f"Es sind {two}")


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_two_whole_numbers_are_the_same_only_if_they_are(one: int, other: int) -> None:
    assert supports(str(one), str(other)) is (one == other)


@given(st.sampled_from(sorted(WORDS)), st.integers(0, 12))
def test_words_up_to_twelve_are_numbers(language: str, number: int) -> None:
    words = [word for word, value in WORDS[language].items() if value == number]
    assert words
    assert all(supports(f"we have {word} cats", f"{number} cats") for word in words)


@given(st.text(st.sampled_from("0123456789.,:/-'’ hundertundzweitausend%€$km apUhr\u00a0\n"), max_size=200) | st.text())
def test_any_text_can_be_read_and_amounts_lie_in_it(text: str) -> None:
    amounts, months = find_amounts(text)
    assert all(0 <= one.start <= one.end <= len(text) for one in amounts)
    assert months <= set(range(1, 13))
    assert all(AmountSet(amounts).has(one) for one in amounts if one.values or one.minutes)
    list_sums(amounts)


@pytest.mark.parametrize("piece", ["1 ", "hundert", "one ", "1/", "9"])
def test_the_work_grows_with_the_text_only(piece: str) -> None:
    assert_linear(lambda size: find_amounts((piece * size)[:size]), 10_000)
