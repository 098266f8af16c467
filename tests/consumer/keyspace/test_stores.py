"""One suite for all key-value stores: ranges, transactions, watches and leases."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import StoreRefusedError
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Get, Put, Target
from gazette_aio.consumer.keyspace.store import Deleted


@pytest.fixture(params=["memory", "durable", "etcd"])
async def store(request, tmp_path):
    if request.param == "etcd":
        endpoint = request.getfixturevalue("etcd").endpoint
        opening = EtcdStore(EtcdOptions(endpoints=(endpoint,)))
    else:
        opening = EmbeddedStore(tmp_path if request.param == "durable" else None)
    async with opening as opened:
        yield opened


async def put(store, key, value=b"v", **options):
    return (await store.transact((), [Put(key, value, **options)])).header.revision


async def test_identities_are_never_zero(store):
    header = (await store.range("/")).header
    assert min(header.cluster_id, header.member_id, header.raft_term, header.revision) > 0


async def test_ranges(store):
    keys = [f"/a/{n}" for n in range(7)]
    for key in ["/a", "/a-2/x", *keys, "/b"]:
        await put(store, key)
    found = await store.range("/a/")
    assert [each.key for each in found.entries] == keys
    assert not found.more
    page = await store.range("/a/", limit=3)
    assert ([each.key for each in page.entries], page.more) == (keys[:3], True)
    page = await store.range("/a/", after="/a/2", limit=4)
    assert ([each.key for each in page.entries], page.more) == (keys[3:], False)
    assert (await store.range("/none/")).entries == ()


async def test_a_range_at_a_revision(store):
    await put(store, "/a", b"1")
    revision = await put(store, "/b", b"1")
    await put(store, "/a", b"2")
    await store.transact((), [Delete("/b")])
    await put(store, "/c")
    then = await store.range("/", revision=revision)
    assert [(each.key, each.value) for each in then.entries] == [("/a", b"1"), ("/b", b"1")]
    page = await store.range("/", revision=revision, limit=1)
    assert ([each.key for each in page.entries], page.more) == (["/a"], True)
    with pytest.raises(StoreRefusedError, match="future revision"):
        await store.range("/", revision=revision + 100)


async def test_revisions_and_versions(store):
    first = await put(store, "/a", b"1")
    second = await put(store, "/a", b"2")
    assert second == first + 1
    [entry] = (await store.range("/a")).entries
    assert (entry.create_revision, entry.mod_revision, entry.version) == (first, second, 2)
    await store.transact((), [Delete("/a")])
    again = await put(store, "/a", b"3")
    [entry] = (await store.range("/a")).entries
    assert (entry.create_revision, entry.mod_revision, entry.version) == (again, again, 1)


async def test_comparisons(store):
    revision = await put(store, "/a")
    for target, value in [
        (Target.VERSION, 1),
        (Target.CREATE_REVISION, revision),
        (Target.MOD_REVISION, revision),
        (Target.LEASE, 0),
    ]:
        assert (await store.transact([Compare("/a", target, value)], [Get("/a")])).succeeded
        refused = await store.transact([Compare("/a", target, value + 1)], [Get("/a")])
        assert (refused.succeeded, refused.entries) == (False, ())
        assert (await store.transact([Compare("/none", target, 0)], [Get("/a")])).succeeded


async def test_a_transaction_is_all_or_nothing(store):
    revision = await put(store, "/a", b"1")
    result = await store.transact(
        [Compare.mod_revision("/a", revision), Compare.absent("/b")],
        [Delete("/a"), Put("/b", b"2"), Get("/b")],
    )
    assert result.succeeded
    assert result.entries[0].value == b"2"
    result = await store.transact(
        [Compare.absent("/b")], [Put("/c", b"")], [Get("/b"), Get("/none")]
    )
    assert not result.succeeded
    assert [entry and entry.key for entry in result.entries] == ["/b", None]
    assert [each.key for each in (await store.range("/")).entries] == ["/b"]


async def test_what_is_refused(store):
    with pytest.raises(StoreRefusedError, match="too many operations in txn request"):
        await store.transact((), [Put(f"/{n}", b"") for n in range(129)])
    with pytest.raises(StoreRefusedError, match="duplicate key given in txn request"):
        await store.transact((), [Put("/a", b""), Put("/a", b"")])
    with pytest.raises(StoreRefusedError, match="key not found"):
        await put(store, "/a", ignore_lease=True)
    with pytest.raises(StoreRefusedError, match="requested lease not found"):
        await put(store, "/a", lease=12345)
    assert (await store.range("/")).entries == ()


async def test_leases_end_with_their_block(store):
    async with store.lease(60) as lease:
        await put(store, "/a", lease=lease.id)
        await put(store, "/b", lease=lease.id)
        await put(store, "/b", b"2", ignore_lease=True)
        await put(store, "/kept", lease=lease.id)
        await put(store, "/kept")  # It loses its lease.
        assert [each.lease for each in (await store.range("/")).entries] == [lease.id, lease.id, 0]
        assert not lease.lost.is_set()
    assert [each.key for each in (await store.range("/")).entries] == ["/kept"]


async def test_keys_of_a_lease_end_in_one_transaction(store):
    async with store.lease(60) as lease:
        revision = await put(store, "/a/1", lease=lease.id)
        await put(store, "/a/2", lease=lease.id)
    async with aclosing(store.watch("/a/", revision + 2)) as responses:
        ended = await anext(responses)
    assert ended.events == (Deleted("/a/1", revision + 2), Deleted("/a/2", revision + 2))


async def test_watches(store):
    start = await put(store, "/a/1", b"1")
    await put(store, "/other", b"2")
    await put(store, "/a/2", b"3")
    async with aclosing(store.watch("/a/", start)) as responses:
        seen = []
        while len(seen) < 2:
            seen.extend((await anext(responses)).events)
        following = asyncio.ensure_future(anext(responses))
        last = (await store.transact((), [Delete("/a/1"), Put("/a/3", b"")])).header.revision
        response = await following
    assert [(each.key, each.mod_revision) for each in seen] == [
        ("/a/1", start),
        ("/a/2", start + 2),
    ]
    assert response.events[0] == Deleted("/a/1", last)
    assert response.events[1].key == "/a/3"
    assert response.header.revision >= last
    assert response.header.cluster_id == (await store.range("/")).header.cluster_id
