"""Connections to `https` endpoints."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import gazette_aio.protocol as pb
from gazette_aio.client import (
    RetryPolicy,
    TLSOptions,
    connect,
)
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import (
    JOURNAL,
    listing,
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def serve_tls(authority: trustme.CA, *, mutual: bool) -> AsyncIterator[int]:
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    credentials = grpc.ssl_server_credentials(
        [(certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())],
        root_certificates=authority.cert_pem.bytes() if mutual else None,
        require_client_auth=mutual,
    )
    stub = StubBroker()
    stub.list_handler = lambda request: listing("a/one")
    server = grpc.aio.server()
    # The stub opens no TLS ports itself.
    server.add_generic_rpc_handlers((stub._handlers(),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def refusal(port: int, told: str, **options: Any) -> None:
    """Require that a client says in the end why it doesn't get through."""
    async with asyncio.timeout(30):
        async with connect(f"https://127.0.0.1:{port}", connect_timeout=0.1, **options) as client:
            text = ""
            while told not in text:  # A slow machine needs longer for a handshake.
                with pytest.raises(pb.TransportError, match="no broker answers") as caught:
                    await client.list()
                text = str(caught.value)


async def test_tls(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    async with serve_tls(authority, mutual=False) as port:
        async with connect(f"https://127.0.0.1:{port}", tls=TLSOptions(ca_file=ca)) as client:
            assert len((await client.list()).journals) == 1
        # Who doesn't know the authority doesn't get through, and is told why.
        await refusal(port, "CERTIFICATE_VERIFY_FAIL")
        other = TLSOptions(ca_file=ca, server_name="other.example")
        await refusal(port, "Hostname Verification", tls=other)


async def test_mutual_tls(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert("client")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    monkeypatch.setenv("BROKER_TRUSTED_CA_FILE", str(ca))
    async with serve_tls(authority, mutual=True) as port:
        async with connect(f"https://127.0.0.1:{port}", connect_timeout=0.2) as client:
            with pytest.raises(pb.TransportError):
                await client.list()
        monkeypatch.setenv("BROKER_CERT_FILE", str(certificate))
        monkeypatch.setenv("BROKER_CERT_KEY_FILE", str(key))
        async with connect(f"https://127.0.0.1:{port}") as client:
            assert len((await client.list()).journals) == 1


async def test_tls_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(pb.ConfigurationError, match="together"):
        TLSOptions(certificate_file="cert.pem")
    options = TLSOptions(ca_file=tmp_path / "absent")
    assert pickle.loads(pickle.dumps(options)) == options
    async with connect("https://localhost:1", tls=options) as client:
        for _ in range(2):
            with pytest.raises(pb.ConfigurationError, match="absent"):
                await client.list()


@pytest.mark.parametrize("content", [b"", b"not PEM", b"encrypted", b"mismatch"])
async def test_tls_files_are_checked(authority: trustme.CA, tmp_path: Path, content: bytes) -> None:
    """What gRPC tells of such files is nothing."""
    wrong, certificate, key = (tmp_path / name for name in ("wrong", "cert.pem", "key.pem"))
    issued = authority.issue_cert("client")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    wrong.write_bytes(content)
    policy = RetryPolicy(max_attempts=1)
    every = [TLSOptions(certificate_file=certificate, key_file=wrong)]
    if content == b"mismatch":
        authority.issue_cert("client").private_key_pem.write_to_path(str(wrong))
    elif content == b"encrypted":
        loaded = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        wrong.write_bytes(
            loaded.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
    else:
        every.append(TLSOptions(certificate_file=wrong, key_file=key))
        every.append(TLSOptions(ca_file=wrong))
    for options in every:
        async with connect("https://localhost:1", tls=options, retry=policy) as client:
            with pytest.raises(pb.ConfigurationError, match="reading TLS options"):
                await client.append(JOURNAL, b"content")
    assert TLSOptions(certificate_file=certificate, key_file=key).read()[0] is None
