# SPDX-License-Identifier: Apache-2.0
"""TLS of the API port: which files make it, and which of them is at fault when it cannot be made.

Decides protocol, key and client certificates; knows neither ports nor requests.
"""

import ssl
from pathlib import Path

from lockgate.config.settings import ServerTlsSettings
from lockgate.errors import ConfigError

_PLACE = "server.tls"


def load_tls(tls: ServerTlsSettings) -> ssl.SSLContext | None:
    """The server's side of TLS, or nothing without a certificate; ConfigError names the setting that is wrong."""
    if tls.cert_path is None or tls.key_path is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_own(context, tls.cert_path, tls.key_path)
    if tls.client_ca_cert_path is not None:
        _demand_client_certificates(context, tls.client_ca_cert_path)
    return context


def _load_own(context: ssl.SSLContext, cert_path: Path, key_path: Path) -> None:
    _load_bundle(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_path, "cert_path")
    _check_readable(key_path, "key_path")
    try:
        context.load_cert_chain(cert_path, key_path, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"the key in `{key_path}` does not belong to the certificate in `{cert_path}`"
        else:
            words = f"`{key_path}` holds no usable private key (PEM, without passphrase){_detail(error)}"
        raise ConfigError(words, source=f"{_PLACE}.key_path") from error
    except _Encrypted as error:
        words = f"the key in `{key_path}` has a passphrase; one without is needed"
        raise ConfigError(words, source=f"{_PLACE}.key_path") from error


def _demand_client_certificates(context: ssl.SSLContext, path: Path) -> None:
    _load_bundle(context, path, "client_ca_cert_path")
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whatever is in the bundle is trusted, no root is needed


def _load_bundle(context: ssl.SSLContext, path: Path, key: str) -> None:
    _check_readable(path, key)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        words = f"`{path}` holds no usable certificate (PEM){_detail(error)}"
        raise ConfigError(words, source=f"{_PLACE}.{key}") from error


def _check_readable(path: Path, key: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        words = f"cannot read `{path}`: {error.strerror} (os error {error.errno})"
        raise ConfigError(words, source=f"{_PLACE}.{key}") from error


def _detail(error: ssl.SSLError) -> str:
    """What the library says, where it has words for it."""
    return f": {error.reason.replace('_', ' ').lower()}" if error.reason else ""


class _Encrypted(Exception):
    """The library asks for a passphrase; without us it would ask on the terminal."""


def _refuse_password() -> str:
    raise _Encrypted
