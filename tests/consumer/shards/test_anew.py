"""Assignments that end and are made anew between two looks of the member."""

from __future__ import annotations

import asyncio

from gazette_aio.consumer.keyspace.operations import Delete, Put
from tests.consumer.shards.group import KEYS, LOCAL, A, Group, shard_spec


class Recorder:
    recorded_bytes = 0

    def when_committed(self, size, call):
        pass


class FailingOnce:
    hints = None
    left = 1

    async def play(self, on_tailing):
        if FailingOnce.left:
            FailingOnce.left -= 1
            raise RuntimeError("no hints")
        on_tailing()

    async def complete(self, author):
        return Recorder(), None

    def cancel(self):
        pass

    async def aclose(self):
        pass


LOGGED = shard_spec(recovery_log_prefix="recovery", hint_prefix="/hints")


async def test_a_failed_standby_assigned_anew_as_primary_begins_again(client):
    FailingOnce.left = 1
    async with Group(client, recovery=lambda *_: FailingOnce()) as group:
        await group.create(LOGGED)
        await group.assign(slot=1)
        await group.status("FAILED", slot=1)
        first = group.shards.replicas[A]
        await group.write(
            Delete(KEYS.assignment(A, *LOCAL, 1)), Put(KEYS.assignment(A, *LOCAL, 0), b"")
        )
        async with asyncio.timeout(60):
            await group.status("PRIMARY")
        assert group.shards.replicas[A] is not first


async def test_a_moved_failure_stays_failed(client):
    FailingOnce.left = 1
    async with Group(client, recovery=lambda *_: FailingOnce()) as group:
        await group.create(LOGGED)
        await group.assign(slot=1)
        await group.status("FAILED", slot=1)
        first = group.shards.replicas[A]
        await group.promote()
        await group.status("FAILED")
        assert group.shards.replicas[A] is first


async def test_a_standby_assigned_anew_tells_its_status_again(client):
    async with Group(client) as group:
        await group.create(shard_spec())
        await group.assign(slot=2)
        await group.status("STANDBY", slot=2)
        await group.write(
            Delete(KEYS.assignment(A, *LOCAL, 2)), Put(KEYS.assignment(A, *LOCAL, 1), b"")
        )
        async with asyncio.timeout(60):
            await group.status("STANDBY", slot=1)


async def test_a_recovery_that_cancels_itself_fails_the_shard(client):
    class Cancelling(FailingOnce):
        async def play(self, on_tailing):
            raise asyncio.CancelledError

        async def complete(self, author):
            await asyncio.Event().wait()

    async with Group(client, recovery=lambda *_: Cancelling()) as group:
        await group.create(LOGGED)
        await group.assign()
        async with asyncio.timeout(60):
            await group.status("FAILED")
