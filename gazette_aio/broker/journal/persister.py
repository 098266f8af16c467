"""Persisting of a journal's complete fragments: each is written to the first store of its spec."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import Persisted, encode_entry
from gazette_aio.broker.fragments.cover_index import IndexEntry
from gazette_aio.broker.fragments.local_fragment import ContentFile
from gazette_aio.broker.fragments.postfix import render_path_postfix
from gazette_aio.broker.fragments.spool import remove_fragment
from gazette_aio.broker.host.log import RecordLog
from gazette_aio.broker.host.workers import STOPPING
from gazette_aio.protocol.fragment import MAX_PATH_POSTFIX_LENGTH
from gazette_aio.protocol.journal import validate_path_component

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from gazette_aio.broker.fragments.index import FragmentIndex
    from gazette_aio.broker.fragments.local_fragment import LocalFragment
    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.scheduler import Timer
    from gazette_aio.broker.host.workers import Workers
    from gazette_aio.broker.journal.life import JournalLife
    from gazette_aio.broker.keyspace.keyspace import KeySpace
    from gazette_aio.broker.runtime import Runtime
    from gazette_aio.broker.stores import FragmentStore

_logger = logging.getLogger(__name__)

_MAX_RETRY_SECONDS = 150.0


class Persister:
    """Complete fragments of a journal, oldest first, which aren't written to its store yet."""

    def __init__(
        self, runtime: Runtime, space: KeySpace, life: JournalLife, index: FragmentIndex
    ) -> None:
        self._runtime = runtime
        self._space = space
        self._life = life
        self._index = index
        self._complete: list[LocalFragment] = []
        self._lock = asyncio.Lock()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._complete)

    def __repr__(self) -> str:
        return f"<Persister {self._life.name} fragments={len(self)}>"

    @property
    def is_busy(self) -> bool:
        """Whether a fragment is being persisted."""
        return self._lock.locked()

    def add(self, fragment: LocalFragment) -> None:
        """Add a complete fragment, newer than all others."""
        self._complete.append(fragment)

    def schedule(self, *, failures: int = 0) -> None:
        """Schedule the persisting of complete fragments, unless it's scheduled."""
        life = self._life
        if self._timer is not None or life.closed or not self._complete or not life.first_store:
            return
        options = self._runtime.options
        delay = options.persist_delay
        if failures:
            delay = min(options.persist_retry * 2 ** (failures - 1), _MAX_RETRY_SECONDS)

        async def work() -> None:
            self._timer = None
            try:
                await self.persist()
            except (OSError, pb.GazetteError) as error:
                _logger.warning(
                    "unable to persist a fragment",
                    extra={"journal": self._life.name, "failures": failures + 1},
                    exc_info=error,
                )
                self.schedule(failures=failures + 1)

        name, lane = f"persist {life.name}", life.first_store
        self._timer = self._runtime.scheduler.after(delay, name, work, lane=lane)

    def follow_store(self) -> None:
        """Follow a change of the store: end the pause after failures of the former store."""
        self.stop()
        self.schedule()

    def stop(self) -> None:
        """Persist nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def persist(self) -> None:
        """Persist all complete fragments, if the journal has a store.

        Raises:
            OSError, StoreError: A fragment can't be persisted; it remains local.

        Cancellation: safe — takes effect between two fragments.
        """
        life = self._life
        async with self._lock:
            while self._complete and not life.closed and (url := life.first_store):
                await self._persist(self._complete[0], url)

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Wait for the fragment that is being persisted, and persist none within the context.

        Cancellation: safe.
        """
        async with self._lock:
            yield

    async def _persist(self, local: LocalFragment, url: str) -> None:
        handle = self._runtime.stores.get(url)
        fragment = pb.Fragment()
        fragment.CopyFrom(local.fragment)
        spec = self._life.spec
        if template := spec.fragment.path_postfix_template:
            fragment.path_postfix = render_path_postfix(
                template,
                fragment=local.fragment,
                first_append_time=local.first_append_time,
                registers=local.registers,
                spec=spec,
            )
            _check_postfix(fragment.path_postfix)
            if self._runtime.options.nested_journals == "separate":
                _check_nested(self._space, self._life.name, fragment.path_postfix)
        path = pb.content_path(fragment)
        # Invariant: the thread has its own descriptor. It may continue after its caller, when the
        # system may have given the number to another file.
        files = self._runtime.files
        own = dataclasses.replace(local, content=ContentFile(files, local.content.path))
        mod_time, written = await handle.run(_write, path, own, handle.workers)
        if url not in self._life.spec.fragment.stores:
            return  # Nobody looks for it there any more: it goes to the store which is next.
        # Invariant: fragments are recorded in order, each before it counts as persisted. Otherwise
        # a restart would take all fragments after an unrecorded one for lost.
        await self._runtime.io.run(_record, files, local, sync=self._runtime.syncs)
        self._runtime.metrics.spool_persisted += 1
        self._runtime.metrics.store_put_bytes += written
        fragment.backing_store = url
        fragment.mod_time = mod_time
        self._complete.remove(local)
        self._index.add_persisted(IndexEntry(fragment))
        await self._runtime.io.run(_remove, files, local, sync=self._runtime.syncs)


def _check_postfix(postfix: str) -> None:
    """Raise StoreError unless listings find fragments of a postfix, below their journal."""
    try:
        validate_path_component(postfix, min_length=0, max_length=MAX_PATH_POSTFIX_LENGTH)
    except pb.ValidationError as error:
        raise pb.StoreError(f"rendered path postfix: {error}") from None
    if postfix == ".." or postfix.startswith("../"):
        raise pb.StoreError(f"rendered path postfix leads out of the journal ({postfix})")


def _check_nested(space: KeySpace, journal: str, postfix: str) -> None:
    """Raise StoreError if a postfix leads into the directory of another journal.

    Appends choose registers, and with them a template may render any postfix.
    """
    directory = journal
    for part in postfix.split("/") if postfix else ():
        directory = f"{directory}/{part}"
        if space.get(directory) is not None:
            raise pb.StoreError(f"rendered path postfix leads into journal {directory}")


def _write(
    store: FragmentStore, path: str, local: LocalFragment, workers: Workers
) -> tuple[int, int]:
    # Names have the sum of the content, so an existing file has the content.
    written = 0

    def pieces() -> Iterator[bytes]:
        nonlocal written
        for piece in local.pieces():
            if workers.stopping.is_set():
                raise pb.StoreError(STOPPING)
            written += len(piece)
            yield piece

    mod_time = store.stat(path)
    if mod_time is not None:
        store.make_durable(path)  # A crash may have come between its write and its sync.
    else:
        gzipped = local.fragment.compression_codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        local.content.acquire()
        try:
            store.put(path, pieces(), gzipped=gzipped)
        finally:
            local.content.release()
        mod_time = store.stat(path)
        if mod_time is None:
            raise pb.StoreError(f"{path} vanished after it was written")
    return mod_time, written


def _remove(files: FileOps, local: LocalFragment, *, sync: bool) -> None:
    try:
        remove_fragment(files, local.log.path.parent, local.fragment.begin, sync=sync)
    except OSError as error:
        # The next start removes the file, because the fragment is recorded as persisted.
        _logger.warning("unable to remove a persisted fragment", exc_info=error)


def _record(files: FileOps, local: LocalFragment, *, sync: bool) -> None:
    """Record that a fragment is persisted."""
    # A record whose write or sync failed is written again: so it's synced anew.
    log = RecordLog(files, local.log.path, local.log.length, sync=sync)
    try:
        log.append(encode_entry(Persisted(local.fragment.end)))
    finally:
        log.close()
