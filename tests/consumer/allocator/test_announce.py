"""Announcements of members: created once, updated, and safe to repeat."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.consumer.allocator import announce
from gazette_aio.consumer.allocator.announce import Announcement
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import StoreRefusedError, StoreUnavailableError
from gazette_aio.consumer.keyspace.operations import Put
from tests.waiting import turns


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(announce, "RETRY_SECONDS", 0)


class LosingAnswers(EmbeddedStore):
    """A store whose next answers get lost after the transaction took effect."""

    lost = 0

    async def transact(self, *args):
        result = await super().transact(*args)
        if self.lost:
            self.lost -= 1
            raise StoreUnavailableError("connection reset", outcome_unknown=True)
        return result


async def entry(store):
    [found] = (await store.range("/key")).entries
    return found


async def test_updates_until_the_lease_ends():
    async with EmbeddedStore() as store:
        async with store.lease(9) as lease:
            announcement = await Announcement.announce(store, "/key", b"val-1", lease.id)
            for value in (b"val-2", b"val-3"):
                await announcement.update(value)
                found = await entry(store)
                assert (found.value, found.lease) == (value, lease.id)
                assert found.mod_revision == announcement.revision
        expected = rf"key modified or deleted externally \(expected revision {found.mod_revision}\)"
        with pytest.raises(StoreRefusedError, match=expected):
            await announcement.update(b"val-4")


async def test_a_key_of_another_lease_is_waited_for(caplog):
    async with EmbeddedStore() as store, store.lease(9) as earlier, store.lease(9) as lease:
        await Announcement.announce(store, "/key", b"old", earlier.id)
        task = asyncio.create_task(Announcement.announce(store, "/key", b"new", lease.id))
        await turns(50)
        assert not task.done()
        assert "key exists with different lease" in caplog.text
        await store.expire(earlier.id)
        announcement = await task
        found = await entry(store)
        assert (found.value, found.mod_revision) == (b"new", announcement.revision)


async def test_lost_answers():
    async with LosingAnswers() as store, store.lease(9) as lease:
        store.lost = 1
        announcement = await Announcement.announce(store, "/key", b"1", lease.id)
        assert announcement.revision == (await entry(store)).mod_revision
        store.lost = 1
        with pytest.raises(StoreUnavailableError):
            await announcement.update(b"2")
        await announcement.update(b"2")
        assert announcement.revision == (await entry(store)).mod_revision
        await announcement.update(b"3")


async def test_a_value_that_somebody_else_wrote():
    async with EmbeddedStore() as store, store.lease(9) as lease:
        announcement = await Announcement.announce(store, "/key", b"1", lease.id)
        await store.transact((), [Put("/key", b"foreign", ignore_lease=True)])
        with pytest.raises(StoreRefusedError, match="modified or deleted externally"):
            await announcement.update(b"2")
