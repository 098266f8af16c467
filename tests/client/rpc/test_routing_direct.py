"""RPCs which forbid to proxy go where refusals point to."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient, RetryPolicy
from gazette_aio.testing.ports import free_port
from tests.client.rpc.cluster import (
    NOT_BROKER,
    NOT_PRIMARY,
    Cluster,
    connected,
    silent_port,
    states,
)
from tests.client.support import JOURNAL
from tests.waiting import eventually


async def direct_append(client: JournalClient) -> pb.AppendResponse:
    return await client.append(pb.AppendRequest(journal=JOURNAL, do_not_proxy=True), b"content")


@pytest.mark.parametrize("cache_size", [0, 10])
async def test_refusals_lead_to_the_primary(pair: Cluster, cache_size: int) -> None:
    pair.failures["one"] = [NOT_PRIMARY] * 2
    policy = RetryPolicy(max_attempts=1)
    request = pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
    async with connected(pair, retry=policy, cache_size=cache_size) as client:
        await client.append(request, b"content")
        assert pair.served() == {"one": 1, "two": 1}
        await client.append(request, b"content")
        assert pair.served() == ({"two": 1} if cache_size else {"one": 1, "two": 1})
    # Neither the wire nor the caller gets to see what led there.
    assert request == pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
    assert all(request == received for _, received in pair.requests)


async def test_refusals_lead_the_append_service(pair: Cluster) -> None:
    pair.failures["one"] = [NOT_PRIMARY]
    request = pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
    async with connected(pair, cache_size=0, retry=RetryPolicy(max_attempts=1)) as client:
        async with client.appends.append(request) as append:
            append.write(b"content")
        await append
    assert pair.served() == {"one": 1, "two": 1}
    assert all(request == received for _, received in pair.requests)


@pytest.mark.parametrize("cache_size", [0, 10])
async def test_refusals_lead_to_replicas(pair: Cluster, cache_size: int) -> None:
    pair.replicas, pair.content = ["two"], b"content"
    pair.failures["one"] = [NOT_BROKER]
    request = pb.ReadRequest(journal=JOURNAL, do_not_proxy=True, end_offset=7)
    async with (
        connected(pair, retry=RetryPolicy(max_attempts=1), cache_size=cache_size) as client,
        client.read(request) as reader,
    ):
        assert await reader.read() == b"content"
    assert pair.served() == {"one": 1, "two": 1}
    assert not any(received.HasField("header") for _, received in pair.requests)


async def test_hops_are_bounded(pair: Cluster) -> None:
    pair.failures = {"one": [NOT_PRIMARY] * 9, "two": [NOT_PRIMARY] * 9}
    policy = RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)
    async with connected(pair, retry=policy) as client:
        with pytest.raises(pb.NotJournalPrimaryBrokerError) as raised:
            await direct_append(client)
        assert raised.value.attempt == 1
        # Each attempt is followed by three hops. The second one makes use of the route it learnt.
        assert sum(pair.served().values()) == 8


async def test_who_forbids_to_proxy_waits_within_bounds(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(max_attempts=1)
    with silent_port() as endpoint:
        pair.endpoints["two"] = endpoint
        pair.failures["one"] = [NOT_PRIMARY] * 9
        async with connected(pair, retry=policy, connect_timeout=0.05) as client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(pb.NotJournalPrimaryBrokerError):
                await direct_append(client)
            assert asyncio.get_running_loop().time() - began >= 0.05
            assert pair.served() == {"one": 4}
            # Once is enough, until there is a connection: this would have no end. Private: the
            # time-out of a client doesn't change.
            monkeypatch.setattr(client.context.dispatcher, "_connect_timeout", 1e6)
            pair.failures["one"] = []
            await direct_append(client)
            assert client.status().members[0].rpcs == 0


async def test_who_forbids_to_proxy_is_told_of_refused_connections(pair: Cluster) -> None:
    pair.endpoints["two"] = f"http://127.0.0.1:{free_port()}"
    pair.failures["one"] = [NOT_PRIMARY] * 9
    policy = RetryPolicy(max_attempts=1)
    # Whoever waited for a connection would have no end.
    async with connected(pair, retry=policy, connect_timeout=1e6) as client:
        with pytest.raises(pb.NotJournalPrimaryBrokerError):
            await direct_append(client)


async def test_waiting_for_a_member_is_cancelled(pair: Cluster) -> None:
    with silent_port() as endpoint:
        pair.endpoints["two"] = endpoint
        async with connected(pair) as client:
            client.router.update_route(JOURNAL, pair.route())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await direct_append(client)
            assert client.status().members[0].rpcs == 0
        assert pair.served() == {}


async def test_closing_ends_waiting_for_a_member(pair: Cluster) -> None:
    with silent_port() as endpoint:
        pair.endpoints["two"] = endpoint
        client = connected(pair)
        client.router.update_route(JOURNAL, pair.route())
        waiting = asyncio.create_task(direct_append(client))
        await eventually(lambda: states(client).get(endpoint) == "connecting")
        await client.aclose()
        with pytest.raises((RuntimeError, pb.TransportError), match="closed"):
            await waiting
