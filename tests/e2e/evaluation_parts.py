# SPDX-License-Identifier: Apache-2.0
"""Parts for tests of `lockgate evaluate`: a model that always says the same, a judge, and a shelf with one passage."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockgate.errors import Unavailable
from lockgate.gate.values import Document, Frame, Message
from lockgate.testing import ScriptedDataSource, ScriptedModel


class ChoosyModel:
    """Fails where the question has the word `broken` in it."""

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        if "broken" in messages[-1].text:
            raise Unavailable("model", "the model is\x1b[31m down")
        yield Frame(0, "They are kept for 90 days.\n\nMore is not known.", is_last=True)


@asynccontextmanager
async def open_model(options: Mapping[str, Any]) -> AsyncIterator[ChoosyModel]:
    yield ChoosyModel()


@asynccontextmanager
async def open_judge(options: Mapping[str, Any]) -> AsyncIterator[ScriptedModel]:
    yield ScriptedModel(["```json\n", '{"verdicts": [{"passage": 1, "verdict": "yes"}]}', "\n```"])


@asynccontextmanager
async def open_shelf(options: Mapping[str, Any]) -> AsyncIterator[ScriptedDataSource]:
    yield ScriptedDataSource([Document("Journal", "Entries are kept for 90 days.", 1.0)])
