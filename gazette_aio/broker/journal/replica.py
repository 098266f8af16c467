"""Replica of a journal: its write head, its index, its listings, and the fragments to persist."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gazette_aio.broker.fragments.cover_index import IndexEntry
from gazette_aio.broker.fragments.index import FragmentIndex
from gazette_aio.broker.fragments.recovery import recover_journal
from gazette_aio.broker.fragments.rolling import roll_offset
from gazette_aio.broker.journal.life import JournalLife
from gazette_aio.broker.journal.persister import Persister
from gazette_aio.broker.journal.store_listing import StoreListing
from gazette_aio.broker.journal.write_head import ReplicaFailedError, WriteHead
from gazette_aio.protocol.journal_spec import may_write

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.scheduler import Timer
    from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace
    from gazette_aio.broker.runtime import Runtime

_logger = logging.getLogger(__name__)


class Replica:
    """A served journal. Each part changes its own state, and reads the parts before it.

    Args:
        directory: Directory of the journal's life.
        is_listed: Whether the stores are known to be empty.
    """

    def __init__(
        self,
        runtime: Runtime,
        space: KeySpace,
        item: JournalItem,
        directory: Path,
        *,
        is_listed: bool,
    ) -> None:
        self.life: JournalLife = JournalLife(item, directory)
        self.index: FragmentIndex = FragmentIndex()
        self.persister: Persister = Persister(runtime, space, self.life, self.index)
        self.head: WriteHead = WriteHead(runtime, self.life, self.index, self.persister)
        self.listing: StoreListing = StoreListing(
            runtime, space, self.life, self.index, is_listed=is_listed
        )
        self._runtime = runtime
        self._pulse: Timer | None = None

    def __repr__(self) -> str:
        state = " closed" if self.life.closed else ""
        return f"<Replica {self.name}{state} {self.head!r} {self.index!r}>"

    @property
    def name(self) -> str:
        """Name of the journal."""
        return self.life.name

    @property
    def is_settled(self) -> bool:
        """Whether the files are used only by readers."""
        return not self.head.is_busy and not self.persister.is_busy

    @property
    def has_local_content(self) -> bool:
        """Whether there's content which isn't persisted."""
        return len(self.persister) > 0 or self.head.spool.end > self.head.spool.begin

    async def recover(self) -> None:
        """Recover the content of the journal's directory.

        Raises:
            OSError: A file can't be read.
            StoreError: A log is of a later version.

        Cancellation: aborts — drop the replica.
        """
        directory = self.life.directory
        runtime = self._runtime
        if runtime.heads.get(directory.name) is None and not directory.exists():
            return
        recovered = await runtime.io.run(
            recover_journal,
            runtime.files,
            runtime.heads,
            directory,
            self.name,
            sync=runtime.syncs,
        )
        for spool in recovered.complete:
            fragment = spool.completed()
            self.persister.add(fragment)
            self.index.add_local(IndexEntry(fragment.fragment, fragment.content))
        if recovered.spool is not None:
            self.head.adopt(recovered.spool)
        if (damage := recovered.damage) is not None:
            _logger.error(
                "journal %s is damaged and takes no appends: %s, in %s",
                self.name,
                damage,
                directory,
            )
            self.head.refuse(f"journal {self.name} is damaged: {damage}")

    def follow(self, item: JournalItem) -> bool:
        """Follow a change of the spec, and return whether the journal's stores changed."""
        before, now = self.life.spec.fragment, item.spec.fragment
        self.life.item = item
        if list(before.stores) != list(now.stores):
            self.listing.follow_stores()
            self.persister.follow_store()
            return True
        if before.refresh_interval != now.refresh_interval:
            self.listing.follow_interval()
        return False

    # Fragments

    def arm_pulse(self) -> None:
        """Schedule a pulse after the pulse interval, unless there's one, or no content."""
        spool = self.head.spool
        if self._pulse is not None or self.life.closed or spool.end == spool.begin:
            return

        async def work() -> None:
            self._pulse = None
            # An append that holds the journal did the same when it began, and may last very long.
            is_busy = self.head.is_busy
            if not is_busy:
                await self.pulse()
            if is_busy or self.life.spec.fragment.flush_interval.seconds > 0:
                self.arm_pulse()

        interval = self._runtime.options.pulse_interval
        self._pulse = self._runtime.scheduler.after(interval, f"pulse {self.name}", work)

    async def pulse(self) -> None:
        """Complete the fragment in progress if it's due.

        Cancellation: safe.
        """
        async with self.head.exclusive():
            spool = self.head.spool
            spec = self.life.spec
            if self.life.closed or spool.end == spool.begin:
                return
            cover = self.index.cover
            if max(cover.end, spec.suspend.offset) > spool.end and may_write(spec.flags):
                return  # An append would be refused.
            rolls = self.head.roll_pending or spool.begin == cover.begin
            offset = roll_offset(
                spool.extent,
                spec.fragment,
                roll_to=spool.end if rolls else None,
                now_seconds=self._runtime.clock(),
            )
            if offset is not None:
                await self._try_roll(offset)

    async def flush(self) -> None:
        """Complete the fragment in progress, and persist all complete ones now.

        Raises:
            OSError, StoreError: A fragment can't be persisted.
            ReplicaFailedError: The journal has failed.

        Cancellation: safe.
        """
        async with self.head.exclusive():
            if self.life.closed:
                return
            await self.head.synced()
            spool = self.head.spool
            if spool.end > spool.begin:
                await self._try_roll(spool.end)
        await self.persister.persist()

    async def _try_roll(self, offset: int) -> None:
        try:
            await self.head.roll(offset)
        except (OSError, ReplicaFailedError) as error:
            _logger.warning(
                "unable to roll a fragment", extra={"journal": self.name}, exc_info=error
            )

    # End

    async def settled(self) -> None:
        """Wait until nobody uses the files: no append, no sync, and no write to a store.

        Cancellation: safe.
        """
        async with self.persister.paused():
            await self.head.settled()
        self.head.close_files()

    def close(self) -> None:
        """End the replica: readers see the end of their streams. Idempotent."""
        self.life.closed = True
        self.index.end()
        self.persister.stop()
        self.listing.stop()
        if self._pulse is not None:
            self._pulse.cancel()
        self.head.close_files()
