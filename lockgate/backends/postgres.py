# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL clients: pooled connections, time limits and error mapping.

No error message holds an address, a password or a row. Nothing is connected before the first statement; a broken
connection is replaced when one is needed. The address sets TLS (`?sslmode=verify-full&sslrootcert=...`).
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lockgate.errors import ConfigError, TimedOut, Unavailable, UpstreamError

MAX_CONNECTIONS = 10
CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_SERVER_MARGIN_S = 0.5  # the server gives up before we do, so that the connection stays usable
_LONGEST_IDLE_TRANSACTION_S = 60
# A host that vanished is noticed by the server within half a minute, so what its connections held becomes free.
_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

# By the code of an error, its longest known beginning first: whole code, then class.
_TOO_SLOW = frozenset({"57014", "55P03"})
_WORDS = {
    "28": "the database refused the log-in",
    "3D000": "the database does not exist",
    "25006": "the database takes no writes",
    "42501": "the database does not allow it",
    "42P01": "a table does not exist",
    "53100": "the database's disk is full",
    "53300": "the database has too many connections",
    "57P": "the database is starting or stopping",
    "08": "the connection was lost",
}


class _Asyncpg(NamedTuple):
    """asyncpg, and which exceptions are its."""

    module: Any
    foreign: tuple[type[Exception], ...]


class PostgresPool:
    """Connections to one database. `name` is how errors call it; rows are mappings and sequences at once."""

    def __init__(self, library: _Asyncpg, pool: Any, options: dict[str, Any], name: str) -> None:
        self._library = library
        self._pool = pool
        self._options = options
        self.name = name

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """A connection for several statements. Its errors are translated."""
        with self.translating():
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT_S) as connection:
                yield connection

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """All rows of a statement."""
        async with self.borrow() as connection:
            rows: Sequence[Any] = await connection.fetch(sql, *args)
            return rows

    async def execute(self, sql: str, *args: Any) -> str:
        """Run a statement, or several without arguments; says what it did (`INSERT 0 1`)."""
        async with self.borrow() as connection:
            done: str = await connection.execute(sql, *args)
            return done

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside of a transaction, which is undone if the body raises. Its errors are translated."""
        async with self.borrow() as connection:
            with self.closing_on_failure(connection):
                async with connection.transaction():
                    yield connection

    async def connect(self) -> Any:
        """A connection outside of the pool; the caller closes it and translates its errors."""
        with self.translating():
            return await self._library.module.connect(**self._options)

    @contextlib.contextmanager
    def translating(self) -> Iterator[None]:
        """Foreign errors of the body become ours."""
        try:
            yield
        except self._library.foreign as error:
            raise self._translate(error) from None

    @contextlib.contextmanager
    def closing_on_failure(self, connection: Any) -> Iterator[None]:
        """Close the connection if the body fails, and translate its errors.

        A statement that was late may still be carried out: after a late BEGIN all later transactions would be parts of
        one that is never committed.
        """
        try:
            with self.translating():
                yield
        except BaseException:
            connection.terminate()
            raise

    def _translate(self, error: Exception) -> UpstreamError:
        code = getattr(error, "sqlstate", None) or ""
        if isinstance(error, TimeoutError) or code in _TOO_SLOW:
            return TimedOut(self.name, "the database did not answer in time")
        if isinstance(error, self._library.module.exceptions.ClientConfigurationError):
            return Unavailable(self.name, "the database's address, as the settings give it, cannot be used")
        if isinstance(error, ssl.SSLError):
            return Unavailable(self.name, "TLS to the database failed")
        if isinstance(error, OSError):
            return Unavailable(self.name, "the database cannot be reached")
        # Plain words for the code: its own words may quote a row.
        known = next((words for start, words in _WORDS.items() if (code or "08").startswith(start)), None)
        return Unavailable(self.name, known or f"the database failed (SQLSTATE {code})")


@contextlib.asynccontextmanager
async def open_postgres(
    dsn: str, name: str = "postgres", *, statement_timeout_s: float = STATEMENT_TIMEOUT_S
) -> AsyncIterator[PostgresPool]:
    """A pool for an address like `postgresql://user:password@host:5432/database`, closed at the end."""
    library = _load_library()
    _check_address(dsn, name)
    options = _build_options(dsn, statement_timeout_s)
    pool = library.module.create_pool(
        **options, min_size=0, max_size=MAX_CONNECTIONS, max_inactive_connection_lifetime=300.0
    )
    await pool  # of size 0: nothing is connected
    try:
        yield PostgresPool(library, pool, options, name)
    finally:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await pool.close()  # waits for statements under way
        except TimeoutError:
            pool.terminate()


def _load_library() -> _Asyncpg:
    try:
        import asyncpg
    except ImportError:
        words = "PostgreSQL needs a package that is not installed: pip install 'lockgate[postgres]'"
        raise ConfigError(words, source="postgres") from None
    ours = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return _Asyncpg(asyncpg, (*ours, OSError))  # TimeoutError is an OSError


def _check_address(dsn: str, name: str) -> None:
    try:
        parts = urlsplit(dsn)
        is_known = parts.scheme in ("postgresql", "postgres") and parts.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        words = "the address of the database must look like postgresql://user:password@host:5432/database"
        raise ConfigError(words, source=name)


def _build_options(dsn: str, statement_timeout_s: float) -> dict[str, Any]:
    server = {
        "application_name": "lockgate",
        "statement_timeout": str(int(statement_timeout_s * 1000)),
        "idle_in_transaction_session_timeout": str(_LONGEST_IDLE_TRANSACTION_S * 1000),
        **_KEEPALIVE,
    }
    return {
        "dsn": dsn,
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": statement_timeout_s + _SERVER_MARGIN_S,
        "server_settings": server,
    }
