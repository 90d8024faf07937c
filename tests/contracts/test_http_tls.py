# SPDX-License-Identifier: Apache-2.0
"""TLS towards services, in every shape that the settings allow (G-21, LIM-20), against a real TLS server."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lockgate.backends.http import HttpService, OutgoingRequest, build_tls, open_http
from lockgate.config.settings import ServiceSettings, TlsSettings
from lockgate.errors import ConfigError, Unavailable, UpstreamError
from tests.contracts.http_peers import open_peer, reply

Key = ec.EllipticCurvePrivateKey
NO_PASSWORD = serialization.NoEncryption()


class Issued(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Key

    def write(self, path: Path, *, is_with_key: bool = False, is_with_certificate: bool = True) -> Path:
        text = b""
        if is_with_certificate:
            text += self.certificate.public_bytes(serialization.Encoding.PEM)
        if is_with_key:
            text += _key_text(self.key)
        path.write_bytes(text)
        return path


def _key_text(key: Key, encryption: serialization.KeySerializationEncryption = NO_PASSWORD) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def issue(name: str, by: Issued | None = None) -> Issued:
    """A certificate for 127.0.0.1; without an issuer it is a CA. It has as few extensions as old tools give."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return Issued(builder.sign(key if by is None else by.key, hashes.SHA256()), key)


class Folder(NamedTuple):
    """The files of a client, and the server's side."""

    ca: Path
    other_ca: Path
    cert: Path
    key: Path
    both: Path
    locked_key: Path
    server: ssl.SSLContext
    asking_server: ssl.SSLContext


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("tls")
    authority, other = issue("CA"), issue("another CA")
    server, client = issue("server", authority), issue("client", authority)
    ca = authority.write(path / "ca.pem")
    locked = path / "locked.key"
    locked.write_bytes(_key_text(client.key, serialization.BestAvailableEncryption(b"word")))
    server_file = server.write(path / "server.pem", is_with_key=True)
    contexts = []
    for _ in range(2):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_file)
        contexts.append(context)
    contexts[1].load_verify_locations(ca)
    contexts[1].verify_mode = ssl.CERT_REQUIRED
    return Folder(
        ca,
        other.write(path / "other.pem"),
        client.write(path / "client.pem"),
        client.write(path / "client.key", is_with_key=True, is_with_certificate=False),
        client.write(path / "both.pem", is_with_key=True),
        locked,
        *contexts,
    )


async def call(http: HttpService) -> bytes:
    outgoing = OutgoingRequest(http.url("/x"), http.headers((), {}), b"{}", "failed: ")
    return (await http.post(outgoing)).body


async def try_call(server: ssl.SSLContext, **settings: Any) -> bytes:
    async with (
        open_peer(reply(b"hello"), server) as peer,
        open_http(peer.service(tls=TlsSettings(**settings)), "detector", "pii") as http,
    ):
        answer = await call(http)
        assert await call(http) == answer
        assert peer.connections == 1
        assert (await http.probe(())).status == "HEALTHY"
        return answer


async def test_a_ca_alone_is_enough(folder: Folder) -> None:
    assert await try_call(folder.server, client_ca_cert_path=folder.ca) == b"hello"


async def test_insecure_alone_is_enough(folder: Folder) -> None:
    assert await try_call(folder.server, insecure=True) == b"hello"


async def test_insecure_overrules_a_ca_that_does_not_fit(folder: Folder) -> None:
    assert await try_call(folder.server, insecure=True, client_ca_cert_path=folder.other_ca) == b"hello"


async def test_a_client_shows_its_certificate_with_its_key(folder: Folder) -> None:
    settings = {"cert_path": folder.cert, "key_path": folder.key, "client_ca_cert_path": folder.ca}
    assert await try_call(folder.asking_server, **settings) == b"hello"


async def test_certificate_and_key_may_stand_in_one_file(folder: Folder) -> None:
    assert await try_call(folder.asking_server, cert_path=folder.both, insecure=True) == b"hello"


@pytest.mark.parametrize("what", ["nothing at all", "another CA"])
async def test_a_server_that_cannot_be_verified_is_not_spoken_to(folder: Folder, what: str) -> None:
    settings = {} if what == "nothing at all" else {"client_ca_cert_path": folder.other_ca}
    with pytest.raises(Unavailable, match="TLS failed") as caught:
        await try_call(folder.server, **settings)
    assert caught.value.status == 408


async def test_a_server_of_another_name_is_not_spoken_to(folder: Folder) -> None:
    async with open_peer(reply(b"hello"), folder.server) as peer:
        service = peer.service(hostname="localhost", tls=TlsSettings(client_ca_cert_path=folder.ca))
        async with open_http(service, "detector", "pii") as http:
            with pytest.raises(Unavailable, match="TLS failed"):
                await call(http)
    assert peer.received == []


async def test_a_client_without_a_certificate_is_turned_away_where_one_is_asked_for(folder: Folder) -> None:
    with pytest.raises(UpstreamError) as caught:
        await try_call(folder.asking_server, client_ca_cert_path=folder.ca)
    assert caught.value.status == 408


async def test_a_server_without_tls_is_unavailable(folder: Folder) -> None:
    async def answer_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_plainly, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        service = ServiceSettings("127.0.0.1", port, tls=TlsSettings(client_ca_cert_path=folder.ca))
        async with open_http(service, "detector", "pii") as http:
            with pytest.raises(Unavailable) as caught:
                await call(http)
    assert caught.value.status == 408


async def test_a_health_probe_of_a_server_that_cannot_be_verified_says_why(folder: Folder) -> None:
    async with (
        open_peer(reply(b""), folder.server) as peer,
        open_http(peer.service(tls=TlsSettings()), "detector", "pii") as http,
    ):
        health = await http.probe(())
    assert (health.status, health.code) == ("UNKNOWN", 500)
    assert "TLS failed" in (health.reason or "")


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ({"client_ca_cert_path": "missing"}, "client_ca_cert_path"),
        ({"client_ca_cert_path": "key"}, "client_ca_cert_path"),
        ({"cert_path": "missing", "key_path": "key"}, "cert_path"),
        ({"cert_path": "cert"}, "cert_path"),
        ({"cert_path": "cert", "key_path": "missing"}, "cert_path"),
        ({"cert_path": "cert", "key_path": "cert"}, "cert_path"),
        ({"cert_path": "cert", "key_path": "locked_key"}, "cert_path"),
        ({"key_path": "key"}, "key_path"),
    ],
)
def test_files_that_cannot_be_used_are_a_fault_of_the_settings(folder: Folder, names: dict[str, str], key: str) -> None:
    paths: dict[str, Any] = {
        name: getattr(folder, file, folder.ca.with_name("missing.pem")) for name, file in names.items()
    }
    with pytest.raises(ConfigError) as caught:
        build_tls(TlsSettings(**paths))
    assert (caught.value.source, caught.value.key) == ("tls", key)
