# SPDX-License-Identifier: Apache-2.0
"""Profiles for property tests, `default` in every run, `thorough` for `--hypothesis-profile=thorough`; a PostgreSQL."""

from hypothesis import HealthCheck, settings

from tests.postgres import postgres_dsn as postgres_dsn
from tests.postgres import postgres_server as postgres_server

settings.register_profile("default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "thorough",
    max_examples=10_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")
