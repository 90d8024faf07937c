# SPDX-License-Identifier: Apache-2.0
"""What HTTP and gRPC clients share: client TLS from the files of the settings, and headers that are never passed on."""

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
    """Give the context our own certificate, if there is one; without verification, if the settings ask for it."""
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
    """A file that cannot be used is a fault of the setting that names it."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"`{path}` cannot be used: {error}", source="tls", key=key) from error
