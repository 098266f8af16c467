"""A key space follows its store: loads, changes, compaction, revisions to wait for."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import KeySpaceError, StoreUnavailableError
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.consumer.keyspace.operations import Delete, KeyValue, Put
from gazette_aio.consumer.keyspace.store import Deleted, StoreHeader, WatchResponse
from gazette_aio.protocol.errors import ValidationError
from tests.waiting import turns


class Number(NamedTuple):
    raw: KeyValue
    value: int


def decode(raw):
    try:
        return Number(raw, int(raw.value))
    except ValueError as error:
        raise ValidationError(str(error)) from None


async def put(store, key, value):
    return (await store.transact((), [Put(key, str(value).encode())])).header.revision


def values(space):
    return {key: entry.value for key, entry in space.entries.items()}


class Watching:
    """A key space, and the task that follows the store."""

    def __init__(self, space):
        self.space = space

    async def __aenter__(self):
        self.task = asyncio.create_task(self.space.watch())
        return self.task

    async def __aexit__(self, *exc):
        self.task.cancel()
        await asyncio.wait((self.task,))
        if not self.task.cancelled():
            self.task.exception()


async def test_load_and_watch():
    async with EmbeddedStore() as store:
        await put(store, "/r/one", 1)
        revision = await put(store, "/r/foo", "bad")
        await put(store, "/r/raced", 999)
        await put(store, "/r-2/other", 1)
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        calls = []
        space.observers.append(calls.append)
        await space.load(revision)
        assert values(space) == {"/r/one": 1}
        assert [len(each) for each in calls] == [1]
        assert space.header.revision == revision
        async with Watching(space) as task:
            for change in (
                lambda: put(store, "/r/two", 2),
                lambda: put(store, "/r/bar", "bad"),
                lambda: store.transact((), [Delete("/r/one")]),
                lambda: put(store, "/r/three", 4),
                lambda: put(store, "/r/foo", 5),
            ):
                made = await change()
                await space.wait_for_revision(
                    (getattr(made, "header", None) and made.header.revision) or made
                )
            assert values(space) == {"/r/two": 2, "/r/three": 4, "/r/foo": 5, "/r/raced": 999}
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_changes_are_gathered():
    async with EmbeddedStore() as store:
        space = KeySpace(store, "/", decode, apply_delay_seconds=0.5)
        await space.load()
        calls = []
        space.observers.append(calls.append)
        async with Watching(space):
            for number in range(10):
                revision = await put(store, "/a", number)
            await space.wait_for_revision(revision)
        assert values(space) == {"/a": 9}
        assert len(calls) < 10


async def test_waiting_for_a_revision():
    async with EmbeddedStore() as store:
        space = KeySpace(store, "/", decode, apply_delay_seconds=0)
        await space.load()
        async with Watching(space):
            waiting = asyncio.create_task(space.wait_for_revision(4))
            await put(store, "/a", 1)
            second = await put(store, "/a", 2)
            await space.wait_for_revision(second)
            assert not waiting.done()
            await put(store, "/a", 3)
            await waiting
            for revision in (1, 100):
                waiting = asyncio.create_task(space.wait_for_revision(revision))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting


async def test_it_loads_again_after_a_compaction(monkeypatch):
    monkeypatch.setattr("gazette_aio.consumer.keyspace.embedded.KEPT_TRANSACTIONS", 2)
    async with EmbeddedStore() as store:
        await put(store, "/r/gone", 1)
        await put(store, "/r/stays", 2)
        await put(store, "/r/old", 3)
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        await space.load()
        seen = []
        space.observers.append(seen.extend)
        await store.transact((), [Delete("/r/gone")])
        newest = await put(store, "/r/old", 4)
        for _ in range(5):
            await put(store, "/elsewhere", 0)
        async with Watching(space):
            await space.wait_for_revision(newest)
            # Not the store's revision, which peers would never see.
            assert space.header.revision == newest
            assert values(space) == {"/r/old": 4, "/r/stays": 2}
            await space.wait_for_revision(await put(store, "/r/new", 5))
        assert [(before or after).raw.key for before, after in seen] == [
            "/r/gone",
            "/r/old",
            "/r/new",
        ]


async def test_it_loads_once_after_a_compaction_beyond_its_newest_change(monkeypatch):
    monkeypatch.setattr("gazette_aio.consumer.keyspace.embedded.KEPT_TRANSACTIONS", 2)

    loads, is_loading_again = [], asyncio.Event()

    class Counting(EmbeddedStore):
        async def range(self, prefix, **options):
            loads.append(prefix)
            if len(loads) == 2:
                is_loading_again.set()
            return await super().range(prefix, **options)

    async with Counting() as store:
        newest = await put(store, "/r/one", 1)
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        await space.load(newest)
        for _ in range(5):
            await put(store, "/elsewhere", 0)
        async with Watching(space):
            await is_loading_again.wait()
            for _ in range(100):  # Turns of the event loop.
                await asyncio.sleep(0)
            assert len(loads) == 2
            assert space.header.revision == newest
            await space.wait_for_revision(await put(store, "/r/two", 2))
        assert values(space) == {"/r/one": 1, "/r/two": 2}


async def test_it_loads_again_though_the_store_is_unavailable_at_first(monkeypatch, caplog):
    monkeypatch.setattr("gazette_aio.consumer.keyspace.embedded.KEPT_TRANSACTIONS", 2)
    monkeypatch.setattr("gazette_aio.consumer.keyspace.key_space.backoff", lambda _: 0)

    class Unavailable(EmbeddedStore):
        failures = 0

        async def range(self, prefix, **options):
            if self.failures:
                self.failures -= 1
                raise StoreUnavailableError("no leader")
            return await super().range(prefix, **options)

    async with Unavailable() as store:
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        await space.load()
        for number in range(5):
            newest = await put(store, "/r/a", number)
        store.failures = 3
        async with Watching(space):
            await space.wait_for_revision(newest)
        assert values(space) == {"/r/a": 4}
        assert store.failures == 0
    assert "key space /r/ isn't loaded (will retry): no leader" in caplog.text


class Scripted:
    """A store whose watch gives what a test wants."""

    def __init__(self, *answers):
        self._answers = answers

    async def range(self, prefix, **_):
        from gazette_aio.consumer.keyspace.store import RangeResult

        return RangeResult(StoreHeader(1, 1, 10, 1), ())

    async def watch(self, prefix, start_revision):
        assert start_revision == 11
        for answer in self._answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [StoreUnavailableError("gone"), RuntimeError("a bug")])
async def test_errors_of_the_watch_are_raised(error):
    space = KeySpace(Scripted(error), "/", decode, apply_delay_seconds=0)
    await space.load()
    with pytest.raises(type(error), match=str(error)):
        await space.watch()


async def test_another_cluster_is_refused():
    response = WatchResponse(StoreHeader(2, 1, 20, 1), (Deleted("/a", 20),))
    space = KeySpace(Scripted(response), "/", decode, apply_delay_seconds=0)
    await space.load()
    with pytest.raises(KeySpaceError, match="ClusterID mismatch"):
        await space.watch()


@pytest.mark.slow
async def test_many_keys_are_told_in_parts():
    async with EmbeddedStore() as store:
        space = KeySpace(store, "/a/", decode, apply_delay_seconds=0)
        parts = []
        space.observers.append(lambda changes: parts.append(len(changes)))
        async with store.lease(9) as lease:
            for begin in range(0, 40_000, 100):
                await store.transact(
                    (),
                    [Put(f"/a/{n:05}#x", b"1", lease=lease.id) for n in range(begin, begin + 100)],
                )
            await space.load()
            assert len(space.entries) == sum(parts) == 40_000
            assert max(parts) <= 1000
            parts.clear()
            ended = space.header.revision + 1
            watching = Watching(space)
            await watching.__aenter__()
        await space.wait_for_revision(ended)
        await watching.__aexit__()
        assert (sum(parts), len(space.entries)) == (40_000, 0)
        assert max(parts) <= 1000


async def test_a_compaction_between_two_pages_begins_again(monkeypatch):
    monkeypatch.setattr("gazette_aio.consumer.keyspace.key_space.PAGE_ENTRIES", 1)
    monkeypatch.setattr("gazette_aio.consumer.keyspace.embedded.KEPT_TRANSACTIONS", 2)

    class Compacting(EmbeddedStore):
        left = 0

        async def range(self, prefix, *, revision=0, after="", limit=0):
            if after and self.left:
                Compacting.left -= 1
                for _ in range(5):
                    await put(self, "/elsewhere", 0)
            return await super().range(prefix, revision=revision, after=after, limit=limit)

    async with Compacting() as store:
        await put(store, "/r/one", 1)
        await put(store, "/r/two", 2)
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        await space.load()
        newest = await put(store, "/r/one", 3)
        for _ in range(5):
            await put(store, "/elsewhere", 0)
        Compacting.left = 1
        async with Watching(space) as task:
            waiting = asyncio.create_task(space.wait_for_revision(newest))
            await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            assert not task.done()
        assert values(space) == {"/r/one": 3, "/r/two": 2}


async def test_a_watch_that_is_cancelled_again_and_again_leaves_nothing_behind():
    watching, may_end = asyncio.Event(), asyncio.Event()

    class Slow(EmbeddedStore):
        async def watch(self, *args):
            try:
                watching.set()
                async for response in super().watch(*args):
                    yield response
            finally:
                await finish(may_end.wait())

    async with Slow() as store:
        space = KeySpace(store, "/r/", decode, apply_delay_seconds=0)
        await space.load()
        task = asyncio.create_task(space.watch())
        await watching.wait()
        for _ in range(3):
            task.cancel()
            await turns()
            assert not task.done(), "it left although the store's watch goes on"
        may_end.set()
        await asyncio.wait((task,))
        assert task.cancelled()
