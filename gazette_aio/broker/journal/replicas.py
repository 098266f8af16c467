"""Replicas of a broker: opened at first use, and updated with changes of the key space."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.journal.replica import Replica
from gazette_aio.broker.journal.write_head import ReplicaFailedError
from gazette_aio.broker.keyspace.data_directory import ORPHAN_SUFFIX
from gazette_aio.broker.keyspace.meta_log import HEAD_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpaceTransaction
    from gazette_aio.broker.runtime import Runtime

STOPPED = "resolver has stopped serving local replicas"
"""Text of the error of requests for journals while the broker ends."""

_logger = logging.getLogger(__name__)

_FULL = pb.JournalSpec.Suspend.Level.FULL
_FLUSHES_AT_ONCE = 8


class Replicas:
    """Replicas by journal. A journal has no replica before its first read or append."""

    def __init__(self, runtime: Runtime) -> None:
        self.max_open: int = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        """Replicas which may keep files open for their next append."""
        self._runtime = runtime
        self._space = runtime.space
        self._data = runtime.data
        self._replicas: dict[str, Replica] = {}
        self._opening: dict[Replica, asyncio.Task[None]] = {}
        self._leaving: dict[Path, asyncio.Task[None]] = {}
        self._unopened: set[str] = set()
        """Journals which aren't open, but may have content in their directories."""
        self._recent: OrderedDict[Replica, None] = OrderedDict()
        self._unsynced: set[Replica] = set()
        self._interval_armed = False
        self._interval_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Replicas open={len(self._replicas)}>"

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    # Opening

    def ready(self, item: JournalItem) -> Replica | None:
        """Return the replica of a journal, and declare its use, if `get` needn't wait for it."""
        replica = self._replicas.get(item.name)
        if (
            replica is None
            or replica in self._opening
            or replica.item.create_revision != item.create_revision
        ):
            return None
        return replica if replica.use() else None

    async def get(self, item: JournalItem) -> Replica:
        """Return the replica of a journal, recovered and with its stores listed.

        Raises:
            OSError: The journal's files can't be read.
            StoreError: The files are of a later version.
            ReplicaFailedError: The broker is stopping.

        Cancellation: safe.
        """
        replica = self._replicas.get(item.name)
        if replica is None or replica.item.create_revision != item.create_revision:
            if self._runtime.stopped:
                raise ReplicaFailedError(STOPPED)
            directory = self._data.journal(item)
            is_fresh = (
                directory not in self._leaving
                and self._runtime.heads.get(directory.name) is None
                and not directory.exists()
            )
            is_empty = is_fresh and not item.spec.fragment.stores
            replica = Replica(self._runtime, item, is_listed=is_empty)
            if self._runtime.ending.is_set():
                replica.index.end()
            if is_empty:
                self._replicas[item.name] = replica
                return replica
            # Taken now: a later task may itself wait until this replica is open.
            opening_work = self._open(replica, self._leaving.get(directory))
            task = self._runtime.background.start(opening_work, f"open {item.name}")
            if task is None:
                raise ReplicaFailedError(STOPPED)
            self._replicas[item.name] = replica
            self._opening[replica] = task
        if (opening := self._opening.get(replica)) is not None:
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                # The broker stops. Otherwise the caller was cancelled.
                if opening.cancelled() and not _is_cancelled():
                    raise ReplicaFailedError(STOPPED) from None
                raise
        if not replica.use():
            await replica.keep_listed()
        return replica

    async def _open(self, replica: Replica, leaving: asyncio.Task[None] | None) -> None:
        try:
            # Race: an append to the dropped replica may still commit.
            if leaving is not None:
                await asyncio.wait([leaving])
            await replica.recover()
            await replica.keep_listed()
        except BaseException:
            replica.close()
            if self._replicas.get(replica.name) is replica:
                del self._replicas[replica.name]
            raise
        finally:
            self._opening.pop(replica, None)
        if replica.head.closed:
            return
        self._unopened.discard(replica.name)
        replica.persist_later()
        replica.pulse_later()

    async def recover_later(self) -> None:
        """Schedule the opening of journals that may have unpersisted content of an earlier run.

        Directories of deleted journals are removed.

        Cancellation: safe.
        """
        kept, removed = await self._runtime.io.run(self._directories)
        self._unopened.update(kept)
        for name in kept:
            self._open_later(name)
        for name in removed:
            await self._runtime.bulk.run(self._data.remove, self._data.journals / name)

    def _directories(self) -> tuple[list[str], set[str]]:
        """Return journals that have or had a directory, and directories without a journal."""
        names = {
            path.name for path in self._data.journals.iterdir() if path.suffix != ORPHAN_SUFFIX
        }
        lost = self._runtime.heads.names - names - {HEAD_NAME}
        names |= lost
        kept: list[str] = []
        for item in self._space if names else ():
            directory = self._data.journal(item).name
            if directory in names:
                names.remove(directory)
                kept.append(item.name)
        for name in list(names):
            # The key space can't have deleted this journal: it never had the journal.
            revision = name.partition("-")[0]
            if not revision.isdecimal() or int(revision) > self._space.revision:
                path = self._data.journals / name
                names.remove(name)
                if name in lost:
                    self._runtime.heads.remove(name)
                    continue
                _logger.warning("put aside an unknown journal", extra={"path": str(path)})
                self._data.put_aside(path)
        return kept, names

    def _open_later(self, name: str) -> None:
        item = self._space.get(name)
        if item is None or not item.spec.fragment.stores:
            return

        async def work() -> None:
            item = self._space.get(name)
            if item is not None and item.spec.suspend.level != _FULL and not self._runtime.stopped:
                await self.get(item)

        self._runtime.scheduler.after(0.0, f"recover {name}", work, lane=item.first_store)

    # Changes of the key space

    def follow(self, transaction: KeySpaceTransaction, removed: list[JournalItem]) -> None:
        """Follow a committed transaction of the key space.

        Args:
            transaction: The transaction.
            removed: Journals that the transaction deleted.
        """
        for spec in transaction.puts:
            replica = self._replicas.get(spec.name)
            item = self._space.get(spec.name)
            if item is None:
                continue
            if replica is None:
                if spec.name in self._unopened:
                    self._open_later(spec.name)
                continue
            has_other_stores = replica.follow(item)
            if spec.suspend.level == _FULL:
                if replica.has_local_content:
                    self._unopened.add(spec.name)
                self._drop(replica)
            elif has_other_stores and replica.index.waiters:
                self._open_later(spec.name)  # Those who wait don't ask again.
        for item in removed:
            self._unopened.discard(item.name)
            replica = self._replicas.get(item.name)
            if replica is not None:
                self._unsynced.discard(replica)
                self._drop(replica)
            self._runtime.background.start(self._remove(item), f"remove {item.name}")

    def _drop(self, replica: Replica) -> None:
        replica.close()
        self._recent.pop(replica, None)
        if self._replicas.get(replica.name) is replica:
            del self._replicas[replica.name]
        opening = self._opening.get(replica)
        unsynced = replica in self._unsynced
        if self._runtime.stopped or (opening is None and replica.is_settled and not unsynced):
            return
        directory = replica.directory
        leave = self._leave(replica, self._leaving.get(directory), opening)
        task = self._runtime.background.start(leave, f"leave {replica.name}")
        if task is not None:
            self._leaving[directory] = task

    async def _leave(
        self,
        replica: Replica,
        before: asyncio.Task[None] | None,
        opening: asyncio.Task[None] | None,
    ) -> None:
        """Wait until a dropped replica has stopped using its files."""
        waiting = [task for task in (before, opening) if task is not None]
        if waiting:
            await asyncio.wait(waiting)
        await replica.settled()  # An append which holds the journal still commits.
        await self._sync_one(replica)
        if self._leaving.get(replica.directory) is asyncio.current_task():
            del self._leaving[replica.directory]

    async def _remove(self, item: JournalItem) -> None:
        directory = self._data.journal(item)
        if (leaving := self._leaving.get(directory)) is not None:
            await asyncio.wait([leaving])
        await self._runtime.bulk.run(self._data.remove, directory)

    # Periodic work

    def touched(self, replica: Replica) -> None:
        """Declare that a replica has opened its files. Close those of the least recently used."""
        if replica.head.closed:
            return
        self._recent[replica] = None
        self._recent.move_to_end(replica)
        for _ in range(len(self._recent) - self.max_open):
            oldest, _ = self._recent.popitem(last=False)
            oldest.head.close_files()
            if oldest.head.spool.is_open:
                self._recent[oldest] = None  # It's busy: its turn comes again.

    def appended(self, replica: Replica) -> None:
        """Declare that a replica has new content."""
        replica.pulse_later()
        if self._runtime.options.fsync == "interval":
            self._unsynced.add(replica)
            if not self._interval_armed:
                self._interval_armed = True
                self._runtime.scheduler.after(
                    self._runtime.options.sync_interval, "sync journals", self.sync_acknowledged
                )

    async def flush_all(self) -> None:
        """Flush all journals with stores, including journals of an earlier run.

        Raises:
            OSError, StoreError: A journal's fragment can't be persisted. All other journals are
            flushed.

        Cancellation: safe.
        """
        # A silent store must not delay journals of other stores.
        turns: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_FLUSHES_AT_ONCE)
        )
        failure: Exception | None = None

        async def flush(name: str, turn: asyncio.Semaphore) -> None:
            nonlocal failure
            async with turn:
                # Race: the journal may have been deleted, and created anew, while this one waited.
                item = self._space.get(name)
                replica = self._replicas.get(name)
                if item is None or not (replica or item.spec.fragment.stores):
                    return
                try:
                    if replica is None or replica in self._opening:
                        replica = await self.get(item)
                    await replica.flush()
                except ReplicaFailedError as error:
                    failure = failure or pb.StoreError(f"{name}: {error}")
                except (OSError, pb.GazetteError) as error:
                    failure = failure or error

        async with asyncio.TaskGroup() as tasks:
            for name in sorted({*self._replicas, *self._unopened}):
                item = self._space.get(name)
                turn = turns[item.first_store if item else ""]
                tasks.create_task(flush(name, turn), name=f"flush {name}")
        if failure is not None:
            raise failure

    async def sync_acknowledged(self) -> None:
        """Make content durable that was acknowledged before, of all journals.

        Cancellation: safe.
        """
        self._interval_armed = False
        async with self._interval_lock:  # Who ends the broker waits for a round in progress.
            for replica in list(self._unsynced):
                # A closed replica is synced when it leaves, before another replica uses its files.
                if self._runtime.stopped or not replica.head.closed:
                    await self._sync_one(replica)

    async def _sync_one(self, replica: Replica) -> None:
        if replica in self._unsynced:
            self._unsynced.discard(replica)
            await replica.head.sync_unacknowledged()
            if replica.head.closed:
                replica.head.close_files()

    # End

    def end_reads(self) -> None:
        """Let readers of all replicas, now and later, see the end of their streams."""
        for replica in self._replicas.values():
            replica.index.end()

    async def close(self) -> None:
        """End all replicas: their readers see the end of their streams.

        Cancellation: safe — all replicas are ended.
        """
        await self.sync_acknowledged()
        for replica in list(self._replicas.values()):
            self._drop(replica)
        for task in list(self._opening.values()):
            task.cancel()
            await asyncio.wait([task])


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
