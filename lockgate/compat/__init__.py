# SPDX-License-Identifier: Apache-2.0
"""Chooses Lockgate's own API or a compatibility mode; only this module imports one, and only if it is used."""

from typing import TYPE_CHECKING

from lockgate.config.endpoint_rules import DEFAULT_RULES, EndpointRules
from lockgate.config.settings import Settings

if TYPE_CHECKING:
    from lockgate.api.formats import Formats


def find_rules(settings: Settings) -> EndpointRules:
    """The endpoint rules of the variant."""
    if settings.compat == "fms":
        from lockgate.compat.fms import RULES

        return RULES
    return DEFAULT_RULES


def find_formats(settings: Settings) -> "Formats":
    """The readers and writers of the variant."""
    if settings.compat == "fms":
        from lockgate.compat.fms.formats import FORMATS

        return FORMATS
    from lockgate.api.formats import Formats

    return Formats()
