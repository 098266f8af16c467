"""Retries of calls of Etcd, and the endpoints that they use."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from gazette_aio.consumer.keyspace.errors import (
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Get, Put
from gazette_aio.testing.fault_proxy import FaultProxy
from gazette_aio.testing.leaks import no_leaks
from gazette_aio.testing.ports import free_port
from tests.cancellation import cancel_at, cancel_at_every_await, close_at_every_await
from tests.consumer.keyspace.etcd.stub import HEADER, StubEtcd
from tests.waiting import eventually, turns

RANGE = pb.RangeResponse(header=HEADER)
TXN = pb.TxnResponse(header=HEADER, succeeded=True, responses=[pb.ResponseOp()])
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
TIMED_OUT = (UNAVAILABLE, "etcdserver: request timed out")
NO_LEADER = (UNAVAILABLE, "etcdserver: no leader")


def client(*endpoints, **options):
    return EtcdStore(EtcdOptions(endpoints=endpoints, **options))


def put(store, value=b""):
    return store.transact((), [Put("/a", value)])


async def test_reads_are_repeated():
    async with (
        StubEtcd(Range=[TIMED_OUT, NO_LEADER, RANGE]) as stub,
        client(stub.endpoint) as store,
    ):
        assert (await store.range("/")).header.revision == 3
        assert stub.calls.count("Range") == 3
        assert stub.metadata[-1]["hasleader"] == "true"


async def test_writes_are_repeated_only_if_they_surely_had_no_effect():
    async with StubEtcd(Txn=[NO_LEADER, TXN]) as stub, client(stub.endpoint) as store:
        assert (await put(store)).succeeded
        assert stub.calls.count("Txn") == 2
    async with StubEtcd(Txn=[TIMED_OUT, TXN]) as stub, client(stub.endpoint) as store:
        with pytest.raises(StoreUnavailableError, match="request timed out") as caught:
            await put(store)
        assert caught.value.outcome_unknown
        assert stub.calls.count("Txn") == 1


async def test_transactions_that_only_read_are_repeated():
    async with StubEtcd(Txn=[TIMED_OUT, TXN]) as stub, client(stub.endpoint) as store:
        await store.transact((), [Get("/a")])
        assert stub.calls.count("Txn") == 2


async def test_refusals_are_not_repeated():
    refusal = (grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: no such thing")
    async with StubEtcd(Range=[refusal]) as stub, client(stub.endpoint) as store:
        with pytest.raises(StoreRefusedError, match="no such thing"):
            await store.range("/")
        assert stub.calls.count("Range") == 1


async def test_repeats_end():
    async with StubEtcd(Range=[TIMED_OUT]) as stub:
        async with client(stub.endpoint, retry_seconds=1.0) as store:
            calls = 0
            while calls < 2:  # A busy machine may need all of the time for the first one.
                stub.calls.clear()
                with pytest.raises(StoreUnavailableError, match="request timed out"):
                    await store.range("/")
                calls = stub.calls.count("Range")


async def test_old_servers_are_refused():
    async with StubEtcd(Status=[pb.StatusResponse(version="3.3.27")]) as stub:
        with pytest.raises(
            StoreRefusedError, match=r"Etcd 3\.3\.27 at .* is too old: 3\.4 or newer"
        ):
            async with client(stub.endpoint):
                pytest.fail("an old server was accepted")


async def test_connecting_waits_and_says_so(caplog):
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    opening = asyncio.create_task(client(endpoint).__aenter__())
    await eventually(lambda: "no connection to Etcd" in caplog.text)
    assert f"no connection to Etcd at {endpoint} yet: " in caplog.text
    assert "Connection refused" in caplog.text
    assert not opening.done()
    opening.cancel()
    await asyncio.wait((opening,))
    assert opening.cancelled()


async def test_one_of_two_endpoints_is_dead(etcd):
    dead = f"http://127.0.0.1:{free_port()}"
    async with no_leaks(), client(dead, etcd.endpoint) as store:
        revision = (await put(store)).header.revision
        watch = store.watch("/", revision)
        assert (await anext(watch)).events[0].key == "/a"
        await watch.aclose()
        async with store.lease(60) as lease:
            assert not lease.lost.is_set()


async def test_calls_move_to_another_endpoint(etcd):
    async with FaultProxy(etcd.endpoint) as proxy, client(proxy.endpoint, etcd.endpoint) as store:
        await put(store)
        await proxy.refuse()
        assert len((await store.range("/")).entries) == 1
        await put(store)


async def test_calls_leave_an_endpoint_that_is_silent(etcd):
    async with FaultProxy(etcd.endpoint) as proxy:
        async with client(proxy.endpoint, etcd.endpoint, timeout_seconds=0.5) as store:
            # Whichever connected first: from now on, the proxy is. Unlike writes, reads are repeated
            # on a busy machine.
            await store.range("/")
            proxy.stall()
            await store.range("/")


async def test_configured_endpoints_are_of_one_cluster():
    elsewhere = pb.ResponseHeader(cluster_id=99, member_id=2, revision=3, raft_term=4)
    wrong = pb.StatusResponse(header=elsewhere, version="3.5.1")
    async with StubEtcd(Range=[TIMED_OUT]) as stub:
        async with StubEtcd(Status=[wrong], Range=[TIMED_OUT]) as other:
            async with client(stub.endpoint, other.endpoint) as store:
                with pytest.raises(StoreRefusedError, match="is of another cluster"):
                    await store.range("/")


async def test_connecting_waits_for_a_leader(caplog):
    ready = pb.StatusResponse(header=HEADER, version="3.5.1")
    async with StubEtcd(Status=[NO_LEADER, ready], Range=[RANGE]) as stub:
        async with client(stub.endpoint) as store:
            await store.range("/")
        assert "Etcd isn't available yet: etcdserver: no leader" in caplog.text


async def test_transactions_beyond_limits(etcd):
    async with client(etcd.endpoint) as store:
        with pytest.raises(
            StoreRefusedError, match=r"too large \(the transaction has 16\d{5} bytes"
        ):
            await put(store, bytes(1_600_000))
        with pytest.raises(StoreRefusedError, match=r"\(the transaction has 3\d{6} bytes"):
            await put(store, bytes(3_000_000))
        with pytest.raises(StoreRefusedError, match="the transaction has 129 operations"):
            await store.transact((), [Put(f"/{n}", b"") for n in range(129)])
        await put(store, bytes(1_500_000))
        assert len((await store.range("/")).entries[0].value) == 1_500_000


async def test_keys_that_are_not_text_survive(etcd):
    async with client(etcd.endpoint) as store:
        await store.transact((), [Put("/a/\udcff", b""), Put("/a/ä", b"")])
        assert [each.key for each in (await store.range("/a/")).entries] == ["/a/ä", "/a/\udcff"]


async def test_calls_end_with_the_client(etcd):
    async with no_leaks():
        store = await client(etcd.endpoint).__aenter__()
        watch = store.watch("/", (await put(store)).header.revision)
        await anext(watch)
        waiting = asyncio.create_task(anext(watch))
        await turns()
        await store.aclose()
        with pytest.raises(KeyValueStoreError, match="is closed"):
            await waiting
        with pytest.raises(KeyValueStoreError, match="is closed"):
            await store.range("/")
        await store.aclose()


async def test_every_await_may_be_cancelled(etcd, caplog):
    caplog.set_level(logging.CRITICAL)

    async def use():
        async with client(etcd.endpoint) as store:
            revision = (await put(store)).header.revision
            await store.range("/")
            watch = store.watch("/", revision)
            try:
                await anext(watch)
            finally:
                await watch.aclose()
            async with store.lease(60) as lease:
                await store.transact((), [Put("/leased", b"", lease=lease.id)])

    async def check():
        async with client(etcd.endpoint) as store:
            assert (await store.range("/leased")).entries == ()

    async with no_leaks():
        assert await cancel_at_every_await(use, check) > 8


async def test_closing_may_be_cancelled_at_every_await(etcd):
    async def opened():
        store = await client(etcd.endpoint).__aenter__()
        await store.range("/")
        return store

    async with no_leaks():
        await close_at_every_await(opened)
    number, was_cancelled = 0, True
    while was_cancelled:
        store = await opened()
        async with no_leaks():
            was_cancelled = await cancel_at(store.aclose(), number)
            with pytest.raises(KeyValueStoreError, match="is closed"):
                await store.range("/")
        number += 1
