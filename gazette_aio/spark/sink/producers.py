"""Producers of a process, as which tasks of Spark sinks publish."""

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

MOST_SINKS: Final = 64
"""Greatest number of sinks whose producers are kept. Other sinks use new producers."""


class Lease:
    """A producer in exclusive use of one task, made by a ProducerPool.

    Without `finish()`, the producer isn't reused: it may have pending messages which must not
    commit.
    """

    def __init__(
        self, pool: ProducerPool, key: SinkKey, batch: int, producer: ProducerID, last_ack: int
    ) -> None:
        self._pool = pool
        self.process: int = os.getpid()
        """ID of the process."""
        self.key = key
        self.batch = batch
        self.producer = producer
        self.last_ack = last_ack
        """Clock of the last acknowledgement, or 0 for a new producer."""
        self.clock: Clock = Clock(last_ack)
        """Clock of the messages, to be updated from wall time."""

    def finish(self, ack: int) -> None:
        """Return the producer to the pool, after all messages were appended.

        The producer may be reused for a later batch, if this batch is decided with the clock `ack`.
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
        """Keep the producers of a sink, which becomes the most recent sink."""
        if idle:
            self.idle[key] = idle
        while len(self.idle) > MOST_SINKS:
            self.idle.popitem(last=False)


class ProducerPool:
    """Reusable producers of this process.

    Readers keep the state of each producer for a day, thus a producer per task would be costly. But
    a producer with uncommitted pending messages would commit them with its next messages. A
    producer is thus reused only if the plan of a later batch lists its latest use.

    Thread-safe. A forked process starts with an empty pool, because no two processes may publish as
    the same producer.

    Args:
        new_producer: Makes the ID of a new producer.
    """

    def __init__(self, new_producer: Callable[[], ProducerID] = new_producer_id) -> None:
        self._new_producer = new_producer
        self._pools: dict[int, _Pool] = {}

    def take(self, plan: Plan, batch: int) -> Lease:
        """Return a reusable or new producer for a task.

        Args:
            plan: Plan of the batch.
            batch: Number of the batch.
        """
        pool = self._of_process()
        with pool.lock:
            # Invariant: the producer leaves the pool before the first append, even if that fails.
            idle = pool.idle.pop(plan.key, [])
            kept: list[_Idle] = []
            clean: _Idle | None = None
            for entry in idle:
                if entry.use.batch >= batch:
                    kept.append(
                        entry
                    )  # Of another task of this batch, or this batch is of a zombie.
                elif plan.clean.get(entry.producer) == entry.use:
                    if clean is not None:
                        kept.append(clean)
                    clean = entry
            pool.keep(plan.key, kept)
        if clean is None:
            return Lease(self, plan.key, batch, self._new_producer(), 0)
        return Lease(self, plan.key, batch, clean.producer, clean.use.ack)

    def put(self, lease: Lease, ack: int) -> None:
        """Put back the producer of a finished lease. Use `Lease.finish()`."""
        if lease.process != os.getpid():
            return  # The producer belongs to the parent process.
        pool = self._of_process()
        with pool.lock:
            idle = pool.idle.pop(lease.key, [])
            if all(entry.producer != lease.producer for entry in idle):
                idle.append(_Idle(lease.producer, Use(lease.batch, ack)))
            pool.keep(lease.key, idle)

    def _of_process(self) -> _Pool:
        # Race: a fork may copy a lock which is held by a thread that doesn't exist in the child.
        return self._pools.setdefault(os.getpid(), _Pool())

    def __repr__(self) -> str:
        pool = self._of_process()
        with pool.lock:
            count = sum(map(len, pool.idle.values()))
            return f"<ProducerPool of {count} idle producers of {len(pool.idle)} sinks>"


PROCESS_POOL: Final = ProducerPool()
"""Producers of this process."""
