from __future__ import annotations

import asyncio
import base64
import datetime as dt
import logging
import os
import pickle
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import gazette_aio.protocol as pb
from gazette_aio.client import (
    JournalClient,
    RetryPolicy,
    TLSOptions,
    auth_from_environment,
    connect,
)
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import JOURNAL, MemoryJournals, header, listing, script_read

KEY = base64.b64encode(b"a very secret key").decode()


def test_constructing_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    assert client.endpoint == "http://localhost:8080"
    assert client.zone == "local"
    assert client.status().connection == "idle"
    monkeypatch.setenv("BROKER_ADDRESS", "https://broker.example:1234")
    monkeypatch.setenv("ZONE", "a-zone")
    client = connect()
    assert client.endpoint == "https://broker.example:1234"
    assert client.zone == "a-zone"
    assert connect("http://other:1", zone="other").zone == "other"
    assert connect("http://other:1").endpoint == "http://other:1"
    assert "idle" in repr(client)


@pytest.mark.parametrize("address", ["localhost:8080", "ftp://host/", "http://"])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(pb.ValidationError):
        connect(address)


async def test_a_broker_that_is_down_at_start() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with connect(f"http://127.0.0.1:{port}", connect_timeout=0.05) as client:
        with pytest.raises(pb.TransportError) as raised:
            await client.list()
        assert str(raised.value) == (
            f"UNAVAILABLE: no broker answers at http://127.0.0.1:{port} (waited 0.05 s)"
        )
        assert raised.value.retryable
    async with connect(
        f"http://127.0.0.1:{port}", retry=RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)
    ) as client:
        with pytest.raises(pb.TransportError, match=f"broker http://127.0.0.1:{port}") as raised:
            await client.append(JOURNAL, b"content")
        assert raised.value.attempt == 1


async def test_a_broker_that_comes_up_late() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = StubBroker()
    broker.list_handler = lambda request: listing("a/one")
    async with connect(f"http://127.0.0.1:{port}") as client:
        asked = asyncio.create_task(client.list())
        while client.status().connection not in ("connecting", "transient_failure"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await broker.start(f"127.0.0.1:{port}")
        assert len((await asked).journals) == 1
        assert client.status().connection == "ready"
    await broker.aclose()
    assert client.status().connection == "closed"


async def test_unix_sockets(tmp_path: Path) -> None:
    broker = StubBroker()
    await broker.start(f"unix:{tmp_path}/socket")
    assert broker.endpoint == f"unix://localhost{tmp_path}/socket"
    broker.list_handler = lambda request: listing("a/one")
    async with connect(broker.endpoint) as client:
        assert len((await client.list()).journals) == 1
    await broker.aclose()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def serve_tls(authority: trustme.CA, *, mutual: bool) -> tuple[grpc.aio.Server, int]:
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    credentials = grpc.ssl_server_credentials(
        [(certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())],
        root_certificates=authority.cert_pem.bytes() if mutual else None,
        require_client_auth=mutual,
    )
    stub = StubBroker()
    stub.list_handler = lambda request: listing("a/one")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((stub._handlers(),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, port


async def test_tls(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    server, port = await serve_tls(authority, mutual=False)
    async with connect(f"https://127.0.0.1:{port}", tls=TLSOptions(ca_file=ca)) as client:
        assert len((await client.list()).journals) == 1
    # Who doesn't know the authority doesn't get through.
    async with connect(f"https://127.0.0.1:{port}", connect_timeout=0.2) as client:
        with pytest.raises(pb.TransportError, match="no broker answers"):
            await client.list()
    await server.stop(None)


async def test_mutual_tls(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert("client")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    monkeypatch.setenv("BROKER_TRUSTED_CA_FILE", str(ca))
    server, port = await serve_tls(authority, mutual=True)
    async with connect(f"https://127.0.0.1:{port}", connect_timeout=0.2) as client:
        with pytest.raises(pb.TransportError):
            await client.list()
    monkeypatch.setenv("BROKER_CERT_FILE", str(certificate))
    monkeypatch.setenv("BROKER_CERT_KEY_FILE", str(key))
    async with connect(f"https://127.0.0.1:{port}") as client:
        assert len((await client.list()).journals) == 1
    await server.stop(None)


async def test_tls_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(pb.ConfigurationError, match="together"):
        TLSOptions(certificate_file="cert.pem")
    options = TLSOptions(ca_file=tmp_path / "absent")
    assert pickle.loads(pickle.dumps(options)) == options
    async with connect("https://localhost:1", tls=options) as client:
        with pytest.raises(pb.ConfigurationError, match="absent"):
            await client.list()


# Authorization.


def claims_of(metadata: dict[str, str]) -> pb.Claims:
    auth = pb.KeyedAuth(KEY)
    return auth.verify(metadata.get("authorization"), pb.Capability(0), time.time())


async def test_every_rpc_carries_the_least_claims(broker: StubBroker) -> None:
    MemoryJournals(broker)
    broker.list_handler = lambda request: listing()
    broker.apply_handler = lambda request: pb.ApplyResponse(header=header())
    broker.fragments_handler = lambda request: pb.FragmentsResponse(header=header())
    broker.health_handler = lambda request: pb.FragmentStoreHealthResponse(header=header())
    script_read(broker, 0, b"ab")
    async with connect(broker.endpoint, auth=pb.KeyedAuth(KEY)) as client:
        await client.list("foo=bar")
        await client.apply([])
        async with client.read(f"{JOURNAL};meta") as reader:
            await reader.read()
        await client.append(f"{JOURNAL};meta", b"content")
        await client.list_fragments(JOURNAL)
        await client.fragment_store_health("file:///store/")
    await broker.read_requests.get()

    seen = []
    for method, metadata in broker.metadata:
        claims = claims_of(metadata)
        seen.append((method, claims.capability, pb.format_label_selector(claims.selector)))
        assert claims.expires_at is not None
        assert claims.issued_at is not None
        lasts = claims.expires_at - claims.issued_at
        assert lasts == (60 if method == "Apply" else 3600)
    can = pb.Capability
    assert seen == [
        ("List", can.LIST, "foo=bar"),
        ("Apply", can.APPLY, ""),
        ("Read", can.READ, f"name={JOURNAL}"),
        ("Append", can.APPEND, f"name={JOURNAL}"),
        ("ListFragments", can.READ, f"name={JOURNAL}"),
        ("FragmentStoreHealth", can.READ, ""),
    ]


async def test_claims_of_the_context(broker: StubBroker) -> None:
    MemoryJournals(broker)
    wide = pb.Claims(pb.Capability.APPEND | pb.Capability.READ)
    async with connect(broker.endpoint, auth=pb.KeyedAuth(KEY)) as client:
        with pb.with_claims(wide):
            await client.append(JOURNAL, b"content")
            # The service works for all, not just for who happens to come first.
            append = client.appends.try_append(JOURNAL, b"content")
            assert append is not None
            await append
    first, second = (claims_of(metadata) for _, metadata in broker.metadata)
    assert first.capability == wide.capability
    assert second.capability == pb.Capability.APPEND
    assert pb.format_label_selector(second.selector) == f"name={JOURNAL}"


async def test_tokens_from_elsewhere(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()
    tokens = iter(["one", "two"])

    async def fresh() -> str:
        await asyncio.sleep(0)
        return next(tokens)

    class Asking:
        async def authorize(self, claims: pb.Claims, lifetime: dt.timedelta) -> pb.Metadata:
            return (("authorization", f"Bearer asked-{claims.capability:d}"),)

    for auth, times in (
        (pb.BearerAuth("fixed"), 1),
        (fresh, 2),
        (lambda: "plain", 1),
        (Asking(), 1),
        (pb.NoopAuth(), 1),
    ):
        async with connect(broker.endpoint, auth=auth) as client:  # type: ignore[arg-type]
            for _ in range(times):
                await client.list()
    assert [metadata.get("authorization") for _, metadata in broker.metadata] == [
        "Bearer fixed",
        "Bearer one",
        "Bearer two",
        "Bearer plain",
        "Bearer asked-2",
        None,
    ]
    with pytest.raises(pb.ConfigurationError, match="can't authorize by a int"):
        connect(broker.endpoint, auth=7)  # type: ignore[arg-type]


def test_authorization_by_the_environment() -> None:
    assert isinstance(auth_from_environment({}), pb.NoopAuth)
    assert isinstance(auth_from_environment({"BROKER_AUTH_TOKEN": "token"}), pb.BearerAuth)
    both = {"BROKER_AUTH_TOKEN": "token", "BROKER_AUTH_KEYS": KEY}
    assert isinstance(auth_from_environment(both), pb.KeyedAuth)
    with pytest.raises(pb.ConfigurationError):
        auth_from_environment({"BROKER_AUTH_KEYS": "not base64!"})


async def test_secrets_do_not_show(broker: StubBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    policy = RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)
    for auth in (pb.KeyedAuth(KEY), pb.BearerAuth("secret-token"), lambda: "secret-token"):
        broker.finish()
        broker.finish()
        async with connect(broker.endpoint, auth=auth, retry=policy) as client:
            reader = client.read(JOURNAL)
            with pytest.raises(pb.GazetteError) as raised:
                await reader.read()
            shown = f"{client!r} {reader!r} {client.rpc!r} {raised.value!r} {client.status()}"
            await reader.aclose()
        assert "secret" not in shown
        assert KEY not in shown
    assert "secret-token" not in caplog.text
    assert KEY not in caplog.text
    while not broker.read_requests.empty():
        await broker.read_requests.get()


# Where a client may be used.


async def test_it_belongs_to_one_event_loop(broker: StubBroker, client: JournalClient) -> None:
    broker.list_handler = lambda request: listing()
    await client.list()
    errors: list[BaseException] = []

    def elsewhere() -> None:
        async def use() -> None:
            for use in (
                client.list(),
                client.append(JOURNAL, b"content"),
                client.appends.start_append(JOURNAL),
            ):
                try:
                    await use
                except RuntimeError as error:
                    errors.append(error)

        asyncio.run(use())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(errors) == 3
    assert all("belongs to another event loop" in str(error) for error in errors)


async def test_it_belongs_to_one_process(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.list_handler = lambda request: listing()
    await client.list()
    own = os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(RuntimeError, match="before this process was forked"):
            await client.list()
        with pytest.raises(RuntimeError, match="before this process was forked"):
            await client.appends.start_append(JOURNAL)
    await client.list()


async def test_it_warns_when_it_was_never_closed(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()
    client = connect(broker.endpoint)
    await client.list()
    with pytest.warns(ResourceWarning, match="JournalClient of .* was never closed"):
        client.__del__()
    await client.aclose()
    await client.aclose()
    with pytest.raises(RuntimeError, match="is closed"):
        await client.list()
    with pytest.raises(RuntimeError, match="closed"):
        await client.append(JOURNAL)


async def test_closing_waits_for_appends(broker: StubBroker) -> None:
    journals = MemoryJournals(broker)
    async with connect(broker.endpoint) as client:
        for number in range(100):
            client.appends.try_append(JOURNAL, b"%02d" % number)
    assert len(journals.contents[JOURNAL]) == 200


@pytest.mark.parametrize("token", ["secret\n", "s\u00e9cret", None, b"secret"])
async def test_what_is_not_a_token_is_not_sent(broker: StubBroker, token: object) -> None:
    source: Any = lambda: token  # noqa: E731
    async with connect(broker.endpoint, auth=source) as client:
        with pytest.raises(pb.ConfigurationError, match="token") as raised:
            await client.append(JOURNAL, b"content")
    assert "cret" not in str(raised.value)
    assert broker.metadata == []
