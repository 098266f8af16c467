"""Write head of a journal: the fragment in progress, who may write to it, and its durability."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Self

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.cover_index import IndexEntry
from gazette_aio.broker.fragments.spool import Spool
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.host.workers import STOPPING, resolve
from gazette_aio.broker.journal.flow_control import FlowBalance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gazette_aio.broker.fragments.index import FragmentIndex
    from gazette_aio.broker.fragments.local_fragment import LocalFragment
    from gazette_aio.broker.host.heads import Head
    from gazette_aio.broker.runtime import Runtime

_logger = logging.getLogger(__name__)


class ReplicaFailedError(Exception):
    """An operation on the journal's files failed, and their state is unknown."""


class JournalDamagedError(ReplicaFailedError):
    """Acknowledged content of the journal is damaged, so that the journal takes no appends."""


class WriteHead:
    """End of a journal, which appends extend. Durable content is published to the index."""

    def __init__(
        self,
        runtime: Runtime,
        journal: str,
        directory: Path,
        codec: pb.CompressionCodec.ValueType,
        index: FragmentIndex,
    ) -> None:
        self.flow: FlowBalance = FlowBalance()
        """Allowance of the journal's appends."""
        self.spool: Spool = Spool(
            runtime.files, directory, journal=journal, begin=0, codec=codec, registers=pb.LabelSet()
        )
        """The fragment in progress. Only the holder of the journal writes to it."""
        self.complete: list[LocalFragment] = []
        """Complete fragments, oldest first, which aren't written to a store yet."""
        self.roll_pending: bool = False
        """Whether the next append begins a fragment."""
        self.closed: bool = False
        """Whether the journal isn't served any more."""
        self._runtime = runtime
        self._directory = directory
        self._index = index
        self._lock = asyncio.Lock()
        self.failure: str = ""
        """Why the journal takes no appends until a restart, or an empty text."""
        self.is_damaged: bool = False
        """Whether acknowledged content is damaged."""
        self._published_end = 0
        self._sync_task: asyncio.Task[None] | None = None
        self._sync_requests: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self.is_busy else "idle"
        return f"<WriteHead {state} {self.spool!r} complete={len(self.complete)}>"

    @property
    def offset(self) -> int:
        """Offset at which the next append begins."""
        return self.spool.end

    @property
    def is_busy(self) -> bool:
        """Whether an append holds the journal, or its files are being synced."""
        return self._lock.locked() or self._sync_task is not None

    def restore(self, spool: Spool) -> None:
        """Continue a recovered fragment in progress."""
        self.spool = spool
        self._publish(self._spool_entry())

    def refuse(self, damage: str) -> None:
        """Refuse appends, and reads at the write head, because acknowledged content is damaged."""
        self.failure = damage
        self.is_damaged = True

    def check(self) -> None:
        """Raise ReplicaFailedError if the journal has failed or is damaged."""
        if self.failure:
            self.check_damage()
            raise ReplicaFailedError(self.failure)

    def check_damage(self) -> None:
        """Raise JournalDamagedError if acknowledged content is damaged."""
        if self.is_damaged:
            raise JournalDamagedError(self.failure)

    # For who holds the journal

    def exclusive(self) -> Self:
        """Return a context manager that holds the journal, in the order of calls.

        Cancellation: safe.
        """
        return self

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        # Files of commits that aren't synced are closed after the sync.
        if self.closed and self._published_end >= self.spool.end:
            self.close_files()

    async def roll(self, offset: int, codec: pb.CompressionCodec.ValueType) -> None:
        """Complete the fragment in progress, and begin a fragment of a codec at `offset`.

        Raises:
            OSError: The new fragment's files can't be created. The fragment in progress remains.
            ReplicaFailedError: The journal has failed.

        Cancellation: safe — takes effect when the roll is done.
        """
        await self.synced()
        old = self.spool
        # Its last entry must not look like an append after the begin of the next fragment.
        old.log.cut()
        is_empty = old.end == old.begin
        if is_empty and offset == old.end:
            old.recode(codec)
            self.roll_pending = False
            return
        new = Spool(
            self._runtime.files,
            self._directory,
            journal=self.spool.journal,
            begin=offset,
            codec=codec,
            registers=old.registers,
            # The next fragment can't continue an empty fragment.
            previous_end=old.previous_end if is_empty else old.end,
        )
        if self._runtime.syncs and old.exists:
            # Invariant: a power loss leaves all content before a fragment that has a file.
            await self._sync_old(old)
        try:
            new.create()
            if self._runtime.syncs:
                await self._runtime.io.run(new.sync)
        except BaseException:
            _discard(new)
            raise
        self.spool = new
        # Only now: the head of an abandoned fragment would claim lost content.
        self._record(new.head, durable=self._runtime.syncs)
        self.roll_pending = False
        self._published_end = offset
        if is_empty:
            _discard(old)
            return
        self.complete.append(old.completed())
        self._runtime.metrics.spool_completed += 1
        old.close()

    def commit(self, registers: pb.LabelSet | None) -> bytes:
        """Make the append in progress part of the journal; return the SHA-1 of its content.

        Await `synced()` before the acknowledgement.

        Raises:
            OSError: The log can't be written; the append must be rolled back.
            ReplicaFailedError: The journal has failed.
        """
        # A sync may have failed since the append began to stream.
        self.check()
        length = self.spool.delta
        digest = self.spool.commit(registers, self._runtime.clock())
        if length:
            self._runtime.metrics.spool_commits += 1
            self._runtime.metrics.spool_commit_bytes += length
            if self._runtime.options.fsync != "commit":
                self._record(self.spool.head, durable=False)
                self._publish(self._spool_entry())
        return digest

    async def _sync_old(self, spool: Spool) -> None:
        spool.open()
        try:
            await self._runtime.io.run(spool.sync)
        except OSError as error:
            raise self._fail(error) from error

    # Durability

    async def synced(self) -> None:
        """Wait until all present commits are visible, and as durable as the `fsync` mode requires.

        Raises:
            ReplicaFailedError: The commits can't be made durable.

        Cancellation: safe — the commits are made durable nonetheless.
        """
        self.check()
        if self._runtime.options.fsync != "commit" or self._published_end >= self.spool.end:
            return
        request = asyncio.get_running_loop().create_future()
        self._sync_requests.append(request)
        if self._sync_task is None:
            work = self._sync()
            self._sync_task = self._runtime.background.start(work, f"sync {self.spool.journal}")
            if self._sync_task is None:
                raise ReplicaFailedError(STOPPING)
        await request

    async def settled(self) -> None:
        """Wait until no append and no sync uses the files.

        Cancellation: safe.
        """
        async with self.exclusive():
            while self._sync_task is not None:
                await asyncio.wait([self._sync_task])

    async def sync_unacknowledged(self) -> None:
        """Make content durable that was acknowledged before.

        Cancellation: safe.
        """
        spool = self.spool
        if self.failure or not spool.exists:
            return
        descriptors: tuple[int, ...] = ()
        try:
            # A roll may close the files meanwhile, but not their duplicates.
            was_open = spool.is_open
            spool.open()
            try:
                descriptors, head = spool.duplicate(), spool.head
            finally:
                if not was_open:
                    spool.close()
            sync = partial(spool.sync_duplicates, descriptors)
            await self._runtime.io.run(self._make_durable, sync, head)
        except FileNotFoundError as error:
            if not self.closed:  # Else it was deleted.
                self._fail(error)
        except OSError as error:
            self._fail(error)
        finally:
            for descriptor in descriptors:
                self._runtime.files.close(descriptor)

    def close_files(self) -> None:
        """Close the files, unless an append or a sync uses them."""
        if not self.is_busy:
            self.spool.close()

    async def _sync(self) -> None:
        # One sync serves all commits before its begin.
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
                    resolve(request, None, failure)
        finally:
            self._sync_task = None
            if self.closed:
                self.close_files()
            stopped = ReplicaFailedError(self.failure or STOPPING)
            requests, self._sync_requests = [*requests, *self._sync_requests], []
            for request in requests:
                resolve(request, None, stopped)

    async def _sync_once(self) -> None:
        # Invariant: after a failure nothing is synced again, since a second sync could succeed
        # without the writes that the failed sync lost. Files whose whole content is published
        # aren't touched: a roll may be closing them.
        self.check()
        spool = self.spool
        if self._published_end >= spool.end:
            return
        entry = self._spool_entry()
        try:
            await self._runtime.io.run(self._make_durable, spool.sync, spool.head)
        except OSError as error:
            raise self._fail(error) from error
        self._publish(entry)

    def _make_durable(self, sync: Callable[[], None], head: Head) -> None:
        sync()
        self._record(head, durable=True)

    def _record(self, head: Head, *, durable: bool) -> None:
        """Record what is acknowledged. Without the record, recovery knows less."""
        try:
            self._runtime.heads.record(self._directory.name, head, durable=durable)
        except OSError as error:
            extra = {"journal": self.spool.journal}
            _logger.warning("unable to record what is acknowledged", extra=extra, exc_info=error)

    def _fail(self, error: OSError) -> ReplicaFailedError:
        # The state of the files is unknown now, and a later sync could succeed without the writes
        # that this sync lost. No append is accepted until a restart recovers the files.
        self.failure = os_error_text(error)
        _logger.error("journal failed", extra={"journal": self.spool.journal}, exc_info=error)
        return ReplicaFailedError(self.failure)

    def _spool_entry(self) -> IndexEntry:
        return IndexEntry(self.spool.fragment, self.spool.content)

    def _publish(self, entry: IndexEntry) -> None:
        self._published_end = entry.end
        self._index.add_local(entry)


def _discard(spool: Spool) -> None:
    try:
        spool.remove()
    except OSError as error:
        _logger.warning("unable to remove an empty fragment", exc_info=error)
