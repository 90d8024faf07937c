# SPDX-License-Identifier: Apache-2.0
"""The settings of the server: who reads, and the policies under which streams are played.

What a policy does is said here once, for the config file and for the judge. Knows no texts and no streams.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.soak.policies.marks import NAMES, NOTED, PHRASES

MASKS = ("block", "label", "pseudonym")
LANES = ("content", "reasoning", "tool_arguments")
FALLBACK = "Nothing more is said."
_THRESHOLD = 0.5


class Reader(NamedTuple):
    """A detector: what it looks for, by the name of an eye, and how it is configured; without words it is remote."""

    eye: str
    chunker: str
    words: str = ""


READERS = {
    "pii": Reader("pii", "sentence", "embedded: pii, options: {entities: [EmailAddress, IBAN, CreditCard]}"),
    "keys": Reader("keys", "sentence", "embedded: secrets"),
    "names": Reader("names", "word", f"embedded: keywords, options: {{keywords: [{', '.join(NAMES)}]}}"),
    "phrases": Reader("phrases", "sentence", f"embedded: keywords, options: {{keywords: [{', '.join(PHRASES)}]}}"),
    "whole": Reader("names", "whole_doc_chunker", f"embedded: keywords, options: {{keywords: [{', '.join(NAMES)}]}}"),
    "noted": Reader(
        "noted", "sentence", f"embedded: regex, options: {{patterns: {list(NOTED)}}}".replace("\\\\", "\\")
    ),
    "codes": Reader("codes", "sentence"),
    "tags": Reader("tags", "word"),
}
REMOTE = tuple(name for name, reader in READERS.items() if not reader.words)
_NEAR = ("pii", "keys", "names", "phrases")
_FAR = ("pii", "keys", "codes", "noted")
_SOME = {
    "near": _NEAR,
    "far": _FAR,
    "all": (*_NEAR, "codes", "tags", "noted"),
    "held": ("pii", "whole", "codes"),
    "words": ("names", "tags", "pii"),
}
_BOTH = ("pii", "keys", "names", "codes")
_LANES = {"spoken": ("content",), "called": ("tool_arguments",), "thought": ("content", "reasoning")}


class Policy(NamedTuple):
    """A policy: its detectors, what it does with their findings, and which lanes it reads."""

    name: str
    readers: tuple[str, ...]
    action: str = "mask"
    mask: str = "block"
    lanes: tuple[str, ...] = LANES
    is_shadow: bool = False
    reads_prompt: bool = False

    @property
    def eyes(self) -> dict[str, list[str]]:
        """By eye, the detectors that have it."""
        found: dict[str, list[str]] = {}
        for name in self.readers:
            found.setdefault(READERS[name].eye, []).append(name)
        return found

    def write(self) -> str:
        """As a config file says it."""
        output = ", ".join(f"{name}: {{{'on_finding: annotate' * (name == 'noted')}}}" for name in self.readers)
        keys = [f"input: {{{output}}}"] * self.reads_prompt
        keys += [f"output: {{{output}}}", f"on_finding: {self.action}", f"mask_with: {self.mask}"]
        keys += [f"lanes: [{', '.join(self.lanes)}]", f"fallback: {FALLBACK}"]
        keys += ["mode: shadow"] * self.is_shadow
        return f"  {self.name}: {{{', '.join(keys)}}}"


def _list_policies() -> dict[str, Policy]:
    found = [Policy(f"{name}-{mask}", some, mask=mask) for name, some in _SOME.items() for mask in MASKS]
    found += [
        Policy(f"{name}-{mask}", _FAR, mask=mask, lanes=lanes) for name, lanes in _LANES.items() for mask in MASKS
    ]
    found += [Policy("told-all", _SOME["all"], "annotate"), Policy("told-words", _SOME["words"], "annotate")]
    found += [Policy(f"both-{mask}", _BOTH, mask=mask, reads_prompt=True) for mask in MASKS]
    found += [Policy(f"shadow-{mask}", _SOME["all"], mask=mask, is_shadow=True) for mask in MASKS]
    found += [Policy(f"{act}-{name}", _SOME[name], act) for act in ("stop", "block") for name in ("near", "far")]
    return {policy.name: policy for policy in found}


POLICIES = _list_policies()
# Those that let every stream come to its end, masked or, under two of them, with what was found told beside it.
MASKING = tuple(name for name, one in POLICIES.items() if one.action in ("mask", "annotate") and not one.is_shadow)
SHADOWS = tuple(name for name, one in POLICIES.items() if one.is_shadow)
ENDING = tuple(name for name, one in POLICIES.items() if one.action in ("stop", "block"))


def write_config(ports: Mapping[str, int]) -> str:
    """The config file; `ports` of the model and of the remote detectors."""

    def service(name: str) -> str:
        return f"service: {{hostname: 127.0.0.1, port: {ports[name]}}}"

    lines = [f"openai: {{{service('model')}}}", "detectors:"]
    for name, reader in READERS.items():
        more = f"type: text_contents, chunker_id: {reader.chunker}, default_threshold: {_THRESHOLD}"
        lines.append(f"  {name}: {{{reader.words or service(name)}, {more}}}")
    lines += ["policies:", *(policy.write() for policy in POLICIES.values()), "server: {host: 127.0.0.1}"]
    return "\n".join(lines) + "\n"
