# SPDX-License-Identifier: Apache-2.0
"""Moderations in OpenAI's words: what a request may hold, and under which categories findings are told.

Decides which category stands for which finding. A finding that OpenAI has a name for is told under that name, every
other under its own, so that none is lost. Refuses to know who reads, and which policy that is.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec

from lockgate.api.shapes import Shape
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Detection

MAX_INPUTS = 256
CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip
_TOXIC = "toxic"  # in the type of detections whose labels are those of the table
_TOXICITY: Mapping[str, tuple[str, ...]] = {
    "toxic": ("harassment",),
    "toxicity": ("harassment",),
    "severe_toxic": ("harassment",),
    "severe_toxicity": ("harassment",),
    "insult": ("harassment",),
    # Foul language, at whomever: OpenAI has no name for it. Their `sexual` is meant for what shall arouse, which this
    # label does not tell, and what they flag of such texts they flag as harassment.
    "obscene": ("harassment",),
    "obscenity": ("harassment",),
    "threat": ("harassment/threatening", "violence"),
    "identity_hate": ("hate",),
    "identity_attack": ("hate",),
}
TOXICITY_LABELS = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")  # that are in common use
_MAX_NAME_CHARS = 100
_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_LETTERS = re.compile(r"[\W_]+")


class ModerationPart(msgspec.Struct):
    """A part of one input; only text can be checked."""

    type: str
    text: str | None = None


ModerationItem = Annotated[str | ModerationPart, msgspec.Meta(title="ModerationItem")]
ModerationInput = Annotated[str | list[ModerationItem], msgspec.Meta(title="ModerationInput")]


class ModerationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of moderations. Strings are inputs of their own; parts make up one."""

    input: ModerationInput
    model: str | None = None
    policy: str | None = None


class ModerationResult(msgspec.Struct):
    """What was found in one input. A category that nobody looked for has no input types."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationWarning(msgspec.Struct):
    """What the reader should know."""

    type: str
    message: str


class ModerationAnswer(msgspec.Struct, omit_defaults=True):
    """Answer of moderations: one result per input. `policy` is the one by which they were read."""

    id: str
    model: str
    policy: str
    results: list[ModerationResult]
    warnings: list[ModerationWarning] = []


class Moderated(NamedTuple):
    """A request, read: the texts of each input."""

    inputs: tuple[tuple[str, ...], ...]
    model: str = ""
    policy: str | None = None


_REQUEST = Shape(ModerationRequest)
_encode = msgspec.json.Encoder().encode


def read_moderation(raw: bytes) -> Moderated:
    """A request; what is wrong with it is 400, as these clients know it."""
    try:
        request = _REQUEST.decode(raw)
        return Moderated(_read_inputs(request.input), request.model or "", request.policy)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, status=400) from error


def _read_inputs(given: str | list[str | ModerationPart]) -> tuple[tuple[str, ...], ...]:
    if isinstance(given, str):
        return ((given,),)
    if not given:
        raise InvalidRequest("`input` must not be empty")
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(f"`input` has {len(given)} entries, at most {MAX_INPUTS} are allowed")
    texts = tuple(one for one in given if isinstance(one, str))
    if len(texts) == len(given):
        return tuple((text,) for text in texts)
    if texts:
        raise InvalidRequest("`input` must hold strings or parts, not both")
    # As with OpenAI, parts are one input and get one result: who looks at the first one only must not miss a finding.
    return (tuple(_read_part(place, one) for place, one in enumerate(given) if isinstance(one, ModerationPart)),)


def _read_part(place: int, part: ModerationPart) -> str:
    if part.type != "text":
        raise InvalidRequest(f"input[{place}]: a part of type `{part.type}` cannot be checked, only text can")
    if part.text is None:
        raise InvalidRequest(f"input[{place}]: a part of type `text` needs a `text`")
    return part.text


@lru_cache(maxsize=1024)
def name_categories(detection_type: str, detection: str) -> tuple[str, ...]:
    """The categories under which a finding is told; at least one."""
    kind, label = _flatten(detection_type), _flatten(detection)
    if _TOXIC in kind and label in _TOXICITY:
        return _TOXICITY[label]
    for name in (label, f"{kind}_{label}"):
        if name in _BY_FLAT_NAME:
            return (_BY_FLAT_NAME[name],)
    return ("/".join(part for part in (kind, label) if part) or "other",)


def build_result(
    found: Iterable[Detection], thresholds: Mapping[str, float], looked_for: Iterable[str] = ()
) -> ModerationResult:
    """The result of one input. A finding whose score is below its detector's threshold has a score and no flag."""
    flags = dict.fromkeys(CATEGORIES, False)
    scores = dict.fromkeys(CATEGORIES, 0.0)
    types: dict[str, list[str]] = {name: [] for name in CATEGORIES} | {name: ["text"] for name in looked_for}
    for one in found:
        for label, score in _list_labels(one):
            is_flagged = score >= thresholds[one.detector_id]
            for name in name_categories(one.detection_type, label):
                flags[name] = flags.get(name, False) or is_flagged
                scores[name] = max(scores.get(name, 0.0), score)
                types[name] = ["text"]
    for name in types:
        flags.setdefault(name, False)
        scores.setdefault(name, 0.0)
    return ModerationResult(any(flags.values()), flags, scores, types)


def _list_labels(one: Detection) -> list[tuple[str, float]]:
    """What was found, and what else toxicity saw in the same text: a finding bears its strongest label alone."""
    labels = [(one.detection, float(one.score))]
    others = (one.metadata or {}).get("scores") if _TOXIC in one.detection_type else None
    if isinstance(others, Mapping):
        labels += [(name, float(score)) for name, score in others.items() if isinstance(score, int | float)]
    return labels


def encode_moderation(
    model: str, policy: str, results: Sequence[ModerationResult], warnings: Iterable[Mapping[str, str]] = ()
) -> bytes:
    """The answer."""
    told = [ModerationWarning(one["type"], one["message"]) for one in warnings]
    return _encode(ModerationAnswer(f"modr-{uuid.uuid4().hex}", model, policy, list(results), told))


def _flatten(name: str) -> str:
    """A label in small letters, its words joined by underscores."""
    spaced = _WORD_BORDER.sub("_", name[:_MAX_NAME_CHARS])
    return _NO_LETTERS.sub("_", spaced).strip("_").lower()


_BY_FLAT_NAME = {_flatten(name): name for name in CATEGORIES}
