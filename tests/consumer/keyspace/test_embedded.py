"""The embedded store: durability, leases that expire, old revisions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sqlite3
import sys
import threading

import pytest

from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import CompactedError, KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Put
from gazette_aio.protocol.errors import UsageError
from tests.cancellation import cancel_at_every_await, close_at_every_await
from tests.waiting import eventually


async def test_keys_survive_but_those_of_leases_do_not(tmp_path):
    async with EmbeddedStore(tmp_path) as store:
        async with store.lease(9) as lease:
            await store.transact((), [Put("/a", b"1"), Put("/b", b"1"), Put("/c", b"1")])
            await store.transact((), [Put("/b", b"2"), Put("/leased", b"", lease=lease.id)])
            await store.transact((), [Delete("/c")])
            await store.transact((), [Put("/a", b"2", lease=lease.id)])
        before = await store.range("/")
    async with EmbeddedStore(tmp_path) as store:
        after = await store.range("/")
        assert after.entries == before.entries
        assert after.header == before.header
        revision = (await store.transact((), [Put("/d", b"")])).header.revision
        assert revision == before.header.revision + 1
    assert [(each.key, each.version) for each in after.entries] == [("/b", 2)]


async def test_a_directory_has_one_process(tmp_path):
    async with EmbeddedStore(tmp_path):
        with pytest.raises(KeyValueStoreError, match="locked"):
            async with EmbeddedStore(tmp_path):
                pytest.fail("two of them opened it")


async def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "keys.sqlite").write_bytes(b"damaged" * 100)
    with pytest.raises(KeyValueStoreError, match=r"keys\.sqlite"):
        async with EmbeddedStore(tmp_path):
            pytest.fail("it was opened")


async def test_a_database_of_another_format_is_refused_and_left_as_it_is(tmp_path):
    """Its keys would seem to be gone."""
    path = tmp_path / "keys.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE store (revision INTEGER NOT NULL, cluster_id INTEGER NOT NULL)")
        db.execute("CREATE TABLE keys (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)")
    before = path.read_bytes()
    with pytest.raises(KeyValueStoreError, match=r"keys\.sqlite: .*another format.* directory"):
        async with EmbeddedStore(tmp_path):
            pytest.fail("it was opened")
    assert path.read_bytes() == before


async def test_a_closed_store_refuses(tmp_path):
    async with EmbeddedStore(tmp_path) as store:
        pass
    with pytest.raises(KeyValueStoreError, match="closed"):
        await store.transact((), [Put("/a", b"")])


@pytest.mark.parametrize("name", ["keys", None])
async def test_keys_need_a_block(tmp_path, name):
    store = EmbeddedStore(tmp_path / name if name else None)
    with pytest.raises(UsageError, match="async with"):
        await store.transact((), [Put("/a", b"")])
    with pytest.raises(UsageError, match="async with"):
        await store.range("/")
    with pytest.raises(UsageError, match="async with"):
        await anext(store.watch("/", 1))
    with pytest.raises(UsageError, match="async with"):
        async with store.lease(9):
            pytest.fail("it was granted")
    assert list(tmp_path.iterdir()) == []


async def test_a_lease_may_expire():
    async with EmbeddedStore() as store, store.lease(9) as lease:
        await store.transact((), [Put("/a", b"", lease=lease.id)])
        await store.expire(lease.id)
        assert lease.lost.is_set()
        assert (await store.range("/")).entries == ()
        await store.expire(lease.id)


async def test_a_cancelled_transaction_takes_effect_on_the_disk_and_in_memory(
    tmp_path, monkeypatch
):
    entered, leave = threading.Event(), threading.Event()

    class Held(sqlite3.Connection):
        def execute(self, sql, *args):
            if sql == "BEGIN IMMEDIATE":
                entered.set()
                leave.wait()
            return super().execute(sql, *args)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Held))
    async with EmbeddedStore(tmp_path) as store:
        task = asyncio.create_task(store.transact((), [Put("/a", b"1")]))
        await eventually(entered.is_set)
        task.cancel()
        leave.set()
        await asyncio.wait((task,))
        assert task.cancelled()
        seen = await store.range("/")
        assert [each.value for each in seen.entries] == [b"1"]
    async with EmbeddedStore(tmp_path) as store:
        assert await store.range("/") == seen


async def test_an_opening_cancelled_at_every_await_leaves_the_directory_to_others(tmp_path):
    async def live():
        async with EmbeddedStore(tmp_path) as store:
            await store.transact((), [Put("/a", b"")])

    async def check():
        async with EmbeddedStore(tmp_path):
            pass

    assert await cancel_at_every_await(live, check) > 2


async def test_an_opening_cancelled_while_a_thread_opens_closes_the_file(tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    opened = []

    class Held(sqlite3.Connection):
        def __init__(self, *args, **options):
            entered.set()
            leave.wait()
            super().__init__(*args, **options)
            opened.append(self)

        def close(self):
            super().close()
            opened.remove(self)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Held))
    task = asyncio.create_task(EmbeddedStore(tmp_path).__aenter__())
    await eventually(entered.is_set)
    task.cancel()
    leave.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert opened == []


async def test_closing_may_be_cancelled_at_every_await(tmp_path):
    async def opened():
        store = await EmbeddedStore(tmp_path).__aenter__()
        await store.transact((), [Put("/a", b"")])
        return store

    assert await close_at_every_await(opened) > 0


async def test_the_end_of_a_lease_may_be_cancelled_at_every_await(tmp_path):
    async with EmbeddedStore(tmp_path) as store:

        async def live():
            async with store.lease(9) as lease:
                await store.transact((), [Put("/a", b"", lease=lease.id)])

        async def expire():
            async with store.lease(9) as lease:
                await store.transact((), [Put("/a", b"", lease=lease.id)])
                await store.expire(lease.id)

        async def check():
            assert (await store.range("/")).entries == ()

        assert await cancel_at_every_await(live, check) > 1
        assert await cancel_at_every_await(expire, check) > 1


async def test_old_revisions_are_dropped(monkeypatch):
    monkeypatch.setattr("gazette_aio.consumer.keyspace.embedded.KEPT_TRANSACTIONS", 3)
    async with EmbeddedStore() as store:
        for _ in range(5):
            revision = (await store.transact((), [Put("/a", b"")])).header.revision
        with pytest.raises(CompactedError):
            await store.range("/", revision=2)
        async with contextlib.aclosing(store.watch("/", 2)) as responses:
            with pytest.raises(CompactedError):
                await anext(responses)
        async with contextlib.aclosing(store.watch("/", revision - 2)) as responses:
            assert len((await anext(responses)).events) == 3


async def test_changes_and_pages_of_a_large_store_are_found_by_an_index(monkeypatch):
    """A change looks at no other key: thousands of shards change one after the other."""
    steps = []

    class Counting(sqlite3.Connection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.set_progress_handler(lambda: steps.append(1000), 1000)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Counting))
    async with EmbeddedStore() as store:
        for begin in range(0, 5000, 100):
            await store.transact((), [Put(f"/a/{n}", b"") for n in range(begin, begin + 100)])
        revision = (await store.range("/a/1")).header.revision
        steps.clear()
        async with contextlib.aclosing(store.watch("/a/", revision + 1)) as responses:
            await store.transact([Compare.absent("/a/new")], [Put("/a/new", b"")])
            await anext(responses)
        for after in ("", "/a/2500", "/a/4990"):
            assert len((await store.range("/a/", after=after, limit=10)).entries) == 10
        assert sum(steps) < 5000


CHILD = """
import asyncio, pathlib, sys
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.operations import Put

async def main():
    async with EmbeddedStore(pathlib.Path(sys.argv[1])) as store:
        for number in range(10**9):
            value = str(number).encode()
            await store.transact((), [Put("/a", value), Put("/b", value)])
            print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.crash
async def test_committed_transactions_survive_a_crash(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    for _ in range(20):
        assert await process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    told = (await process.stdout.read()).split(b"\n")
    await process.wait()
    last = int(([b"19", *(line for line in told[:-1])])[-1])
    async with EmbeddedStore(tmp_path) as store:
        a, b = (await store.range("/")).entries
    assert a.value == b.value
    assert int(a.value) in (last, last + 1)
    assert a.version == int(a.value) + 1
