"""Ends of replicas, at any moment and by any means: nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import anyio
import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.consumer.shards.errors import ShardFailedError
from gazette_aio.consumer.shards.local_shards import ENDS_PER_TURN, LocalShards
from gazette_aio.consumer.shards.replica import Replica
from gazette_aio.protocol.errors import RecoveryError
from tests.cancellation import cancel_at
from tests.consumer.shards.group import (
    KEYS,
    LOCAL,
    A,
    Application,
    Group,
    shard_spec,
)
from tests.consumer.shards.test_replica import recovering
from tests.loop_steps import SLICE_CALLS, longest_step
from tests.waiting import eventually

SHARDS = 1000
MOST_CALLS = 20 * SLICE_CALLS


@asynccontextmanager
async def nothing_left():
    before = asyncio.all_tasks()
    yield
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_a_replica_cancelled_after_each_turn_of_the_loop(client):
    """Whatever it's waiting for: the store, its checkpoint, a status, transactions."""
    application = Application()
    async with nothing_left(), Group(client, application=application) as group:
        await group.create(shard_spec())
        for turns in range(40):
            await group.assign(wait=False)
            replica = None
            while replica is None:
                await asyncio.sleep(0)
                replica = await group.shards.replica(A)
            for _ in range(turns):
                await asyncio.sleep(0)
            await group.unassign()
            assert replica.cancelled.is_set()
            await replica.primary_loop
            await eventually(lambda: all(each.is_destroyed for each in application.stores))
        assert application.stores
        assert group.loops.made, "no replica came as far as its transactions"


async def test_a_recovery_cancelled_at_each_step(client):
    async with nothing_left(), recovering(client) as (group, made):
        for steps in range(4):
            await group.assign(slot=1)
            replica = await group.shards.replica(A)
            recovery = made[-1]
            await eventually(lambda recovery=recovery: recovery.calls)
            if steps >= 1:
                recovery.tailing.set()
                await group.status("STANDBY", slot=1)
            if steps >= 2:
                await group.promote()
                await eventually(lambda recovery=recovery: "complete" in recovery.calls)
            if steps >= 3:
                recovery.completed.set()
                await group.status("PRIMARY")
            await group.unassign(slot=0 if steps >= 2 else 1)
            assert replica.cancelled.is_set()
            assert recovery.is_cancelled
            await eventually(lambda recovery=recovery: "close" in recovery.calls)


async def test_the_run_of_a_replica_cancelled_natively_at_each_await(client):
    """A shield of anyio alone would let the caller leave before the store is destroyed."""
    async with nothing_left(), Group(client) as group:
        await group.create(shard_spec())
        item = None
        for number in range(1, 20):  # Before its first step, there's nothing to release.
            application = Application()
            group.service.application = application
            if item is None:
                group.shards.stop()
                await group.assign()
                item = group.group.local_item(A)
            replica = Replica(item, group.service)
            replica.promote()
            running = asyncio.create_task(replica.run())
            for _ in range(number):
                await asyncio.sleep(0)
            with replica.in_use():
                for _ in range(2):
                    running.cancel()
                    for _ in range(5):
                        await asyncio.sleep(0)
                    assert not running.done(), "it left although its store is in use"
            await asyncio.wait((running,))
            assert running.cancelled()
            assert all(each.is_destroyed for each in application.stores)
            assert replica.cancelled.is_set()
            assert replica.primary_loop.done()


@pytest.mark.parametrize("native", [True, False])
async def test_a_member_that_is_cancelled_waits_for_its_replicas(client, native):
    application = Application()
    group = Group(client, application=application)
    entered, resolving = asyncio.Event(), AsyncExitStack()

    async def serve():
        async with group:
            await group.create(shard_spec())
            await group.assign()
            await group.status("PRIMARY")
            await resolving.enter_async_context(group.resolver.resolve(A))
            entered.set()
            await asyncio.Event().wait()

    async with nothing_left():
        scope = anyio.CancelScope()

        async def run():
            with scope:
                await serve()

        task = asyncio.create_task(run())
        await entered.wait()
        for _ in range(3):
            if native:
                task.cancel()
            else:
                scope.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done(), "it left although its store is in use"
            assert not application.stores[0].is_destroyed
        await resolving.aclose()
        await asyncio.wait((task,))
        assert application.stores[0].is_destroyed


async def test_the_begin_of_local_shards_cancelled_at_each_await(client):
    async with nothing_left(), Group(client) as group:

        async def enter():
            async with LocalShards(group.service):
                await asyncio.sleep(0)

        number = 0
        while await cancel_at(enter(), number):
            number += 1
            assert group.key_space.observers.count(group.shards.observe) == 1
            assert len(group.key_space.observers) == 2
        assert number > 1


async def test_a_hook_that_resists_its_cancellation_is_left_running(client, caplog):
    entered, may_end = asyncio.Event(), asyncio.Event()

    class Resisting(Application):
        async def new_store(self, shard, recorder):
            entered.set()
            await finish(may_end.wait())

    async with nothing_left():
        group = Group(client, application=Resisting(), release_timeout=0)
        group.shards.end_seconds = 0.01
        async with group:
            await group.create(shard_spec())
            await group.assign()
            await entered.wait()
        assert f"hooks of shards are left running after their end: {A}" in caplog.text
        may_end.set()


@pytest.mark.parametrize("as_it_runs", [False, True])
async def test_a_replica_that_cant_be_run_stops_all(client, monkeypatch, as_it_runs):
    async def run(_):
        raise ValueError("it's broken")

    def init(*_):
        raise ValueError("it's broken")

    application = Application()
    async with nothing_left(), Group(client, application=application) as group:
        await group.create(shard_spec(), shard_spec("shard-B"))
        await group.assign()
        await group.status("PRIMARY")
        if as_it_runs:
            monkeypatch.setattr(Replica, "run", run)
        else:
            monkeypatch.setattr(Replica, "__init__", init)
        await group.assign("shard-B")
        await asyncio.wait((group.shards.failure,))
        assert group.shards.has_stopped
        await eventually(lambda: application.stores[0].is_destroyed)
    with pytest.raises(ValueError, match="it's broken"):
        group.shards.failure.result()


async def test_a_cancelled_supervisor_stops_all(client, caplog):
    """As libraries do that cancel all tasks of an event loop."""
    application = Application()
    async with nothing_left(), Group(client, application=application) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        (supervisor,) = (each for each in asyncio.all_tasks() if each.get_name() == "shards")
        supervisor.cancel()
        await asyncio.wait((group.shards.failure,))
        assert group.shards.has_stopped
        await eventually(lambda: application.stores[0].is_destroyed)
    with pytest.raises(RuntimeError, match="the task that runs all shards was cancelled"):
        group.shards.failure.result()
    assert "local shards can't be run" in caplog.messages


async def test_a_second_failure_is_told_after_the_first(client):
    async with recovering(client) as (group, made):
        await group.assign()
        replica = await group.shards.replica(A)
        made_one = made[0]
        await eventually(lambda: "complete" in made_one.calls)

        class Broken:
            async def destroy(self):
                raise RuntimeError("not to be destroyed")

            async def restore_checkpoint(self, shard):
                raise RuntimeError("an error")

        async def new_store(shard, recorder):
            return Broken()

        group.application.new_store = new_store
        replica.hooks.application.new_store = new_store
        # The completion fails first, then the playback that has gone on.
        made_one.error = RecoveryError("the log is gone")
        made_one.completed.set()
        await group.status("FAILED")
        made_one.tailing.set()
        status = await group.status("FAILED")
        while len(status.errors) < 2:
            await group.key_space.next_change()
            status = await group.status("FAILED")
        assert list(status.errors) == [
            "restore_checkpoint(): RuntimeError: an error",
            "recovery: RecoveryError: the log is gone",
        ]
        with pytest.raises(ShardFailedError, match="restore_checkpoint"):
            await replica.primary_loop
        await group.unassign()
        await eventually(lambda: "close" in made_one.calls)


async def test_queued_messages_of_a_replica_that_ends(group):
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    await eventually(lambda: group.loops.made)
    publisher = group.shards.replicas[A].publisher
    for value in range(3):
        publisher.publish_uncommitted_nowait(
            lambda _: ("echo/out", "application/x-ndjson"), {"v": value}
        )
    await group.unassign()
    await eventually(lambda: group.application.stores[0].is_destroyed)


async def assign_all(group, specs):
    puts = [Put(KEYS.assignment(spec.id, *LOCAL, 0), b"") for spec in specs]
    for begin in range(0, len(puts), 125):
        await group.write(*puts[begin : begin + 125], wait=False)
        await asyncio.sleep(0)


def primaries(group):
    return sum(each.is_ready for each in group.shards.replicas.values())


@pytest.mark.slow
async def test_a_thousand_shards_keep_nobody_from_the_loop(client, monkeypatch):
    """Neither when they're assigned at once, nor when the member stops."""
    specs = [shard_spec(f"shard-{number:04}") for number in range(SHARDS)]
    async with nothing_left(), Group(client) as group:
        for begin in range(0, SHARDS, 100):
            await group.create(*specs[begin : begin + 100])
        await group.create(shard_spec())
        await group.assign()  # What is imported at first use isn't measured.
        await group.status("PRIMARY")
        with longest_step() as longest:
            await assign_all(group, specs)
            await eventually(lambda: primaries(group) == SHARDS + 1)
            await asyncio.gather(
                *(each.status.written() for each in group.shards.replicas.values())
            )
            group.shards.stop()
            await eventually(lambda: all(each.is_destroyed for each in group.application.stores))
        # At once: the next step collects garbage.
        assert longest.calls < MOST_CALLS, longest.step
        assert len(group.application.stores) == SHARDS + 1


async def test_shards_that_end_together_end_in_slices(client):
    """Their tear-downs would be one turn of the event loop."""
    specs = [shard_spec(f"shard-{number:04}") for number in range(100)]
    async with nothing_left(), Group(client) as group:
        await group.create(*specs)
        await assign_all(group, specs)
        await eventually(lambda: primaries(group) == len(specs))
        replicas = list(group.shards.replicas.values())
        keys = [KEYS.assignment(spec.id, *LOCAL, 0) for spec in specs]
        ended = [0]
        deletions = asyncio.create_task(group.write(*map(Delete, keys), wait=False))
        while ended[-1] < len(specs):
            await asyncio.sleep(0)
            ended.append(sum(replica.cancelled.is_set() for replica in replicas))
        await deletions
    assert max(after - before for before, after in pairwise(ended)) <= ENDS_PER_TURN


@pytest.mark.slow
async def test_idle_shards_are_small(client):
    specs = [shard_spec(f"shard-{number:04}") for number in range(200)]
    async with Group(client) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        await group.create(*specs[:100])
        await group.create(*specs[100:])
        gc.collect()
        tracemalloc.start()
        try:
            await assign_all(group, specs)
            await eventually(lambda: primaries(group) == len(specs) + 1)
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert used / len(specs) < 100_000
