# SPDX-License-Identifier: Apache-2.0
"""What policies came to, as log and metrics see it: never a text, only who found how much and what was done."""

import logging

from lockgate.gate.receipts import Outcome, Receipt
from lockgate.telemetry.log import log_event
from lockgate.telemetry.names import Event
from lockgate.telemetry.observing import ACTIVE


def observe_policy(receipt: Receipt) -> None:
    """A guarded request is over. It is logged where something was found or not read; it is always counted."""
    for observer in ACTIVE.observers:
        observer.policy_applied(receipt)
    reads = receipt.settle()
    found = {one.detector_id: one.findings for one in reads if one.findings}
    is_covered = all(one.is_covered for one in reads)
    if not found and is_covered and receipt.outcome is Outcome.RELEASED:
        return
    log_event(
        Event.POLICY_APPLIED,
        logging.INFO if is_covered else logging.WARNING,
        policy=receipt.policy,
        mode="shadow" if receipt.is_shadow else "enforce",
        outcome=receipt.outcome.name.lower(),
        findings=found,
        not_covered=[one.detector_id for one in reads if not one.is_covered],
    )
