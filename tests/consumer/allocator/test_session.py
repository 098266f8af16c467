"""Sessions of members: they join a group, hand over what they hold, and notice what they lose."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import asynccontextmanager

import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.allocator import allocate, announce, exit_reminder
from gazette_aio.consumer.allocator.allocate import MemberLostError
from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    LeaseLostError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.testing.leaks import no_leaks
from tests.cancellation import cancel_at_every_await
from tests.waiting import eventually, turns

KEYS = GroupKeys("/root")


def consumer(suffix, **fields):
    spec = ConsumerSpec(**{"shard_limit": 10, **fields})
    spec.process_spec.id.zone, spec.process_spec.id.suffix = "zone", suffix
    spec.process_spec.endpoint = "http://host:1"
    return spec


def shard(shard_id):
    spec = ShardSpec(id=shard_id)
    spec.sources.add(journal="a/journal")
    spec.max_txn_duration.seconds = 1
    return spec


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(announce, "RETRY_SECONDS", 0.05)


@pytest.fixture(params=["embedded", "etcd"])
async def store(request):
    if request.param == "etcd":
        server = request.getfixturevalue("etcd")
        opening = EtcdStore(EtcdOptions(endpoints=(server.endpoint,)))

        async def expire(lease_id):
            await asyncio.to_thread(
                server.call, "Lease/LeaseRevoke", etcd_pb2.LeaseRevokeRequest(ID=lease_id)
            )
    else:
        opening = EmbeddedStore()
        expire = opening.expire
    async with opening as opened:
        opened.end_lease = expire
        yield opened


def member(store, suffix, *, limit=10, **options):
    options = {"apply_delay_seconds": 0, **options}
    return MemberSession(store, KEYS, consumer(suffix, shard_limit=limit), **options)


async def add_shards(store, count, first=0):
    for n in range(first, first + count):
        name = f"shard-{n:02}"
        await store.transact((), [Put(KEYS.item(name), shard(name).SerializeToString())])


async def held(store):
    found = [
        (KEYS.split(entry.key), entry) for entry in (await store.range("/root/assign/")).entries
    ]
    return sorted((suffix, item, entry) for (_, item, _, suffix, _), entry in found)


def holders(store, expected):
    async def check():
        return [suffix for suffix, _, _ in await held(store)] == expected

    return eventually(check)


async def report_ready(store, suffix):
    """Report all replicas of a member as primaries, as its shards would."""
    ready = ReplicaStatus(code=ReplicaStatus.PRIMARY).SerializeToString()
    for holder, _, entry in await held(store):
        if holder == suffix and not entry.value:
            unchanged = Compare.mod_revision(entry.key, entry.mod_revision)
            await store.transact([unchanged], [Put(entry.key, ready, ignore_lease=True)])


async def test_a_member_joins_and_leaves(store):
    await add_shards(store, 2)
    async with no_leaks(), member(store, "aaaa") as session:
        assert session.group.local_member.limit == 10
        assert len(session.group.items) == 2
        await holders(store, ["aaaa", "aaaa"])
        assert not session.is_exiting
    # The member and its assignments have gone together.
    assert [entry.key for entry in (await store.range("/root/")).entries] == [
        "/root/items/shard-00",
        "/root/items/shard-01",
    ]
    assert await session.wait() is False


async def test_foreign_keys_end_no_member(store):
    await add_shards(store, 1)
    async with member(store, "aaaa") as session, member(store, "bbbb") as other:
        await holders(store, ["aaaa"])
        key = KEYS.assignment("shard-00", "zone", "aaaa", 0).removesuffix("0")
        foreign = [
            key + "9" * 5000,
            KEYS.assignment("shard-00", "zone", "\udcff\udcff\udcff\udcff", 1),
            "/root/assign/a shard#zone#aaaa#0",
        ]
        for slot in (1, 2):
            await store.transact((), [Put(key + str(slot), b"")])
        written = await store.transact((), [Put(each, b"") for each in foreign])
        await session.key_space.wait_for_revision(written.header.revision)

        async def is_packed():
            return [entry.key for _, _, entry in await sound(store)] == [key + "0"]

        async def sound(store):
            entries = (await store.range(key)).entries
            return [(None, None, entry) for entry in entries if entry.key not in foreign]

        await eventually(is_packed)
        async with member(store, "cccc"):
            assert not session.is_exiting
        waits = [asyncio.ensure_future(each.wait()) for each in (session, other)]
        await turns()
        assert not any(each.done() for each in waits)
        session.exit_gracefully(0)
        other.exit_gracefully(0)
        await asyncio.gather(*waits)


async def test_values_that_others_destroyed_hold_up_no_allocation(store):
    await add_shards(store, 1)
    async with member(store, "aaaa") as session, member(store, "bbbb"):
        await holders(store, ["aaaa"])
        [(_, _, entry)] = await held(store)
        garbage = [
            Put(key, b"\xff", ignore_lease=True)
            for key in (entry.key, KEYS.member("zone", "bbbb"), KEYS.item("shard-00"))
        ]
        written = await store.transact((), garbage)
        await session.key_space.wait_for_revision(written.header.revision)
        await add_shards(store, 1, first=1)
        await holders(store, ["aaaa", "bbbb"])


async def test_a_member_joins_though_what_it_loads_is_compacted_again_and_again(store, monkeypatch):
    await add_shards(store, 2)
    asked, answer = [], store.range

    async def compacted(prefix, *, revision=0, **options):
        if len(asked) < 3:
            asked.append(revision)
            raise CompactedError(1)
        return await answer(prefix, revision=revision, **options)

    monkeypatch.setattr(store, "range", compacted)
    async with member(store, "aaaa") as session:
        assert len(session.group.items) == 2
    assert asked[0] > 0
    assert asked[1:] == [0, 0]


async def test_a_member_exits_once_others_hold_its_shards(store):
    await add_shards(store, 2)
    async with member(store, "aaaa") as old:
        await holders(store, ["aaaa", "aaaa"])
        await report_ready(store, "aaaa")
        async with member(store, "bbbb") as new:
            old.exit_gracefully()
            assert old.is_exiting

            async def handed_over():
                await report_ready(store, "bbbb")
                return await held(store) and {each[0] for each in await held(store)} == {"bbbb"}

            await eventually(handed_over)
            assert await old.wait() is True
            [exiting] = (await store.range(KEYS.member("zone", "aaaa"))).entries
            spec = ConsumerSpec.FromString(exiting.value)
            assert (spec.exiting, spec.shard_limit) == (True, 10)
            assert not new.is_exiting


def waits_of(caplog):
    return [(each.levelname, each.getMessage()) for each in caplog.records if "exits" in each.msg]


async def test_the_log_tells_what_the_only_member_waits_for(store, caplog, monkeypatch):
    monkeypatch.setattr(exit_reminder, "PATIENCE_SECONDS", 300)
    await add_shards(store, 2)
    # Its view of the group lags: its shards are in the first line all the same.
    async with member(store, "aaaa", apply_delay_seconds=0.5) as old:
        await holders(store, ["aaaa", "aaaa"])
        await report_ready(store, "aaaa")
        old.exit_gracefully(deadline_seconds=300)
        await eventually(lambda: waits_of(caplog))
        [(level, text)] = waits_of(caplog)
        assert level == "WARNING"
        waited = re.search(r"waited: (\d+) s", text)
        assert waited is not None
        assert int(waited[1]) < exit_reminder.REMINDER_SECONDS
        assert text == (
            "member zone#aaaa exits: it waits at most 300 s until other members hold its shards "
            f"(shards: 2, other members: 0, waited: {waited[1]} s); as many members have to stay as "
            "a shard has replicas (at most 1), and the group has 1: start 1 more. A second signal, "
            "or call of exit_gracefully(), ends it at once"
        )
        async with member(store, "bbbb"):

            async def handed_over():
                await report_ready(store, "bbbb")
                return {each[0] for each in await held(store)} == {"bbbb"}

            await eventually(handed_over)
            assert await old.wait() is True
    _, (level, text) = waits_of(caplog)
    assert level == "WARNING"
    assert text.startswith("member zone#aaaa exits: other members hold its shards, after ")


async def test_the_log_tells_of_a_usual_exit_by_info_at_first(store, caplog, monkeypatch):
    monkeypatch.setattr(exit_reminder, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(exit_reminder, "REMINDER_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    await add_shards(store, 1)
    async with member(store, "aaaa") as old:
        await holders(store, ["aaaa"])
        async with member(store, "bbbb"):
            old.exit_gracefully()
            await eventually(lambda: len(waits_of(caplog)) > 2)
            (first, text), *later = waits_of(caplog)
            assert first == "INFO"
            assert "it waits until other members" in text
            assert "other members: 1, waited" in text
            assert {level for level, _ in later} == {"WARNING"}


async def test_the_log_tells_why_one_of_two_members_with_standbys_can_t_leave(
    store, caplog, monkeypatch
):
    monkeypatch.setattr(exit_reminder, "PATIENCE_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    spec = shard("shard-00")
    spec.hot_standbys = 1
    async with member(store, "aaaa") as old, member(store, "bbbb"):
        await store.transact((), [Put(KEYS.item(spec.id), spec.SerializeToString())])
        await holders(store, ["aaaa", "bbbb"])
        await report_ready(store, "aaaa")
        await report_ready(store, "bbbb")
        old.exit_gracefully()
        await eventually(lambda: len(waits_of(caplog)) > 1)
        (first, _), (second, text) = waits_of(caplog)
        assert (first, second) == ("INFO", "WARNING")
        assert (
            "; as many members have to stay as a shard has replicas (at most 2), and the group "
            "has 2: start 1 more. " in text
        )
        async with member(store, "cccc"):

            async def handed_over():
                await report_ready(store, "bbbb")
                await report_ready(store, "cccc")
                return {each[0] for each in await held(store)} == {"bbbb", "cccc"}

            await eventually(handed_over)
            assert await old.wait() is True


async def test_an_exit_without_shards_is_no_news(store, caplog):
    caplog.set_level(logging.INFO)
    async with member(store, "aaaa") as session:
        session.exit_gracefully()
        assert await session.wait() is True
    assert waits_of(caplog) == []


async def test_an_exit_may_set_the_limit_to_zero(store):
    async with member(store, "aaaa", zero_limit_on_exit=True) as session:
        session.exit_gracefully()
        assert await session.wait() is True
        [exiting] = (await store.range(KEYS.member("zone", "aaaa"))).entries
        spec = ConsumerSpec.FromString(exiting.value)
        assert (spec.exiting, spec.shard_limit) == (True, 0)


async def test_the_only_member_exits_at_the_second_signal(store):
    await add_shards(store, 1)
    async with member(store, "aaaa") as session:
        await holders(store, ["aaaa"])
        session.exit_gracefully()
        waiting = asyncio.create_task(session.wait())
        await eventually(lambda: session.group.local_member.exiting)
        await turns()
        assert not waiting.done()
        session.exit_gracefully()
        assert await waiting is False


async def test_the_only_member_exits_at_its_deadline(store):
    await add_shards(store, 1)
    async with member(store, "aaaa") as session:
        await holders(store, ["aaaa"])
        session.exit_gracefully(deadline_seconds=0.05)
        assert await session.wait() is False


async def test_a_lost_lease_ends_the_session(store):
    async with member(store, "aaaa", ttl_seconds=2) as session:
        await store.end_lease(session.group.local_member.raw.lease)
        with pytest.raises((LeaseLostError, MemberLostError)):
            await session.wait()
        # Whoever asks again is told again.
        with pytest.raises((LeaseLostError, MemberLostError)):
            await session.wait()


async def test_a_deleted_member_ends_the_session(store):
    async with member(store, "aaaa") as session:
        await store.transact((), [Delete(KEYS.member("zone", "aaaa"))])
        with pytest.raises(MemberLostError, match="member key not found in Etcd"):
            await session.wait()


async def expired(store, raw):
    await store.end_lease(raw.lease)


async def deleted(store, raw):
    await store.transact((), [Delete(raw.key)])


@pytest.mark.parametrize("lost", [expired, deleted])
async def test_a_loss_is_told_while_the_leader_solves(monkeypatch, lost):
    solving, solved = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def solve(_):
        loop.call_soon_threadsafe(solving.set)
        solved.wait()
        return []

    monkeypatch.setattr(allocate, "solve", solve)
    async with EmbeddedStore() as store:
        store.end_lease = store.expire
        async with member(store, "aaaa") as session:
            await solving.wait()
            try:
                await lost(store, session.group.local_member.raw)
                with pytest.raises((LeaseLostError, MemberLostError)):
                    await asyncio.wait_for(session.wait(), 10)
            finally:
                solved.set()


async def test_a_refused_transaction_of_the_leader_ends_the_session():
    class Refusing(EmbeddedStore):
        async def transact(self, compares, operations, otherwise=()):
            if any(each.key.startswith("/root/assign/") for each in operations):
                raise StoreRefusedError("etcdserver: permission denied", code="PERMISSION_DENIED")
            return await super().transact(compares, operations, otherwise)

    async with no_leaks(), Refusing() as store, member(store, "aaaa") as session:
        await add_shards(store, 1)
        with pytest.raises(StoreRefusedError, match=r"allocating shards: .*permission denied"):
            await asyncio.wait_for(session.wait(), 10)


async def test_a_member_that_was_changed_by_others_cannot_exit(store):
    async with member(store, "aaaa") as session:
        foreign = consumer("aaaa", shard_limit=1).SerializeToString()
        await store.transact((), [Put(KEYS.member("zone", "aaaa"), foreign, ignore_lease=True)])
        session.exit_gracefully()
        with pytest.raises(StoreRefusedError, match="key modified or deleted externally"):
            await session.wait()


async def test_a_name_in_use_is_waited_for(store, caplog):
    async with member(store, "aaaa"):
        joining = asyncio.create_task(member(store, "aaaa").__aenter__())
        await eventually(lambda: "key exists with different lease" in caplog.text)
        assert not joining.done()
    session = await joining
    assert session.group.local_member is not None
    await session.aclose()
    await session.aclose()


async def test_an_invalid_specification_is_refused_before_anything_else(store):
    session = MemberSession(store, KEYS, consumer("not valid"))
    with pytest.raises(ValidationError, match=r"spec\..*Suffix: not a valid token"):
        await session.__aenter__()
    assert (await store.range("/")).entries == ()


class Failing(EmbeddedStore):
    """A store which fails where a test says so."""

    fails = ""
    failures = 1
    newest_lease = 0

    async def range(self, prefix, **options):
        if self.fails == "range":
            raise StoreUnavailableError("no leader")
        return await super().range(prefix, **options)

    async def transact(self, *args):
        if self.fails == "transact" and self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no leader", outcome_unknown=True)
        return await super().transact(*args)

    @asynccontextmanager
    async def lease(self, ttl_seconds):
        if self.fails == "lease":
            raise StoreUnavailableError("no leader")
        async with super().lease(ttl_seconds) as lease:
            self.newest_lease = lease.id
            yield lease


async def test_a_refused_announcement_is_raised():
    class Refusing(EmbeddedStore):
        async def transact(self, *args):
            raise StoreRefusedError("etcdserver: permission denied", code="PERMISSION_DENIED")

    async with no_leaks(), Refusing() as store:
        with pytest.raises(StoreRefusedError, match=r"announcing the member: .*permission denied"):
            await member(store, "aaaa").__aenter__()


@pytest.mark.parametrize(
    ("fails", "text"),
    [("lease", "establishing Etcd lease: no leader"), ("range", "loading KeySpace: no leader")],
)
async def test_errors_name_the_step_that_failed(fails, text):
    async with Failing() as store:
        store.fails = fails
        with pytest.raises(StoreUnavailableError, match=text):
            await member(store, "aaaa").__aenter__()
        store.fails = ""
        assert (await store.range("/")).entries == ()


async def test_a_lease_that_is_lost_while_the_name_is_in_use():
    async with Failing() as store, member(store, "aaaa"):
        first = store.newest_lease
        joining = asyncio.create_task(member(store, "aaaa").__aenter__())
        await eventually(lambda: store.newest_lease != first)
        await store.expire(store.newest_lease)
        with pytest.raises(LeaseLostError, match="unable to keep member lease alive"):
            await joining


async def test_the_exit_is_marked_again_after_a_failure():
    async with Failing() as store, member(store, "aaaa") as session:
        store.fails = "transact"
        session.exit_gracefully()
        assert await session.wait() is True
        assert store.failures == 0


async def test_a_session_may_be_cancelled_at_every_await():
    async with EmbeddedStore() as store:
        await add_shards(store, 1)

        async def live():
            async with member(store, "aaaa") as session:
                await turns(3)
                session.exit_gracefully()
                await session.wait()

        async def check():
            assert (await store.range("/root/members/")).entries == ()
            assert (await store.range("/root/assign/")).entries == ()
            await store.transact((), [Delete(KEYS.item("shard-00"))])

        async with no_leaks():
            assert await cancel_at_every_await(live, check) > 5


async def test_a_cancelled_wait_ends_no_other():
    async with EmbeddedStore() as store, member(store, "aaaa") as session:
        cancelled, other = (asyncio.create_task(session.wait()) for _ in range(2))
        await turns()
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        assert cancelled.cancelled()
        assert not other.done()
        session.exit_gracefully()
        assert await other


async def test_a_join_that_is_cancelled_again_and_again_leaves_no_transaction_behind():
    entered, may_go = asyncio.Event(), asyncio.Event()

    class Slow(EmbeddedStore):
        async def transact(self, *args):
            entered.set()
            await finish(may_go.wait())
            return await super().transact(*args)

    async with Slow() as store:
        joining = asyncio.create_task(member(store, "aaaa").__aenter__())
        await entered.wait()
        for _ in range(3):
            joining.cancel()
            await turns()
            assert not joining.done()
        may_go.set()
        await asyncio.wait((joining,))
        assert joining.cancelled()
        assert (await store.range("/root/members/")).entries == ()
