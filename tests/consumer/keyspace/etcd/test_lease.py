"""Leases of Etcd: kept alive by a thread, and lost by the local clock."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import grpc
import pytest

from gazette_aio.client.rpc.dial import Dialler
from gazette_aio.consumer.keyspace.errors import StoreUnavailableError
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.client import EtcdClient
from gazette_aio.consumer.keyspace.etcd.lease import EtcdLease, LeaseKeeper
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.testing.fault_proxy import FaultProxy
from gazette_aio.testing.leaks import no_leaks
from tests.cancellation import cancel_at_every_await
from tests.waiting import eventually, turns

TTL = 2  # The least that Etcd grants by default.


def client(*endpoints, **options):
    return EtcdStore(EtcdOptions(endpoints=endpoints, **options))


async def leased(store, lease):
    await store.transact((), [Put("/leased", b"", lease=lease.id)])


async def is_there(store):
    return bool((await store.range("/leased")).entries)


def keepers():
    return [each for each in threading.enumerate() if each.name.startswith("gazette lease")]


@pytest.mark.slow
async def test_a_lease_is_lost_while_etcd_is_silent(own_etcd):
    async with no_leaks(), client(own_etcd.endpoint) as store:
        began = time.monotonic()
        async with store.lease(TTL) as lease:
            own_etcd.pause()
            # Etcd can't tell, so it's this process's clock which does.
            await lease.lost.wait()
            assert time.monotonic() - began >= TTL
            own_etcd.resume()
    assert keepers() == []


@pytest.mark.slow
async def test_a_lease_outlives_a_blocked_event_loop(etcd):
    async with client(etcd.endpoint) as store, store.lease(6) as lease:
        await leased(store, lease)
        time.sleep(7.5)  # noqa: ASYNC251 - It's meant to block.
        await asyncio.sleep(0)
        assert not lease.lost.is_set()
        assert await is_there(store)
    async with client(etcd.endpoint) as store:
        assert not await is_there(store)


@pytest.mark.slow
async def test_a_process_that_is_stuck_loses_its_lease(etcd, caplog):
    async with client(etcd.endpoint, stalled_ttls=0.5) as store, store.lease(TTL) as lease:
        await leased(store, lease)
        time.sleep(TTL * 2.75)  # noqa: ASYNC251 - It's meant to block.
        await asyncio.wait_for(lease.lost.wait(), 60)
        assert "the event loop stands still" in caplog.text
        await eventually(lambda: is_gone(store))


async def is_gone(store):
    return not await is_there(store)


def renewals(caplog, lease):
    return caplog.text.count(f"lease {lease.id:x} is renewed")


@pytest.mark.slow
async def test_a_lease_survives_a_broken_network(etcd, caplog):
    caplog.set_level(logging.DEBUG, "gazette_aio")
    async with FaultProxy(etcd.endpoint) as proxy:
        async with client(proxy.endpoint) as store, store.lease(6) as lease:
            for count in (1, 2):
                await proxy.reset()
                await eventually(lambda count=count: renewals(caplog, lease) >= count)
            assert not lease.lost.is_set()


@pytest.mark.slow
async def test_a_lease_is_kept_at_another_endpoint(etcd, caplog):
    caplog.set_level(logging.DEBUG, "gazette_aio")
    async with FaultProxy(etcd.endpoint) as proxy:
        async with client(proxy.endpoint, etcd.endpoint) as store, store.lease(6) as lease:
            await proxy.refuse()
            await eventually(lambda: renewals(caplog, lease))
            assert not lease.lost.is_set()


@pytest.mark.slow
async def test_a_lease_that_another_process_revoked_is_lost(etcd):
    async with client(etcd.endpoint) as store, store.lease(TTL) as lease:
        revoke = pb.LeaseRevokeRequest(ID=lease.id)
        await asyncio.to_thread(etcd.call, "Lease/LeaseRevoke", revoke)
        await lease.lost.wait()


async def test_leases_leave_nothing_behind(etcd, caplog):
    async with no_leaks(), client(etcd.endpoint) as store:
        async with store.lease(60) as lease:
            assert f"<EtcdLease {lease.id:x} ttl=60 alive>" == repr(lease)
            assert len(keepers()) == 1
        assert keepers() == []
        listed = pb.LeaseKeepAliveResponse.FromString(
            await asyncio.to_thread(
                etcd.call, "Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease.id)
            )
        )
        assert listed.TTL <= 0
    assert caplog.text == ""


async def test_no_lease_while_etcd_is_down():
    store = client("http://127.0.0.1:1", retry_seconds=0)
    with pytest.raises(StoreUnavailableError, match="no connection to Etcd"):
        async with store.lease(TTL):
            pytest.fail("nobody granted the lease")
    await store.aclose()


async def test_the_end_of_a_lease_may_be_cancelled_at_every_await(etcd):
    async with client(etcd.endpoint) as store:

        async def hold():
            async with store.lease(60) as lease:
                await leased(store, lease)

        async def check():
            assert not await is_there(store)
            assert keepers() == []

        async with no_leaks():
            assert await cancel_at_every_await(hold, check) >= 3


async def test_the_end_of_a_keeper_outlives_cancellations(monkeypatch):
    entered, leave = threading.Event(), threading.Event()

    def dial(_, endpoint):
        entered.set()
        leave.wait()
        return grpc.insecure_channel(endpoint.removeprefix("http://"))

    monkeypatch.setattr(Dialler, "blocking", dial)
    client = EtcdClient(EtcdOptions(endpoints=("http://127.0.0.1:1",)))
    keeper = LeaseKeeper(EtcdLease(7, 1, 1), time.monotonic(), client)
    keeper.start()
    await eventually(entered.is_set)
    stopping = asyncio.create_task(keeper.stop())
    for _ in range(3):
        await turns()
        stopping.cancel()
        await turns()
        assert not stopping.done(), "it left although its thread runs"
    leave.set()
    await asyncio.wait((stopping,))
    assert stopping.cancelled()
    assert keepers() == []
