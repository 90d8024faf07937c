# SPDX-License-Identifier: Apache-2.0
"""Surveys the texts of a request of any surface: its body by a table of its format, and the headers that go with it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from lockgate.api.shapes import CHEAP_BYTES
from lockgate.gate.coverage import FieldRule, FieldText, Survey, TextKind, survey
from lockgate.interfaces import Headers

# Credentials go to their owner only; detectors never read them.
CREDENTIALS = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "api-key", "apikey", "x-api-key", "x-auth-token"),
        *("x-forwarded-access-token", "x-amz-security-token", "x-goog-api-key", "openai-api-key", "anthropic-api-key"),
    }
)


async def survey_request(body: Mapping[str, Any], table: FieldRule, headers: Headers, size: int = 0) -> Survey:
    """Returns the texts of a request; `size` is the length of its body in bytes: a long one is read in a thread."""
    found = survey(body, table) if size <= CHEAP_BYTES else await asyncio.to_thread(survey, body, table)
    for name, value in headers:
        if value and name.lower() not in CREDENTIALS:
            found.texts.append(FieldText(("headers", name), value, TextKind.NAME))
    return found
