# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made on the spot: an authority, what it signs, and keys in every form that PEM has."""

import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own lies in `path`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = directory / f"{name}.pem"
        certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, form: str = "pkcs8") -> Pair:
        """A certificate for 127.0.0.1; `form` is pkcs1, pkcs8, sec1 or encrypted."""
        key = rsa.generate_private_key(65537, 2048) if form == "pkcs1" else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]))
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        pair.key.write_bytes(write_key(key, form))
        return pair

    def _sign(self, subject: x509.Name, key: Key, extension: x509.ExtensionType) -> x509.Certificate:
        draft = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number(), BEGIN, END)
        return draft.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())


def write_key(key: Key, form: str) -> bytes:
    """The key as PEM."""
    shape = PrivateFormat.PKCS8 if form in ("pkcs8", "encrypted") else PrivateFormat.TraditionalOpenSSL
    lock = serialization.BestAvailableEncryption(b"secret") if form == "encrypted" else serialization.NoEncryption()
    return key.private_bytes(Encoding.PEM, shape, lock)
