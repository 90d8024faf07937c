# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL clients: a pool of connections, time limits and error mapping.

No error message holds an address, a password or a row. The first statement connects; a connection on which anything
failed is closed. The address sets TLS (`?sslmode=verify-full&sslrootcert=...`).

A pooler such as PgBouncer may stand before the database. It may refuse startup parameters and give each transaction
another connection, so there are neither startup parameters nor named prepared statements, and behind a pooler every
setting is local to a transaction.
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
_SERVER_MARGIN_S = 0.5  # the server's timeout ends before ours, so that its message names the cause
_LONGEST_IDLE_TRANSACTION_S = 60
# The server notices a lost host within half a minute and frees the locks that its connections held.
_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

# By the beginning of an error's SQLSTATE: a class of errors, or one whole code.
_TOO_SLOW = frozenset({"57014", "55P03"})
_MESSAGES = {
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
    """The asyncpg module and the exceptions that it raises."""

    module: Any
    foreign: tuple[type[Exception], ...]


class _ServerLimits(NamedTuple):
    """SQL that sets time limits: for a connection whose process id is appended, and for one transaction."""

    of_session: str
    of_transaction: str


class PostgresPool:
    """Connections to one database, which errors call `name`; rows are both mappings and sequences."""

    def __init__(self, library: _Asyncpg, dsn: str, name: str, statement_timeout_s: float) -> None:
        self._library = library
        self._options = _build_options(dsn, statement_timeout_s)
        self._limits = _build_limits(statement_timeout_s)
        self._pool: Any = None
        self.name = name
        self.is_pooled = False  # whether the latest new connection went to a pooler

    async def open(self) -> None:
        """Makes the pool; connects to nothing yet."""
        self._pool = await self._library.module.create_pool(
            **self._options,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            max_inactive_connection_lifetime=300.0,
            init=self._prepare,
            reset=_keep_settings,
        )

    async def close(self) -> None:
        """Closes the connections, after the statements under way."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """Gives a connection for several statements, closed if the body fails; translates its errors."""
        with self.translating():
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT_S) as connection:
                with self.closing_on_failure(connection):
                    yield connection

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """Returns all rows of a statement."""
        async with self.borrow() as connection:
            rows: Sequence[Any] = await connection.fetch(sql, *args)
            return rows

    async def execute(self, sql: str, *args: Any) -> str:
        """Runs a statement, or several without arguments; returns PostgreSQL's status (`INSERT 0 1`)."""
        async with self.borrow() as connection:
            status: str = await connection.execute(sql, *args)
            return status

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Gives a connection in a transaction, undone if the body raises; translates its errors."""
        async with self.borrow() as connection, self.begun(connection):
            yield connection

    @contextlib.asynccontextmanager
    async def begun(self, connection: Any) -> AsyncIterator[None]:
        """Begins a transaction and commits it after the body; if that fails, the caller closes the connection."""
        await connection.execute(f"BEGIN; {self._limits.of_transaction}" if self.is_pooled else "BEGIN")
        yield
        if await connection.execute("COMMIT") != "COMMIT":  # PostgreSQL answers ROLLBACK where a statement failed
            raise Unavailable(self.name, "the database did not commit")

    async def connect(self) -> Any:
        """Opens a connection outside the pool; the caller closes it and translates its errors."""
        with self.translating():
            connection = await self._library.module.connect(**self._options)
            with self.closing_on_failure(connection):
                await self._prepare(connection)
            return connection

    async def _prepare(self, connection: Any) -> None:
        """Sets the limits of a new connection, unless a pooler answered for the database.

        The process id that answers a log-in is then made up by the pooler, and is not that of the process that runs
        a statement.
        """
        status = await connection.execute(f"{self._limits.of_session} {connection.get_server_pid()}")
        self.is_pooled = status == "SELECT 0"

    @contextlib.contextmanager
    def translating(self) -> Iterator[None]:
        """Maps asyncpg's and the system's errors to UpstreamError."""
        try:
            yield
        except self._library.foreign as error:
            raise self._translate(error) from None

    @contextlib.contextmanager
    def closing_on_failure(self, connection: Any) -> Iterator[None]:
        """Closes the connection if the body fails, and translates its errors.

        The server may still run a statement that timed out: after a late BEGIN all later transactions would be parts
        of one that is never committed.
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
        # Our message for the code: the database's may quote a row.
        known = next((message for start, message in _MESSAGES.items() if (code or "08").startswith(start)), None)
        return Unavailable(self.name, known or f"the database failed (SQLSTATE {code})")


@contextlib.asynccontextmanager
async def open_postgres(
    dsn: str, name: str = "postgres", *, statement_timeout_s: float = STATEMENT_TIMEOUT_S
) -> AsyncIterator[PostgresPool]:
    """Opens a pool for an address like `postgresql://user:password@host:5432/database`; leaving closes it."""
    library = _load_library()
    _check_address(dsn, name)
    pool = PostgresPool(library, dsn, name, statement_timeout_s)
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()


def _load_library() -> _Asyncpg:
    try:
        import asyncpg
    except ImportError:
        message = "PostgreSQL needs a package that is not installed: pip install 'lockgate[postgres]'"
        raise ConfigError(message, source="postgres") from None
    ours = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return _Asyncpg(asyncpg, (*ours, OSError))  # TimeoutError is an OSError


def _check_address(dsn: str, name: str) -> None:
    try:
        parts = urlsplit(dsn)
        is_known = parts.scheme in ("postgresql", "postgres") and parts.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        message = "the address of the database must look like postgresql://user:password@host:5432/database"
        raise ConfigError(message, source=name)


def _build_options(dsn: str, statement_timeout_s: float) -> dict[str, Any]:
    return {
        "dsn": dsn,
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": statement_timeout_s + _SERVER_MARGIN_S,
        "statement_cache_size": 0,  # no named prepared statements
    }


def _build_limits(statement_timeout_s: float) -> _ServerLimits:
    times = {
        "statement_timeout": str(int(statement_timeout_s * 1000)),
        "idle_in_transaction_session_timeout": str(_LONGEST_IDLE_TRANSACTION_S * 1000),
    }
    own = {"application_name": "lockgate", **times, **_KEEPALIVE}
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in own.items())
    local = "; ".join(f"SET LOCAL {name} = {value}" for name, value in times.items())
    return _ServerLimits(f"SELECT {calls} WHERE pg_backend_pid() =", local)


async def _keep_settings(_connection: Any) -> None:
    """Leaves a connection that returns to the pool as it is: statements here change no setting of it."""
