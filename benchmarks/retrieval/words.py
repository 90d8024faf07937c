# SPDX-License-Identifier: Apache-2.0
"""Whether a question and a passage share a content word: crude on purpose, and rather too strict than too mild.

Knows English alone, and nothing of the index: what counts as a paraphrase must not depend on what is measured by it.
"""

import re

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_ENDINGS = (
    "ations", "ation", "ments", "ment", "ings", "ing", "ions", "ion", "ies", "ied", "ers", "ors", "est", "ed", "es",
    "er", "or", "ly", "al", "s", "e", "y",
)  # fmt: skip
_SHORTEST_STEM = 3
_FUNCTION_TEXT = """
    a about above after again all although always am an and another any anybody anyone anything are as at away be
    because been before behind being below beside besides between beyond both but by can can't cannot could did do does
    doesn't done don't down during each either else elsewhere enough etc even ever every everybody everyone everything
    everywhere few for from had has have he hence her here him his how i i'll if in inside instead into is isn't it its
    itself just may me might more most much must my neither never no nobody none nor not nothing now of off on once one
    only onto or other others our out outside over own per rather shall she should since so some somebody someone
    something soon still such than that the their them then there these they this those though through to too towards
    two under unless until up upon us very was we were what whatever whatsoever when where whether which while who whom
    whose why will with within without would yes yet you your"""
_FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())


def stem(word: str) -> str:
    """The word without its endings, one after another, as long as three letters are left."""
    word = word.lower().removesuffix("'s")
    for _ in range(2):
        ending = next((one for one in _ENDINGS if word.endswith(one) and len(word) - len(one) >= _SHORTEST_STEM), "")
        word = word.removesuffix(ending)
    return word


def find_content_stems(text: str) -> frozenset[str]:
    """The stems of all words that mean something."""
    words = (one.lower() for one in _WORD.findall(text.replace("’", "'")))
    return frozenset(stem(one) for one in words if one not in _FUNCTION_WORDS)
