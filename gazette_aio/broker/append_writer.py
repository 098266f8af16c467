"""Writes the content of one append to its spool: small chunks at once, large ones in batches.

Batches are written and hashed in a worker thread while the next chunks are received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.broker.workers import Workers, settle

if TYPE_CHECKING:
    import asyncio

    from gazette_aio.broker.spool import Spool

INLINE_BYTES = 256 << 10
BATCH_BYTES = 1 << 20
MAX_PENDING_BYTES = 4 << 20


class AppendWriter:
    """Writer of one append, which holds its journal.

    Args:
        spool: Spool of the journal, with its files open.
        workers: Threads to write in.
    """

    def __init__(self, spool: Spool, workers: Workers) -> None:
        self._spool = spool
        self._workers = workers
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._job: asyncio.Future[None] | None = None
        spool.begin_append()

    async def write(self, chunk: bytes | memoryview) -> None:
        """Take a chunk of content.

        Raises:
            OSError: If this or an earlier chunk can't be written.

        Cancellation: aborts — call `abort` then.
        """
        if self._job is None and not self._pending and len(chunk) <= INLINE_BYTES:
            self._spool.write((chunk,))
            return
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        if self._job is not None and (self._job.done() or self._pending_bytes >= MAX_PENDING_BYTES):
            await self._join()
        if self._job is None and self._pending_bytes >= BATCH_BYTES:
            self._start()

    async def flush(self) -> None:
        """Write all that was taken.

        Raises:
            OSError: If that fails.

        Cancellation: aborts — call `abort` then.
        """
        await self._join()
        if not self._pending:
            return
        if self._pending_bytes <= INLINE_BYTES:
            chunks, self._pending = self._pending, []
            self._spool.write(chunks)
            return
        self._start()
        await self._join()

    async def abort(self) -> int:
        """Roll the append back; return the number of bytes dropped.

        Cancellation: safe — takes effect when the spool has been rolled back.
        """
        self._pending.clear()
        try:
            await self._join()
        except OSError:
            pass  # The append fails anyway, and what was written is dropped.
        finally:
            # Invariant: no thread writes to the spool once its holder gives it up.
            dropped = self._spool.rollback()
        return dropped

    def _start(self) -> None:
        chunks, self._pending = self._pending, []
        self._pending_bytes = 0
        self._job = self._workers.submit(self._spool.write, chunks)

    async def _join(self) -> None:
        if (job := self._job) is not None:
            try:
                await settle(job)
            finally:
                self._job = None
