"""Writes complete fragments to the stores of their journals."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.commit_log import Kind, Mark, encode_entry
from gazette_aio.broker.index_entry import IndexEntry
from gazette_aio.broker.records import encode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.broker.files import FileOps
    from gazette_aio.broker.local_fragment import LocalFragment
    from gazette_aio.broker.replica import Replica
    from gazette_aio.broker.runtime import Runtime
    from gazette_aio.broker.stores import Store
    from gazette_aio.broker.workers import Workers

logger = logging.getLogger(__name__)

_MAX_RETRY_SECONDS = 150.0


class Persister:
    """Persists fragments of replicas in the background, and on demand.

    Args:
        runtime: Services of the broker.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def schedule(self, replica: Replica, *, failures: int = 0) -> None:
        """See to it that complete fragments of a replica are persisted before long."""
        if replica.persist_armed or not replica.complete or not _stores(replica):
            return
        replica.persist_armed = True
        options = self._runtime.options
        delay = options.persist_delay
        if failures:
            delay = min(options.persist_retry * 2 ** (failures - 1), _MAX_RETRY_SECONDS)

        async def work() -> None:
            replica.persist_armed = False
            if replica.closed:
                return
            try:
                await self.persist(replica)
            except (OSError, pb.GazetteError) as error:
                logger.warning(
                    "unable to persist a fragment",
                    extra={"journal": replica.name, "failures": failures + 1},
                    exc_info=error,
                )
                self.schedule(replica, failures=failures + 1)

        self._runtime.scheduler.after(delay, f"persist {replica.name}", work)

    async def persist(self, replica: Replica) -> None:
        """Persist all complete fragments of a replica, if its journal has a store.

        Raises:
            OSError, StoreError: If a fragment can't be persisted; it remains local.

        Cancellation: safe — takes effect between two fragments.
        """
        async with replica.persist_lock:
            while replica.complete and not replica.closed and (urls := _stores(replica)):
                await self._persist(replica, replica.complete[0], urls[0])

    async def _persist(self, replica: Replica, local: LocalFragment, url: str) -> None:
        health = self._runtime.stores.get(url)
        if health.store is None:
            raise pb.StoreError(await health.check())
        fragment = pb.Fragment()
        fragment.CopyFrom(local.fragment)
        spec = replica.item.spec
        if spec.fragment.path_postfix_template:
            template = pb.parse_path_postfix_template(spec.fragment.path_postfix_template)
            fragment.path_postfix = template.render(
                fragment=local.fragment,
                first_append_time=local.first_append_time,
                registers=local.registers,
                spec=spec,
            )
        path = pb.content_path(fragment)
        local.content.acquire()
        try:
            mod_time, written = await self._runtime.bulk.run(
                _write, health.store, path, local, self._runtime.bulk
            )
        finally:
            local.content.release()
        self._runtime.metrics.spool_persisted += 1
        self._runtime.metrics.store_put_bytes += written
        fragment.backing_store = url
        fragment.mod_time = mod_time
        replica.complete.remove(local)
        replica.index.add_persisted(IndexEntry(fragment))
        replica.wake()
        await self._runtime.io.run(_release, self._runtime.files, local, sync=self._runtime.syncs)


def _stores(replica: Replica) -> list[str]:
    return list(replica.item.spec.fragment.stores)


def _write(store: Store, path: str, local: LocalFragment, workers: Workers) -> tuple[int, int]:
    # Names hold the sum of the content: a file which exists already has it.
    written = 0

    def pieces() -> Iterator[bytes]:
        nonlocal written
        for piece in local.pieces():
            if workers.stopping.is_set():
                raise pb.StoreError("broker is stopping")
            written += len(piece)
            yield piece

    mod_time = store.stat(path)
    if mod_time is None:
        store.put(path, pieces())
        mod_time = store.stat(path)
        if mod_time is None:
            raise pb.StoreError(f"{path} vanished after it was written")
    return mod_time, written


def _release(files: FileOps, local: LocalFragment, *, sync: bool) -> None:
    # Invariant: content may be missing only once the log says that it's persisted. A restart would
    # else take it for lost, and with it all fragments behind it.
    try:
        record = encode_record(encode_entry(Mark(Kind.PERSISTED, local.fragment.end)))
        _append(files, local, record, sync=sync)
        files.unlink(local.log_path)
        local.content.remove()
    except OSError as error:
        logger.warning("unable to remove a persisted fragment", exc_info=error)


def _append(files: FileOps, local: LocalFragment, record: bytes, *, sync: bool) -> None:
    descriptor = files.open(local.log_path, os.O_RDWR)
    try:
        files.pwrite(descriptor, record, files.size(descriptor))
        if sync:
            files.datasync(descriptor)
    finally:
        files.close(descriptor)
