# SPDX-License-Identifier: Apache-2.0
"""Profiles for property tests, `default` in every run, `thorough` for `--hypothesis-profile=thorough`; a PostgreSQL.

A test that sets up the log, as commands do, leaves it to the others as it was.
"""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from lockgate.telemetry.log import logger
from tests.postgres import postgres_dsn as postgres_dsn
from tests.postgres import postgres_server as postgres_server

pytest_plugins = ["tests.skips"]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts `make test &`, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its library would write about every connection that ends

settings.register_profile("default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "thorough",
    max_examples=10_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    levels, handlers = (logger.level, root.level), root.handlers[:]
    yield
    logger.setLevel(levels[0])
    root.setLevel(levels[1])
    root.handlers[:] = handlers
