"""Shards of tests, with a store in memory that outlives them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import StrictAppendService, connect
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.client.rpc.route_cache import NoopDispatchRouter
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.consumer.transactions.progress import ProgressCell
from gazette_aio.message import ACK_TXN, Clock, Publisher, json_adapter
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from gazette_aio.protocol.errors import FencedError

NDJSON = "application/x-ndjson"
OUT = "echo/out"
SOURCES = ("source/A", "source/B")
read_directly = NoopDispatchRouter()
"""Router of clients in memory."""


def journal_change(name: str, content_type: str = NDJSON) -> pb.ApplyRequest.Change:
    upsert = pb.JournalSpec(name=name, replication=1)
    upsert.labels.labels.add(name="content-type", value=content_type)
    upsert.fragment.length = 1 << 24
    upsert.fragment.compression_codec = pb.CompressionCodec.NONE
    upsert.fragment.refresh_interval.seconds = 60
    return pb.ApplyRequest.Change(upsert=upsert)


@contextlib.asynccontextmanager
async def serve(directory: Path, *journals: str) -> AsyncIterator[Any]:
    """Serve journals by an embedded broker, and give a client."""
    async with EmbeddedBroker(directory / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            await client.apply([journal_change(name) for name in (*SOURCES, OUT, *journals)])
            yield client


async def publish(client: Any, journal: str, *values: int) -> None:
    """Publish the transaction of some numbers."""
    publisher = Publisher(client.appends, json_adapter())
    async with publisher.transaction():
        for value in values:
            await publisher.publish_uncommitted(lambda _: (journal, NDJSON), {"v": value})


def shard_spec(*sources: str, min_ms: float = 0, max_ms: float = 1000, **fields: Any) -> ShardSpec:
    spec = ShardSpec(id="shard-A", **fields)
    for source in sources or SOURCES[:1]:
        spec.sources.add(journal=source)
    spec.min_txn_duration.FromMicroseconds(int(min_ms * 1000))
    spec.max_txn_duration.FromMicroseconds(int(max_ms * 1000))
    return spec


class Disk:
    """What a store has committed."""

    def __init__(self) -> None:
        self.checkpoint = Checkpoint()
        self.state: dict[str, Any] = {}
        self.fence = 0
        self.commits: list[Checkpoint] = []


class MemoryStore:
    """Store of a dict, whose commits happen at once, or when the test says so."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.state: dict[str, Any] = {}
        self.is_held = False
        self.error: Exception | None = None
        self.held = asyncio.Event()
        self.restored = 0
        self.fence = 0

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> AsyncOperation:
        operation = AsyncOperation()
        if self.error is not None:
            operation.resolve(self.error)
            return operation
        state = copy.deepcopy(self.state)
        self.task = asyncio.create_task(self._commit(operation, state, checkpoint, set(wait_for)))
        return operation

    async def _commit(self, operation: Any, state: Any, checkpoint: Any, wait_for: Any) -> None:
        try:
            for each in wait_for:
                await each
            if self.is_held:
                self.held.clear()
                await self.held.wait()
            if self.fence != self.disk.fence:
                raise FencedError("another process has taken over")
            self.commit(state, checkpoint)
        except Exception as error:  # noqa: BLE001
            operation.resolve(error)
        else:
            operation.resolve()

    def commit(self, state: Any, checkpoint: Any) -> None:
        """Make state and checkpoint durable, as one."""
        self.disk.state, self.disk.checkpoint = state, checkpoint
        self.disk.commits.append(checkpoint)

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        self.restored += 1
        self.disk.fence += 1
        self.fence = self.disk.fence
        self.state = copy.deepcopy(self.disk.state)
        restored = Checkpoint()
        restored.CopyFrom(self.disk.checkpoint)
        return restored

    async def destroy(self) -> None:
        pass


class FakeShard:
    """A shard without Etcd."""

    def __init__(self, client: Any, spec: ShardSpec, appends: Any = None) -> None:
        self.id = spec.id
        self.fqn = f"/items/{spec.id}"
        self.spec = spec
        self.client = client
        self.appends = (
            StrictAppendService(client, drain_timeout=0.01) if appends is None else appends
        )
        self.publisher: Publisher[Any] = Publisher(self.appends, json_adapter(), clock=Clock())


def read_through(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the offset that each source of a checkpoint was read through."""
    return {name: source.read_through for name, source in checkpoint.sources.items()}


def to_out(_message: Any) -> tuple[str, str]:
    return OUT, NDJSON


class Counter:
    """Counts messages by value, notes their order, and echoes them."""

    def __init__(self) -> None:
        self.txns: list[Any] = []

    def adapter(self, spec: Any) -> Any:
        return json_adapter()

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
        if env.flags != ACK_TXN:
            store.state.setdefault(env.journal, []).append(env.message["v"])
            await publisher.publish_uncommitted(to_out, {"v": env.message["v"]})


class Observer:
    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.actions: list[str] = []

    def acknowledged(self, shard: str, transaction: Any) -> None:
        self.reports.append(transaction)

    def decided(self, shard: str, action: str) -> None:
        self.actions.append(action)


class Member:
    """The primary of a shard."""

    def __init__(
        self,
        client: Any,
        disk: Disk,
        application: Any = None,
        spec: ShardSpec | None = None,
        appends: Any = None,
        **options: Any,
    ) -> None:
        self.application = application or Counter()
        self.shard: Any = FakeShard(client, spec or shard_spec(), appends)
        self.store = MemoryStore(disk)
        self.hooks = Hooks(self.application)
        self.progress = ProgressCell(source.journal for source in self.shard.spec.sources)
        self.observer = Observer()
        self.loop = self.primary(**options)

    def primary(self, **options: Any) -> PrimaryLoop:
        return PrimaryLoop(
            self.shard,
            self.hooks,
            self.store,
            progress=self.progress,
            observers=[self.observer.acknowledged],
            on_decision=self.observer.decided,
            **options,
        )

    async def run(self) -> None:
        checkpoint = await self.store.restore_checkpoint(self.shard)
        self.progress.restore(checkpoint)
        await self.loop.run(checkpoint)

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))
        if not self.task.cancelled():
            self.task.exception()  # Seen by `through()`.
        self.shard.appends.cancel()
        await self.shard.appends.aclose()

    async def through(self, offsets: dict[str, int]) -> None:
        """Wait until messages up to offsets are consumed and acknowledged, or the loop failed."""
        while not self.progress.covers(offsets):
            waiting = asyncio.create_task(self.progress.changed.next().wait())
            await asyncio.wait((waiting, self.task), return_when=asyncio.FIRST_COMPLETED)
            if self.task.done():
                waiting.cancel()
                await asyncio.wait((waiting,))
                self.task.result()


async def heads(client: Any, *journals: str) -> dict[str, int]:
    found = {}
    for journal in journals or SOURCES[:1]:
        response = await client.append(journal, b"")
        found[journal] = response.commit.end
    return found
