# SPDX-License-Identifier: Apache-2.0
"""Where the metrics of several worker processes meet: a directory for one start, gone with it.

Must be entered before anything imports prometheus_client, which looks at the environment once, at its import.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from lockgate.errors import LockgateError
from lockgate.telemetry.names import SHARED_METRICS_VARIABLE


@contextmanager
def shared_metrics(workers: int) -> Iterator[None]:
    """With several workers, a fresh directory for their numbers while this lasts."""
    if workers == 1:
        yield
        return
    try:
        directory = tempfile.mkdtemp(prefix="lockgate-metrics-")
    except OSError as error:
        words = f"no place for the metrics of the workers: {error.strerror}; TMPDIR chooses a directory"
        raise LockgateError(words) from error
    os.environ[SHARED_METRICS_VARIABLE] = directory
    try:
        yield
    finally:
        remove_shared_metrics()


def remove_shared_metrics() -> None:
    """Whoever ends last takes the directory away."""
    if directory := os.environ.pop(SHARED_METRICS_VARIABLE, None):
        shutil.rmtree(directory, ignore_errors=True)


def forget_gauges(pid: int) -> None:
    """A worker has died: what it counted stays, what it was busy with does not."""
    if SHARED_METRICS_VARIABLE in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)  # type: ignore[no-untyped-call]
