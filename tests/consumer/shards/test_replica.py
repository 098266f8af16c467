"""Life of a replica: standby, primary, failure, tear-down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.shards import replica as replicas
from gazette_aio.consumer.shards import tear_down
from gazette_aio.consumer.shards.errors import ShardFailedError
from gazette_aio.consumer.shards.restarts import RestartPolicy, Restarts
from gazette_aio.message import Publisher
from gazette_aio.protocol.errors import RecoveryError, TransportError
from gazette_aio.protocol.status_errors import JournalNotFoundError
from tests.consumer.shards.group import (
    KEYS,
    LOCAL,
    A,
    Application,
    Group,
    TrackedStore,
    shard_spec,
)
from tests.consumer.transactions.world import Disk, journal_change, serve
from tests.waiting import eventually, turns


class IdleRecorder:
    """A recorder that nothing is recorded with."""

    recorded_bytes = 0

    def when_committed(self, size, call):
        assert size > 0


class ScriptedRecovery:
    """A recovery whose steps the test takes."""

    def __init__(self, shard, log):
        self.shard, self.log, self.hints = shard, log, None
        self.calls = []
        self.tailing, self.completed = asyncio.Event(), asyncio.Event()
        self.error = None
        self.recorder = IdleRecorder()

    async def play(self, on_tailing):
        self.calls.append("play")
        await self.tailing.wait()
        if self.error is not None:
            raise self.error
        on_tailing()
        await self.completed.wait()

    async def complete(self, author):
        self.calls.append("complete")
        self.author = author
        await self.completed.wait()
        return self.recorder, None

    def cancel(self):
        self.is_cancelled = True

    async def aclose(self):
        self.calls.append("close")


@contextlib.asynccontextmanager
async def recovering(client, **options):
    made = []

    def recovery(shard, service, log):
        made.append(ScriptedRecovery(shard, log))
        return made[-1]

    async with Group(client, recovery=recovery, **options) as group:
        await group.create(shard_spec(recovery_log_prefix="recovery", hint_prefix="/hints"))
        yield group, made


async def test_a_standby_without_a_log_is_ready_at_once(group):
    await group.create(shard_spec())
    await group.assign(slot=1)
    await group.status("STANDBY", slot=1)
    replica = group.shards.replicas[A]
    assert (replica.id, replica.fqn) == (A, "/consumer.test/items/shard-A")
    assert not replica.is_ready
    assert replica.store is None
    with pytest.raises(RuntimeError, match="isn't the primary"):
        _ = replica.publisher
    await group.promote()
    await group.status("PRIMARY")
    assert group.shards.replicas[A] is replica
    assert replica.is_ready
    assert replica.assignment.slot == 0
    await eventually(lambda: group.loops.made)
    assert isinstance(replica.publisher, Publisher)


async def test_a_standby_back_fills_then_tails_and_completes_when_promoted(client):
    async with recovering(client) as (group, made):
        await group.assign(slot=1)
        await group.status("BACKFILL", slot=1)
        made[0].tailing.set()
        await group.status("STANDBY", slot=1)
        assert made[0].calls == ["play"]
        await group.promote()
        await eventually(lambda: "complete" in made[0].calls)
        assert made[0].author > 0
        assert not group.application.stores
        made[0].completed.set()
        await group.status("PRIMARY")
        await eventually(lambda: group.loops.made)
        assert group.loops.made[A].recovery_log == "recovery/shard-A"
        await group.unassign()
        await eventually(lambda: made[0].calls == ["play", "complete", "close"])
    assert group.application.stores[0].is_destroyed


async def test_a_failed_standby_assigned_anew_as_primary_begins_again(client):
    async with recovering(client) as (group, made):
        await group.assign(slot=1)
        replica = await group.shards.replica(A)
        await eventually(lambda: made[0].calls)
        made[0].error = RecoveryError("no such log")
        made[0].tailing.set()
        await group.status("FAILED", slot=1)
        await group.write(
            Delete(KEYS.assignment(A, *LOCAL, 1)), Put(KEYS.assignment(A, *LOCAL, 0), b"")
        )
        await eventually(lambda: len(made) == 2)
        made[1].tailing.set()
        made[1].completed.set()
        await group.status("PRIMARY")
        assert group.shards.replicas[A] is not replica


async def test_a_standby_assigned_anew_tells_its_status_again(group):
    await group.create(shard_spec())
    await group.assign(slot=2)
    await group.status("STANDBY", slot=2)
    await group.write(
        Delete(KEYS.assignment(A, *LOCAL, 2)), Put(KEYS.assignment(A, *LOCAL, 1), b"")
    )
    await group.status("STANDBY", slot=1)


async def test_a_recovery_that_cancels_itself_fails_the_shard(client):
    async with recovering(client) as (group, made):
        await group.assign()
        await eventually(lambda: made and made[0].calls)
        made[0].error = asyncio.CancelledError()
        made[0].tailing.set()
        await group.status("FAILED")


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_failed_recovery_fails_the_primary_too(client, slot):
    async with recovering(client) as (group, made):
        await group.assign(slot=slot)
        replica = await group.shards.replica(A)
        await eventually(lambda: made[0].calls)
        made[0].error = RecoveryError("no such log")
        made[0].tailing.set()
        status = await group.status("FAILED", slot=slot)
        assert list(status.errors) == ["recovery: RecoveryError: no such log"]
        with pytest.raises(ShardFailedError, match="recovery: RecoveryError: no such log"):
            await replica.primary_loop
        if slot:
            await group.promote()
            await group.status("FAILED")
        assert group.shards.replicas[A] is replica
        resolution = await group.resolve(A)
        assert resolution.status == 5  # SHARD_STOPPED
        assert "complete" not in made[0].calls or slot == 0


class Panic(BaseException):
    """As extension modules in Rust raise it."""


@pytest.mark.parametrize(
    ("hook", "error", "text"),
    [
        ("new_store", RuntimeError("an error"), "new_store(): RuntimeError: an error"),
        ("restore", RuntimeError("an error"), "restore_checkpoint(): RuntimeError: an error"),
        ("new_store", asyncio.CancelledError(), "a hook of the application was cancelled"),
        ("new_store", Panic("index out of range"), "Panic('index out of range')"),
        ("restore", ValueError("bad \ud800"), "restore_checkpoint(): ValueError: bad \\ud800"),
    ],
    ids=repr,
)
async def test_a_failure_of_the_store_fails_its_shard_alone(client, caplog, hook, error, text):
    caplog.set_level(logging.CRITICAL, "gazette_aio")  # Reports of tests are Unicode.
    application = Application()
    async with Group(client, application=application) as group:
        await group.create(shard_spec("shard-B"), shard_spec())
        await group.assign("shard-B")
        await group.status("PRIMARY", "shard-B")
        application.errors[hook] = error
        await group.assign()
        failing = asyncio.ensure_future(group.status("FAILED"))
        await asyncio.wait((failing, group.shards.failure), return_when=asyncio.FIRST_COMPLETED)
        assert not group.shards.failure.done()
        assert list((await failing).errors) == [text]
        assert (await group.resolve(A)).status == 5  # SHARD_STOPPED
        assert not any(each.cancelled.is_set() for each in group.shards.replicas.values())
    assert all(store.is_destroyed for store in application.stores)


async def test_a_failed_loop_leaves_the_store_and_a_long_text_is_cut(group):
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    replica = group.shards.replicas[A]
    await eventually(lambda: group.loops.made)
    group.loops.fail(A, "é" * 3000)
    status = await group.status("FAILED")
    assert list(status.errors) == ["é" * 2048 + " ...[truncated]"]
    async with group.resolver.resolve(A) as resolution:
        assert resolution.status == 0
        assert resolution.shard is replica
    resolution = await group.resolve(A, read_through={"source/A": 1})
    assert resolution.status == 5
    assert isinstance(replica.failure, ShardFailedError)
    assert isinstance(replica.failure.__cause__, RuntimeError)
    assert not group.application.stores[0].is_destroyed


@pytest.mark.parametrize("kind", ["plain", "raising", "missing"])
async def test_a_store_that_cant_be_destroyed_ends_its_shard_alone(client, caplog, kind):
    class Plain:
        def __init__(self, store):
            self.restore_checkpoint = store.restore_checkpoint
            self.is_destroyed = False
            if kind != "missing":
                self.destroy = self._destroy

        def _destroy(self):
            self.is_destroyed = True
            if kind == "raising":
                raise RuntimeError("not to be destroyed")

    class Unending(Application):
        async def new_store(self, shard, recorder):
            return Plain(await super().new_store(shard, recorder))

    async with Group(client, application=Unending()) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        replica = group.shards.replicas[A]
        await group.unassign()
    assert not group.shards.failure.done()
    assert replica.store.is_destroyed == (kind != "missing")
    assert ("destroying the store of shard shard-A failed" in caplog.text) == (kind != "plain")


async def test_tear_down_waits_for_references(group, monkeypatch, caplog):
    monkeypatch.setattr(replicas, "USE_WARNING_SECONDS", 0.01)
    await group.create(shard_spec())
    await group.assign()
    async with group.resolver.resolve(A) as resolution:
        store, replica = resolution.store, resolution.shard
        await group.unassign()
        await replica.primary_loop
        assert replica.cancelled.is_set()
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "waits for 1 resolutions" in caplog.text)
        assert not store.is_destroyed
    await eventually(lambda: store.is_destroyed)


@contextlib.asynccontextmanager
async def building(client, monkeypatch, build):
    """Run a primary whose hints are built by a function as soon as it has begun."""
    monkeypatch.setattr(replicas, "HINTS_SECONDS", 0)
    monkeypatch.setattr(replicas, "FIRST_HINTS_SECONDS", 0)
    recorder = IdleRecorder()
    recorder.build_hints = build
    async with recovering(client) as (group, made):
        await group.assign()
        await eventually(lambda: made)
        made[0].recorder = recorder
        made[0].tailing.set()
        made[0].completed.set()
        yield group


async def test_hints_that_cant_be_built_are_built_again_later(client, caplog, monkeypatch):
    builds = []

    async def build():
        builds.append(1)
        raise OSError("no disk")

    async with building(client, monkeypatch, build) as group:
        await eventually(lambda: len(builds) > 1)
        assert not group.shards.replicas[A].has_failed
    assert f"hints of shard {A} couldn't be recorded: no disk" in caplog.text


async def test_hints_that_end_with_the_replica_are_no_failure(client, caplog, monkeypatch):
    started = asyncio.Event()

    async def build():
        assert not started.is_set()
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TransportError("CANCELLED", "the recorder was cancelled") from None

    async with building(client, monkeypatch, build) as group:
        await started.wait()
        await group.unassign()
        await eventually(lambda: group.application.stores[0].is_destroyed)
    assert "couldn't be recorded" not in caplog.text


async def test_the_store_outlives_hints_that_are_being_built(client, monkeypatch):
    started, may_end = asyncio.Event(), asyncio.Event()

    async def build():
        started.set()
        await finish(may_end.wait())

    async with building(client, monkeypatch, build) as group:
        await started.wait()
        await group.unassign()
        await turns(100)
        assert not group.application.stores[0].is_destroyed
        may_end.set()
        await eventually(lambda: group.application.stores[0].is_destroyed)


def overdue(metrics, outcome):
    name = "gazette_shard_overdue_stores_total"
    return metrics.registry.get_sample_value(name, {"outcome": outcome})


async def test_a_resolution_that_is_never_released_holds_nothing_up_for_ever(client, caplog):
    application, metrics = Application(), ConsumerMetrics(CollectorRegistry())
    resolving = AsyncExitStack()
    async with Group(
        client, application=application, release_timeout=0.01, metrics=metrics
    ) as group:
        await group.create(shard_spec())
        await group.assign()
        await resolving.enter_async_context(group.resolver.resolve(A))
    assert application.stores[0].is_destroyed
    text = f"shard {A} ends, though 1 resolutions weren't released within 0.01 s"
    assert text in caplog.text
    assert overdue(metrics, "in_use") == 1
    await resolving.aclose()


class HeldStore(TrackedStore):
    """A store whose end waits for an event."""

    def __init__(self, disk, may_end):
        super().__init__(disk)
        self._may_end = may_end

    async def destroy(self):
        await self._may_end.wait()
        await super().destroy()


class Locking(Application):
    """Has stores that lock a directory until the test lets them end."""

    def __init__(self):
        super().__init__()
        self.may_end = asyncio.Event()

    async def new_store(self, shard, recorder):
        assert all(each.is_destroyed for each in self.stores), "the directory is locked"
        self.stores.append(HeldStore(Disk(), self.may_end))
        return self.stores[-1]


@pytest.mark.parametrize("is_unassigned", [False, True])
async def test_a_replica_begins_only_after_its_predecessor_has_released_its_store(
    client, is_unassigned
):
    async with Group(client, application=Locking()) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        first = group.shards.replicas[A]
        await group.unassign()
        await group.assign()
        await eventually(first.cancelled.is_set)
        resolving = asyncio.ensure_future(group.resolve(A))
        await turns(20)
        assert not resolving.done()
        if is_unassigned:
            await group.unassign()
            assert (await resolving).status == 5  # SHARD_STOPPED
        group.application.may_end.set()
        if not is_unassigned:
            assert (await resolving).status == 0
            await group.status("PRIMARY")
        assert len(group.application.stores) == 2 - is_unassigned


async def test_a_hook_that_resists_its_end_keeps_its_shard_waiting_only_so_long(client, caplog):
    may_end = asyncio.Event()

    class Resisting(Application):
        async def new_store(self, shard, recorder):
            if not self.opening.is_set():
                self.opening.set()
                await finish(may_end.wait())
            return await super().new_store(shard, recorder)

    async with Group(client, application=Resisting(), release_timeout=0) as group:
        group.shards.end_seconds = 0.01
        await group.create(shard_spec())
        await group.assign()
        await group.application.opening.wait()
        await group.unassign()
        await group.assign()
        await group.status("PRIMARY")
        assert f"a hook of shard {A} is left running after its end" in caplog.text
        may_end.set()


class StuckStore(TrackedStore):
    """A store whose end never comes, unless the test or a cancellation ends it."""

    def __init__(self, resists):
        super().__init__(Disk())
        self.resists = resists
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def destroy(self):
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            if not self.resists:
                raise
            await self.may_end.wait()
        self.has_ended = True
        raise ValueError("it can't be destroyed")


@pytest.mark.parametrize(
    ("resists", "text"), [(False, "and was cancelled"), (True, "and is left running")]
)
async def test_a_store_that_hangs_holds_nothing_up_for_ever(
    client, caplog, monkeypatch, resists, text
):
    monkeypatch.setattr(tear_down, "CANCELLED_SECONDS", 0.01)
    stores = []

    class Stuck(Application):
        async def new_store(self, shard, recorder):
            stores.append(StuckStore(resists))
            return stores[0]

    metrics = ConsumerMetrics(CollectorRegistry())
    options = {"application": Stuck(), "release_timeout": 0.01, "metrics": metrics}
    async with recovering(client, **options) as (group, made):
        await group.assign()
        await eventually(lambda: made)
        recovery = made[0]
        recovery.tailing.set()
        recovery.completed.set()
        await group.status("PRIMARY")
    assert f"destroying the store of shard {A} took more than 0.01 s, {text}" in caplog.text
    assert made[0].calls[-1] == "close"
    assert overdue(metrics, "left") == 1
    if resists:
        stores[0].may_end.set()
        await eventually(lambda: f"destroying the store of shard {A} failed" in caplog.text)


async def test_appends_of_a_shard_end_with_it_and_are_part_of_the_status(group, client):
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    replica = group.shards.replicas[A]
    append = await replica.appends.start_append("a/journal")
    append.write(b"content")
    append.release()
    assert client.status().appends.appends == 1
    await group.unassign()
    with pytest.raises(Exception, match="cancel"):
        await append
    await eventually(lambda: group.application.stores[0].is_destroyed)
    assert client.status().appends.appends == 0


async def test_restarts_delete_the_own_assignment(client):
    restarts = RestartPolicy(max_attempts=1, first_seconds=0)
    async with Group(client, restarts=restarts) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        first = group.shards.replicas[A]
        await eventually(lambda: group.loops.made)
        group.loops.fail(A, "an error")
        await eventually(lambda: group.key_space.entries.get(KEYS.assignment(A, *LOCAL, 0)) is None)
        await eventually(lambda: group.application.stores[0].is_destroyed)
        await group.assign()
        await group.status("PRIMARY")
        assert group.shards.replicas[A] is not first
        await eventually(lambda: group.loops.made[A].shard is not first)
        group.loops.fail(A, "another error")
        await group.status("FAILED")


def test_delays_of_restarts():
    restarts = Restarts(
        RestartPolicy(max_attempts=3, first_seconds=1, last_seconds=3, reset_seconds=100)
    )
    assert [restarts.delay_seconds("s", now) for now in (0, 1, 2, 3)] == [1, 2, 3, None]
    assert restarts.delay_seconds("other", 3) == 1
    assert restarts.delay_seconds("s", 103) == 1
    restarts.forget("s")
    assert restarts.delay_seconds("s", 104) == 1
    assert Restarts(None).delay_seconds("s", 0) is None


async def test_two_assignments_of_a_shard_have_one_replica(group):
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    await group.assign(slot=1)
    replica = group.shards.replicas[A]
    assert len(group.resolver.route(A).members) == len(group.group.assignments(A)) == 1
    await group.unassign(slot=1)
    await group.unassign()
    await eventually(replica.cancelled.is_set)
    assert not group.watch.done()


async def test_appends_of_a_shard_keep_errors(tmp_path):
    """A transaction in which an append failed goes no further, though its cause has passed."""
    async with serve(tmp_path) as client, Group(client) as group:
        await group.create(shard_spec())
        await group.assign()
        appends = (await group.shards.replica(A)).appends
        for is_created in (False, True):
            if is_created:
                await client.apply([journal_change("late/journal")])
            async with appends.append("late/journal") as append:
                append.write(b"content")
            with pytest.raises(JournalNotFoundError):
                await append
        assert (await client.append("late/journal", b"")).commit.end == 0


async def test_the_life_of_a_replica_on_etcd(client, etcd):
    async with EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store:
        async with store.lease(20) as lease, Group(client, store=store) as group:
            await group.create(shard_spec())
            key = KEYS.assignment(A, *LOCAL, 1)
            await group.write(Put(key, b"", lease=lease.id))
            await group.status("STANDBY", slot=1)
            entry = group.key_space.entries.get(key)
            assert entry is not None
            # A status keeps the lease, so that a lost member takes its assignments with it.
            assert entry.raw.lease == lease.id
            await group.promote()
            await group.status("PRIMARY")
            async with group.resolver.resolve(A) as resolution:
                assert resolution.status == 0
                assert resolution.header.etcd.cluster_id == group.key_space.header.cluster_id
            await eventually(lambda: group.loops.made)
            group.loops.fail(A, "an error")
            assert list((await group.status("FAILED")).errors) == ["an error"]
            replica = group.shards.replicas[A]
            await group.unassign()
            await eventually(replica.cancelled.is_set)
