"""Key-value store within this process, for consumers without an Etcd.

It's a database of SQLite, in memory or on the disk, with a row for each revision of a key. A row
ends with the revision that replaces or deletes it; a deletion is a row of version 0, which ends at
once. So a range at a revision and the history of a watch are queries.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.threads import in_thread
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
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from pathlib import Path

P = ParamSpec("P")
T = TypeVar("T")

KEPT_TRANSACTIONS = 10_000
"""Transactions that later watches can begin from."""

_FILE: Final = "keys.sqlite"
_FORMAT: Final = 1
_SCHEMA: Final = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA synchronous = FULL;
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS store (revision INTEGER NOT NULL, cluster_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS revisions (
    key BLOB NOT NULL, value BLOB NOT NULL,
    create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, version INTEGER NOT NULL,
    lease INTEGER NOT NULL, ended INTEGER
);
CREATE INDEX IF NOT EXISTS by_key ON revisions (key, ended);
CREATE INDEX IF NOT EXISTS by_revision ON revisions (mod_revision);
CREATE INDEX IF NOT EXISTS by_end ON revisions (ended);
DELETE FROM revisions WHERE lease OR ended;
COMMIT;
"""
_COLUMNS: Final = (
    "SELECT key, value, create_revision, mod_revision, version, lease FROM revisions WHERE "
)
_END: Final = "UPDATE revisions SET ended = ? WHERE "


class EmbeddedLease:
    """Lease of an EmbeddedStore: it lasts as long as its block, unless `expire()` ends it."""

    def __init__(self, lease_id: int) -> None:
        self.id = lease_id
        self.lost: asyncio.Event = asyncio.Event()


class EmbeddedStore(Owner):
    """A key-value store for all members of this process. Use it as an async context manager.

    Keys without a lease survive in `directory`, if one is given: a transaction is durable before it
    takes effect. Keys with a lease end with this process.

    Args:
        directory: Directory of the keys, which is made if it doesn't exist. One process at a time
            can use it. By default, keys are in memory alone.

    Raises:
        KeyValueStoreError: From `async with`, if the directory can't be used.
        UsageError: From methods, before `async with`.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._path: Path | str = directory / _FILE if directory is not None else ":memory:"
        self._db: sqlite3.Connection | None = None
        self._cluster_id = self._revision = 0
        self._compacted = 0  # Revisions up to this one are no longer in the history.
        self._leases: dict[int, EmbeddedLease] = {}
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._changed = Signal()

    def __repr__(self) -> str:
        return f"<EmbeddedStore {self._path} revision={self._revision}>"

    async def __aenter__(self) -> Self:
        if self._db is None:
            try:
                await finish(self._call(self._open))
            except BaseException:
                # The block doesn't begin, whose end would close the files.
                await self.aclose()
                raise
        return self

    async def aclose(self) -> None:
        """Close the files, once transactions under way have ended. Idempotent.

        Cancellation: safe — raised after the files are closed.
        """
        await finish(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._is_closed = True
            db, self._db = self._db, None
            if db is not None:
                await in_thread(db.close)

    async def _call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the database, one at a time: in a thread if it's on the disk."""
        async with self._lock:
            revision = self._revision
            try:
                if self._directory is None:
                    return function(*args, **kwargs)
                return await in_thread(function, *args, **kwargs)
            except (OSError, sqlite3.Error) as error:
                raise KeyValueStoreError(f"key space in {self._path}: {error}") from error
            finally:
                if self._revision != revision:
                    self._changed.set()

    def _check(self) -> None:
        if self._db is None and self._is_closed:
            raise KeyValueStoreError("the embedded store is closed")
        if self._db is None:
            raise UsageError("an embedded store has keys within `async with` only")

    # Functions of the database, which block.

    def _open(self) -> None:
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
        self._db = db = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=0
        )
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            db.execute(f"PRAGMA user_version = {_FORMAT}")
        elif db.execute("PRAGMA user_version").fetchone() != (_FORMAT,):
            raise KeyValueStoreError(
                f"key space in {self._path}: the database has another format: "
                "use an empty directory, and apply the shards there"
            )
        db.executescript(_SCHEMA)
        if db.execute("SELECT count(*) FROM store").fetchone() == (0,):
            db.execute("INSERT INTO store VALUES (1, ?)", (secrets.randbits(62) | 1,))
        self._revision, self._cluster_id = db.execute("SELECT * FROM store").fetchone()
        self._compacted = self._revision

    def _select(self, where: str, *values: bytes | int) -> list[KeyValue]:
        """Return revisions of keys. Those of deletions have an empty value, and version 0."""
        self._check()
        assert self._db is not None
        rows = self._db.execute(_COLUMNS + where, values)
        return [KeyValue(key.decode(errors="surrogatepass"), *others) for key, *others in rows]

    def _current(self, key: str) -> KeyValue | None:
        return next(iter(self._select("key = ? AND ended IS NULL", _bytes(key))), None)

    def _range(self, prefix: str, revision: int, after: str, limit: int) -> RangeResult:
        if revision > self._revision:
            raise StoreRefusedError("etcdserver: mvcc: required revision is a future revision")
        if revision and revision < self._compacted:
            raise CompactedError(self._compacted)
        begin, end = _bounds(prefix)
        found = self._select(
            "key >= ? AND key < ? AND version AND +mod_revision <= ? "
            "AND (ended IS NULL OR ended > ?) ORDER BY key LIMIT ?",
            max(begin, _bytes(after) + b"\0") if after else begin,
            end,
            revision or self._revision,
            revision or self._revision,
            limit + 1 if limit else -1,
        )
        return RangeResult(self._header, tuple(found[: limit or None]), more=0 < limit < len(found))

    def _since(self, prefix: str, revision: int) -> WatchResponse:
        if revision <= self._compacted:
            raise CompactedError(self._compacted + 1)
        found = self._select(
            # By the index of revisions, as the plus signs forbid that of keys.
            "mod_revision >= ? AND +key >= ? AND +key < ? ORDER BY mod_revision, rowid",
            revision,
            *_bounds(prefix),
        )
        events = (each if each.version else Deleted(each.key, each.mod_revision) for each in found)
        return WatchResponse(self._header, tuple[Event, ...](events))

    def _transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult:
        if max(len(compares), len(operations), len(otherwise)) > MAX_OPERATIONS:
            raise StoreRefusedError("etcdserver: too many operations in txn request")
        succeeded = all(
            getattr(self._current(compare.key) or _ABSENT, compare.target.value) == compare.value
            for compare in compares
        )
        chosen = operations if succeeded else otherwise
        writes = [each for each in chosen if not isinstance(each, Get)]
        if len({each.key for each in writes}) < len(writes):
            raise StoreRefusedError("etcdserver: duplicate key given in txn request")
        events = [event for event in map(self._event, writes) if event is not None]
        if events:
            with self._transaction() as (db, revision):
                for event in events:
                    db.execute(_END + "key = ? AND ended IS NULL", (revision, _bytes(event.key)))
                    db.execute("INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, ?)", _row(event))
        # Reads of a transaction see its writes.
        found = tuple(self._current(each.key) for each in chosen if isinstance(each, Get))
        return TransactionResult(self._header, succeeded, found)

    def _event(self, write: Put | Delete) -> Event | None:
        """Return what a write does to its key, or None for a deletion of no key."""
        before, revision = self._current(write.key), self._revision + 1
        if isinstance(write, Delete):
            return Deleted(write.key, revision) if before is not None else None
        lease = write.lease
        if write.ignore_lease:
            if before is None:
                raise StoreRefusedError("etcdserver: key not found")
            lease = before.lease
        elif lease and lease not in self._leases:
            raise StoreRefusedError("etcdserver: requested lease not found")
        if before is None:
            return KeyValue(write.key, write.value, revision, revision, 1, lease)
        version = before.version + 1
        return KeyValue(write.key, write.value, before.create_revision, revision, version, lease)

    def _end_lease(self, lease: int) -> None:
        if not self._select("lease = ? AND ended IS NULL LIMIT 1", lease):
            return
        # By two statements, as there may be thousands of keys.
        with self._transaction() as (db, revision):
            db.execute(_END + "lease = ? AND ended IS NULL", (revision, lease))
            db.execute(
                "INSERT INTO revisions SELECT key, x'', 0, ended, 0, 0, ended FROM revisions "
                "WHERE ended = ? ORDER BY key",
                (revision,),
            )

    @contextmanager
    def _transaction(self) -> Generator[tuple[sqlite3.Connection, int]]:
        """Write a revision, durably and as a whole, and drop the oldest one of the history."""
        revision = self._revision + 1
        compacted = max(self._compacted, revision - KEPT_TRANSACTIONS)
        assert self._db is not None
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            yield db, revision
            db.execute("UPDATE store SET revision = ?", (revision,))
            db.execute("DELETE FROM revisions WHERE ended <= ?", (compacted,))
        self._revision, self._compacted = revision, compacted

    @property
    def _header(self) -> StoreHeader:
        return StoreHeader(self._cluster_id, 1, self._revision, 1)

    # Requests.

    async def range(
        self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0
    ) -> RangeResult:
        """Read the keys that begin with `prefix`. See `KeyValueStore.range`.

        Cancellation: safe.
        """
        return await self._call(self._range, prefix, revision, after, limit)

    async def transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run `operations` if all of `compares` hold. See `KeyValueStore.transact`.

        Cancellation: safe — raised after the transaction has taken effect, or failed.
        """
        return await finish(self._call(self._transact, compares, operations, otherwise))

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate changes from `start_revision` on. See `KeyValueStore.watch`.

        Cancellation: safe — the iteration ends.
        """
        while True:
            changed = self._changed.next()
            response = await self._call(self._since, prefix, start_revision)
            start_revision = response.header.revision + 1
            if response.events:
                yield response
            else:
                await changed.wait()

    @asynccontextmanager
    async def lease(self, ttl_seconds: int) -> AsyncGenerator[EmbeddedLease, None]:  # noqa: ARG002
        """Grant a lease for the time of the block. Only `expire()` ends it earlier.

        Cancellation: safe — the lease is revoked first.
        """
        self._check()
        lease = EmbeddedLease(secrets.randbits(62) | 1)
        self._leases[lease.id] = lease
        try:
            yield lease
        finally:
            await self.expire(lease.id)

    async def expire(self, lease_id: int) -> None:
        """End a lease as if its holder had been silent for too long: its keys are deleted.

        Cancellation: safe — raised after the lease has ended.
        """
        if (lease := self._leases.pop(lease_id, None)) is not None:
            lease.lost.set()
            await finish(self._call(self._end_lease, lease_id))


_ABSENT: Final = KeyValue("", b"", 0, 0, 0)


def _row(event: Event) -> tuple[bytes | int | None, ...]:
    key, revision = _bytes(event.key), event.mod_revision
    if isinstance(event, Deleted):
        return key, b"", 0, revision, 0, 0, revision
    return key, event.value, event.create_revision, revision, event.version, event.lease, None


def _bytes(key: str) -> bytes:
    """Return a key that orders as its text does, even if it isn't UTF-8."""
    return key.encode(errors="surrogatepass")


def _bounds(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key that begins with `prefix`, and one after the last one."""
    begin = _bytes(prefix)
    return begin, begin[:-1] + bytes([begin[-1] + 1]) if begin else b"\xff"
