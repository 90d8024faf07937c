# SPDX-License-Identifier: Apache-2.0
"""Every shape of TLS towards a gRPC service, with certificates made for the occasion."""

import asyncio
import datetime
import ipaddress
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lockgate.backends.chunker import ChunkerClient, open_chunker_client
from lockgate.backends.grpc import open_unverified_relay
from lockgate.config.settings import TlsSettings
from lockgate.errors import ConfigError, Unavailable
from lockgate.gate.values import Chunk, Health
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import Context, build_chunk, build_chunker_server, frames_of, over_tls

LONG_AGO, LATELY, FAR_AWAY = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 2001, 2100))


class Identity(NamedTuple):
    """A certificate and its key, in files and in memory."""

    cert: Path
    key: Path
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey


class Office:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.ca = self._make(name, issuer=None, is_ca=True)

    def sign(self, name: str, *, expired: bool = False, hosts: tuple[str, ...] = ("127.0.0.1",)) -> Identity:
        return self._make(name, issuer=self.ca, expired=expired, hosts=hosts)

    def _make(
        self,
        name: str,
        issuer: Identity | None,
        *,
        is_ca: bool = False,
        expired: bool = False,
        hosts: tuple[str, ...] = (),
    ) -> Identity:
        private = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(LONG_AGO)
            .not_valid_after(LATELY if expired else FAR_AWAY)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(issuer.private if issuer else private, hashes.SHA256())
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Identity(cert, key, certificate, private)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path, "ca")


async def cut(request: Any, _context: Context) -> Any:
    return nlp.TokenizationResults(results=[nlp.Token(start=0, end=len(request.text), text=request.text)])


async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
    async for message in messages:
        yield build_chunk(0, 1, message.text_stream)


@asynccontextmanager
async def serving(identity: Identity, client_ca: Identity | None = None, port: int = 0) -> AsyncIterator[int]:
    """A chunker with that certificate; with a CA, clients must present a certificate of it."""
    credentials = grpc.ssl_server_credentials(
        [(identity.key.read_bytes(), identity.cert.read_bytes())],
        client_ca.cert.read_bytes() if client_ca else None,
        client_ca is not None,
    )
    async with build_chunker_server(cut, converse).listening(port, credentials) as bound:
        yield bound


@asynccontextmanager
async def calling(port: int, **tls: Any) -> AsyncIterator[ChunkerClient]:
    async with open_chunker_client("en", over_tls(port, **tls)) as client:
        yield client


async def test_a_ca_alone_is_enough(office: Office) -> None:
    async with serving(office.sign("server")) as port, calling(port, client_ca_cert_path=office.ca.cert) as client:
        assert await client.cut("a") == [Chunk(0, 1, "a")]


async def test_a_certificate_of_nobody_we_know_is_refused(office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Office(folder, "other")
    for tls in ({}, {"client_ca_cert_path": other.ca.cert}):
        async with serving(office.sign("server")) as port, calling(port, **tls) as client:
            with pytest.raises(Unavailable):
                await client.cut("a")


async def test_a_certificate_for_another_host_is_refused(office: Office) -> None:
    identity = office.sign("server", hosts=("elsewhere.example",))
    async with serving(identity) as port, calling(port, client_ca_cert_path=office.ca.cert) as client:
        with pytest.raises(Unavailable):
            await client.cut("a")


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("in_one_file", [False, True])
async def test_a_client_certificate_is_presented(office: Office, insecure: bool, in_one_file: bool) -> None:
    ours = office.sign("client")
    tls: dict[str, Any] = {"cert_path": ours.cert, "key_path": ours.key}
    if in_one_file:
        ours.cert.write_bytes(ours.cert.read_bytes() + ours.key.read_bytes())
        del tls["key_path"]
    tls |= {"insecure": True} if insecure else {"client_ca_cert_path": office.ca.cert}
    async with serving(office.sign("server"), client_ca=office.ca) as port, calling(port, **tls) as client:
        assert await client.cut("a") == [Chunk(0, 1, "a")]


@pytest.mark.parametrize("insecure", [False, True])
async def test_without_the_certificate_that_it_wants_a_server_refuses_us(office: Office, insecure: bool) -> None:
    tls: dict[str, Any] = {"client_ca_cert_path": office.ca.cert, "insecure": insecure}
    async with serving(office.sign("server"), client_ca=office.ca) as port, calling(port, **tls) as client:
        with pytest.raises(Unavailable):
            await client.cut("a")


@pytest.mark.parametrize("fault", ["unknown", "expired", "other host"])
async def test_insecure_takes_any_certificate(office: Office, fault: str) -> None:
    hosts = ("elsewhere.example",) if fault == "other host" else ("127.0.0.1",)
    identity = office.sign("server", expired=fault == "expired", hosts=hosts)
    async with serving(identity) as port, calling(port, insecure=True) as client:
        assert await client.cut("a") == [Chunk(0, 1, "a")]
        assert (await client.probe(())).code == 501
        texts = ["x" * 50_000] * 40
        assert [chunk.text async for chunk in client.stream(frames_of(texts))] == texts


async def test_insecure_with_nobody_there_fails_at_once() -> None:
    async with calling(1, insecure=True) as client:
        with pytest.raises(Unavailable):
            await client.cut("a")
        assert await client.probe(()) == Health("UNHEALTHY", 503)


async def test_insecure_finds_a_server_that_is_back_with_another_certificate(office: Office) -> None:
    async with AsyncExitStack() as stack:
        async with serving(office.sign("server")) as port:
            client = await stack.enter_async_context(calling(port, insecure=True))
            assert len(await asyncio.gather(*(client.cut("a") for _ in range(20)))) == 20
        with pytest.raises(Unavailable):
            await client.cut("a")
        async with serving(office.sign("renewed"), port=port):
            chunks: Sequence[Chunk] = ()
            while not chunks:
                with suppress(Unavailable):
                    chunks = await client.cut("a")
            assert chunks == [Chunk(0, 1, "a")]


async def test_the_way_to_an_unverified_server_is_open_to_this_user_alone() -> None:
    async with open_unverified_relay("127.0.0.1", 1, TlsSettings(insecure=True), 1) as target:
        folder = os.path.dirname(target.removeprefix("unix:"))
        assert os.listdir(folder) == ["relay"]
        assert os.stat(folder).st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError):
        os.listdir(folder)


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("name", ["cert_path", "key_path", "client_ca_cert_path"])
@pytest.mark.parametrize("content", [None, b"rubbish"])
async def test_a_file_that_cannot_be_used_ends_the_start(
    office: Office, tmp_path: Path, insecure: bool, name: str, content: bytes | None
) -> None:
    ours = office.sign("client")
    tls: dict[str, Any] = {"cert_path": ours.cert, "key_path": ours.key, "client_ca_cert_path": office.ca.cert}
    tls[name] = tmp_path / "broken.pem"
    if content is not None:
        tls[name].write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be used"):
        async with calling(1, insecure=insecure, **tls):
            pass


async def test_a_key_without_its_certificate_ends_the_start(office: Office) -> None:
    with pytest.raises(ConfigError, match="a key needs its certificate"):
        async with calling(1, key_path=office.ca.key):
            pass
