"""The producers of a process, which tasks of Spark sinks publish as."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.message.uuid import Clock, ProducerID, new_producer_id
from gazette_aio.spark.sink.commit_rules import Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.spark.sink.commit_records import SinkKey
    from gazette_aio.spark.sink.commit_rules import Plan

_MOST_SINKS: Final = 64
"""Sinks whose producers are kept. Those of others, which are used again, are drawn afresh."""


class Lease:
    """A producer which one task has for itself. Made by a ProducerPool.

    Unless it's finished, the producer isn't used again: messages may be pending which nothing is to
    commit.
    """

    __slots__ = ("_pool", "batch", "clock", "key", "last_ack", "process", "producer")

    def __init__(
        self, pool: ProducerPool, key: SinkKey, batch: int, producer: ProducerID, last_ack: int
    ) -> None:
        self._pool = pool
        self.process = os.getpid()
        """Process which it's of."""
        self.key = key
        self.batch = batch
        self.producer = producer
        self.last_ack = last_ack
        """Clock of its acknowledgement before, or 0 if it's fresh."""
        self.clock = Clock(last_ack)
        """Clock of its messages, to be updated from wall time."""

    def finish(self, ack: int) -> None:
        """Note that all messages were appended, and the clock reported to acknowledge them.

        The producer may be used for a later batch then, once this one is decided so.
        """
        assert ack > self.last_ack, "clocks increase"
        self._pool.put(self, ack)

    def __repr__(self) -> str:
        return f"<Lease of {self.producer.hex()} for batch {self.batch}>"


class _Idle(NamedTuple):
    producer: ProducerID
    use: Use


class _Pool:
    """Idle producers of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: OrderedDict[SinkKey, list[_Idle]] = OrderedDict()

    def keep(self, key: SinkKey, idle: list[_Idle]) -> None:
        """Keep the producers of a sink, which becomes the latest one."""
        if idle:
            self.idle[key] = idle
        while len(self.idle) > _MOST_SINKS:
            self.idle.popitem(last=False)


class ProducerPool:
    """Producers which tasks of this process have used, and may use again.

    Readers keep a state of each producer for a day, so that they shouldn't be one per task. But a
    producer which has messages pending that weren't committed would commit them with its next ones;
    so it's used again only if its latest use is one which the plan of a later batch lists.

    Its methods may be called by any thread. A process which was forked begins anew, since no two
    processes may publish as the same producer.

    Args:
        new_producer: Draws the ID of a fresh producer.
    """

    def __init__(self, new_producer: Callable[[], ProducerID] = new_producer_id) -> None:
        self._new_producer = new_producer
        self._pools: dict[int, _Pool] = {}

    def take(self, plan: Plan, batch: int) -> Lease:
        """Return a producer for a task of a batch: a clean one, or else a fresh one.

        Args:
            plan: What the tasks of the batch have to know of those before.
            batch: The batch.
        """
        pool = self._of_process()
        with pool.lock:
            # Invariant: it's taken out ahead of the first append, whatever becomes of that.
            idle = pool.idle.pop(plan.key, [])
            kept: list[_Idle] = []
            clean: _Idle | None = None
            for entry in idle:
                if entry.use.batch >= batch:
                    kept.append(entry)  # Another task's of this batch, or of one behind a zombie's.
                elif plan.clean.get(entry.producer) == entry.use:
                    if clean is not None:
                        kept.append(clean)
                    clean = entry
            pool.keep(plan.key, kept)
        if clean is None:
            return Lease(self, plan.key, batch, self._new_producer(), 0)
        return Lease(self, plan.key, batch, clean.producer, clean.use.ack)

    def put(self, lease: Lease, ack: int) -> None:
        """Take back the producer of a lease, which is over. Use `Lease.finish()`."""
        if lease.process != os.getpid():
            return  # It's the parent's.
        pool = self._of_process()
        with pool.lock:
            idle = pool.idle.pop(lease.key, [])
            if all(entry.producer != lease.producer for entry in idle):
                idle.append(_Idle(lease.producer, Use(lease.batch, ack)))
            pool.keep(lease.key, idle)

    def _of_process(self) -> _Pool:
        # Race: a fork copies a lock which another thread holds, and that thread isn't there.
        return self._pools.setdefault(os.getpid(), _Pool())

    def __repr__(self) -> str:
        pool = self._of_process()
        with pool.lock:
            count = sum(map(len, pool.idle.values()))
            return f"<ProducerPool of {count} idle producers of {len(pool.idle)} sinks>"


PROCESS_POOL: Final = ProducerPool()
"""Producers of this process."""
