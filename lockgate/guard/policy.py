# SPDX-License-Identifier: Apache-2.0
"""Policy: which detectors read which part of one request, and what becomes of what they find.

It is resolved: detectors are chosen, their parameters accepted. Settings and the request's own `detectors` field both
become this one type, on every surface.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockgate.gate.receipts import Part
from lockgate.gate.verdicts import Action, Measures
from lockgate.guard.account import Meter
from lockgate.guard.detectors import ActiveGuard, ActiveReview

_ANNOTATE, _BLOCK = Measures(), Measures(Action.BLOCK)


@dataclass(frozen=True, slots=True)
class Policy:
    """The detectors of each part, and the action on their findings; `for_output` holds for grounding too.

    `reviews` read the whole answer when it is complete. `refusing` names detectors whose finding in the input ends the
    request and is reported, whatever the action: those that a request itself asks for on the guardrails endpoints.
    `unused` detectors belong to the policy and have nothing to read on this surface: the receipt lists them as such.
    """

    input: Sequence[ActiveGuard] = ()
    documents: Sequence[ActiveGuard] = ()
    output: Sequence[ActiveGuard] = ()
    grounding: Sequence[ActiveReview] = ()
    reviews: Sequence[ActiveReview] = ()
    for_input: Measures = _BLOCK
    for_documents: Measures = _BLOCK
    for_output: Measures = _ANNOTATE
    name: str = ""
    is_shadow: bool = False
    is_speculative: bool = False
    grounding_holds: bool = True
    max_open: int = 5
    max_cuts: int = 5
    max_chars: int = 1_048_576  # of a document that is read
    trusts_chunks: bool = False
    lanes: tuple[str, ...] = ("content",)
    refusing: frozenset[str] = frozenset()
    unused: Sequence[str] = ()
    is_metered: bool = True  # a receipt or a policy's metrics are wanted
    # Computed from the rest.
    is_on: bool = field(init=False)  # any detector reads anything
    fallback: str = field(init=False)  # the text in place of an answer that was withheld
    masks_input: bool = field(init=False)  # the input may be changed before a source or the model gets it
    is_early: bool = field(init=False)  # the model is asked before the input has been read
    hides: bool = field(init=False)  # text of the answer in which something is found must not be seen
    trailing: frozenset[str] = field(init=False)  # the detectors of the answer that report at its end
    is_holding: bool = field(init=False)  # any detector holds the answer back

    def __post_init__(self) -> None:
        is_masking = any(self.for_input.of(one.guard.id) is Action.MASK for one in self.input)
        masks_input = is_masking and not self.is_shadow
        trailing = [one.guard.id for one in self.output if self.is_shadow or not one.holds]
        computed = {
            "is_on": bool(self.input or self.documents or self.output or self.grounding or self.reviews),
            "fallback": self.for_output.fallback,
            "masks_input": masks_input,
            "is_early": self.is_speculative and bool(self.input) and not masks_input,
            "hides": self.for_output.changes_text([one.guard.id for one in self.output]),
            "trailing": frozenset(trailing),
            "is_holding": len(trailing) < len(self.output),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def open_meter(self) -> Meter:
        """The account of one request, with every detector that is to read something, in the order of the parts."""
        if not (self.is_metered and (self.name or self.is_on)):
            return Meter(is_on=False)
        measures = (self.for_input, self.for_documents, self.for_output)
        own = frozenset(name for one in measures for name in one.own or ())
        meter = Meter(self.name, is_shadow=self.is_shadow, lanes=self.lanes, own=own)
        parts: tuple[tuple[Part, Sequence[ActiveGuard | ActiveReview]], ...] = (
            (Part.PROMPT, self.input),
            (Part.DOCUMENTS, self.documents),
            (Part.ANSWER, (*self.output, *self.reviews, *self.grounding)),
        )
        for part, readers in parts:
            for one in readers:
                meter.receipt.expect(one.guard.id, part)
        for name in self.unused:
            meter.receipt.expect(name, Part.ANSWER)
        return meter
