"""Writes of a replica's status."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.consumer.keyspace.errors import KeyValueStoreError, StoreUnavailableError
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.consumer.shards import status_writer as module
from gazette_aio.consumer.shards.backoff import retry_seconds
from gazette_aio.consumer.shards.status_writer import StatusWriter, merge_status
from gazette_aio.protocol.consumer import ReplicaStatus
from tests.consumer.shards.group import KEYS, REMOTE, A, shard_spec
from tests.waiting import eventually

IDLE, BACKFILL, STANDBY, PRIMARY, FAILED = (
    ReplicaStatus.Code.Value(name) for name in ("IDLE", "BACKFILL", "STANDBY", "PRIMARY", "FAILED")
)


def status(code, *errors):
    return ReplicaStatus(code=code, errors=errors)


@pytest.mark.parametrize(
    ("current", "wanted", "expected"),
    [
        (status(IDLE), status(IDLE), None),
        (status(STANDBY), status(BACKFILL), None),
        (status(STANDBY), status(PRIMARY), status(PRIMARY)),
        (status(FAILED, "a"), status(PRIMARY), None),
        (status(FAILED, "a"), status(FAILED, "b"), status(FAILED, "a", "b")),
        (status(FAILED, "a", "b"), status(FAILED, "b"), None),
        (status(PRIMARY), status(FAILED, "a"), status(FAILED, "a")),
    ],
)
def test_merging(current, wanted, expected):
    assert merge_status(current, wanted) == expected


def test_delays_between_attempts():
    assert [retry_seconds(n) for n in range(8)] == [0, 0.05, 0.1, 0.1, 1, 1, 5, 5]


class Counting:
    """A store that counts transactions, and fails as told."""

    def __init__(self, store):
        self.store, self.calls, self.errors, self.after = store, [], [], None

    async def transact(self, compares, operations, otherwise=()):
        self.calls.append(operations)
        if self.errors:
            raise self.errors.pop(0)
        result = await self.store.transact(compares, operations, otherwise)
        if (after := self.after) is not None:
            self.after = None
            raise after
        return result


@pytest.fixture
async def writing(group, monkeypatch):
    """A writer of an assignment that no replica of this member has."""
    delays = []
    monkeypatch.setattr(module, "retry_seconds", lambda attempt: delays.append(attempt) or 0)
    await group.create(shard_spec())
    await group.assign(member=REMOTE)
    store = Counting(group.store)
    writer = StatusWriter(store, group.key_space, group.group.assignments(A)[0])

    def observe(_changes):
        for assignment in group.group.assignments(A):
            writer.update(assignment)

    group.key_space.observers.append(observe)
    task = asyncio.create_task(writer.run())
    yield writer, store, group, delays
    task.cancel()
    await asyncio.wait((task,))


def shown(group):
    return group.group.assignments(A)[0].status


async def test_only_the_latest_is_written(writing):
    writer, store, group, _ = writing
    writer.want(BACKFILL)
    writer.want(STANDBY)
    writer.want(PRIMARY)
    await writer.written()
    assert shown(group) == status(PRIMARY)
    assert len(store.calls) == 1
    writer.want(STANDBY)
    await writer.written()
    writer.want(FAILED, ["an error"])
    await writer.written()
    assert shown(group) == status(FAILED, "an error")
    assert len(store.calls) == 2


async def test_failed_writes_are_repeated_and_an_answer_lost_adds_no_error(writing, caplog):
    writer, store, group, delays = writing
    store.errors = [StoreUnavailableError("gone"), StoreUnavailableError("gone")]
    store.after = KeyValueStoreError("lost", outcome_unknown=True)
    writer.want(FAILED, ["an error"])
    await writer.written()
    assert shown(group) == status(FAILED, "an error")
    assert delays[:3] == [0, 1, 2]
    assert "failed to write the status" in caplog.text


async def test_a_status_that_another_process_wrote_is_kept(writing):
    writer, _store, group, _ = writing
    transact = group.store.transact

    async def racing(compares, operations, otherwise=()):
        group.store.transact = transact
        value = status(FAILED, "of another").SerializeToString()
        await transact([], [Put(KEYS.assignment(A, *REMOTE, 0), value)])
        return await transact(compares, operations, otherwise)

    group.store.transact = racing
    writer.want(FAILED, ["an error"])
    await writer.written()
    assert shown(group) == status(FAILED, "of another", "an error")


async def test_the_lease_of_the_assignment_stays(writing):
    writer, _, group, _ = writing
    async with group.store.lease(10) as lease:
        key = KEYS.assignment(A, *REMOTE, 0)
        await group.write(Put(key, b"", lease=lease.id))
        writer.want(STANDBY)
        await writer.written()
        assert group.key_space.entries.get(key).raw.lease == lease.id
    await eventually(lambda: not group.group.assignments(A))
