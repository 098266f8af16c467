"""Hints in the store of a group: fetched, recorded, rotated."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from gazette_aio.consumer.allocator.model import Assignment
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import (
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.operations import Delete, KeyValue, Put
from gazette_aio.consumer.shards import hints as module
from gazette_aio.consumer.shards.errors import HintsError
from gazette_aio.consumer.shards.hints import (
    fetch_stored_hints,
    rotation,
    store_recorded_hints,
    store_recovered_hints,
)
from gazette_aio.protocol.recoverylog import FSMHints
from tests.cancellation import cancel_at
from tests.consumer.shards.group import KEYS, LOCAL, A, assignment_at, shard_spec
from tests.waiting import eventually

SPEC = shard_spec(recovery_log_prefix="recovery/logs", hint_prefix="/hints", hint_backups=2)
KEY = KEYS.assignment(A, *LOCAL, 0)


def hints(author: int, log: str = "recovery/logs/shard-A") -> FSMHints:
    segment = {"author": author, "first_seq_no": 1, "last_seq_no": 1, "last_offset": 40}
    return FSMHints(log=log, live_nodes=[{"fnode": 1, "segments": [segment]}])


async def authors(store) -> list[int | None]:
    stored = await fetch_stored_hints(store, SPEC)
    return [
        each.live_nodes[0].segments[0].author if each is not None else None for each in stored.hints
    ]


async def assigned(store) -> Assignment:
    result = await store.transact([], [Put(KEY, b"")])
    revision = result.header.revision
    return assignment_at(revision)


class Flaky:
    """A store that fails, hangs or loses answers."""

    def __init__(self, store):
        self.store, self.errors, self.calls = store, [], 0
        self.after = False

    async def transact(self, *args):
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None and not self.after:
            raise error
        result = await self.store.transact(*args)
        if error is not None:
            raise error
        return result


@pytest.fixture
def no_delays(monkeypatch):
    monkeypatch.setattr(module, "retry_seconds", lambda attempt: 0)


async def test_recorded_and_recovered_hints_take_turns():
    async with EmbeddedStore() as store:
        assignment = await assigned(store)
        assert await authors(store) == [None, None, None]
        await store_recovered_hints(store, SPEC, assignment, hints(111))
        assert await authors(store) == [None, 111, None]
        assert await store_recorded_hints(store, SPEC, assignment, hints(222))
        assert await authors(store) == [222, 111, None]
        # A changed status of the assignment makes no difference.
        await store.transact([], [Put(KEY, b"a status")])
        await store_recovered_hints(store, SPEC, assignment, hints(333))
        assert await authors(store) == [222, 333, 111]
        assert await store_recorded_hints(store, SPEC, assignment, hints(444))
        await store_recovered_hints(store, SPEC, assignment, hints(555))
        assert await authors(store) == [444, 555, 333]
        await store.transact([], [Delete("/hints/shard-A.primary")])
        assert await authors(store) == [None, 555, 333]
        await store.transact([], [Delete("/hints/shard-A.backup.0")])
        assert await authors(store) == [None, None, 333]


async def test_hints_of_an_assignment_that_ended_are_not_stored(no_delays):
    async with EmbeddedStore() as store:
        assignment = await assigned(store)
        await store.transact([], [Delete(KEY)])
        assert not await store_recorded_hints(store, SPEC, assignment, hints(1))
        assert await authors(store) == [None, None, None]
        # Recovered hints are tried until the replica is cancelled, which is about to happen.
        flaky = Flaky(store)
        storing = asyncio.create_task(store_recovered_hints(flaky, SPEC, assignment, hints(1)))
        await eventually(lambda: flaky.calls >= 6)
        storing.cancel()
        await asyncio.wait((storing,))
        assert await authors(store) == [None, None, None]


async def test_failures_of_the_store(no_delays, monkeypatch, caplog):
    async with EmbeddedStore() as store:
        assignment = await assigned(store)
        flaky = Flaky(store)
        flaky.errors = [StoreUnavailableError("gone")]
        assert not await store_recorded_hints(flaky, SPEC, assignment, hints(1))
        assert "failed to store recorded hints" in caplog.text
        flaky.errors = [StoreUnavailableError("gone"), None, StoreUnavailableError("gone")]
        await store_recovered_hints(flaky, SPEC, assignment, hints(2))
        assert await authors(store) == [None, 2, None]
        # An answer that got lost doesn't rotate twice.
        flaky.after, flaky.errors = True, [None, KeyValueStoreError("lost", outcome_unknown=True)]
        await store_recovered_hints(flaky, SPEC, assignment, hints(3))
        assert await authors(store) == [None, 3, 2]
        flaky.after, flaky.errors = False, [None, StoreRefusedError("request is too large")]
        before = flaky.calls
        await store_recovered_hints(flaky, SPEC, assignment, hints(4))
        assert flaky.calls == before + 2
        assert await authors(store) == [None, 3, 2]
        flaky.errors = [StoreUnavailableError("gone")]
        with pytest.raises(HintsError, match=r"^fetching ShardSpec\.HintKeys: gone$"):
            await fetch_stored_hints(flaky, SPEC)


async def test_a_store_that_hangs_does_not_hold_up_hints(monkeypatch, caplog):
    class Hanging:
        async def transact(self, *_):
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "ATTEMPT_SECONDS", 0.001)
    assignment = assignment_at(1)
    assert not await store_recorded_hints(Hanging(), SPEC, assignment, hints(1))
    assert "the store doesn't answer" in caplog.text


async def test_hints_that_cannot_be_loaded_are_not_stored(caplog):
    broken = FSMHints(log="recovery/logs/shard-A", live_nodes=[{"fnode": 1}])
    async with EmbeddedStore() as store:
        assignment = await assigned(store)
        assert not await store_recorded_hints(store, SPEC, assignment, broken)
        assert "validating FSMHints" in caplog.text
        caplog.clear()
        # They never will be, so that isn't tried again.
        async with asyncio.timeout(30):
            await store_recovered_hints(store, SPEC, assignment, broken)
        assert "recovered hints of shard-A can't be stored: validating FSMHints" in caplog.text
        assert await authors(store) == [None, None, None]


async def test_large_hints_are_told_early(monkeypatch, caplog):
    monkeypatch.setattr(module, "LARGE_BYTES", 10)
    async with EmbeddedStore() as store:
        with caplog.at_level(logging.WARNING):
            assert await store_recorded_hints(store, SPEC, await assigned(store), hints(1))
    assert "are large" in caplog.text


async def test_hints_are_coded_in_threads(monkeypatch):
    """They may name thousands of files."""
    callers = set()

    def noted(function):
        def call(value):
            callers.add(threading.get_ident())
            return function(value)

        return call

    monkeypatch.setattr(module, "encode_hints", noted(module.encode_hints))
    monkeypatch.setattr(module, "decode_hints", noted(module.decode_hints))
    monkeypatch.setattr(module, "FSM", noted(module.FSM))
    async with EmbeddedStore() as store:
        assignment = await assigned(store)
        await store_recovered_hints(store, SPEC, assignment, hints(1))
        assert await store_recorded_hints(store, SPEC, assignment, hints(2))
        assert await authors(store) == [2, 1, None]
    assert callers
    assert threading.get_ident() not in callers


def test_rotations():
    def entry(number: int) -> KeyValue:
        return KeyValue("k", str(number).encode(), 1, number, 1)

    keys = ["0", "1", "2"]
    cases = {
        (None, None, None): [("0", 0, b"new")],
        (entry(5), None, entry(7)): [("0", 5, b"new"), ("1", 0, b"5")],
        (entry(5), entry(6), entry(7)): [("0", 5, b"new"), ("1", 6, b"5"), ("2", 7, b"6")],
    }
    for entries, expected in cases.items():
        compares, puts = rotation(keys, entries, b"new")
        assert [(p.key, c.value, p.value) for c, p in zip(compares, puts, strict=True)] == expected
        assert [c.key for c in compares] == [p.key for p in puts]
    assert rotation(keys, [entry(5), None, None], b"5") == ([], [])
    assert rotation([], [], b"new") == ([], [])


async def test_each_await_cancelled():
    """What was stored, if cancelled, is either all or nothing."""
    for number in range(10):
        async with EmbeddedStore() as store:
            assignment = await assigned(store)
            await store_recovered_hints(store, SPEC, assignment, hints(1))
            storing = store_recovered_hints(store, SPEC, assignment, hints(2))
            was_cancelled = await cancel_at(storing, number)
            assert await authors(store) in ([None, 2, 1], [None, 1, None])
            await cancel_at(store_recorded_hints(store, SPEC, assignment, hints(3)), number)
            assert (await authors(store))[0] in {None, 3}
            if not was_cancelled:
                break
    else:
        raise AssertionError("it has no end")
