"""Replica of a journal: its fragments, local and persisted, and the work that is due for them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.cover_index import FragmentCover, IndexEntry
from gazette_aio.broker.fragments.index import FragmentIndex
from gazette_aio.broker.fragments.local_fragment import ContentFile
from gazette_aio.broker.fragments.recovery import recover_journal
from gazette_aio.broker.fragments.rolling import roll_offset
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.persisting import (
    placed,
    record_persisted,
    remove_persisted,
    write_fragment,
)
from gazette_aio.broker.journal.store_listing import list_fragments
from gazette_aio.broker.journal.write_head import ReplicaFailedError, WriteHead
from gazette_aio.protocol.journal_spec import may_write

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.fragments.local_fragment import LocalFragment
    from gazette_aio.broker.host.scheduler import PlannedWork, Work
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.broker.runtime import Runtime

_logger = logging.getLogger(__name__)

_MAX_RETRY_SECONDS = 150.0
_IDLE_SECONDS = 60.0

_Kind: TypeAlias = Literal["pulse", "persist", "refresh"]


class Replica:
    """A served journal. It rolls and persists its fragments, and lists its stores while it's used.

    Args:
        is_listed: Whether the stores are known to be empty.
    """

    def __init__(
        self,
        runtime: Runtime,
        item: JournalItem,
        *,
        is_listed: bool,
    ) -> None:
        self.name: str = item.name
        self.item: JournalItem = item
        """The present journal."""
        self.directory: Path = runtime.data.journal(item)
        """Directory of the journal's life, from its creation to its deletion."""
        self.index: FragmentIndex = FragmentIndex()
        codec = item.spec.fragment.compression_codec
        self.head: WriteHead = WriteHead(runtime, item.name, self.directory, codec, self.index)
        self.is_listed: bool = is_listed
        """Whether the index has ever had a listing of the stores."""
        self.listing_error: str = ""
        """Error of the last listing, or an empty text."""
        self._runtime = runtime
        self._due: dict[_Kind, PlannedWork] = {}
        """Work to come. Work that has begun isn't due any more."""
        self._persisting = asyncio.Lock()
        self._failures = 0
        """Failed attempts to persist since the last success."""
        self._listing = asyncio.Lock()
        self._used = True
        """Whether somebody used the journal since the last listing."""
        self._idle = False
        """Whether stores aren't listed periodically, for want of users."""

    def __repr__(self) -> str:
        due = ",".join(sorted(self._due)) or "nothing"
        return f"<Replica {self.name} {self.head!r} {self.index!r} due={due} {self.listing_error}>"

    @property
    def is_settled(self) -> bool:
        """Whether the files are used only by readers."""
        return not self.head.is_busy and not self._persisting.locked()

    @property
    def has_local_content(self) -> bool:
        """Whether there's content which isn't persisted."""
        return len(self.head.complete) > 0 or self.head.spool.end > self.head.spool.begin

    async def recover(self) -> None:
        """Recover the content of the journal's directory.

        Raises:
            OSError: A file can't be read.
            StoreError: A log is of a later version.

        Cancellation: aborts — drop the replica.
        """
        directory, runtime = self.directory, self._runtime
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
            self.head.complete.append(spool.completed())
            self.index.add_local(IndexEntry(spool.fragment, spool.content))
        if recovered.spool is not None:
            self.head.restore(recovered.spool)
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
        before, now = self.item.spec.fragment, item.spec.fragment
        self.item = item
        if list(before.stores) != list(now.stores):
            self._idle = True  # The next use lists them.
            # The pause after failures of the former store ends.
            self._cancel("persist")
            self._failures = 0
            self.persist_later()
            return True
        if before.refresh_interval != now.refresh_interval and not self._idle:
            self._refresh_later()
        return False

    def close(self) -> None:
        """End the replica: readers see the end of their streams. Idempotent."""
        self.head.closed = True
        self.index.end()
        for kind in tuple(self._due):
            self._cancel(kind)
        self.head.close_files()

    async def settled(self) -> None:
        """Wait until nobody uses the files: no append, no sync, and no write to a store.

        Cancellation: safe.
        """
        async with self._persisting:
            await self.head.settled()
        self.head.close_files()

    # What's due

    def _begin_after(self, seconds: float, kind: _Kind, work: Work) -> None:
        """Begin work after a number of seconds, unless work of its kind is due already."""
        if kind in self._due or self.head.closed:
            return

        async def begin() -> None:
            # Race: it may have been cancelled, and planned anew, after its task was started.
            if self._due.get(kind) is planned:
                del self._due[kind]
                await work()

        # A pulse uses no store, and must not wait for one.
        lane = "" if kind == "pulse" else self.item.first_store
        name = f"{kind} {self.name}"
        planned = self._due[kind] = self._runtime.scheduler.after(seconds, name, begin, lane=lane)

    def _cancel(self, kind: _Kind) -> None:
        if (planned := self._due.pop(kind, None)) is not None:
            planned.cancel()

    # Rolling

    async def roll(self, offset: int) -> None:
        """Complete the fragment in progress, for who holds the journal, and persist it later.

        Raises:
            OSError: The new fragment's files can't be created. The fragment in progress remains.
            ReplicaFailedError: The journal has failed.

        Cancellation: safe — takes effect when the roll is done.
        """
        await self.head.roll(offset, self.item.spec.fragment.compression_codec)
        self.persist_later()

    def pulse_later(self) -> None:
        """Do a pulse after the pulse interval, if there's content."""
        if self.head.spool.end > self.head.spool.begin:
            interval = self._runtime.options.pulse_interval
            self._begin_after(interval, "pulse", self._next_pulse)

    async def _next_pulse(self) -> None:
        # An append that holds the journal did the same when it began, and may last very long.
        is_busy = self.head.is_busy
        if not is_busy:
            await self.pulse()
        if is_busy or self.item.spec.fragment.flush_interval.seconds > 0:
            self.pulse_later()

    async def pulse(self) -> None:
        """Complete the fragment in progress if it's due.

        Cancellation: safe.
        """
        async with self.head.exclusive():
            spool, spec = self.head.spool, self.item.spec
            if self.head.closed or spool.end == spool.begin:
                return
            cover = self.index.cover
            if max(cover.end, spec.suspend.offset) > spool.end and may_write(spec.flags):
                return  # An append would be refused.
            rolls = self.head.roll_pending or spool.begin == cover.begin
            offset = roll_offset(
                spool,
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
            if self.head.closed:
                return
            await self.head.synced()
            spool = self.head.spool
            if spool.end > spool.begin:
                await self._try_roll(spool.end)
        await self.persist()

    async def _try_roll(self, offset: int) -> None:
        try:
            await self.roll(offset)
        except (OSError, ReplicaFailedError) as error:
            _logger.warning(
                "unable to roll a fragment", extra={"journal": self.name}, exc_info=error
            )

    # Persisting

    def persist_later(self) -> None:
        """Persist complete fragments after a while. The pauses grow after failures."""
        if not self.head.complete or not self.item.first_store:
            return
        options = self._runtime.options
        delay = options.persist_delay
        if self._failures:
            # Bounded, as no number has so many digits after months.
            doubled = 2 ** min(self._failures - 1, 64)
            delay = min(options.persist_retry * doubled, _MAX_RETRY_SECONDS)
        self._begin_after(delay, "persist", self._try_persist)

    async def _try_persist(self) -> None:
        try:
            await self.persist()
        except (OSError, pb.GazetteError) as error:
            self._failures += 1
            _logger.warning(
                "unable to persist a fragment",
                extra={"journal": self.name, "failures": self._failures},
                exc_info=error,
            )
            self.persist_later()

    async def persist(self) -> None:
        """Persist all complete fragments, if the journal has a store.

        Raises:
            OSError, StoreError: A fragment can't be persisted; it remains local.

        Cancellation: safe — takes effect between two fragments.
        """
        complete = self.head.complete
        async with self._persisting:
            while complete and not self.head.closed and (url := self.item.first_store):
                await self._persist(complete[0], url)
                self._failures = 0

    async def _persist(self, local: LocalFragment, url: str) -> None:
        runtime = self._runtime
        files = runtime.files
        handle = runtime.stores.get(url)
        separate = runtime.options.nested_journals == "separate"
        fragment = placed(local, self.item.spec, runtime.space if separate else None)
        # Invariant: the thread has its own descriptor. It may continue after its caller, when the
        # system may have given the number to another file.
        own = dataclasses.replace(local, content=ContentFile(files, local.content.path))
        path = pb.content_path(fragment)
        mod_time, written = await handle.run(write_fragment, path, own, runtime.stores.stopping)
        if url not in self.item.spec.fragment.stores:
            return  # Nobody looks for it there any more: it goes to the store which is next.
        # Invariant: fragments are recorded in order, each before it counts as persisted. Otherwise
        # a restart would take all fragments after an unrecorded one for lost.
        await runtime.io.run(record_persisted, files, local, sync=runtime.syncs)
        runtime.metrics.spool_persisted += 1
        runtime.metrics.store_put_bytes += written
        fragment.backing_store = url
        fragment.mod_time = mod_time
        self.head.complete.remove(local)
        self.index.add_persisted(IndexEntry(fragment))
        await runtime.io.run(remove_persisted, files, local, sync=runtime.syncs)

    # Listing

    def use(self) -> bool:
        """Declare a use of the journal; return False if it was unused for long.

        Its stores are to be listed then.
        """
        self._used = True
        return not self._idle

    async def keep_listed(self) -> None:
        """List the stores now, and again after each refresh interval.

        Cancellation: safe — the next use lists them.
        """
        self._idle = False
        self._cancel("refresh")
        try:
            await self.refresh()
        except BaseException:
            self._idle = True
            raise
        finally:
            self._refresh_later()

    def _refresh_later(self) -> None:
        """List the stores after the refresh interval, which begins anew."""
        self._cancel("refresh")
        if self.item.first_store:
            interval = self.item.spec.fragment.refresh_interval
            seconds = interval.seconds + interval.nanos / 1e9
            if self._idle:
                seconds = max(seconds, _IDLE_SECONDS)
            self._begin_after(seconds, "refresh", self._next_refresh)

    async def _next_refresh(self) -> None:
        if not self._used and not self.index.waiters and self.is_listed:
            # Without readers, the next use lists the stores first. But a slow reader may come to
            # wait without a further use.
            self._idle = True
            self._refresh_later()
            return
        self._used = False
        await self.keep_listed()

    async def refresh(self) -> None:
        """List the stores now. A failure sets `listing_error`, and leaves the index unchanged.

        Cancellation: safe.
        """
        async with self._listing:  # An older listing must not replace a newer one.
            runtime = self._runtime
            urls = list(self.item.spec.fragment.stores)
            # Taken now: threads don't read the key space.
            separate = urls and runtime.options.nested_journals == "separate"
            nested = runtime.space.prefixed(self.name + "/") if separate else []
            token = self.index.begin_listing()
            listed = FragmentCover(self.name)
            try:
                for url in urls:
                    handle = runtime.stores.get(url)
                    # The thread also builds the set: a journal may have very many fragments.
                    count = await handle.run(
                        list_fragments, self.name, nested, listed, runtime.stores.stopping
                    )
                    runtime.metrics.store_list_items += count
            except (OSError, pb.GazetteError) as error:
                text = os_error_text(error) if isinstance(error, OSError) else str(error)
                self.listing_error = text
                _logger.warning(
                    "unable to list fragments", extra={"journal": self.name, "error": text}
                )
                return
            self.index.replace_listed(listed, token)
            self.listing_error = ""
            self.is_listed = True
