"""TLS of both front ends, from certificates in files to clients which are refused."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import socket
import ssl
import time
from pathlib import Path

import aiohttp
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, TLSOptions, connect
from gazette_aio.serving.tls import TLSFiles, read_tls
from gazette_aio.testing import BrokerProcess
from tests.broker.caller import eventually, journal_spec


@dataclasses.dataclass(frozen=True)
class Files:
    """Certificates of a test, in files."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path
    stranger_ca: Path
    stranger_cert: Path
    stranger_key: Path

    @property
    def server(self) -> dict[str, Path]:
        return {"server_cert_file": self.cert, "server_cert_key_file": self.key}

    @property
    def mutual(self) -> dict[str, Path]:
        return {**self.server, "server_ca_file": self.ca}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("certificates")
    paths = {f.name: directory / f"{f.name}.pem" for f in dataclasses.fields(Files)}
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(paths["ca"]))
    stranger.cert_pem.write_to_path(str(paths["stranger_ca"]))
    for by, name, prefix in (
        (authority, "127.0.0.1", ""),
        (authority, "client", "client_"),
        (stranger, "client", "stranger_"),
    ):
        issued = by.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(str(paths[f"{prefix}cert"]))
        issued.private_key_pem.write_to_path(str(paths[f"{prefix}key"]))
    return Files(**paths)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BROKER_")]:
        monkeypatch.delenv(name)


async def use(client: JournalClient) -> None:
    change = pb.ApplyRequest.Change(upsert=journal_spec(), expect_mod_revision=-1)
    await client.apply([change])
    await client.append("test/journal", b"content")
    async with client.read("test/journal", end_offset=7) as reader:
        assert b"".join([chunk async for chunk in reader]) == b"content"


async def refused(endpoint: str, tls: TLSOptions | None = None) -> None:
    async with connect(endpoint, tls=tls, connect_timeout=0.2) as client:
        with pytest.raises(pb.TransportError):
            await client.list()


def trusting(ca: Path, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


async def get(
    broker: EmbeddedBroker, context: ssl.SSLContext
) -> tuple[aiohttp.ClientResponse, bytes]:
    async with aiohttp.ClientSession() as session:
        url = f"{broker.http_endpoint}/test/journal"
        async with session.get(url, ssl=context) as response:
            return response, await response.read()


# Clients


async def test_tls(files: Files, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", **files.server) as broker:
        assert broker.endpoint.startswith("https://127.0.0.1:")
        assert broker.http_endpoint.startswith("https://127.0.0.1:")
        async with connect(broker.endpoint, tls=TLSOptions(ca_file=files.ca)) as client:
            await use(client)
            (journal,) = (await client.list()).journals
            assert journal.route.endpoints == [broker.endpoint]
        response, content = await get(broker, trusting(files.ca))
        assert response.status == 206
        assert response.headers["Location"] == f"{broker.endpoint}/test/journal"
        assert content == b"content"


async def test_clients_refuse_an_authority_they_do_not_know(files: Files, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", **files.server) as broker:
        await refused(broker.endpoint, TLSOptions(ca_file=files.stranger_ca))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(broker, trusting(files.stranger_ca))
        async with connect(broker.endpoint, tls=TLSOptions(ca_file=files.ca)) as client:
            await use(client)


async def test_who_speaks_no_tls_is_refused(files: Files, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", **files.server) as broker:
        await refused(broker.endpoint.replace("https:", "http:"))
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(broker.http_endpoint.replace("https:", "http:") + "/debug/ready")
        async with connect(broker.endpoint, tls=TLSOptions(ca_file=files.ca)) as client:
            await use(client)


async def test_mutual_tls(files: Files, tmp_path: Path) -> None:
    known = TLSOptions(
        ca_file=files.ca, certificate_file=files.client_cert, key_file=files.client_key
    )
    unknown = dataclasses.replace(
        known, certificate_file=files.stranger_cert, key_file=files.stranger_key
    )
    async with EmbeddedBroker(tmp_path, fsync="off", **files.mutual) as broker:
        await refused(broker.endpoint, TLSOptions(ca_file=files.ca))
        await refused(broker.endpoint, unknown)
        for context in (
            trusting(files.ca),
            trusting(files.ca, files.stranger_cert, files.stranger_key),
        ):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await get(broker, context)
        async with connect(broker.endpoint, tls=known) as client:
            await use(client)
        response, _ = await get(broker, trusting(files.ca, files.client_cert, files.client_key))
        assert response.status == 206


# Connections of the gateway


async def opened(
    broker: EmbeddedBroker, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(broker.http_endpoint.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_an_append_which_is_broken_off_is_rolled_back(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", **files.server) as broker:
        async with connect(broker.endpoint, tls=TLSOptions(ca_file=files.ca)) as client:
            await use(client)
            with caplog.at_level(logging.WARNING):
                reader, writer = await opened(broker, trusting(files.ca))
                writer.write(
                    b"PUT /test/journal HTTP/1.1\r\nHost: b\r\nContent-Length: 9\r\n\r\nhalf"
                )
                await writer.drain()

                async def begun() -> bool:
                    return broker.core.metrics.started["Append"] == 2

                await eventually(begun)
                writer.close()
                assert await reader.read() == b""
                await writer.wait_closed()

                async def finished() -> bool:
                    return broker.core.metrics.completed["Append", "<error>"] == 1

                await eventually(finished)
            response = await client.append("test/journal", b"!")
            assert response.commit.begin == 7
    assert [r for r in caplog.records if r.name.startswith(("asyncio", "gazette_aio.broker"))] == []


async def test_stop_waits_for_no_client(files: Files, tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off", **files.server)
    await broker.start()
    host, port = "127.0.0.1", int(broker.http_endpoint.rpartition(":")[2])
    context = trusting(files.ca)

    def deaf() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection((host, port)), server_hostname=host)

    with await asyncio.to_thread(deaf), socket.create_connection((host, port)):
        began = time.monotonic()
        await broker.stop(0.1)
        assert time.monotonic() - began < 20.0


# Options


def encrypted(key: Path, path: Path) -> Path:
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    path.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    return path


async def test_files_are_looked_at_before_anything_is_done(files: Files, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    absent = tmp_path / "absent.pem"
    locked = encrypted(files.key, tmp_path / "locked.pem")
    for option, path, problem in (
        ("server_cert_file", absent, "No such file"),
        ("server_cert_file", tmp_path, "Is a directory"),
        ("server_cert_file", garbage, "not a certificate"),
        ("server_cert_file", files.key, "not a certificate"),
        ("server_cert_key_file", absent, "No such file"),
        ("server_cert_key_file", garbage, "not a private key"),
        ("server_cert_key_file", files.cert, "not a private key"),
        ("server_cert_key_file", files.client_key, f"not the key of {files.cert}"),
        ("server_cert_key_file", locked, "encrypted"),
        ("server_ca_file", absent, "No such file"),
        ("server_ca_file", garbage, "not a certificate"),
        ("server_ca_file", files.key, "not a certificate"),
    ):
        broker = EmbeddedBroker(tmp_path / "data", **{**files.mutual, option: path})
        with pytest.raises(pb.ConfigurationError) as caught:
            await broker.start()
        assert str(caught.value).startswith(f"{option} {path}: ")
        assert problem in str(caught.value)
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["server_cert_file"], "together"),
        (["server_cert_key_file"], "together"),
        (["server_cert_key_file", "server_ca_file"], "together"),
        (["server_ca_file"], "needs a server_cert_file"),
    ],
)
def test_options_which_do_not_go_alone(names: list[str], problem: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=problem):
        EmbeddedBroker(**dict.fromkeys(names, "some.pem"))


def test_keys_are_shown_nowhere(files: Files) -> None:
    tls = read_tls(TLSFiles(**files.mutual))
    assert tls is not None
    assert tls.key == files.key.read_bytes()
    assert "PRIVATE" not in repr(tls)
    assert "CERTIFICATE" not in repr(tls)


@pytest.mark.slow
async def test_a_process(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [f"--broker.server-cert-file={files.cert}", f"--server-cert-key-file={files.key}"]
    monkeypatch.setenv("BROKER_SERVER_CA_FILE", str(files.ca))
    tls = TLSOptions(ca_file=files.ca, certificate_file=files.cert, key_file=files.key)
    async with BrokerProcess(tmp_path / "data", options=[*flags, "--min-append-rate=0"]) as process:
        assert str(process.http_endpoint).startswith("https://")
        async with connect(process.endpoint, tls=tls) as client:
            await use(client)
        await refused(process.endpoint, TLSOptions(ca_file=files.ca))
    with pytest.raises(pb.ConfigurationError, match="server_cert_file and server_cert_key_file"):
        await BrokerProcess(tmp_path / "other", options=flags[:1]).start()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("is_secure", [True, False])
async def test_when_no_connection_can_be_accepted_it_goes_on_later(
    is_secure: bool,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("gazette_aio.serving.listener.PAUSE_SECONDS", 0.01)
    shortage = OSError(errno.EMFILE, "Too many open files")
    failures = [shortage, shortage, ConnectionAbortedError()]
    options = files.server if is_secure else {}
    told = "unable to accept connections, which wait: Too many open files (see `ulimit -n`)"
    accept = socket.socket.accept

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop(0)
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    async with EmbeddedBroker(tmp_path, fsync="off", **options) as broker:
        response, _ = await get(broker, trusting(files.ca))
        assert response.status == 404
    assert not failures
    assert [(record.message, record.exc_info) for record in caplog.records] == [(told, None)]
    # The end of a broker is also that of a pause.
    failures.append(shortage)
    async with EmbeddedBroker(tmp_path, fsync="off", **options) as broker:
        with socket.create_connection(("127.0.0.1", int(broker.http_endpoint.rpartition(":")[2]))):

            async def failed() -> bool:
                return not failures

            await eventually(failed)
    # Time is the subject: a pause that goes on ends by now, and listens on a closed socket.
    await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records] == [told] * 2
