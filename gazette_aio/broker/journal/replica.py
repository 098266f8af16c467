"""A journal which this broker serves: its spool, its index, and who waits for them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.commit_log import Kind
from gazette_aio.broker.journal.flow_control import FlowBalance
from gazette_aio.broker.journal.index_entry import FragmentIndex, IndexEntry
from gazette_aio.broker.journal.local_fragment import LocalFragment
from gazette_aio.broker.journal.recovery import RecoveredJournal, recover_journal
from gazette_aio.broker.journal.spool import Spool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.broker.runtime import Runtime

logger = logging.getLogger(__name__)


class ReplicaFailedError(Exception):
    """Files of the journal failed in a way which leaves their state unknown."""


class Replica:
    """A served journal.

    Args:
        runtime: Services of the broker.
        item: The journal, kept current by the registry of replicas.
        directory: Directory of the journal's life.
    """

    def __init__(self, runtime: Runtime, item: JournalItem, directory: Path) -> None:
        self.item = item
        self.name = item.name
        self.directory = directory
        self.index = FragmentIndex()
        self.complete: list[LocalFragment] = []
        """Complete fragments which aren't persisted, oldest first."""
        self.flow = FlowBalance()
        self.closed = False
        self.ending = False
        """Whether nobody may wait for a change any more."""
        self.roll_pending = False
        self.listed = False
        self.listing_error = ""
        self.accessed = True
        """Whether somebody used the replica since its stores were last listed."""
        self.waiters = 0
        """Readers which wait for a change."""
        self.idle = False
        """Whether its stores aren't listed periodically, for want of users."""
        self.refreshes = 0
        """How often the periodic listing was begun; only the latest one goes on."""
        self.pulse_armed = False
        self.persist_armed = False
        self.persist_lock = asyncio.Lock()
        self.listing_lock = asyncio.Lock()
        self._runtime = runtime
        self._lock = asyncio.Lock()
        self._changed: asyncio.Event | None = None
        self._failure = ""
        self._published_end = 0
        self._sync_task: asyncio.Task[None] | None = None
        self._sync_requests: list[asyncio.Future[None]] = []
        self.spool = Spool(
            runtime.files,
            directory,
            journal=self.name,
            begin=0,
            codec=item.spec.fragment.compression_codec,
            registers=pb.LabelSet(),
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else "locked" if self._lock.locked() else "idle"
        return f"<Replica {self.name} {state} {self.spool!r} {self.index!r}>"

    @property
    def head(self) -> int:
        """Offset which the next append begins at."""
        return self.spool.end

    @property
    def is_busy(self) -> bool:
        """Whether an append holds the journal, or its files are being synced."""
        return self._lock.locked() or self._sync_task is not None

    @property
    def is_settled(self) -> bool:
        """Whether nobody uses its files, other than to read them."""
        return not self.is_busy and not self.persist_lock.locked()

    # Recovery

    async def recover(self) -> None:
        """Read back what the journal's directory holds.

        Raises:
            OSError: If it can't be read.
            StoreError: If it's of a later version.
        """
        if not self.directory.exists():
            return
        recovered = await self._runtime.io.run(
            recover_journal,
            self._runtime.files,
            self.directory,
            self.name,
            sync=self._runtime.syncs,
        )
        self._adopt(recovered)

    def _adopt(self, recovered: RecoveredJournal) -> None:
        for found in recovered.complete:
            fragment = LocalFragment.recovered(self._runtime.files, self.directory, found)
            self.complete.append(fragment)
            self.index.add_local(IndexEntry(fragment.fragment, fragment.content))
        if recovered.spool is not None:
            self.spool = recovered.spool
            self._publish(self._spool_entry())

    # Exclusive use

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        """Hold the journal, in the order of calls.

        Cancellation: safe.
        """
        await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()
            # What's committed but not yet synced is closed once it is.
            if self.closed and self._published_end >= self.spool.end:
                self.close_files()

    async def roll(self, offset: int) -> None:
        """Complete the fragment in progress, and begin the next one at `offset`.

        Raises:
            OSError: If its files can't be made; the fragment in progress remains.
            ReplicaFailedError: If the journal has failed.

        Cancellation: safe — takes effect when the roll is done.
        """
        await self.synced()
        old = self.spool
        codec = self.item.spec.fragment.compression_codec
        is_empty = old.end == old.begin
        if is_empty and offset == old.end:
            old.recode(codec)
            self.roll_pending = False
            return
        new = Spool(
            self._runtime.files,
            self.directory,
            journal=self.name,
            begin=offset,
            codec=codec,
            registers=old.registers,
            # An empty fragment leaves nothing which the next one could continue.
            previous_end=old.previous_end if is_empty else old.end,
        )
        try:
            new.create()
            if self._runtime.syncs:
                if old.exists:
                    old.open()
                    await self._runtime.io.run(old.sync)
                await self._runtime.io.run(new.sync)
        except BaseException:
            _discard(new)
            raise
        self.spool = new
        self.roll_pending = False
        self._published_end = offset
        if is_empty:
            _discard(old)
            return
        self.complete.append(LocalFragment.of_spool(old, self._fragment(old)))
        self._runtime.metrics.spool_completed += 1
        try:
            old.mark(Kind.COMPLETE)
        except OSError as error:
            # The next log exists already, which says the same.
            logger.warning("unable to mark a fragment complete", exc_info=error)
        finally:
            old.close()

    def commit(self, registers: pb.LabelSet | None) -> bytes:
        """Make the append in progress part of the journal; return the SHA-1 of its content.

        Await `synced` before it's acknowledged.

        Raises:
            ReplicaFailedError: If the log can't be written.
        """
        # A sync may have failed since the append began to stream.
        self.check()
        length = self.spool.delta
        try:
            digest = self.spool.commit(registers, self._runtime.options.clock())
        except OSError as error:
            raise self._fail(error) from error
        if length:
            self._runtime.metrics.spool_commits += 1
            self._runtime.metrics.spool_commit_bytes += length
            if self._runtime.options.fsync != "commit":
                self._publish(self._spool_entry())
        return digest

    async def synced(self) -> None:
        """Wait until all commits so far are durable, as far as the mode asks for it, and visible.

        Raises:
            ReplicaFailedError: If they can't be made durable.

        Cancellation: safe — the commits are made durable nonetheless.
        """
        self.check()
        if self._runtime.options.fsync != "commit" or self._published_end >= self.spool.end:
            return
        request = asyncio.get_running_loop().create_future()
        self._sync_requests.append(request)
        if self._sync_task is None:
            self._sync_task = self._runtime.background.start(self._sync(), f"sync {self.name}")
            if self._sync_task is None:
                raise ReplicaFailedError("broker is stopping")
        await asyncio.shield(request)

    async def _sync(self) -> None:
        # One sync serves all commits which were made before it began.
        requests: list[asyncio.Future[None]] = []
        try:
            while self._sync_requests:
                requests, self._sync_requests = self._sync_requests, []
                failure: Exception | None = None
                try:
                    await self._sync_once()
                except ReplicaFailedError as error:
                    failure = error
                for request in requests:
                    _resolve(request, failure)
        finally:
            self._sync_task = None
            if self.closed:
                self.close_files()
            stopped = ReplicaFailedError(self._failure or "broker is stopping")
            requests, self._sync_requests = [*requests, *self._sync_requests], []
            for request in requests:
                _resolve(request, stopped)

    async def _sync_once(self) -> None:
        # Invariant: after a failure nothing is synced again, as that could succeed without having
        # written what the failed one lost. And files of which all is published are left alone: a
        # roll may be closing them.
        self.check()
        spool = self.spool
        if self._published_end >= spool.end:
            return
        entry = self._spool_entry()
        try:
            await self._runtime.io.run(spool.sync)
        except OSError as error:
            raise self._fail(error) from error
        self._publish(entry)

    async def settled(self) -> None:
        """Wait until nobody uses the files: no append, no sync, and no write to a store.

        Cancellation: safe.
        """
        async with self.persist_lock, self.exclusive():
            while self._sync_task is not None:
                await asyncio.wait([self._sync_task])
        self.close_files()

    async def sync_unacknowledged(self) -> None:
        """Make content durable which was acknowledged already.

        Cancellation: safe.
        """
        spool = self.spool
        if self._failure or not spool.exists:
            return
        descriptors: tuple[int, ...] = ()
        try:
            # A roll may close the files meanwhile, but not their duplicates.
            was_open = spool.is_open
            spool.open()
            try:
                descriptors = spool.duplicate()
            finally:
                if not was_open:
                    spool.close()
            await self._runtime.io.run(spool.sync_duplicates, descriptors)
        except FileNotFoundError as error:
            if not self.closed:  # Else it was deleted.
                self._fail(error)
        except OSError as error:
            self._fail(error)
        finally:
            for descriptor in descriptors:
                self._runtime.files.close(descriptor)

    def check(self) -> None:
        """Raise ReplicaFailedError if the journal has failed."""
        if self._failure:
            raise ReplicaFailedError(self._failure)

    def _fail(self, error: OSError) -> ReplicaFailedError:
        # The state of the files is unknown now, and a later sync could succeed without having
        # written what this one lost: nothing more is accepted until a restart has read them back.
        self._failure = os_error_text(error)
        logger.error("journal failed", extra={"journal": self.name}, exc_info=error)
        return ReplicaFailedError(self._failure)

    # Index

    def _fragment(self, spool: Spool) -> pb.Fragment:
        return pb.Fragment(
            journal=self.name,
            begin=spool.begin,
            end=spool.end,
            sum=pb.sum_from_digest(spool.digest),
            compression_codec=pb.CompressionCodec.ValueType(spool.codec),
        )

    def _spool_entry(self) -> IndexEntry:
        return IndexEntry(self._fragment(self.spool), self.spool.content)

    def _publish(self, entry: IndexEntry) -> None:
        self._published_end = entry.end
        self.index.add_local(entry)
        self.wake()

    def wake(self) -> None:
        """Wake all who wait for a change of the index, or the end of the replica."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def change(self) -> asyncio.Event:
        """Return the event of the next change. Take it before looking at the index."""
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    def close_files(self) -> None:
        """Close files which nobody uses at present."""
        if not self.is_busy:
            self.spool.close()

    def end_reads(self) -> None:
        """Let readers see the end of their streams rather than wait. Idempotent."""
        self.ending = True
        self.wake()

    def close(self) -> None:
        """End the replica: readers see the end of their streams. Idempotent."""
        self.closed = True
        self.end_reads()
        self.close_files()


def _discard(spool: Spool) -> None:
    try:
        spool.remove()
    except OSError as error:
        logger.warning("unable to remove an empty fragment", exc_info=error)


def _resolve(request: asyncio.Future[None], error: Exception | None) -> None:
    if request.done():
        return
    if error is None:
        request.set_result(None)
    else:
        request.set_exception(error)
        request.exception()  # Retrieved: the one who asked may be gone.
