"""Writer of one append's content: immediately if it's short, else in a worker thread.

The thread writes and hashes batches while the next chunks are received.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    import asyncio

    from gazette_aio.broker.fragments.spool import Spool
    from gazette_aio.broker.host.workers import Workers

INLINE_BYTES = 64 << 10
"""Most content of an append that is written without a thread, in bytes."""
LEAST_BYTES = 512 << 10
"""Least content of a job before the end of the append, in bytes."""
BATCH_BYTES = 1 << 20
MAX_PENDING_BYTES = 4 << 20
CHUNK_BYTES = 256
"""Bytes of memory of a chunk besides its content. Batches are counted without them."""
_JOB_BATCHES = 2
"""Most batches of one job, since other appends wait for the thread."""


class AppendWriter:
    """Writer of one append that holds its journal.

    Args:
        spool: Spool of the journal.
        workers: Threads to write in.

    Raises:
        OSError: The spool's files can't be created or opened.
    """

    def __init__(self, spool: Spool, workers: Workers) -> None:
        self._spool = spool
        self._workers = workers
        self._chunks: deque[bytes | memoryview] = deque()
        # Race: once there are jobs, the loop changes only the first number, and the job only the
        # second.
        self._taken_bytes = 0
        self._written_bytes = 0
        self._least_bytes = LEAST_BYTES
        self._job: asyncio.Future[None] | None = None
        spool.begin_append()

    def __repr__(self) -> str:
        return f"<AppendWriter taken={self._taken_bytes} pending={self._pending_bytes}>"

    async def write(self, chunk: bytes | memoryview) -> None:
        """Take a chunk of content. The caller must not change the chunk.

        Raises:
            OSError: This or an earlier chunk can't be written.

        Cancellation: aborts — call `abort` then.
        """
        taken_bytes = self._taken_bytes + len(chunk) + CHUNK_BYTES
        if taken_bytes <= INLINE_BYTES:
            self._spool.write(chunk)
            self._taken_bytes = self._written_bytes = taken_bytes
            return
        # Race: the job takes as many chunks as are counted, so they are added first.
        self._chunks.append(chunk)
        self._taken_bytes = taken_bytes
        job = self._advance()
        while job is not None and self._pending_bytes > MAX_PENDING_BYTES:
            await finish(job)
            job = self._advance()

    async def flush(self) -> None:
        """Write all chunks that were taken.

        Raises:
            OSError: A chunk can't be written.

        Cancellation: aborts — call `abort` then.
        """
        self._least_bytes = 1
        while (job := self._advance()) is not None:
            await finish(job)

    async def abort(self) -> int:
        """Roll the append back; return the number of bytes dropped.

        Cancellation: safe — takes effect when the spool has been rolled back.
        """
        # The job ends after its batch.
        self._least_bytes = self._taken_bytes + 1
        try:
            if self._job is not None:
                await finish(self._job)
        except OSError:
            pass  # The append fails anyway, and what was written is dropped.
        finally:
            # Invariant: no thread writes to the spool once its holder gives it up.
            dropped = self._spool.rollback()
        return dropped

    @property
    def _pending_bytes(self) -> int:
        return self._taken_bytes - self._written_bytes

    def _advance(self) -> asyncio.Future[None] | None:
        """Start a job if none is running and there's enough to write; return the running job.

        A failed job stays, and its error is raised each time.
        """
        if (job := self._job) is not None:
            if not job.done():
                return job
            job.result()
            self._job = None
        if self._pending_bytes >= self._least_bytes:
            self._job = self._workers.submit(self._run)
        return self._job

    def _run(self) -> None:
        for _ in range(_JOB_BATCHES):
            if self._pending_bytes < self._least_bytes:
                return
            batch, pending_bytes = self._next_batch()
            self._spool.write(batch)
            self._written_bytes += pending_bytes

    def _next_batch(self) -> tuple[bytes | memoryview, int]:
        """Take the chunks of a batch, or one longer chunk; return the batch, and its counted size.

        Chunks are joined so that the thread switches the interpreter a few times per batch, not per
        chunk.
        """
        taken = [self._chunks.popleft()]
        length = len(taken[0])
        while self._chunks and length + len(self._chunks[0]) <= BATCH_BYTES:
            taken.append(self._chunks.popleft())
            length += len(taken[-1])
        batch = taken[0] if len(taken) == 1 else b"".join(taken)
        return batch, length + len(taken) * CHUNK_BYTES
