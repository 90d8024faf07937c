# SPDX-License-Identifier: Apache-2.0
"""Moderations for clients of OpenAI's, answered by a policy: its detectors read each input, and nothing is changed.

Decides which policy is meant and who reads under it: the detectors of contents of its input and its output. What the
policy would do with a text has no meaning here, and neither has its mode: who asks wants to know. Knows no category.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from lockgate.api.guarded_answer import Answering
from lockgate.api.openai.format import warn
from lockgate.api.openai.moderation_format import (
    TOXICITY_LABELS,
    Moderated,
    ModerationResult,
    build_result,
    encode_moderation,
    name_categories,
    read_moderation,
)
from lockgate.api.receipts import describe_failure
from lockgate.api.shapes import decode
from lockgate.config.policies import PolicySettings
from lockgate.errors import InvalidRequest
from lockgate.gate.receipts import Part
from lockgate.gate.values import TEXT_CONTENTS, Detection
from lockgate.gateway import Gateway
from lockgate.guard.account import Meter
from lockgate.guard.detect import detect_contents
from lockgate.guard.detectors import ActiveGuard, excuse
from lockgate.interfaces import Headers
from lockgate.server.exchange import Exchange
from lockgate.task_groups import run_together
from lockgate.telemetry import count_detections

_SECTIONS = ("input", "output")  # of a policy; the first that names a detector has its parameters
_NO_POLICY = (
    "no policy answers this: name one in `policy`, or as `model`, or as `<model>@<policy>`, "
    "or set `moderation.policy` in the settings"
)


class _Readers(NamedTuple):
    """Who reads, and the categories that each looks for, as far as they are known before it finds anything."""

    guards: Sequence[ActiveGuard]
    categories: Mapping[str, frozenset[str]]


class _Readings(NamedTuple):
    """What was found in one text, also what is below the thresholds; and who gave no answer, but may fail."""

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
        asked = await decode(await exchange.request.read_json(answering.limits.body_bytes), read_moderation)
        chosen = self._find_policy(asked, exchange.request.policy)
        readers = await self._choose(chosen, answering.headers(exchange))
        texts = [text for texts in asked.inputs for text in texts]
        # A text asks each detector once, so that many texts at once are as many requests to each of them.
        read = await run_together([partial(self._read, text, readers.guards) for text in texts], self._max_open)
        left = iter(read)
        results = [_build(readers, [next(left) for _ in texts]) for texts in asked.inputs]
        failed = dict.fromkeys(name for one in read for name in sorted(one.failed))
        warnings = [warn(*describe_failure(name, ends=False)) for name in failed]
        await exchange.reply.answer_json(encode_moderation(asked.model or chosen.name, chosen.name, results, warnings))

    def _find_policy(self, asked: Moderated, in_path: str | None) -> PolicySettings:
        """The policy of the path, of the body, of the model's name, or of the settings."""
        names = (asked.model, asked.model.rpartition("@")[2])
        by_model = next((one for one in names if one in self._policies), None)
        said = asked.policy if asked.policy is not None else by_model
        if by_model not in (None, said):
            raise InvalidRequest(f"`model` names policy `{by_model}`, `policy` names `{said}`: name one", status=400)
        if in_path is not None and said not in (None, in_path):
            raise InvalidRequest(f"the path names policy `{in_path}`, the request `{said}`: name one", status=400)
        name = next((one for one in (in_path, said, self._default) if one is not None), None)
        if name is None:
            raise InvalidRequest(_NO_POLICY, status=404)
        policy: PolicySettings | None = self._policies.get(name)
        if policy is None:
            raise InvalidRequest(f"policy `{name}` not found", status=404)
        return policy

    async def _choose(self, policy: PolicySettings, headers: Headers) -> _Readers:
        """Who reads: each detector of contents once, whether it may fail or not as its section says."""
        asked: dict[str, Mapping[str, Any]] = {}
        passes: dict[str, bool] = {}
        for section in _SECTIONS:
            for name, params in getattr(policy, section).items():
                if name not in asked and self._gateway.guards[name].type == TEXT_CONTENTS:
                    asked[name], passes[name] = params, policy.passes(section, name)
        if not asked:
            message = f"policy `{policy.name}` has no detector of type text_contents in `input` or `output`"
            raise InvalidRequest(message, status=400)
        chosen = await self._answering.choose(asked, self._answering.rules(TEXT_CONTENTS), headers)
        foreseen = {name: self._foresee(name, params) for name, params in asked.items()}
        return _Readers(excuse(chosen, passes.__getitem__).contents, foreseen)

    async def _read(self, text: str, guards: Sequence[ActiveGuard]) -> _Readings:
        meter = Meter()
        at_work = meter.watch([replace(one, threshold=-inf) for one in guards], Part.PROMPT)
        found = await detect_contents(text, at_work, self._max_open)
        return _Readings(found, frozenset(meter.excused))

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
    """The result of one input. What only a detector looks for that failed was not looked for."""
    thresholds = {one.guard.id: one.threshold for one in readers.guards}
    found = [one for reading in readings for one in reading.found]
    failed = frozenset(name for reading in readings for name in reading.failed)
    looked_for = {name for one in thresholds.keys() - failed for name in readers.categories[one]}
    count_detections([one for one in found if one.score >= thresholds[one.detector_id]])
    return build_result(found, thresholds, sorted(looked_for))
