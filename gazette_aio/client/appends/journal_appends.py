"""Pending appends of one journal, and the task that sends them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import logging
import weakref
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.fifo import FIFOBudget
from gazette_aio.aio.task import start_task
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.appends.batch import Batch, Chain
from gazette_aio.client.appends.content_buffer import SPILL_BYTES
from gazette_aio.client.appends.journal_errors import failed_dependency
from gazette_aio.client.appends.once import set_commit
from gazette_aio.client.appends.spool import Spool
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client.appends.futures import Dependencies
    from gazette_aio.client.appends.journal_errors import JournalErrors
    from gazette_aio.client.context import HasContext
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.retry import RetryPolicy

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class AppendSettings:
    """Settings of an AppendService, as documented there."""

    client: HasContext
    policy: RetryPolicy
    claims: pb.Claims | None
    timeout: float | None
    cutoff_bytes: int
    spool_directory: str | None
    spools: weakref.WeakSet[Spool] = dataclasses.field(default_factory=weakref.WeakSet[Spool])
    """Temporary files, also those that a thread still uses after the end of their batch."""

    def deadline(self, journal: str) -> Deadline | None:
        """Return the bound of each wait for an append of a journal, or None."""
        if self.timeout is None:
            return None
        doubt = "it's still pending, and may be appended"
        return self.client.context.deadline("append", self.timeout, journal=journal, doubt=doubt)


class JournalAppends:
    """Pending appends of one journal.

    While there are batches, a task sends them.

    Args:
        journal: The journal.
        settings: Settings of the service.
        errors: Errors of the service.
        forget_if_idle: Called when the last batch may have ended.
    """

    def __init__(
        self,
        journal: str,
        settings: AppendSettings,
        errors: JournalErrors,
        forget_if_idle: Callable[[JournalAppends], None],
    ) -> None:
        self._settings = settings
        self._errors = errors
        self._forget_if_idle = forget_if_idle
        self._tracing = settings.client.context.tracing
        self.journal = journal
        self.request: pb.AppendRequest = pb.AppendRequest(journal=journal)
        """The request without preconditions."""
        self.deadline: Deadline | None = settings.deadline(journal)
        """Bound of each wait for an append, or None."""
        memory = settings.client.context.append_memory
        self.chain: Chain = Chain(settings.cutoff_bytes, self.deadline, memory)
        self.lock: FIFOBudget = FIFOBudget(1)
        """Held to write to the open batch, and to seal it."""
        self.spools: dict[Batch, Spool] = {}
        self.worker: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending, and the journal isn't locked."""
        return not self.chain.batches and not self.lock.held and self.worker is None

    def admit(
        self,
        request: pb.AppendRequest,
        dependencies: Dependencies,
        *,
        is_plain: bool,
        doom: Exception | None = None,
    ) -> Batch:
        """Return the batch for the next holder, which the task will send, or fail with `doom`.

        The caller holds the lock, or the lock is free and the caller doesn't suspend.
        """
        asyncio.get_running_loop()  # It raises if none runs: nothing would send the batch.
        batch = self.chain.admit(request, dependencies, is_plain=is_plain, doom=doom)
        if self._tracing is not None and batch.span is None:
            batch.span = self._tracing.start("append", self.journal)
        if self.worker is None:
            # An empty context: claims that the first holder has set aren't those of the others.
            self.worker = start_task(
                self._work(), f"gazette append {self.journal}", context=contextvars.Context()
            )
            self.worker.add_done_callback(self._worker_ended)
        return batch

    def leave(self, batch: Batch, begin: int, *, keep: bool) -> int:
        """End the turn of a holder, and return the resulting length of its batch.

        Args:
            batch: The batch written to.
            begin: Length of the batch when the turn began.
            keep: Whether to keep the content written since.
        """
        buffer = batch.buffer
        if keep and (batch.doom is not None or batch.operation.done()):
            self._errors.note_missing(self.journal)
        if batch.operation.done():
            pass  # The batch failed while it was held, and has lost its content.
        elif keep:
            batch.kept += 1
            if buffer.length > buffer.quick_length:
                self.spill(batch)
        else:
            buffer.truncate(begin)
        end = buffer.length
        # Hot: this is `unlock()`.
        self.lock.release()
        if not self.chain.batches:
            self._forget_if_idle(self)
        return end

    def unlock(self) -> None:
        """Release the lock to the next in line."""
        self.lock.release()
        if not self.chain.batches:
            self._forget_if_idle(self)

    def spill(self, batch: Batch) -> None:
        """Retain the content of `batch`, or begin to move it to its file, if there's a lot."""
        buffer = batch.buffer
        if buffer.tail_bytes >= SPILL_BYTES and not buffer.retain():
            self._spool(batch).spill()
        asyncio.get_running_loop().call_soon(buffer.note_turn)

    async def give_turn(self) -> None:
        """Give the event loop a turn if much was added to the open batch without one.

        Cancellation: safe.
        """
        batch = self.chain.open
        if batch is not None and batch.buffer.needs_turn:
            # One task waits for it. Others that append before it do so without waiting.
            batch.buffer.note_turn()
            await asyncio.sleep(0)

    async def move(self, batch: Batch) -> bool:
        """Retain the content of `batch`, or move it to its file, and return whether that's done.

        Cancellation: safe.
        """
        await self.give_turn()
        while batch.buffer.unsettled_bytes >= SPILL_BYTES and not batch.operation.done():
            if batch.buffer.retain():
                break
            spool = self._spool(batch)
            spool.spill()
            await spool.idle()
            if spool.failures:
                return False
        return True

    async def drain(self, batch: Batch) -> None:
        """Retain the content of `batch`, or move it to its file; wait while the disk is full.

        Cancellation: safe.
        """
        attempt = 0
        while not await self.move(batch):
            await asyncio.sleep(self._settings.policy.backoff(attempt))
            attempt += 1

    def _spool(self, batch: Batch) -> Spool:
        spool = self.spools.get(batch)
        if spool is None:
            spool = self.spools[batch] = Spool(batch.buffer, self._settings.spool_directory)
            self._settings.spools.add(spool)
        return spool

    async def _work(self) -> None:
        while self.chain.batches:
            batch = self.chain.batches[0]
            response: pb.AppendResponse | None = None
            error: Exception | None = batch.doom or self._errors.against(batch.request)
            if error is None:
                error = await failed_dependency(batch.dependencies)
            if batch is self.chain.open:
                # Invariant: nobody writes to a batch that is being sent.
                await self.lock.acquire()
                self.chain.seal()
                self.lock.release()
            if error is None and batch.kept:
                try:
                    response = await self._append(batch)
                    self._errors.pass_over(self.journal, batch.request)
                except pb.GazetteError as failure:
                    error = failure
            if error is not None and batch.kept and batch.doom is None:
                self._errors.note(self.journal, error)
                self.chain.doom(error)
            self._complete(response, error)
        # Race: a batch that is admitted from here on needs another task.
        self.worker = None
        self._forget_if_idle(self)

    def _complete(self, response: pb.AppendResponse | None, error: BaseException | None) -> None:
        batch = self.chain.batches[0]
        spool = self.spools.pop(batch, None)
        if spool is not None:
            spool.close()
        if (span := batch.span) is not None:
            span.set("gazette.appends", batch.kept)
            if response is not None:
                set_commit(span, response.commit)
            span.end(error)
        self.chain.complete(response, error)

    async def _append(self, batch: Batch) -> pb.AppendResponse:
        request = batch.request
        if not batch.buffer.length and (
            request.HasField("union_registers") or request.HasField("subtract_registers")
        ):
            # Wire: brokers refuse it by a code that also stands for transient failures.
            raise pb.ValidationError("register modification requires non-empty Append")
        endpoint = self._settings.client.context.dispatcher.endpoint
        attempts = Attempts(Operation.APPEND_SERVICE, self._settings.policy, request, endpoint)

        async def append_once() -> pb.AppendResponse:
            appender = Appender(self._settings.client, request, claims=self._settings.claims)
            async with appender:
                await self._write(batch, appender)
            return appender.response

        note = None if self.deadline is None else self.deadline.note
        return await attempts.until_success(append_once, note=note)

    async def _write(self, batch: Batch, appender: Appender) -> None:
        # Without a connection, chunks would only be copies of the content.
        await appender.open()
        buffer = batch.buffer
        spool = self.spools.get(batch)
        if spool is None:
            await appender.write_pieces((*buffer.head, *buffer.rest))
            return
        await appender.write_pieces(buffer.head)
        try:
            async with contextlib.aclosing(spool.filed()) as pieces:
                async for piece in pieces:
                    await appender.write(piece)
        except OSError as error:
            raise pb.StoreError(f"reading a spooled append: {error}") from error
        await appender.write_pieces(buffer.rest)

    def end_left_behind(self) -> None:
        """End the task of a service that was left behind. Called in the event loop."""
        worker = self.worker
        if worker is None:
            return
        coroutine = worker.get_coro()
        if inspect.iscoroutine(coroutine) and coroutine.cr_frame is None and not worker.done():
            # The garbage collector has closed it with the service: nothing can resume the task.
            self._broke_off(None)
        else:
            worker.cancel()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        if worker is not self.worker:
            return  # It ended regularly.
        # It was cancelled, maybe by others and before it began, or it raised an error of ours.
        self._broke_off(None if worker.cancelled() else worker.exception())

    def _broke_off(self, cause: BaseException | None) -> None:
        """Fail all batches, after an error of the task, or None if it was cancelled."""
        self.worker = None
        error: BaseException = self._errors.cancellation or pb.TransportError(
            "CANCELLED", "the append service was cancelled", journal=self.journal
        )
        if cause is not None:
            _logger.error(
                "appending to %s broke off",
                self.journal,
                exc_info=cause,
                extra={"journal": self.journal},
            )
            error = cause
        if self._errors.cancellation is None and isinstance(error, Exception):
            # Invariant: nothing is appended after a missing append.
            self._errors.note(self.journal, error)
        # Race: callers may begin new appends as soon as one has failed.
        for _ in range(len(self.chain.batches)):
            self._complete(None, error)
        self._forget_if_idle(self)
