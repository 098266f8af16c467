"""Interruptions of Etcd and of the network: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import NamedTuple

import pytest

from gazette_aio.consumer.keyspace.errors import CompactedError, StoreUnavailableError
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.consumer.keyspace.operations import Delete, KeyValue, Put
from gazette_aio.testing.fault_proxy import FaultProxy
from gazette_aio.testing.leaks import no_leaks
from tests.waiting import eventually


def client(*endpoints, **options):
    return EtcdStore(EtcdOptions(endpoints=endpoints, **options))


async def put(store, key, value=b""):
    return (await store.transact((), [Put(key, value)])).header.revision


async def follow(store, prefix, revision, seen):
    async with aclosing(store.watch(prefix, revision)) as responses:
        async for response in responses:
            seen.extend(response.events)


async def test_a_pause_of_etcd(own_etcd, caplog):
    caplog.set_level(logging.INFO)
    async with client(own_etcd.endpoint) as patient:
        await put(patient, "/a")
    async with no_leaks(), client(own_etcd.endpoint, timeout_seconds=0.3) as store:
        own_etcd.pause()
        reading = asyncio.create_task(store.range("/"))
        with pytest.raises(StoreUnavailableError, match="Deadline Exceeded") as caught:
            await put(store, "/b")
        assert caught.value.outcome_unknown
        await eventually(lambda: "/etcdserverpb.KV/Range is repeated" in caplog.text)
        assert not reading.done()
        own_etcd.resume()
        assert (await reading).entries[0].key == "/a"


@pytest.mark.slow
async def test_a_restart_of_etcd(own_etcd, caplog):
    async with no_leaks(), client(own_etcd.endpoint, retry_seconds=60) as store:
        first = await put(store, "/a/1")
        seen = []
        watching = asyncio.create_task(follow(store, "/a/", first, seen))
        await eventually(lambda: seen)
        await asyncio.to_thread(own_etcd.stop)
        # What surely wasn't sent waits.
        writing = asyncio.create_task(put(store, "/a/2"))
        reading = asyncio.create_task(store.range("/a/"))
        await eventually(lambda: "no connection to Etcd" in caplog.text)
        assert not writing.done()
        await asyncio.to_thread(own_etcd.start)
        second = await writing
        assert (await reading).header.revision >= first
        await eventually(lambda: len(seen) == 2)
        assert [event.mod_revision for event in seen] == [first, second]
        assert f"connected to Etcd at {own_etcd.endpoint}" in caplog.text
        watching.cancel()
        await asyncio.wait((watching,))


@pytest.mark.slow
async def test_writes_fail_while_etcd_is_down(own_etcd):
    async with client(own_etcd.endpoint, retry_seconds=0.2) as store:
        await asyncio.to_thread(own_etcd.stop)
        with pytest.raises(StoreUnavailableError) as caught:
            await put(store, "/a")
        # It may have failed while the connection broke.
        with pytest.raises(
            StoreUnavailableError, match=r"no connection to Etcd|failed to connect"
        ) as caught:
            await put(store, "/a")
        assert not caught.value.outcome_unknown


@pytest.mark.slow
async def test_watches_miss_and_repeat_nothing_through_a_broken_network(own_etcd):
    rng = random.Random(7)
    async with FaultProxy(own_etcd.endpoint) as proxy:
        async with no_leaks(), client(proxy.endpoint) as store, client(own_etcd.endpoint) as direct:
            first = await put(direct, "/a/start")
            seen = []
            watching = asyncio.create_task(follow(store, "/a/", first, seen))
            written = [first]
            for number in range(120):
                written.append(await put(direct, f"/a/{number % 7}", bytes(500)))
                await put(direct, "/b")
                if number % 30 == 10:
                    await (proxy.reset() if rng.random() < 0.5 else proxy.cut())
                elif number % 30 == 25:
                    proxy.cut_after(rng.randrange(1, 2000))
            await eventually(lambda: len(seen) >= len(written))
            assert [event.mod_revision for event in seen] == written
            assert proxy.accepted > 3
            watching.cancel()
            await asyncio.wait((watching,))


async def test_history_in_fragments(own_etcd):
    async with client(own_etcd.endpoint) as store:
        first = await put(store, "/a/0", bytes(9000))
        for number in range(1, 30):
            await put(store, f"/a/{number}", bytes(9000))
        async with aclosing(store.watch("/a/", first)) as responses:
            events = (await anext(responses)).events
        # Etcd sends no more than two of them at once.
        assert [event.key for event in events] == [f"/a/{number}" for number in range(30)]


async def test_progress_is_told_and_kept(own_etcd):
    async with FaultProxy(own_etcd.endpoint) as proxy:
        async with client(proxy.endpoint) as store, client(own_etcd.endpoint) as direct:
            first = await put(direct, "/a")
            async with aclosing(store.watch("/a", first)) as responses:
                assert len((await anext(responses)).events) == 1
                newest = await put(direct, "/b")
                while (progress := await anext(responses)).header.revision < newest:
                    assert not progress.events
                # The revision at which the watch began is gone, but it's further on.
                newest = await put(direct, "/b")
                while (progress := await anext(responses)).header.revision < newest:
                    assert not progress.events
                await asyncio.to_thread(own_etcd.compact, newest)
                await proxy.reset()
                last = await put(direct, "/a", b"2")
                while not (response := await anext(responses)).events:
                    pass
                assert [event.mod_revision for event in response.events] == [last]


async def test_compacted_revisions(own_etcd):
    async with client(own_etcd.endpoint) as store:
        first = await put(store, "/a")
        newest = await put(store, "/a")
        await asyncio.to_thread(own_etcd.compact, newest)
        with pytest.raises(CompactedError) as caught:
            await anext(store.watch("/a", first))
        assert caught.value.revision == newest
        with pytest.raises(CompactedError, match=r"^required revision is compacted$"):
            await store.range("/a", revision=first)


class Meaning(NamedTuple):
    raw: KeyValue


async def test_a_key_space_is_loaded_again_after_a_compaction(own_etcd):
    async with FaultProxy(own_etcd.endpoint) as proxy:
        async with no_leaks(), client(proxy.endpoint) as store, client(own_etcd.endpoint) as direct:
            await put(direct, "/root/gone")
            await put(direct, "/root/stays")
            space = KeySpace(store, "/root/", Meaning, apply_delay_seconds=0)
            await space.load()
            following = asyncio.create_task(space.watch())
            revision = await put(direct, "/root/stays", b"2")
            await space.wait_for_revision(revision)
            await proxy.refuse()
            await direct.transact((), [Delete("/root/gone"), Put("/root/new", b"1")])
            revision = await put(direct, "/root/stays", b"3")
            newest = await put(direct, "/other")
            await asyncio.to_thread(own_etcd.compact, newest)
            proxy.heal()
            await space.wait_for_revision(revision)
            found = {key: entry.raw.value for key, entry in space.entries.items()}
            assert found == {"/root/new": b"1", "/root/stays": b"3"}
            # Peers would wait in vain for a revision of other keys.
            assert space.header.revision == revision
            last = await put(direct, "/root/last")
            await space.wait_for_revision(last)
            following.cancel()
            await asyncio.wait((following,))
