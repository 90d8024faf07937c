# SPDX-License-Identifier: Apache-2.0
"""Where findings stand in a piece of an answer as the client gets it.

Detectors count characters of the model's text; a mask may be longer or shorter than what it hides. Decides which
characters of the piece are marked. Refuses to know how marks look.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.cli.answer_view import Mark

Finding = Mapping[str, Any]  # as events tell it


class Released(NamedTuple):
    """What a piece stands for: characters of the model's text, and that text where it is known."""

    start: int
    end: int
    original: str | None = None
    is_blocked: bool = False


class _Group(NamedTuple):
    """Findings that overlap, cut to the piece; those that go on beyond it are not named yet."""

    start: int
    end: int
    words: tuple[str, ...]


def name_finding(found: Finding) -> str:
    """Who found what."""
    return f"{found.get('detector_id') or '?'}: {found.get('detection') or found.get('detection_type') or '?'}"


def place_marks(text: str, released: Released, findings: Iterable[Finding]) -> list[Mark]:
    """The marks of a piece, in order; none overlaps another."""
    groups = _merge(released, findings)
    if not groups:
        return []
    if released.is_blocked:  # what ends the answer stands behind what was kept of it
        kept = _count_common(text, released.original or text)
        return [Mark(kept, len(text), _join([group.words for group in groups]))] if kept < len(text) else []
    if len(text) == released.end - released.start:
        return [Mark(one.start, one.end, ", ".join(one.words)) for one in groups]
    return _follow(text, released, groups) or _span(text, released, groups)


def _merge(released: Released, findings: Iterable[Finding]) -> list[_Group]:
    groups: list[_Group] = []
    for found in sorted(findings, key=lambda one: (one["start"], one["end"])):
        start, end = max(found["start"], released.start), min(found["end"], released.end)
        words: tuple[str, ...] = (name_finding(found),) if found["end"] <= released.end else ()
        if start >= end and not released.is_blocked:
            continue
        start, end = start - released.start, end - released.start
        if groups and start < groups[-1].end:
            last = groups.pop()
            start, end, words = last.start, max(last.end, end), tuple(dict.fromkeys(last.words + words))
        groups.append(_Group(start, end, words))
    return groups


def _follow(text: str, released: Released, groups: Sequence[_Group]) -> list[Mark]:
    """The marks, found by the text between them, which is as it was; nothing where it cannot be found."""
    if released.original is None:
        return []
    marks, position = [], groups[0].start
    borders = [*[group.start for group in groups[1:]], len(released.original)]
    for group, border in zip(groups, borders, strict=True):
        between = released.original[group.end : border]
        is_last = border == len(released.original)
        end = len(text) - len(between) if is_last and text.endswith(between) else text.find(between, position)
        if end < position or not (between or is_last):
            return []
        marks.append(Mark(position, end, ", ".join(group.words)))
        position = end + len(between)
    return marks


def _span(text: str, released: Released, groups: Sequence[_Group]) -> list[Mark]:
    """One mark from the first to the last of them."""
    behind = released.end - released.start - groups[-1].end
    start = min(groups[0].start, len(text))
    return [Mark(start, max(len(text) - behind, start), _join([group.words for group in groups]))]


def _count_common(text: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    for place, (one, two) in enumerate(zip(text, other, strict=False)):
        if one != two:
            return place
    return min(len(text), len(other))


def _join(words: Iterable[Sequence[str]]) -> str:
    return ", ".join(dict.fromkeys(word for some in words for word in some))
