"""Applications of tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.application import Application
from gazette_aio.message import Publisher, json_adapter
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from gazette_aio.protocol.errors import GazetteError
from gazette_aio.testing.specs import create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gazette_aio.client import JournalClient
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard
    from gazette_aio.message import Adapter, Envelope
    from gazette_aio.protocol import JournalSpec

SOURCE = "numbers/in"
LINES = "application/x-ndjson"


class Totals:
    """Committed sums and checkpoints of shards, which outlive their members."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.checkpoints: dict[str, Checkpoint] = {}


class SumStore:
    """Store of a sum, committed with its checkpoint."""

    def __init__(self, totals: Totals, shard: str) -> None:
        self.totals = totals
        self.shard = shard
        self.sum = totals.sums.get(shard, 0)

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]]
    ) -> OpFuture[None]:
        """Commit after `wait_for`."""
        commit, total = AsyncOperation(), self.sum

        async def finish() -> None:
            try:
                for append in wait_for:
                    await append
            except GazetteError as error:
                commit.resolve(error)
                return
            self.totals.sums[shard.id] = total
            self.totals.checkpoints[shard.id] = checkpoint
            commit.resolve()

        self.task = asyncio.create_task(finish())
        return commit

    async def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Return the committed one."""
        return self.totals.checkpoints.get(shard.id, Checkpoint())

    async def destroy(self) -> None:
        """Nothing is held."""


class Summing(Application[dict[str, Any], SumStore]):
    """Sums the numbers of its shards."""

    def __init__(self, totals: Totals | None = None) -> None:
        self.totals = totals or Totals()

    def adapter(self, spec: JournalSpec) -> Adapter[dict[str, Any]]:
        """Messages are JSON."""
        return json_adapter()

    def new_store(self, shard: Shard, recorder: Any) -> SumStore:
        """Return a store that continues."""
        return SumStore(self.totals, shard.id)

    def consume_message(
        self,
        shard: Shard,
        store: SumStore,
        envelope: Envelope[dict[str, Any]],
        publisher: Publisher[Any],
    ) -> None:
        """Add a number."""
        store.sum += envelope.message.get("number", 0)


def shard_spec(shard: str, *sources: str) -> ShardSpec:
    """Return the spec of a shard without a recovery log."""
    spec = ShardSpec(id=shard, max_txn_duration={"nanos": 50_000_000})
    for source in sources:
        spec.sources.add(journal=source)
    return spec


async def create_source(client: JournalClient, name: str = SOURCE) -> None:
    """Create a journal of numbers."""
    await create_journals(client, journal_spec(name, labels={"content-type": LINES}))


async def publish(client: JournalClient, numbers: Iterable[object], journal: str = SOURCE) -> None:
    """Publish the transaction of some numbers."""
    publisher = Publisher[dict[str, Any]](client.appends, json_adapter())
    async with publisher.transaction():
        for number in numbers:
            await publisher.publish_uncommitted(lambda _: (journal, LINES), {"number": number})
