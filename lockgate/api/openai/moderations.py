# SPDX-License-Identifier: Apache-2.0
"""Moderations for OpenAI clients: a policy's detectors read each input, and findings are reported by category.

A finding that OpenAI has a category for is reported under that name, any other under its own. The policy's actions
and its mode have no meaning here.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import Annotated, Any, NamedTuple

import msgspec

from lockgate.api.guarded_answer import Answering
from lockgate.api.openai.format import warn
from lockgate.api.receipts import describe_failure
from lockgate.api.shapes import Shape, decode
from lockgate.config.policies import PolicySettings
from lockgate.errors import InvalidRequest, UpstreamError
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import TEXT_CONTENTS, Detection
from lockgate.gateway import Gateway
from lockgate.guard.detectors import ActiveGuard, apply_failure_policy
from lockgate.guard.policy import Meter
from lockgate.guard.request import to_check_failed
from lockgate.guard.stream import detect_contents
from lockgate.interfaces import Headers
from lockgate.server.exchange import Exchange, HttpRequest
from lockgate.task_groups import run_together
from lockgate.telemetry import count_detections

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
    # Foul language: OpenAI has no category for it. Its `sexual` is for arousing text, which this label does not show.
    # It flags such texts, if at all, as harassment.
    "obscene": ("harassment",),
    "obscenity": ("harassment",),
    "threat": ("harassment/threatening", "violence"),
    "identity_hate": ("hate",),
    "identity_attack": ("hate",),
}
TOXICITY_LABELS = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")  # in common use
_MAX_NAME_CHARS = 100
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_LETTERS = re.compile(r"[\W_]+")
_SECTIONS = ("input", "output")  # of a policy; the first that names a detector has its parameters
_NO_POLICY = (
    "no policy answers this: name one in `policy`, or as `model`, or as `<model>@<policy>`, "
    "or set `moderation.policy` in the settings"
)


class ModerationPart(msgspec.Struct):
    """A part of one input; only text can be checked."""

    type: str
    text: str | None = None


ModerationItem = Annotated[str | ModerationPart, msgspec.Meta(title="ModerationItem")]
ModerationInput = Annotated[str | list[ModerationItem], msgspec.Meta(title="ModerationInput")]


class ModerationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of moderations. Each string is an input; parts together are one."""

    input: ModerationInput
    model: str | None = None
    policy: str | None = None


class ModerationResult(msgspec.Struct):
    """The findings in one input. A category that was not looked for has no input types."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationWarning(msgspec.Struct):
    """A warning: its code and its text."""

    type: str
    message: str


class ModerationAnswer(msgspec.Struct, omit_defaults=True):
    """Answer of moderations: one result per input. `policy` is the one whose detectors read them."""

    id: str
    model: str
    policy: str
    results: list[ModerationResult]
    warnings: list[ModerationWarning] = []


class Moderated(NamedTuple):
    """A decoded request: the texts of each input."""

    inputs: tuple[tuple[str, ...], ...]
    model: str = ""
    policy: str | None = None


_REQUEST = Shape(ModerationRequest)
_encode = msgspec.json.Encoder().encode


def read_moderation(raw: bytes) -> Moderated:
    """Decode a request; an invalid one has status 400, as OpenAI clients expect."""
    try:
        request = _REQUEST.decode(raw)
        return Moderated(_read_inputs(request.input), request.model or "", request.policy)
    except InvalidRequest as error:
        refused = InvalidRequest(error.message, status=400)
        refused.unquoted = error.unquoted
        raise refused from error


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
    parts = [one for one in given if isinstance(one, ModerationPart)]
    for place, part in enumerate(parts):
        if part.type != "text":
            raise InvalidRequest(f"input[{place}]: a part of type `{part.type}` cannot be checked, only text can")
        if part.text is None:
            raise InvalidRequest(f"input[{place}]: a part of type `text` needs a `text`")
    # As with OpenAI, parts are one input and get one result: a client that reads only the first must see all findings.
    return (tuple(part.text or "" for part in parts),)


@lru_cache(maxsize=1024)
def name_categories(detection_type: str, detection: str) -> tuple[str, ...]:
    """The categories under which a finding is reported; at least one."""
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
    """The labels of a finding: its own, and for toxicity all that have a score in the metadata."""
    labels = [(one.detection, float(one.score))]
    others = (one.metadata or {}).get("scores") if _TOXIC in one.detection_type else None
    if isinstance(others, Mapping):
        labels += [(name, float(score)) for name, score in others.items() if isinstance(score, int | float)]
    return labels


def encode_moderation(
    model: str, policy: str, results: Sequence[ModerationResult], warnings: Iterable[Mapping[str, str]] = ()
) -> bytes:
    """The answer."""
    sent = [ModerationWarning(one["type"], one["message"]) for one in warnings]
    return _encode(ModerationAnswer(f"modr-{uuid.uuid4().hex}", model, policy, list(results), sent))


def _flatten(name: str) -> str:
    """A label in small letters, its words joined by underscores."""
    spaced = _WORD_BOUNDARY.sub("_", name[:_MAX_NAME_CHARS])
    return _NO_LETTERS.sub("_", spaced).strip("_").lower()


_BY_FLAT_NAME = {_flatten(name): name for name in CATEGORIES}


class _Readers(NamedTuple):
    """The detectors, and the categories that each looks for, if they are known."""

    guards: Sequence[ActiveGuard]
    categories: Mapping[str, frozenset[str]]


class _Readings(NamedTuple):
    """The findings in one text, also those below the thresholds, and the detectors that failed and may fail."""

    found: Sequence[Detection]
    failed: frozenset[str]


class ModerationRoutes:
    """The endpoint of one open gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._answering = Answering(gateway)
        self._policies = gateway.settings.policies
        self._default = gateway.settings.moderation.policy
        self._max_open = gateway.settings.detector_concurrent_requests

    async def moderate(self, exchange: Exchange) -> None:
        """POST /v1/moderations."""
        answering = self._answering
        body = await decode(await exchange.request.read_json(answering.limits.body_bytes), read_moderation)
        chosen = self._find_policy(body, exchange.request)
        readers = await self._choose(chosen, answering.headers(exchange))
        texts = [text for texts in body.inputs for text in texts]
        # A text asks each detector once, so that many texts at once are as many requests to each of them.
        read = await run_together([partial(self._read, text, readers.guards) for text in texts], self._max_open)
        left = iter(read)
        results = [_build(readers, [next(left) for _ in texts]) for texts in body.inputs]
        failed = dict.fromkeys(name for one in read for name in sorted(one.failed))
        warnings = [warn(*describe_failure(name, ends=False)) for name in failed]
        await exchange.reply.answer_json(encode_moderation(body.model or chosen.name, chosen.name, results, warnings))

    def _find_policy(self, request: Moderated, sent: HttpRequest) -> PolicySettings:
        """The policy of the path, of the body, of the model's name, or of the settings. Raises NotAllowed."""
        in_path = sent.policy
        names = (request.model, request.model.rpartition("@")[2])
        by_model = next((one for one in names if one in self._policies), None)
        named = request.policy if request.policy is not None else by_model
        if by_model not in (None, named):
            raise InvalidRequest(f"`model` names policy `{by_model}`, `policy` names `{named}`: name one", status=400)
        if in_path is not None and named not in (None, in_path):
            raise InvalidRequest(f"the path names policy `{in_path}`, the request `{named}`: name one", status=400)
        chosen = in_path if in_path is not None else named
        if chosen is not None:
            sent.grant.check_policy(chosen)
        name = self._default if chosen is None else chosen
        if name is None:
            raise InvalidRequest(_NO_POLICY, status=404)
        policy: PolicySettings | None = self._policies.get(name)
        if policy is None:
            raise InvalidRequest(f"policy `{name}` not found", status=404)
        return policy

    async def _choose(self, policy: PolicySettings, headers: Headers) -> _Readers:
        """The detectors of contents, each once; its section says whether it may fail."""
        requested: dict[str, Mapping[str, Any]] = {}
        passes: dict[str, bool] = {}
        limits: dict[str, float | None] = {}
        for section in _SECTIONS:
            for name, params in getattr(policy, section).items():
                if name not in requested and self._gateway.guards[name].type == TEXT_CONTENTS:
                    requested[name], passes[name] = params, policy.passes(section, name)
                    limits[name] = policy.max_hold_s(section, name)
        if not requested:
            message = f"policy `{policy.name}` has no detector of type text_contents in `input` or `output`"
            raise InvalidRequest(message, status=400)
        chosen = await self._answering.choose(requested, self._answering.rules(TEXT_CONTENTS), headers)
        foreseen = {name: self._foresee(name, params) for name, params in requested.items()}
        return _Readers(apply_failure_policy(chosen, passes.__getitem__, limits.__getitem__).contents, foreseen)

    async def _read(self, text: str, guards: Sequence[ActiveGuard]) -> _Readings:
        meter = Meter()
        guards = meter.watch([replace(one, threshold=-inf) for one in guards], RequestPart.PROMPT)
        try:
            found = await detect_contents(text, guards, self._max_open)
        except UpstreamError as error:
            raise to_check_failed(error) from error
        return _Readings(found, frozenset(meter.failed_detectors))

    def _foresee(self, detector_id: str, params: Mapping[str, Any]) -> frozenset[str]:
        part = self._gateway.settings.detectors[detector_id]
        if part.embedded == "toxicity":
            labels = params.get("labels") or part.options.get("labels") or TOXICITY_LABELS
        elif part.embedded == "llm_judge":
            labels = (part.options.get("name", "Judged"),)
        else:
            return frozenset()
        return frozenset(name for label in labels for name in name_categories(part.embedded, str(label)))


def _build(readers: _Readers, readings: Sequence[_Readings]) -> ModerationResult:
    """The result of one input. Categories of failed detectors alone count as not looked for."""
    thresholds = {one.guard.id: one.threshold for one in readers.guards}
    found = [one for reading in readings for one in reading.found]
    failed = frozenset(name for reading in readings for name in reading.failed)
    looked_for = {name for one in thresholds.keys() - failed for name in readers.categories[one]}
    count_detections([one for one in found if one.score >= thresholds[one.detector_id]])
    return build_result(found, thresholds, sorted(looked_for))
