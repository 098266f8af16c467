"""A cluster of three members, each of which fails in turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gazette_aio.consumer.keyspace.errors import StoreUnavailableError
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Compare, Get, Put
from gazette_aio.testing.leaks import no_leaks
from tests.etcd import cluster
from tests.waiting import eventually


async def create(store, key):
    """Create a key, and repeat that until it's known to be there."""
    while True:
        try:
            await store.transact([Compare.absent(key)], [Put(key, b"")], [Get(key)])
        except StoreUnavailableError:
            continue  # Whether it was created is unknown, and the next transaction tells.
        return


@pytest.mark.slow
async def test_a_cluster_whose_members_fail_in_turn(tmp_path):
    with cluster(tmp_path) as members:
        endpoints = tuple(each.endpoint for each in members)
        options = EtcdOptions(endpoints=endpoints, timeout_seconds=2)
        async with no_leaks(), EtcdStore(options) as store, store.lease(60) as lease:
            seen = []
            first = (await store.range("/")).header.revision + 1

            async def follow():
                async with aclosing(store.watch("/a/", first)) as responses:
                    async for response in responses:
                        seen.extend(event.key for event in response.events)

            following = asyncio.create_task(follow())
            written = []

            async def write(count=10):
                for _ in range(count):
                    written.append(f"/a/{len(written):03}")
                    await create(store, written[-1])

            for member in members:
                await write()
                member.pause()
                await write()
                member.resume()
                await write()
                await asyncio.to_thread(member.stop)
                await write()
                await asyncio.to_thread(member.start)
            await write()
            assert [each.key for each in (await store.range("/a/")).entries] == written
            await eventually(lambda: len(seen) >= len(written))
            assert seen == written
            assert not lease.lost.is_set()
            following.cancel()
            await asyncio.wait((following,))
