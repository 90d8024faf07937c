# SPDX-License-Identifier: Apache-2.0
"""The check of skipped tests, as in `make test`, and a real PostgreSQL."""

from tests.postgres import postgres_dsn as postgres_dsn
from tests.postgres import postgres_server as postgres_server

pytest_plugins = ["tests.skips"]
