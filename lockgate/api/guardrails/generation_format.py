# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate text by `model_id`: their requests, and their answers whole and in streams."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from lockgate.api.guarded_answer import AnswerWriter
from lockgate.api.guardrails.format import DetectorMap, MaskList, Masks, PlainDetection, from_reviews, read_masks
from lockgate.api.openai.envelope import FILTERED
from lockgate.api.openai.format import INPUT_WARNING, OUTPUT_WARNING, encode, encode_event
from lockgate.api.receipts import ReceiptBody
from lockgate.api.shapes import Shape
from lockgate.gate.coverage import FieldRule, Path, TextKind, known, technical
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame, Generated, Subject
from lockgate.gate.verdicts import Verdict
from lockgate.guard.request import InputBlocked

PROMPT: Path = ("inputs",)
# The texts of a request; the parameters are strings, numbers and booleans.
FIELDS = FieldRule(
    keys={
        "inputs": FieldRule(TextKind.CONTENT),
        "model_id": FieldRule(),
        "text_gen_parameters": FieldRule(
            keys={
                "decoding_method": technical("GREEDY", "SAMPLE", "greedy", "sample"),
                "exponential_decay_length_penalty": FieldRule(keys=known("start_index decay_factor")),
                **known(
                    "max_new_tokens min_new_tokens truncate_input_tokens top_k top_p typical_p temperature seed "
                    "repetition_penalty max_time preserve_input_text input_tokens generated_tokens token_logprobs "
                    "token_ranks include_stop_sequence stop_sequences"
                ),
            }
        ),
    }
)
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_UNSUITABLE_INPUT = {"id": "UNSUITABLE_INPUT", "message": INPUT_WARNING}
_UNSUITABLE_OUTPUT = {"id": "UNSUITABLE_OUTPUT", "message": OUTPUT_WARNING}
_ORDER = (
    "generated_text",
    "token_classification_results",
    "finish_reason",
    "generated_token_count",
    "seed",
    "input_token_count",
    "warnings",
    "tokens",
    "input_tokens",
    "processed_index",
    "start_index",
)


class LengthPenalty(msgspec.Struct, omit_defaults=True):
    """The penalty for long texts."""

    start_index: Unsigned32 | None = None
    decay_factor: float | None = None


class Parameters(msgspec.Struct, omit_defaults=True):
    """Generation parameters."""

    max_new_tokens: Unsigned32 | None = None
    min_new_tokens: Unsigned32 | None = None
    truncate_input_tokens: Unsigned32 | None = None
    decoding_method: str | None = None
    top_k: Unsigned32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    max_time: float | None = None
    exponential_decay_length_penalty: LengthPenalty | None = None
    stop_sequences: list[str] | None = None
    seed: Unsigned32 | None = None
    preserve_input_text: bool | None = None
    input_tokens: bool | None = None
    generated_tokens: bool | None = None
    token_logprobs: bool | None = None
    token_ranks: bool | None = None
    include_stop_sequence: bool | None = None


class StrictInputGuards(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors of the prompt, and the parts of it that they read."""

    models: DetectorMap
    masks: MaskList | None = None


class StrictOutputGuards(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors of the answer."""

    models: DetectorMap


class StrictGuardrailConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors by section, and the policy."""

    input: StrictInputGuards | None = None
    output: StrictOutputGuards | None = None
    policy: str | None = None


class Classification(msgspec.Struct, forbid_unknown_fields=True):
    """Body of both classification endpoints."""

    model_id: str
    inputs: str
    guardrail_config: StrictGuardrailConfig | None = None
    text_gen_parameters: Parameters | None = None


class GenerationDetection(msgspec.Struct, forbid_unknown_fields=True):
    """Body of generation-detection."""

    model_id: str
    prompt: str
    detectors: DetectorMap
    text_gen_parameters: Parameters | None = None


class FoundWord(msgspec.Struct):
    """A finding with its position in the text."""

    start: int
    end: int
    word: str
    entity: str
    entity_group: str
    detector_id: str
    score: float


class FoundWords(msgspec.Struct):
    """The findings in prompt and answer; one without findings may be left out."""

    input: list[FoundWord] | UnsetType = UNSET
    output: list[FoundWord] | UnsetType = UNSET


class TextWarning(msgspec.Struct):
    """A warning: its code and its text."""

    id: str
    message: str


class ClassifiedText(msgspec.Struct, kw_only=True):
    """A text, or one event of a stream, with its findings. It has no text if the prompt was refused."""

    generated_text: str | UnsetType = UNSET
    token_classification_results: FoundWords
    finish_reason: str | UnsetType = UNSET
    generated_token_count: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    input_token_count: int
    warnings: list[TextWarning] | UnsetType = UNSET
    tokens: list[dict[str, Any]] | UnsetType = UNSET
    input_tokens: list[dict[str, Any]] | UnsetType = UNSET
    processed_index: int | UnsetType = UNSET
    start_index: int | UnsetType = UNSET
    receipt: ReceiptBody | UnsetType = UNSET
    pseudonyms: dict[str, str] | UnsetType = UNSET


class ReviewedGeneration(msgspec.Struct):
    """Answer of generation-detection."""

    generated_text: str
    detections: list[PlainDetection]
    input_token_count: int
    receipt: ReceiptBody | UnsetType = UNSET
    pseudonyms: dict[str, str] | UnsetType = UNSET


CLASSIFICATION = Shape(Classification)
GENERATION_DETECTION = Shape(GenerationDetection)


class TextRequest(NamedTuple):
    """A request as the endpoints need it."""

    model: str
    text: str
    params: dict[str, Any] | None
    input: DetectorMap
    output: DetectorMap
    masks: Masks = ()
    policy: str | None = None


def read_classification(request: Any) -> TextRequest:
    """A request of a classification endpoint."""
    config = request.guardrail_config
    inputs, outputs = (config.input, config.output) if config is not None else (None, None)
    return TextRequest(
        request.model_id,
        request.inputs,
        read_params(request.text_gen_parameters),
        inputs.models if inputs is not None else {},
        outputs.models if outputs is not None else {},
        read_masks(inputs.masks if inputs is not None else None, "guardrail_config.input.masks"),
        getattr(config, "policy", None),
    )


def read_params(params: Parameters | None) -> dict[str, Any] | None:
    """The parameters that were given."""
    return None if params is None else msgspec.to_builtins(params)


def to_words(found: Iterable[Detection], shift: int = 0) -> list[dict[str, Any]]:
    """Findings as these endpoints send them, moved by `shift`."""
    return [
        {
            "start": one.start + shift,
            "end": one.end + shift,
            "word": one.text,
            "entity": one.detection,
            "entity_group": one.detection_type,
            "detector_id": one.detector_id,
            "score": float(one.score),
        }
        for one in found
    ]


def _in_order(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in _ORDER if key in answer}


class TextWriter(AnswerWriter):
    """Writes answers of text by `model_id`."""

    def warn(self, code: str, words: str) -> dict[str, str]:
        """A warning with its code as its id."""
        return {"id": code, "message": words}

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that is blocked; if a policy blocks it, the fallback is its text."""
        answer: dict[str, Any] = {
            "token_classification_results": {"input": to_words(blocked.input.found)},
            "input_token_count": blocked.tokens,
            "warnings": [_UNSUITABLE_INPUT, *self.warnings],
        }
        if not blocked.input.is_refused:
            answer |= {"generated_text": fallback, "finish_reason": FILTERED}
        answer = _in_order(answer)
        self.account.add(answer)
        answer |= self.account.tell()
        return encode_event(answer) if self.is_stream else encode(answer)

    def _note_tokens(self, answer: dict[str, Any], *, hides: bool = False) -> None:
        """Leave out tokens, which repeat texts, where a policy hides text; else count them as unread."""
        receipt = self.account.receipt
        for key in [key for key in ("tokens", "input_tokens") if answer.get(key)]:
            if hides:
                del answer[key]
            if receipt is not None and receipt.policy and key not in (receipt.dropped if hides else receipt.unread):
                (receipt.note_left_out if hides else receipt.note_unread)(key)


class WholeText(TextWriter):
    """Turns an answer's text into a frame, collects the findings, and writes the answer."""

    def __init__(self, wanted: TextRequest, *, hides: bool = False) -> None:
        super().__init__()
        self._wanted = wanted
        self._hides = hides
        self._released = ""
        self._is_filtered = False
        self._message: dict[str, Any] = {}
        self._found: list[Detection] = []

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The text, also when it is empty."""
        self._message = message
        return (Frame(0, message.get("generated_text") or ""),)

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers read."""
        yield 0, Generated(self._wanted.text, self._message.get("generated_text") or "")

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """What reviewers found."""
        self._found += found

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The text has been read; nothing is sent yet."""
        self._found += release.detections
        self._released += release.text
        self._is_filtered |= verdict is not None and verdict.is_blocked
        return b""

    def finish(self) -> bytes:
        """The answer."""
        results: dict[str, Any] = {}
        warnings = self.warnings
        if self._found:
            results["output"] = to_words(sorted(self._found, key=lambda one: one.start))
            warnings = [_UNSUITABLE_OUTPUT, *warnings]
        if self.found_in_prompt:
            results = {"input": to_words(self.found_in_prompt), **results}
            warnings = [_UNSUITABLE_INPUT, *warnings]
        answer = self._message | {"token_classification_results": results}
        self._note_tokens(answer, hides=self._hides)
        if self._hides:
            answer["generated_text"] = self._released
        if self._is_filtered:
            answer["finish_reason"] = FILTERED
        answer.setdefault("input_token_count", 0)
        answer.pop("start_index", None)
        if warnings:
            answer["warnings"] = warnings
        self.account.add(answer)
        return encode(_in_order(answer) | self.account.tell())


class ReviewedText(WholeText):
    """The answer of generation-detection."""

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that a policy blocks: the fallback is its text."""
        return self._write(fallback, blocked.input.found, blocked.tokens)

    def finish(self) -> bytes:
        """The answer; its findings have no positions."""
        text = self._released if self._hides else self._message.get("generated_text") or ""
        return self._write(text, [*self.found_in_prompt, *self._found], self._message.get("input_token_count", 0))

    def _write(self, text: str, found: Sequence[Detection], tokens: int) -> bytes:
        answer = {"generated_text": text, "detections": from_reviews(found), "input_token_count": tokens}
        self.account.add(answer)
        return encode(answer | self.account.tell())


class TextEvents(TextWriter):
    """A stream of generated text: messages as they come, or one event for each release."""

    is_stream = True
    _counts_from_event = False  # spans count from the text of the event, not of the stream

    def __init__(self, *, is_guarded: bool, hides: bool = False) -> None:
        super().__init__()
        self._is_guarded = is_guarded
        self._hides = hides
        self._count = 0
        self._waiting: list[Frame] = []  # messages without text, sent with the next event

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """One frame for each message."""
        number = self._count
        self._count += 1
        return (Frame(number, message.get("generated_text") or "", 0, message),)

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release."""
        is_blocked = verdict is not None and verdict.is_blocked
        self.is_blocked |= is_blocked
        if not self._is_guarded:
            messages = [frame.fields for frame in release.frames if frame.fields is not None]
            events = [{"input_token_count": 0, **one, "token_classification_results": {}} for one in messages]
        elif release.text or release.detections:
            events = [self._event(release, is_blocked=is_blocked)]
        else:
            events = self._pass_silent(release)
        written = b""
        for event in events:
            self._add_prompt(event)
            if not self._is_guarded:
                self._note_tokens(event)
            self.account.add(event)
            written += encode_event(_in_order(event))
        return written

    def finish(self) -> bytes:
        """The last event, if there is more to report."""
        report = self.account.tell()
        if not (self.warnings or self.found_in_prompt or report):
            return b""
        last: dict[str, Any] = {
            "generated_text": "",
            "token_classification_results": {},
            "input_token_count": 0,
        }
        self._add_prompt(last)
        if self.warnings:
            last["warnings"] = [*last.get("warnings", ()), *self.warnings]
        return encode_event(_in_order(last) | report)

    def _pass_silent(self, release: Release) -> list[dict[str, Any]]:
        """The event of messages without text, if one is due; else those that count tokens are kept."""
        counting = []  # messages that count or list the tokens of the prompt: they can wait for the text
        for frame in release.frames:
            message = frame.fields or {}
            counts = message.get("input_token_count") or message.get("input_tokens")
            has_ended = message.get("finish_reason", "NOT_FINISHED") != "NOT_FINISHED"
            if has_ended or message.get("tokens") or (counts and self._waiting):
                return [self._event(release, is_blocked=False)]
            counting += [frame] if counts else []
        self._waiting += counting
        return []

    def _add_prompt(self, event: dict[str, Any]) -> None:
        """The first event also reports what was masked in the prompt."""
        if self.found_in_prompt:
            results = {"input": to_words(self.found_in_prompt)} | event["token_classification_results"]
            event |= {"token_classification_results": results, "warnings": [_UNSUITABLE_INPUT]}
            self.found_in_prompt = ()

    def _event(self, release: Release, *, is_blocked: bool) -> dict[str, Any]:
        event = self._fields_of(release)
        event["generated_text"] = release.text
        shift = -release.start if self._counts_from_event else 0
        event["token_classification_results"] = {"output": to_words(release.detections, shift)}
        event["start_index"], event["processed_index"] = release.claimed or (release.start, release.end)
        self._note_tokens(event, hides=self._hides)
        if self._hides:
            event["tokens"] = []
        if is_blocked:
            event["finish_reason"] = FILTERED
        return event

    def _fields_of(self, release: Release) -> dict[str, Any]:
        """The fields of the messages of a release, and of those that waited for it."""
        event: dict[str, Any] = {"input_token_count": 0, "tokens": []}
        for frame in [*self._waiting, *release.frames]:
            message = frame.fields or {}
            for key in ("finish_reason", "generated_token_count", "seed"):
                if key in message:
                    event[key] = message[key]
            event["tokens"] = [*event["tokens"], *message.get("tokens", ())]
            event["input_token_count"] = message.get("input_token_count") or event["input_token_count"]
            if message.get("input_tokens"):
                event["input_tokens"] = [*event.get("input_tokens", ()), *message["input_tokens"]]
        self._waiting = []
        return event
