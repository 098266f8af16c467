"""Key-value store within this process, for consumers without an Etcd."""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_left, bisect_right, insort
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.keyspace.durable import DurableKeys
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    StoreRefusedError,
)
from gazette_aio.consumer.keyspace.operations import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
)
from gazette_aio.consumer.keyspace.store import (
    Deleted,
    Event,
    RangeResult,
    StoreHeader,
    TransactionResult,
    WatchResponse,
)
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

KEPT_TRANSACTIONS = 10_000
"""Transactions that later watches can begin from."""


class EmbeddedLease:
    """Lease of an EmbeddedStore: it lasts as long as its block, unless `expire()` ends it."""

    def __init__(self, lease_id: int) -> None:
        self.id = lease_id
        self.lost: asyncio.Event = asyncio.Event()


class _Write(NamedTuple):
    """A key that a transaction changed: `after` is None for a deletion."""

    key: str
    before: KeyValue | None
    after: KeyValue | None


class _Transaction(NamedTuple):
    revision: int
    writes: tuple[_Write, ...]


class EmbeddedStore(Owner):
    """A key-value store in memory, for all members of this process.

    Keys without a lease survive in `directory`, if one is given: a transaction is durable before it
    takes effect. Keys with a lease end with this process. Use it as an async context manager: with
    a directory, methods raise UsageError otherwise.

    Args:
        directory: Directory of the keys, which is made if it doesn't exist. One process at a time
            can use it. By default, nothing is stored.

    Raises:
        KeyValueStoreError: From `async with`, if the directory can't be used.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._durable: DurableKeys | None = None
        self._cluster_id = secrets.randbits(62) | 1
        self._revision = 1
        self._entries: dict[str, KeyValue] = {}
        self._keys: list[str] = []  # Those of `_entries`, in order.
        self._history: deque[_Transaction] = deque()
        self._compacted = 1  # Revisions up to this one are no longer in the history.
        self._leases: dict[int, EmbeddedLease] = {}
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._changed = Signal()

    def __repr__(self) -> str:
        return f"<EmbeddedStore revision={self._revision} keys={len(self._entries)}>"

    async def __aenter__(self) -> Self:
        if self._directory is not None and self._durable is None:
            try:
                await finish(self._open(self._directory))
            except asyncio.CancelledError:
                # The block doesn't begin, whose end would close the files.
                await self.aclose()
                raise
        return self

    async def _open(self, directory: Path) -> None:
        self._durable = durable = await in_thread(DurableKeys, directory, self._cluster_id)
        try:
            stored = await in_thread(durable.load)
        except KeyValueStoreError:
            await self._close()
            raise
        self._entries = {entry.key: entry for entry in stored}
        self._keys = [entry.key for entry in stored]
        self._cluster_id, self._revision = durable.cluster_id, durable.revision
        self._compacted = self._revision

    async def aclose(self) -> None:
        """Close the files, once transactions under way have ended. Idempotent.

        Cancellation: safe — raised after the files are closed.
        """
        await finish(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._is_closed = True
            durable, self._durable = self._durable, None
            if durable is not None:
                await in_thread(durable.close)

    def _check_entered(self) -> None:
        if self._directory is not None and self._durable is None and not self._is_closed:
            raise UsageError("a store with a directory keeps its keys within `async with` only")

    @property
    def _header(self) -> StoreHeader:
        return StoreHeader(self._cluster_id, 1, self._revision, 1)

    async def range(
        self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0
    ) -> RangeResult:
        """Read the keys that begin with `prefix`. See `KeyValueStore.range`.

        Cancellation: safe.
        """
        self._check_entered()
        if revision and revision != self._revision:
            entries = self._as_of(revision)
            keys = sorted(entries)
        else:
            entries, keys = self._entries, self._keys
        begin = max(bisect_left(keys, prefix), bisect_right(keys, after))
        end = bisect_right(keys, prefix, lo=begin, key=lambda key: key[: len(prefix)])
        chosen = keys[begin : min(end, begin + limit) if limit else end]
        found = tuple(entries[key] for key in chosen)
        return RangeResult(self._header, found, more=len(chosen) < end - begin)

    def _as_of(self, revision: int) -> dict[str, KeyValue]:
        if revision > self._revision:
            raise StoreRefusedError("etcdserver: mvcc: required revision is a future revision")
        if revision < self._compacted:
            raise CompactedError(self._compacted)
        entries = dict(self._entries)
        for transaction in reversed(self._history):
            if transaction.revision <= revision:
                break
            for write in transaction.writes:
                if write.before is None:
                    entries.pop(write.key, None)
                else:
                    entries[write.key] = write.before
        return entries

    async def transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run `operations` if all of `compares` hold. See `KeyValueStore.transact`.

        Cancellation: safe — raised after the transaction has taken effect, or failed.
        """
        return await finish(self._transact(compares, operations, otherwise))

    async def _transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult:
        async with self._lock:
            self._check_entered()
            if self._is_closed:
                raise KeyValueStoreError("the embedded store is closed")
            if max(len(compares), len(operations), len(otherwise)) > MAX_OPERATIONS:
                raise StoreRefusedError("etcdserver: too many operations in txn request")
            succeeded = all(
                getattr(self._entries.get(compare.key, _ABSENT), compare.target.value)
                == compare.value
                for compare in compares
            )
            chosen = operations if succeeded else otherwise
            writes = self._writes(chosen)
            # Reads of a transaction see the writes in front of them; no key is written twice.
            after = {write.key: write.after for write in writes}
            found = tuple(
                after.get(each.key, self._entries.get(each.key))
                for each in chosen
                if isinstance(each, Get)
            )
            if writes:
                await self._commit(writes)
            return TransactionResult(self._header, succeeded, found)

    def _writes(self, operations: Sequence[Operation]) -> list[_Write]:
        revision = self._revision + 1
        writes: list[_Write] = []
        seen: set[str] = set()
        for operation in operations:
            if isinstance(operation, Get):
                continue
            key = operation.key
            before = self._entries.get(key)
            if key in seen:
                raise StoreRefusedError("etcdserver: duplicate key given in txn request")
            seen.add(key)
            if isinstance(operation, Delete):
                if before is not None:
                    writes.append(_Write(key, before, None))
                continue
            writes.append(_Write(key, before, self._put(operation, before, revision)))
        return writes

    def _put(self, put: Put, before: KeyValue | None, revision: int) -> KeyValue:
        lease = put.lease
        if put.ignore_lease:
            if before is None:
                raise StoreRefusedError("etcdserver: key not found")
            lease = before.lease
        elif lease and lease not in self._leases:
            raise StoreRefusedError("etcdserver: requested lease not found")
        if before is None:
            return KeyValue(put.key, put.value, revision, revision, 1, lease)
        version = before.version + 1
        return KeyValue(put.key, put.value, before.create_revision, revision, version, lease)

    async def _commit(self, writes: Sequence[_Write]) -> None:
        """Make writes durable, then visible. The caller holds the lock."""
        revision = self._revision + 1
        if self._durable is not None:
            puts = [write.after for write in writes if write.after and not write.after.lease]
            # A key that has got a lease isn't durable any longer.
            gone = [write.key for write in writes if write.after is None or write.after.lease]
            await in_thread(self._durable.commit, revision, puts, gone)
        for write in writes:
            if write.after is None:
                del self._entries[write.key]
                del self._keys[bisect_left(self._keys, write.key)]
            else:
                self._entries[write.key] = write.after
                if write.before is None:
                    insort(self._keys, write.key)
        self._revision = revision
        self._history.append(_Transaction(revision, tuple(writes)))
        if len(self._history) > KEPT_TRANSACTIONS:
            self._compacted = self._history.popleft().revision
        self._changed.set()

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate changes from `start_revision` on. See `KeyValueStore.watch`.

        Cancellation: safe — the iteration ends.
        """
        self._check_entered()
        while True:
            changed = self._changed.next()
            if start_revision <= self._compacted:
                raise CompactedError(self._compacted + 1)
            header = self._header
            events = [
                write.after or Deleted(write.key, transaction.revision)
                for transaction in self._since(start_revision)
                for write in transaction.writes
                if write.key.startswith(prefix)
            ]
            start_revision = self._revision + 1
            if events:
                yield WatchResponse(header, tuple[Event, ...](events))
            else:
                await changed.wait()

    def _since(self, revision: int) -> list[_Transaction]:
        newest: list[_Transaction] = []
        for transaction in reversed(self._history):
            if transaction.revision < revision:
                break
            newest.append(transaction)
        newest.reverse()
        return newest

    @asynccontextmanager
    async def lease(self, ttl_seconds: int) -> AsyncGenerator[EmbeddedLease, None]:  # noqa: ARG002
        """Grant a lease for the time of the block. Only `expire()` ends it earlier.

        Cancellation: safe — the lease is revoked first.
        """
        self._check_entered()
        lease = EmbeddedLease(secrets.randbits(62) | 1)
        self._leases[lease.id] = lease
        try:
            yield lease
        finally:
            await finish(self._revoke(lease))

    async def expire(self, lease_id: int) -> None:
        """End a lease as if its holder had been silent for too long: its keys are deleted.

        Cancellation: safe — raised after the lease has ended.
        """
        lease = self._leases.get(lease_id)
        if lease is not None:
            await finish(self._revoke(lease))

    async def _revoke(self, lease: EmbeddedLease) -> None:
        async with self._lock:
            if self._leases.pop(lease.id, None) is None:
                return
            lease.lost.set()
            writes = [
                _Write(entry.key, entry, None)
                for entry in self._entries.values()
                if entry.lease == lease.id
            ]
            if writes:
                await self._commit(writes)


_ABSENT = KeyValue("", b"", 0, 0, 0)
