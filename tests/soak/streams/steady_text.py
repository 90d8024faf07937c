# SPDX-License-Identifier: Apache-2.0
"""What the model of the steady run says, token by token, and where its sentences end."""

from itertools import accumulate

_SENTENCES = (
    "The parcel is at the depot and will be brought tomorrow morning .",
    "Nobody at the harbour could say when the ferry would leave .",
    "Write to ana.ruiz@example.org before noon if you want it .",
    "It rained all night and the river rose by a hand .",
    "She opened the window and listened to the street for hours .",
)
TOKEN_S = 0.1


def tokens(count: int) -> list[str]:
    """So many tokens, each with the space before it; a full stop is one of its own."""
    words = [word for sentence in _SENTENCES for word in sentence.split(" ")]
    taken = [words[number % len(words)] for number in range(count)]
    return [word if word == "." or not number else f" {word}" for number, word in enumerate(taken)]


def sentence_tokens(count: int) -> list[int]:
    """The numbers of the tokens that end a sentence."""
    return [number for number, token in enumerate(tokens(count)) if token == "."]


def sentence_ends(count: int) -> list[int]:
    """Where these sentences end, in characters."""
    ends = list(accumulate(map(len, tokens(count))))
    return [ends[number] for number in sentence_tokens(count)]


def count_mails(count: int) -> int:
    """How many addresses there are to be found."""
    return sum("@" in token for token in tokens(count))
