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
    """Signs certificates; its own lies in `path`. They have the extensions that RFC 5280 asks for."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = directory / f"{name}.pem"
        draft = self._draft(self._name, self._key)
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        draft = draft.add_extension(_allow(key_cert_sign=True, crl_sign=True), critical=True)
        self._write(draft, self.path)

    def issue(self, name: str, form: str = "pkcs8") -> Pair:
        """A certificate for 127.0.0.1; `form` is pkcs1, pkcs8, sec1 or encrypted."""
        key = rsa.generate_private_key(65537, 2048) if form == "pkcs1" else ec.generate_private_key(ec.SECP256R1())
        draft = self._draft(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        draft = draft.add_extension(_allow(digital_signature=True), critical=True)
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        self._write(draft.add_extension(names, critical=False), pair.cert)
        pair.key.write_bytes(write_key(key, form))
        return pair

    def _draft(self, subject: x509.Name, key: Key) -> x509.CertificateBuilder:
        """A certificate that says whose key it holds, and which key signs it."""
        draft = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number(), BEGIN, END)
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        theirs = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return draft.add_extension(ours, critical=False).add_extension(theirs, critical=False)

    def _write(self, draft: x509.CertificateBuilder, path: Path) -> None:
        path.write_bytes(draft.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _allow(**uses: bool) -> x509.KeyUsage:
    """What the key may be used for; everything else is forbidden."""
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: uses.get(name, False) for name in names})


def write_key(key: Key, form: str) -> bytes:
    """The key as PEM."""
    shape = PrivateFormat.PKCS8 if form in ("pkcs8", "encrypted") else PrivateFormat.TraditionalOpenSSL
    lock = serialization.BestAvailableEncryption(b"secret") if form == "encrypted" else serialization.NoEncryption()
    return key.private_bytes(Encoding.PEM, shape, lock)
