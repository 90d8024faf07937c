# SPDX-License-Identifier: Apache-2.0
"""Shared by HTTP and gRPC clients: client TLS, and the headers that are never passed on."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockgate.config.settings import TlsSettings
from lockgate.errors import ConfigError

NEVER_PASSED = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


def set_up_client(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Loads the client certificate, if there is one; `insecure` turns verification off."""
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_path is not None:
        with blaming("cert_path", tls.cert_path):
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(tls.cert_path, tls.key_path, password=lambda: "")
    elif tls.key_path is not None:
        raise ConfigError("a key needs its certificate: `cert_path` is missing", source="tls", key="key_path")


@contextmanager
def blaming(key: str, path: Path | None) -> Iterator[None]:
    """Turns errors about a file into a ConfigError that names the setting of the file."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"`{path}` cannot be used: {error}", source="tls", key=key) from error
