"""Clients where the environment names a proxy."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import trustme

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.stores.direct_http import open_url
from gazette_aio.client import RetryPolicy, TLSOptions, connect
from gazette_aio.client.fragments.fetcher import HTTPFragmentFetcher
from tests.connect_proxy import connect_proxy

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy")
DEAD = "http://user:secret@127.0.0.1:9"
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("name", [*VARIABLES[:3], "HTTP_PROXY"])
async def test_a_dead_proxy_is_not_asked_for_loopback(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, DEAD)
    async with EmbeddedBroker(tmp_path / "one") as broker, connect(broker.endpoint) as client:
        await client.list()
        fetcher = HTTPFragmentFetcher()
        body = await fetcher.open(f"{broker.http_endpoint}/debug/ready", {})
        assert body.status == 200
        await body.aclose()
        await fetcher.aclose()
        with await asyncio.to_thread(open_url, f"{broker.http_endpoint}/debug/ready", 30) as got:
            assert got.status == 200
    options: Any = {"socket": tmp_path / "socket", "http_port": None}
    async with EmbeddedBroker(tmp_path / "two", **options) as broker:
        async with connect(broker.endpoint) as client:
            await client.list()


async def test_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also with TLS; and what NO_PROXY names isn't dialled through it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("broker.invalid")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    files: Any = {"server_cert_file": tmp_path / "cert", "server_cert_key_file": tmp_path / "key"}
    async with connect_proxy() as proxy, EmbeddedBroker() as plain, EmbeddedBroker(**files) as tls:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        port = plain.endpoint.rpartition(":")[2]
        address = f"http://broker.invalid:{port}"
        async with connect(address, cache_size=0) as client:
            await client.list()
        assert proxy.heads[0].startswith(f"CONNECT broker.invalid:{port} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in proxy.heads[0]

        port = tls.endpoint.rpartition(":")[2]
        secure: Any = {"tls": TLSOptions(ca_file=tmp_path / "ca"), "cache_size": 0}
        async with connect(f"https://broker.invalid:{port}", **secure) as client:
            await client.list()
        assert proxy.heads.pop().startswith(f"CONNECT broker.invalid:{port} ")

        fetcher = HTTPFragmentFetcher()
        body = await fetcher.open("http://store.invalid/fragment?signature", {})
        assert b"".join([part async for part in body]) == b"proxied"
        assert proxy.heads[1].startswith("GET http://store.invalid/fragment?signature ")
        await body.aclose()
        await fetcher.aclose()

        monkeypatch.setenv("NO_PROXY", "other,.invalid")
        async with connect(address, cache_size=0, retry=ONCE, connect_timeout=0.5) as client:
            with pytest.raises(pb.TransportError):
                await client.list()
        assert len(proxy.heads) == 2


async def test_failures_name_the_proxy_without_its_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRPC_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/99")
    caplog.set_level(logging.DEBUG)
    address = "http://broker.invalid:8080"
    failures: list[str] = []
    told = "through the proxy http://127.0.0.1:9 ($GRPC_PROXY)"
    while len(failures) < 2 or told not in failures[-1]:  # A slow machine may not know why.
        async with connect(address, retry=ONCE, connect_timeout=0.5) as client:
            with pytest.raises(pb.TransportError) as caught:
                await client.list()
            failures.append(str(caught.value))
    assert caplog.text.count("'10.0.0.0/99' isn't a host") == 1
    assert "secret" not in caplog.text + str(failures)
