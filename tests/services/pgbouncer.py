# SPDX-License-Identifier: Apache-2.0
"""A real PgBouncer before a real PostgreSQL."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.waits import HANG_S, wait_until

# Few connections to the database in transaction mode, so that each transaction may get another one. In session mode a
# client keeps its connection, so there must be enough for all of them: PgBouncer's default.
SIZES = {"session": 20, "transaction": 3}
CONFIG = """
[databases]
* = host={sockets} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
logfile =
pidfile =
"""


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def pgbouncer(dsn: str, mode: str) -> Iterator[str]:
    """The address of the same database through a pooler in this mode."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    sockets, port = query["host"][0], query.get("port", ["5432"])[0]
    listen, user = _find_free_port(), parts.username or "postgres"
    with tempfile.TemporaryDirectory(prefix="lockgate-pooler-") as folder:
        path = Path(folder) / "pgbouncer.ini"
        texts = {"sockets": sockets, "port": port, "user": user, "listen": listen, "mode": mode}
        path.write_text(CONFIG.format(**texts, size=SIZES[mode]))
        log = path.with_suffix(".log")  # a pipe that is not read would fill up and stop it
        with log.open("wb") as errors, subprocess.Popen(_build_command(path, Path(sockets)), stderr=errors) as process:
            try:
                wait_until(lambda: process.poll() is not None or _listens(listen), "PgBouncer")
                assert process.poll() is None, log.read_text()
                yield f"postgresql://{user}@127.0.0.1:{listen}{parts.path}"
            finally:
                process.terminate()
                process.wait(HANG_S)


def _build_command(config: Path, sockets: Path) -> list[str]:
    """How to start it. It does not run as root, so it then runs as the owner of the database's socket."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if os.getuid() != 0:
        return [program, str(config)]
    owner = pwd.getpwuid(sockets.stat().st_uid)
    for one in (config.parent, config):
        os.chown(one, owner.pw_uid, owner.pw_gid)
    return [program, "-u", owner.pw_name, str(config)]
