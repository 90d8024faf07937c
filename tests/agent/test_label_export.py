# SPDX-License-Identifier: Apache-2.0
"""Labels are written in batches, whole or not at all, and never disturb a turn."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lockgate.agent.label_export import MAX_KEPT_BATCHES, MAX_QUERY_CHARS, LabelExport, open_label_export
from tests.waits import latency, until


def read_batches(directory: Path) -> list[list[dict[str, Any]]]:
    """The longest first."""
    batches = [[json.loads(line) for line in path.read_text("ascii").splitlines()] for path in directory.glob("*")]
    return sorted(batches, key=len, reverse=True)


@pytest.mark.asyncio
async def test_a_batch_is_written_when_enough_labels_have_come(tmp_path: Path) -> None:
    directory = tmp_path / "labels" / "here"
    async with open_label_export(directory, 3) as export:
        for number in range(3):
            export.note(f"q{number} é\ud800\n", "RETRIEVAL", "embedding", 0.9)
        await until(lambda: list(directory.glob("labels-*.jsonl")))
        export.note("x" * 10_000, "PLATFORM", "rules", None)
    batches = read_batches(directory)
    assert [len(batch) for batch in batches] == [3, 1]
    assert batches[0][1] == {"query": "q1 é\ud800\n", "label": "RETRIEVAL", "layer": "embedding", "confidence": 0.9}
    assert batches[1][0]["confidence"] is None
    assert len(batches[1][0]["query"]) == MAX_QUERY_CHARS
    assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())


@pytest.mark.asyncio
async def test_nothing_is_lost_or_written_twice_however_the_writes_fall(tmp_path: Path) -> None:
    async with open_label_export(tmp_path, 4) as export:
        for number in range(15):
            export.note(f"q{number}", "RETRIEVAL", "model", None)
            if number % 3 == 0:
                await latency(0.003)
    queries = [entry["query"] for batch in read_batches(tmp_path) for entry in batch]
    assert sorted(queries) == sorted(f"q{number}" for number in range(15))


@pytest.mark.asyncio
async def test_without_labels_no_file_and_no_folder_is_made(tmp_path: Path) -> None:
    async with open_label_export(tmp_path / "none", 1):
        pass
    assert not (tmp_path / "none").exists()


@pytest.mark.asyncio
async def test_a_failing_write_warns_once_and_drops_the_oldest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, no folder")
    export = LabelExport(blocked, 2)
    with caplog.at_level(logging.WARNING):
        for number in range(30):
            export.note(f"q{number}", "RETRIEVAL", "model", None)
            await latency(0.001)
        await export.flush()
    assert len(caplog.records) == 1
    blocked.unlink()
    await export.flush()
    (batch,) = read_batches(blocked)
    assert [entry["query"] for entry in batch] == [f"q{number}" for number in range(30 - 2 * MAX_KEPT_BATCHES, 30)]
