"""Transactions of a shard, which counts messages by key exactly once."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import (
    JOURNAL,
    WORKLOADS,
    Workload,
    publish_transactions,
    served_journals,
)
from benchmarks.measures.read_committed import LARGE
from gazette_aio import ACK_TXN, ReadCommittedIter, json_adapter
from gazette_aio.client import AppendService
from gazette_aio.client.appends.futures import AsyncOperation, finished_operation
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.consumer.transactions.progress import ProgressCell
from gazette_aio.message import Clock, Publisher
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Application, Shard
    from gazette_aio.message import Envelope

KEYS = 1_000


class Counts:
    """A store of counts by key, which are copied at each commit."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(range(KEYS), 0)
        self.committed = self.counts.copy()

    def start_commit(
        self, _shard: Shard, _checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> AsyncOperation:
        """Commit at once: nothing is appended."""
        assert not wait_for, "nothing is appended"
        self.committed = self.counts.copy()
        return finished_operation()

    async def restore_checkpoint(self, _shard: Shard, /) -> Checkpoint:
        """Return the empty checkpoint."""
        return Checkpoint()

    async def destroy(self) -> None:
        """Do nothing."""


class CountEach:
    """Counts messages one by one."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def adapter(self, _spec: object) -> Any:
        """Return the adapter of JSON lines."""
        return json_adapter(self.kind)

    def new_store(self, _shard: Shard, _recorder: object) -> Counts:
        """Return a store."""
        return Counts()

    def consume_message(
        self, _shard: Shard, store: Counts, envelope: Envelope[Any], _publisher: object
    ) -> None:
        """Count a message."""
        if envelope.flags != ACK_TXN:
            store.counts[envelope.message.id % KEYS] += 1


class CountBatches(CountEach):
    """Counts messages in batches."""

    def consume_batch(
        self, _shard: Shard, store: Counts, envelopes: Sequence[Envelope[Any]], _publisher: object
    ) -> int:
        """Count messages."""
        counts = store.counts
        for envelope in envelopes:
            if envelope.flags != ACK_TXN:
                counts[envelope.message.id % KEYS] += 1
        return len(envelopes)


class BenchShard:
    """A shard of one source."""

    def __init__(self, client: JournalClient, appends: AppendService) -> None:
        self.id = self.fqn = "bench"
        self.spec = ShardSpec(id="bench")
        self.spec.sources.add(journal=JOURNAL)
        self.spec.max_txn_duration.FromSeconds(1)
        self.client = client
        self.appends = appends
        self.publisher: Publisher[Any] = Publisher(appends, json_adapter(), clock=Clock())


async def transact(client: JournalClient, application: CountEach, head: int) -> int:
    """Run transactions up to a head, and return the number of messages that were counted."""
    store, progress = Counts(), ProgressCell()
    async with AppendService(client) as appends:
        shard = cast("Shard", BenchShard(client, appends))
        hooks = Hooks(cast("Application[Any, Any]", application))
        loop = PrimaryLoop(shard, hooks, store, progress=progress)
        task = asyncio.create_task(loop.run(Checkpoint()))
        while not task.done() and not progress.covers({JOURNAL: head}):
            changed = asyncio.create_task(progress.changed.wait())
            await asyncio.wait((task, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        if task.done():
            await task  # It has failed.
        task.cancel()
        await asyncio.wait((task,))
    return sum(store.committed.values())


async def count_items(iterator: ReadCommittedIter[Any]) -> int:
    counts = dict.fromkeys(range(KEYS), 0)
    async for envelope in iterator:
        if envelope.flags != ACK_TXN:
            counts[envelope.message.id % KEYS] += 1
    return sum(counts.values())


async def count_batches(iterator: ReadCommittedIter[Any]) -> int:
    counts = dict.fromkeys(range(KEYS), 0)
    async for envelopes in iterator.batches():
        for envelope in envelopes:
            if envelope.flags != ACK_TXN:
                counts[envelope.message.id % KEYS] += 1
    return sum(counts.values())


async def setup(workload: Workload, *, batches: bool) -> AsyncGenerator[Subject]:
    messages = workload.messages()
    application = (CountBatches if batches else CountEach)(workload.kind)
    async with served_journals(JOURNAL) as client:
        head = await publish_transactions(client, workload.kind, messages, LARGE)

        async def figure() -> float:
            begun = time.perf_counter()
            count = await transact(client, application, head)
            elapsed = time.perf_counter() - begun
            assert count == len(messages), count
            return count / elapsed

        async def yardstick() -> float:
            adapter = json_adapter(workload.kind)
            iterator = ReadCommittedIter(JOURNAL, adapter, client=client)
            begun = time.perf_counter()
            count = await (count_batches if batches else count_items)(iterator)
            elapsed = time.perf_counter() - begun
            assert count == len(messages), count
            return count / elapsed

        yield Subject(figure, yardstick)


ABOUT = (
    "of a shard that counts {about} by 1,000 keys, against a loop over {iterator} which counts "
    "them as well"
)

measure(
    "consumer.items",
    goal=0.6,
    unit="msg/s",
    about="consume_message() " + ABOUT.format(about=WORKLOADS[1].about, iterator="items"),
)(partial(setup, WORKLOADS[1], batches=False))
measure(
    "consumer.batches",
    goal=0.8,
    unit="msg/s",
    about="consume_batch() " + ABOUT.format(about=WORKLOADS[1].about, iterator="batches()"),
)(partial(setup, WORKLOADS[1], batches=True))
