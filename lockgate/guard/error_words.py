# SPDX-License-Identifier: Apache-2.0
"""Reads the error texts of services: under a policy that changes text, they leave only without a finding."""

from lockgate.errors import GenerationFailed, LockgateError, UpstreamError
from lockgate.guard.policy import Policy
from lockgate.guard.stream import detect_contents


async def read_words(error: UpstreamError | GenerationFailed, policy: Policy) -> None:
    """Removes the service's text from an error, unless the policy permits it or its detectors find nothing in it."""
    if error.words and policy.reads_errors and not await _is_clean(error.words, policy):
        error.drop_words()


async def _is_clean(words: str, policy: Policy) -> bool:
    guards = policy.output or policy.input or policy.documents
    if not guards:
        return False
    try:
        return not await detect_contents(words, guards, policy.max_open)
    except LockgateError:  # a detector has failed: the text is unread
        return False
