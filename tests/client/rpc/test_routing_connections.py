"""Connections to members: which are made, which are used, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import TLSOptions, connect
from gazette_aio.client.rpc.channel_pool import MOST_CONNECTIONS, ChannelPool, JournalMethods
from gazette_aio.client.rpc.dispatch import Dispatcher
from gazette_aio.client.rpc.member_choice import Mode
from tests.client.rpc.cluster import (
    INSTANT,
    Cluster,
    connected,
    states,
    until_ready,
)
from tests.client.support import JOURNAL, content
from tests.waiting import eventually

# Which members are dialled at all.


def member(endpoint: str) -> pb.Header:
    return pb.Header(
        route=pb.Route(
            members=[pb.ProcessSpec.ID(zone="local", suffix="member")],
            endpoints=[endpoint],
            primary=0,
        )
    )


def dispatcher(address: str = "http://127.0.0.1:1", **options: Any) -> Dispatcher[JournalMethods]:
    return Dispatcher(address, JournalMethods, TLSOptions(), connect_timeout=1.0, **options)


@pytest.mark.parametrize(
    ("address", "endpoint", "dialled"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:2", True),
        ("http://127.0.0.1:1", "https://127.0.0.1:2", True),
        ("http://127.0.0.1:1", "unix://localhost/tmp/socket", False),
        ("https://127.0.0.1:1", "http://127.0.0.1:2", False),
        ("https://127.0.0.1:1", "https://127.0.0.1:2", True),
        ("https://127.0.0.1:1", "unix://localhost/tmp/socket", False),
        ("unix://localhost/tmp/one", "http://127.0.0.1:2", False),
        ("unix://localhost/tmp/one", "https://127.0.0.1:2", True),
        ("unix://localhost/tmp/one", "unix://other/tmp/two", True),
        # The default address, in other words.
        ("http://127.0.0.1:1", "http://127.0.0.1:1/", False),
        ("http://127.0.0.1", "HTTP://127.0.0.1:80", False),
        ("unix://localhost/tmp/one", "unix://other/tmp/one", False),
        ("http://127.0.0.1:1", "", False),
        ("http://127.0.0.1:1", "127.0.0.1:2", False),
        ("http://127.0.0.1:1", "ftp://127.0.0.1:2", False),
        ("http://127.0.0.1:1", "http://[::1", False),
        ("http://127.0.0.1:1", "http://host\x00/", False),
    ],
)
async def test_members_which_are_dialled(address: str, endpoint: str, dialled: bool) -> None:
    subject = dispatcher(address)
    for mode in (Mode.PRIMARY, Mode.REPLICA):
        # Nothing answers, so that it's always the default one.
        assert subject.connection(JOURNAL, mode, member(endpoint)) is subject.default()
    assert [status.endpoint for status in subject.members()] == [endpoint] * dialled
    await subject.aclose()


@given(st.lists(st.text() | st.from_regex(r"\A(https?|unix)://.{0,30}"), min_size=10, max_size=20))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hostile_endpoints(endpoints: list[str]) -> None:
    async def use() -> None:
        subject = dispatcher()
        for endpoint in endpoints:
            hint = member("")
            try:
                hint.route.endpoints[0] = endpoint
            except (UnicodeEncodeError, ValueError):
                continue  # It can't be on the wire either.
            assert subject.connection(JOURNAL, Mode.REPLICA, hint) is subject.default()
        await subject.aclose()

    asyncio.run(use())


async def test_connections_are_bounded() -> None:
    channels = FakeChannels()
    pool = ChannelPool(channels.dial, JournalMethods)  # type: ignore[arg-type]
    made = [pool.connection(f"http://member:{port}") for port in range(MOST_CONNECTIONS + 5)]
    assert made[MOST_CONNECTIONS:] == [None] * 5
    assert len(channels.dialled) == MOST_CONNECTIONS
    assert pool.connection("http://member:7") is made[7]
    assert f"{MOST_CONNECTIONS} connections" in repr(pool)
    await pool.aclose()


async def test_plaintext_members_of_a_secure_cluster(tmp_path: Path) -> None:
    """A token which is sent to `https` never travels in the clear."""
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    certificate = authority.issue_cert("127.0.0.1")
    credentials = grpc.ssl_server_credentials(
        [(certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())]
    )
    cluster = Cluster()
    servers: list[grpc.aio.Server] = []
    ports: dict[str, int] = {}
    for name in ("one", "two"):
        await cluster.add(name)
        server = grpc.aio.server()
        # The stub opens no TLS ports itself.
        handlers = cluster.brokers[name]._handlers()  # pyright: ignore[reportPrivateUsage]
        server.add_generic_rpc_handlers((handlers,))
        ports[name] = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        servers.append(server)
    cluster.primary = "two"
    options: dict[str, Any] = {
        "tls": TLSOptions(ca_file=ca),
        "auth": pb.BearerAuth("secret"),
        "retry": INSTANT,
        "strict": True,
    }
    async with connect(f"https://127.0.0.1:{ports['one']}", **options) as client:
        for _ in range(3):
            await client.append(JOURNAL, b"content")
        assert states(client) == {}
        assert cluster.served() == {"one": 3}
        # Whereas secure ones are dialled, and trusted by the same authority.
        cluster.endpoints["two"] = two = f"https://127.0.0.1:{ports['two']}"
        for _ in range(2):
            await client.append(JOURNAL, b"content")
        await until_ready(client, two)
        cluster.served()
        await client.append(JOURNAL, b"content")
        assert [
            (method, sent["authorization"]) for method, sent in cluster.brokers["two"].metadata
        ] == [("Append", "Bearer secret")]
    for server in servers:
        await server.stop(None)
    await cluster.aclose()


async def test_unix_members(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        await cluster.add(name, address=f"unix:{tmp_path}/{name}")
    cluster.primary = "two"
    async with connected(cluster) as client:
        for _ in range(2):
            await client.append(JOURNAL, b"content")
        await until_ready(client, cluster.brokers["two"].endpoint)
        cluster.served()
        await client.append(JOURNAL, b"content")
        assert cluster.served() == {"two": 1}
        assert "ready, 1 connections to members" in repr(client.context.dispatcher)


# The life of connections.


class FakeChannels:
    """Channels which are ready at once."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.closed: list[str] = []

    def dial(self, endpoint: str) -> FakeChannel:
        self.dialled.append(endpoint)
        return FakeChannel(self, endpoint)


class FakeChannel:
    def __init__(self, channels: FakeChannels, endpoint: str) -> None:
        self.channels = channels
        self.endpoint = endpoint

    def unary_unary(self, *_: object) -> None: ...

    unary_stream = stream_unary = unary_unary

    def get_state(self, *, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        self.channels.closed.append(self.endpoint)


async def test_sweeps_go_on_while_there_are_connections() -> None:
    channels = FakeChannels()
    pool = ChannelPool(channels.dial, JournalMethods, sweep_seconds=0.001)  # type: ignore[arg-type]
    for _ in range(2):
        pool.connection("member")
        await eventually(lambda: not pool.connections)
    await eventually(lambda: channels.closed == ["member"] * 2)
    await pool.aclose()


async def test_rpcs_keep_connections(pair: Cluster) -> None:
    hold = asyncio.Event()

    async def wait(name: str, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        await hold.wait()
        yield content(request.offset, b"content")

    pair.on_read, pair.replicas = wait, ["two"]
    async with connected(pair) as client:
        pool = client.context.dispatcher.pool
        client.router.update_route(JOURNAL, pair.route())
        await client.append(JOURNAL, b"content")
        await until_ready(client, pair.brokers["two"].endpoint)
        async with client.read(JOURNAL, end_offset=7) as reader:
            reading = asyncio.create_task(reader.read())
            await eventually(lambda: client.status().members[0].rpcs == 1)
            for _ in range(3):
                pool.sweep()
            assert len(pool.connections) == 1
            hold.set()
            assert await reading == b"content"
        await eventually(lambda: client.status().members[0].rpcs == 0)
        pool.sweep()
        assert len(pool.connections) == 1  # The read was a use.
        pool.sweep()
        assert client.status().members == ()
        # Those who come back are dialled again.
        await client.append(JOURNAL, b"content")
        await until_ready(client, pair.brokers["two"].endpoint)


async def test_rpcs_which_are_given_up_let_go_of_connections(pair: Cluster) -> None:
    async with connected(pair) as client:
        await client.append(JOURNAL, b"content")
        await client.append(JOURNAL, b"content")
        await until_ready(client, pair.brokers["two"].endpoint)
        for delay in (0.0, 0.001, 0.002):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    while True:
                        await client.append(JOURNAL, b"content")
        async with client.read(JOURNAL, block=True) as reader:
            await reader.read()
        await eventually(lambda: client.status().members[0].rpcs == 0)
