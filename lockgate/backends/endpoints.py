# SPDX-License-Identifier: Apache-2.0
"""What every call of an endpoint that a request names has in common: its headers, and words without its tokens.

Decides whether a value can be a header at all. Refuses to know paths, bodies, and what an answer means.
"""

import json
from collections.abc import Sequence
from unicodedata import category

from multidict import CIMultiDict

from lockgate._version import __version__

MAX_BODY_BYTES = 32 * 1024 * 1024
ANY = "*/*"
HIDDEN = "***"
NO_DETAIL = "no details given"  # where an endpoint refuses without words
_CONTROL = frozenset({"Cc", "Cs"})


class UnfitHeader(ValueError):
    """A value that cannot be sent as a header; its words name the header, not the value."""


def build_headers(correlation_id: str, token: str | None, tenant: str | None = None) -> CIMultiDict[str]:
    """The headers of a call, and no others; raises UnfitHeader."""
    headers = CIMultiDict(
        {
            "User-Agent": f"lockgate/{__version__}",
            "Accept": ANY,
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
    )
    if correlation_id:
        headers["X-Correlation-ID"] = _check("correlation id", correlation_id)
    if tenant:
        headers["X-Tenant-Name"] = _check("tenant name", tenant)
    if token:
        headers["Authorization"] = f"Bearer {_check('token', token)}"
    return headers


class Scrubber:
    """Takes tokens out of words that others chose."""

    __slots__ = ("_tokens",)

    def __init__(self, *tokens: str | None) -> None:
        self._tokens: Sequence[str] = [token for token in tokens if token]

    def __call__(self, words: str) -> str:
        """The words with every token hidden, also as it looks inside of JSON."""
        for token in sorted(self._tokens, key=len, reverse=True):
            for spelling in (token, json.dumps(token, ensure_ascii=False)[1:-1], json.dumps(token)[1:-1]):
                words = words.replace(spelling, HIDDEN)
        return words


def _check(what: str, value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    if any(category(char) in _CONTROL for char in value):
        raise UnfitHeader(f"the {what} cannot be sent as a header")
    return value
