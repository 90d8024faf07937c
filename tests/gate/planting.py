# SPDX-License-Identifier: Apache-2.0
"""How bugs are planted: each is registered with the laws that must catch it, and each pair is one test."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings

from lockgate.errors import LockgateError

# The examples follow from the source of all that is imported, so what 100 of them catch is a matter of luck. 5000 are
# not, and they end with the first that is caught: the smallest one is not searched for.
_PLANTED = settings(
    settings.get_profile("default"), max_examples=5000, derandomize=True, database=None, phases=[Phase.generate]
)

Law = Callable[[], None]
Patch = Callable[[pytest.MonkeyPatch], None]


class Bugs:
    """The bugs of one file, each with a law that must catch it."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def caught_by(self, *laws: Law) -> Callable[[Patch], Patch]:
        """Register a bug with the laws that must catch it."""

        def register(plant: Patch) -> Patch:
            self.cases.extend(pytest.param(plant, law, id=f"{plant.__name__}-{law.__name__}") for law in laws)
            return plant

        return register


def check_that_it_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law fails, or a machine notices."""
    monkeypatch.setattr(law, "_hypothesis_internal_use_settings", _PLANTED)
    with monkeypatch.context() as patched:
        plant(patched)
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - a failed assertion or a machine that noticed
            law()
    noticed = AssertionError | RuntimeError | LookupError | LockgateError | BaseExceptionGroup | pytest.fail.Exception
    assert isinstance(caught.value, noticed)
