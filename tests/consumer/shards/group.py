"""A member of a group on an embedded store, whose assignments the test writes by hand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self
from unittest import mock

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.allocator.model import Assignment, MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from gazette_aio.consumer.allocator.shard_group import new_key_space
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Delete, KeyValue, Put
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.consumer.shards import replica
from gazette_aio.consumer.shards.local_shards import LocalShards
from gazette_aio.consumer.shards.resolver import Resolution, Resolver
from gazette_aio.message import ACK_TXN, json_adapter
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from tests.consumer.transactions.world import Disk, MemoryStore

KEYS = GroupKeys("/consumer.test")
LOCAL, REMOTE = MemberID("local", "consumer"), MemberID("remote", "consumer")
A = "shard-A"


class TrackedStore(MemoryStore):
    """A store that says whether it was destroyed."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.is_destroyed = False
        self.restore_error: Exception | None = None

    async def restore_checkpoint(self, shard: Any) -> Any:
        if self.restore_error is not None:
            raise self.restore_error
        return await super().restore_checkpoint(shard)

    async def destroy(self) -> None:
        assert not self.is_destroyed, "destroyed twice"
        self.is_destroyed = True


class Application:
    """Keeps the messages of each shard in a store that outlives its replicas."""

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}
        self.stores: list[TrackedStore] = []
        self.errors: dict[str, Exception] = {}
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.opening = asyncio.Event()

    def adapter(self, spec: Any) -> Any:
        return json_adapter()

    async def new_store(self, shard: Any, recorder: Any) -> TrackedStore:
        self.opening.set()
        await self.may_open.wait()
        if (error := self.errors.get("new_store")) is not None:
            raise error
        store = TrackedStore(self.disks.setdefault(shard.id, Disk()))
        store.restore_error = self.errors.get("restore")
        self.stores.append(store)
        return store

    def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
        if (error := self.errors.get("consume")) is not None:
            raise error
        if env.flags != ACK_TXN:
            store.state.setdefault(env.journal, []).append(env.message["v"])


class IdleLoop:
    """Transactions of shards without messages: they run until cancelled, or until told to fail."""

    def __init__(
        self,
        shard: Any,
        hooks: Any,
        store: Any,
        *,
        progress: Any,
        recovery_log: str,
        **_: Any,
    ) -> None:
        self.shard, self.hooks, self.store, self.progress = shard, hooks, store, progress
        self.recovery_log = recovery_log
        self.error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sources = frozenset(source.journal for source in shard.spec.sources)

    async def run(self, checkpoint: Any) -> None:
        await asyncio.wait((self.error,))
        self.error.result()


class Loops:
    """Makes idle loops, and keeps them by shard."""

    def __init__(self) -> None:
        self.made: dict[str, IdleLoop] = {}

    def __call__(self, shard: Any, hooks: Any, store: Any, **options: Any) -> IdleLoop:
        self.made[shard.id] = loop = IdleLoop(shard, hooks, store, **options)
        return loop

    def fail(self, shard: str, text: str) -> None:
        self.made[shard].error.set_exception(RuntimeError(text))


class Group:
    """A member that isn't started, its replicas, and the keys of its group."""

    def __init__(
        self,
        client: Any,
        *,
        store: Any = None,
        application: Any = None,
        local: MemberID = LOCAL,
        remote: MemberID | None = REMOTE,
        endpoint: str = "",
        peers: Any = None,
        primary_loop: Any = None,
        recovery: Any = None,
        metrics: Any = None,
        get_hints: Any = None,
        **options: Any,
    ) -> None:
        self.store = store or EmbeddedStore()
        self._is_own_store = store is None
        self.application = application or Application()
        self.local, self.remote = local, remote
        self.endpoint = endpoint or f"http://{local.zone}/endpoint"
        self.loops = Loops()
        self._made = {
            "PrimaryLoop": primary_loop or self.loops,
            "LogRecovery": recovery or replica.LogRecovery,
        }
        self.service = service = Service(
            self.application,
            self.store,
            client,
            ConsumerOptions(prefix=KEYS.root, **options),
            metrics=metrics,
        )
        self.group = service.group = ObservedGroup(local)
        self.key_space = service.key_space = new_key_space(self.store, KEYS, apply_delay_seconds=0)
        self.key_space.observers.append(self.group.observe)
        self.peers = service.peers = peers
        self.shards = service.local_shards = LocalShards(service)
        if get_hints is not None:
            service.shard_api.get_hints = get_hints

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._stack.enter_context(mock.patch.multiple(replica, **self._made))
        if self._is_own_store:
            await self.store.__aenter__()
        for member in (self.local, self.remote):
            if member is not None:
                await self.announce(member)
        await self.key_space.load()
        self.watch = asyncio.create_task(self.key_space.watch())
        self.resolver = self.service.resolver = Resolver(self.service)
        await self._stack.enter_async_context(self.shards)
        return self

    async def resolve(self, shard: str = A, **request: Any) -> Resolution:
        """Resolve a shard, and release it at once."""
        async with self.resolver.resolve(shard, **request) as resolution:
            return resolution

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._stack.aclose()
        finally:
            self.watch.cancel()
            await finish(asyncio.wait((self.watch,)))
            if self._is_own_store:
                await self.store.aclose()

    async def announce(self, member: MemberID) -> None:
        spec = ConsumerSpec(shard_limit=100)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = member
        is_local = member == self.local
        spec.process_spec.endpoint = self.endpoint if is_local else f"http://{member.zone}/endpoint"
        await self.write(Put(KEYS.member(*member), spec.SerializeToString()))

    async def write(self, *operations: Any, wait: bool = True) -> int:
        """Write keys, and return the revision, once the member has seen it."""
        result = await self.store.transact([], operations)
        assert result.succeeded
        if wait and self.key_space.header.revision:
            await self.key_space.wait_for_revision(result.header.revision)
        return result.header.revision

    async def create(self, *specs: ShardSpec) -> int:
        puts = [Put(KEYS.item(spec.id), spec.SerializeToString()) for spec in specs]
        return await self.write(*puts)

    async def assign(
        self, shard: str = A, slot: int = 0, member: MemberID | None = None, **options: Any
    ) -> int:
        key = KEYS.assignment(shard, *(member or self.local), slot)
        return await self.write(Put(key, options.pop("value", b"")), **options)

    async def unassign(self, shard: str = A, slot: int = 0, member: MemberID | None = None) -> int:
        return await self.write(Delete(KEYS.assignment(shard, *(member or self.local), slot)))

    async def promote(self, shard: str = A, slot: int = 1) -> int:
        """Move an assignment to slot 0, as the allocator does: with its value."""
        old = KEYS.assignment(shard, *self.local, slot)
        entry = self.key_space.entries.get(old)
        assert entry is not None
        put = Put(KEYS.assignment(shard, *self.local, 0), entry.raw.value)
        return await self.write(Delete(old), put)

    async def status(self, code: str, shard: str = A, slot: int = 0) -> ReplicaStatus:
        """Wait until a replica of this member has a status, and return it."""
        key = KEYS.assignment(shard, *self.local, slot)
        while True:
            entry = self.key_space.entries.get(key)
            if entry is not None:
                status = entry.status  # type: ignore[union-attr]
                if ReplicaStatus.Code.Name(status.code) == code:
                    return status
            await self.key_space.next_change()


def shard_spec(shard: str = A, *sources: str, **fields: Any) -> ShardSpec:
    spec = ShardSpec(id=shard, **fields)
    for source in sources or ("source/A", "source/B"):
        spec.sources.add(journal=source)
    spec.max_txn_duration.FromMilliseconds(100)
    return spec


def assignment_at(revision: int, slot: int = 0, key: str = "") -> Assignment:
    """Return an assignment of a shard to this member, as made at a revision."""
    raw = KeyValue(key or KEYS.assignment(A, *LOCAL, slot), b"", revision, revision, 1)
    return Assignment(raw, ReplicaStatus(), A, LOCAL, slot)
