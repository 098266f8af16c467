"""RPCs go to brokers which serve their journal, as the responses of scripted ones tell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy
from gazette_aio.testing.stub_broker import StubError
from tests.client.rpc.cluster import (
    NOT_PRIMARY,
    UNAVAILABLE,
    Cluster,
    connected,
    read_all,
    silent_port,
    states,
    until_ready,
)
from tests.client.support import JOURNAL, content, listing
from tests.waiting import eventually

# Learning and using routes.


async def test_appends_follow_the_primary(pair: Cluster) -> None:
    one, two = (pair.brokers[name].endpoint for name in ("one", "two"))
    async with connected(pair) as client:
        await client.append(JOURNAL, b"first, ")  # Which is proxied, and tells of the route.
        assert pair.served() == {"one": 1}
        assert client.router.route(JOURNAL) == pair.route()
        await client.append(JOURNAL, b"second, ")  # Begins to connect, if it waits for nothing.
        await until_ready(client, two)
        pair.served()
        for _ in range(3):
            await client.append(f"{JOURNAL};meta", b"third, ")
        assert pair.served() == {"two": 3}
        assert [member.rpcs for member in client.status().members] == [0]

        # The primary moves: the former one proxies, and tells.
        pair.primary = "one"
        await client.append(JOURNAL, b"fourth, ")
        assert pair.served() == {"two": 1}
        for _ in range(3):
            await client.append(JOURNAL, b"fifth, ")
        assert pair.served() == {"one": 3}
        # It has a connection to the default address already.
        assert set(states(client)) == {two}
        assert one not in states(client)
    assert pair.content.startswith(b"first, second, third, third, third, fourth, fifth")


async def test_reads_go_to_the_same_zone(cluster: Cluster) -> None:
    for name, zone in (("one", "remote"), ("two", "remote"), ("three", "local")):
        await cluster.add(name, zone)
    cluster.primary, cluster.content = "two", b"content"
    three = cluster.brokers["three"].endpoint
    async with connected(cluster) as client:
        assert await read_all(client, 7) == b"content"
        await read_all(client, 7)
        await until_ready(client, three)
        cluster.served()
        for _ in range(5):
            assert await read_all(client, 7) == b"content"
        await client.list_fragments(JOURNAL)
        assert cluster.served() == {"three": 6}
    async with connected(cluster, zone="remote") as client:
        # Its own address is of that zone, and connected.
        for _ in range(5):
            await read_all(client, 7)
        assert cluster.served() == {"one": 5}
        assert states(client) == {}


async def test_listings_tell_of_routes(pair: Cluster) -> None:
    listed = listing("a/one", "a/two", "a/three")
    for listing_of_one in listed.journals:
        listing_of_one.route.CopyFrom(pair.route())
    pair.brokers["one"].list_handler = lambda _: listed
    async with connected(pair) as client:
        await client.list()
        for journal in ("a/one", "a/two;meta", "a/three"):
            assert client.router.route(journal) == pair.route()


async def test_refusals_tell_of_routes(pair: Cluster) -> None:
    async with connected(pair) as client:
        pair.failures["one"] = [pb.Status.WRONG_APPEND_OFFSET]
        with pytest.raises(pb.WrongAppendOffsetError):
            await client.append(JOURNAL, b"content")
        assert client.router.route(JOURNAL) == pair.route()
        client.router.update_route(JOURNAL, None)

        pair.failures["one"] = [pb.Status.NOT_ALLOWED]
        with pytest.raises(pb.NotAllowedError):
            await read_all(client, 7)
        assert client.router.route(JOURNAL) == pair.route()
        client.router.update_route(JOURNAL, None)

        # But not what isn't a response.
        pair.failures["one"] = [StubError(grpc.StatusCode.UNKNOWN, "an error")]
        with pytest.raises(pb.TransportError):
            await client.append(JOURNAL, b"content")
        assert not client.router.route(JOURNAL).members


async def test_no_routes_without_a_cache(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_CACHE_SIZE", "0")
    async with connected(pair) as client:
        assert client.router.is_noop_router()
        for _ in range(3):
            await client.append(JOURNAL, b"content")
        assert pair.served() == {"one": 3}
        assert states(client) == {}
    async with connected(pair, cache_size=1, cache_ttl=5.0) as client:
        assert not client.router.is_noop_router()
    with pytest.raises(pb.ConfigurationError):
        connected(pair, cache_size=-1)


async def test_routes_expire(pair: Cluster) -> None:
    async with connected(pair, cache_ttl=0.0) as client:
        await client.append(JOURNAL, b"content")
        assert not client.router.route(JOURNAL).members


# Members which can't be reached.


async def test_members_are_never_waited_for(pair: Cluster) -> None:
    with silent_port() as endpoint:
        pair.endpoints["two"] = endpoint
        # Whoever waited for the connection would have no end.
        async with connected(pair, connect_timeout=1e6) as client:
            for _ in range(20):
                await client.append(JOURNAL, b"x")
                assert await read_all(client, 1) == b"x"
            assert pair.served() == {"one": 40}
            assert states(client) == {endpoint: "connecting"}


async def test_a_poisoned_route_costs_no_attempt(pair: Cluster) -> None:
    poison = pb.Route(
        members=[pb.ProcessSpec.ID(zone="local", suffix="poison")],
        endpoints=["http://0.0.0.0:0"],
        primary=0,
    )
    retries: list[object] = []
    policy = RetryPolicy(on_error=retries.append)
    pair.content = b"content"
    async with connected(pair, retry=policy) as client:
        for use in (
            lambda: client.append(JOURNAL, b"content"),
            lambda: read_all(client, 7),
            lambda: client.list_fragments(JOURNAL),
        ):
            client.router.update_route(JOURNAL, poison)
            await use()
        assert pair.served() == {"one": 3}
    assert retries == []


async def test_a_member_which_dies_between_rpcs(pair: Cluster) -> None:
    two = pair.brokers["two"]
    async with connected(pair) as client:
        await client.append(JOURNAL, b"content")
        await client.append(JOURNAL, b"content")
        await until_ready(client, two.endpoint)
        await two.stop()
        for _ in range(3):
            await client.append(JOURNAL, b"content")
        await eventually(lambda: states(client)[two.endpoint] == "transient_failure")
        client.context.dispatcher.pool.connections[two.endpoint].is_dubious = True
        pair.served()
        for _ in range(3):
            await client.append(JOURNAL, b"content")
        assert pair.served() == {"one": 3}

        # It's taken up again once it's back.
        await two.start(two.endpoint.removeprefix("http://"))
        await until_ready(client, two.endpoint)
        await client.append(JOURNAL, b"content")
        assert pair.served() == {"two": 1}


async def test_unavailable_members_are_forgotten(pair: Cluster) -> None:
    async with connected(pair, cache_ttl=1000.0) as client:

        async def learn() -> None:
            client.context.dispatcher.pool.sweep()
            await client.append(JOURNAL, b"content")
            await client.append(JOURNAL, b"content")
            await until_ready(client, pair.brokers["two"].endpoint)
            pair.replicas = ["two"]
            await client.append(JOURNAL, b"content")
            pair.served()

        for use in (
            lambda: client.append(JOURNAL, b"content"),
            lambda: read_all(client, 7),
            lambda: client.list_fragments(JOURNAL),
        ):
            await learn()
            pair.failures["two"] = [UNAVAILABLE]
            await use()
            assert pair.served() == {"two": 1, "one": 1}

            await learn()
            pair.failures["two"] = [StubError(grpc.StatusCode.UNKNOWN, "an error")]
            with contextlib.suppress(pb.TransportError):
                await use()
            assert set(pair.served()) == {"two"}
            assert client.router.route(JOURNAL) == pair.route()
        await eventually(lambda: client.status().members[0].rpcs == 0)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "UNIMPLEMENTED"])
async def test_who_answers_in_place_of_a_member(pair: Cluster, code: str) -> None:
    """Such as a proxy which has no route there, or another server of this machine."""
    two = pair.brokers["two"].endpoint
    async with connected(pair) as client:
        pool = client.context.dispatcher.pool
        await client.append(JOURNAL, b"content")
        await client.append(JOURNAL, b"content")
        await until_ready(client, two)
        pair.served()
        pair.replicas = ["two"]
        pair.failures["two"] = [StubError(grpc.StatusCode[code], "not a broker")] * 9
        for _ in range(2):
            with contextlib.suppress(pb.TransportError):
                await client.append(JOURNAL, b"content")
            assert pair.served().pop("two") == 1
            # Its RPCs go to the default address, until there's reason to think otherwise.
            for _ in range(3):
                await client.append(JOURNAL, b"content")
                assert await read_all(client, 7) == b"content"
                await client.list_fragments(JOURNAL)
            assert pair.served() == {"one": 9}
            pool.sweep()
        # But for one which another broker refers to.
        pair.failures["two"] = []
        pool.connections[two].is_dubious = True
        pair.failures["one"] = [NOT_PRIMARY]
        await client.append(pb.AppendRequest(journal=JOURNAL, do_not_proxy=True), b"content")
        assert pair.served() == {"one": 1, "two": 1}


async def test_errors_name_the_member(pair: Cluster) -> None:
    policy = RetryPolicy(max_attempts=1)
    endpoint = pair.brokers["two"].endpoint
    async with connected(pair, retry=policy) as client:
        await client.append(JOURNAL, b"content")
        await client.append(JOURNAL, b"content")
        await until_ready(client, endpoint)
        pair.replicas = ["two"]
        for use in (
            lambda: client.append(JOURNAL, b"content"),
            lambda: read_all(client, 7),
            lambda: client.list_fragments(JOURNAL),
        ):
            client.router.update_route(JOURNAL, pair.route())
            client.context.dispatcher.pool.sweep()
            pair.failures["two"] = [UNAVAILABLE]
            with pytest.raises(pb.TransportError, match=f"broker {endpoint}: going down"):
                await use()


async def test_a_member_which_dies_amid_a_stream(pair: Cluster) -> None:
    pair.content, pair.replicas = b"some content", ["two"]
    hold = asyncio.Event()

    async def half(name: str, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        begin = request.offset
        if name == "one":
            yield content(begin, pair.content[begin:])
            return
        yield content(begin, pair.content[begin : begin + 5])
        await hold.wait()

    pair.on_read = half
    async with connected(pair) as client:
        client.router.update_route(JOURNAL, pair.route())
        await client.append(JOURNAL, b"")
        await until_ready(client, pair.brokers["two"].endpoint)
        async with client.read(JOURNAL, end_offset=12) as reader:
            assert await reader.read() == b"some "
            assert client.status().members[0].rpcs == 1
            pair.served()
            await pair.brokers["two"].stop()
            assert await reader.read() == b"content"
        assert pair.served() == {"one": 1}
        assert client.status().members[0].rpcs == 0
    hold.set()
