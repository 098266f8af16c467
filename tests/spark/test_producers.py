"""Producers which tasks of a process share."""

from __future__ import annotations

import os
import threading

import pytest

from gazette_aio.message.uuid import ProducerID
from gazette_aio.spark.sink import producers
from gazette_aio.spark.sink.commit_records import SinkKey
from gazette_aio.spark.sink.commit_rules import Plan, Use
from gazette_aio.spark.sink.producers import PROCESS_POOL, ProducerPool
from tests.spark.journals import KEY


@pytest.fixture
def pool():
    return ProducerPool()


def plan(decided=-1, clean=None, key=KEY):
    return Plan(key, decided, clean or {})


def used(pool, batch, before=None):
    """The producer of a finished task, and its use."""
    lease = pool.take(before or plan(), batch)
    lease.clock.update(10**18)
    ack = lease.clock.tick()
    lease.finish(ack)
    return lease.producer, Use(batch, ack)


def test_tasks_of_one_batch_have_different_producers(pool):
    leases = [pool.take(plan(), 0) for _ in range(3)]
    assert len({lease.producer for lease in leases}) == 3
    for lease in leases:
        assert len(lease.producer) == 6
        assert lease.producer[0] & 1
        lease.finish(lease.clock.tick())
    # Those which finished aren't of another task of the same batch.
    assert pool.take(plan(), 0).producer not in {lease.producer for lease in leases}


def test_a_committed_producer_is_used_again_and_its_clock_goes_on(pool):
    producer, use = used(pool, 0)
    lease = pool.take(plan(0, {producer: use}), 1)
    assert lease.producer == producer
    assert lease.clock.tick() > use.ack
    # It's taken: nobody else has it.
    assert pool.take(plan(0, {producer: use}), 1).producer != producer


@pytest.mark.parametrize(
    "clean",
    [
        lambda producer, use: {},  # Retired, or another attempt's message was taken.
        lambda producer, use: {producer: Use(use.batch, use.ack + 1)},
        lambda producer, use: {producer: Use(use.batch - 1, use.ack)},
    ],
)
def test_a_poisoned_producer_is_never_used_again(pool, clean):
    producer, use = used(pool, 3)
    assert pool.take(plan(3, clean(producer, use)), 4).producer != producer
    assert "0 idle" in repr(pool)
    assert pool.take(plan(3, {producer: use}), 4).producer != producer


def test_a_task_which_fails_leaves_no_producer(pool):
    producer = pool.take(plan(), 0).producer
    assert "0 idle" in repr(pool)
    assert pool.take(plan(0, {producer: Use(0, 1)}), 1).producer != producer


def test_an_idle_producer_outlasts_batches_while_plans_list_it(pool):
    first, second = used(pool, 0), used(pool, 0)
    clean = dict([first, second])
    producer, use = used(pool, 1, plan(0, clean))
    (idle,) = {first[0], second[0]} - {producer}
    clean[producer] = use
    assert {pool.take(plan(1, clean), 2).producer for _ in range(2)} == {producer, idle}


def test_a_zombie_does_not_take_or_drop_producers_of_later_batches(pool):
    producer, use = used(pool, 5)
    assert pool.take(plan(2, {}), 3).producer != producer
    assert pool.take(plan(5, {producer: use}), 6).producer == producer


def test_sinks_have_producers_of_their_own(pool):
    producer, use = used(pool, 0)
    other = plan(0, {producer: use}, SinkKey("query", "other"))
    assert pool.take(other, 1).producer != producer


def test_sinks_which_ended_are_forgotten(pool, monkeypatch):
    monkeypatch.setattr(producers, "MOST_SINKS", 2)
    first = used(pool, 0)
    for name in ("x", "y"):
        used(pool, 0, plan(key=SinkKey("query", name)))
    assert "2 idle producers of 2 sinks" in repr(pool)
    assert pool.take(plan(0, dict([first])), 1).producer != first[0]


def test_a_forked_process_begins_anew(pool, monkeypatch):
    producer, use = used(pool, 0)
    held = pool.take(plan(), 1)
    monkeypatch.setattr(os, "getpid", lambda: -5)
    assert pool.take(plan(0, {producer: use}), 1).producer != producer
    held.finish(held.clock.tick())
    assert "0 idle" in repr(pool)


def test_a_fork_copies_no_lock_which_is_held(pool, monkeypatch):
    taken = []

    class Amid(dict):
        def get(self, producer, default=None):
            # The pool is locked by now; the child is another process, and this thread isn't there.
            monkeypatch.setattr(os, "getpid", lambda: -5)
            child = threading.Thread(target=lambda: taken.append(pool.take(plan(), 1)), daemon=True)
            child.start()
            child.join(60)
            monkeypatch.undo()
            return default

    used(pool, 0)
    pool.take(plan(0, Amid({1: 1})), 1)
    assert len(taken) == 1


def test_threads_never_share_a_producer():
    counter = iter(range(1 << 20))
    pool = ProducerPool(lambda: ProducerID(next(counter).to_bytes(6, "big")))
    seen = [[] for _ in range(8)]
    clean = {}
    for batch in range(20):
        before = plan(batch - 1, dict(clean))
        leases = []

        def run(mine, before=before, batch=batch, leases=leases):
            lease = pool.take(before, batch)
            mine.append(lease.producer)
            leases.append(lease)

        threads = [threading.Thread(target=run, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({lease.producer for lease in leases}) == len(leases) == 8
        for lease in leases:
            ack = lease.clock.tick()
            lease.finish(ack)
            clean[lease.producer] = Use(batch, ack)
    assert len({producer for mine in seen for producer in mine}) == 8


def test_the_pool_of_the_process_is_one_object():
    assert producers.PROCESS_POOL is PROCESS_POOL
