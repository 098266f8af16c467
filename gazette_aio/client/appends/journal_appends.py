"""Pending appends of one journal, and the task that sends them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import logging
from collections import deque
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.fifo import FIFOBudget
from gazette_aio.aio.task import start_task
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.appends.batch import Batch
from gazette_aio.client.appends.content_buffer import ContentBuffer
from gazette_aio.client.appends.journal_errors import failed_dependency
from gazette_aio.client.attempts import until_success
from gazette_aio.client.retry import Operation

if TYPE_CHECKING:
    from gazette_aio.client.appends.futures import Dependencies
    from gazette_aio.client.appends.journal_errors import JournalErrors
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.retry import RetryPolicy

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class AppendSettings:
    """Settings of an AppendService, as documented there, and the state of its journals."""

    client: JournalClient
    policy: RetryPolicy
    claims: pb.Claims | None
    timeout: float | None
    cutoff_bytes: int
    spool_directory: str | None
    errors: JournalErrors
    journals: dict[str, JournalAppends] = dataclasses.field(
        default_factory=dict[str, "JournalAppends"]
    )
    """Journals with pending appends."""
    closing: set[asyncio.Future[None]] = dataclasses.field(
        default_factory=set[asyncio.Future[None]]
    )
    """Temporary files that a thread still uses after the end of their batch."""


class JournalAppends:
    """Pending appends of one journal.

    While there are batches, a task sends them, oldest first.

    Args:
        journal: The journal.
        settings: Settings of the service.
    """

    def __init__(self, journal: str, settings: AppendSettings) -> None:
        self._settings = settings
        self._errors = settings.errors
        self._tracing = settings.client.context.tracing
        self.journal = journal
        self.request: pb.AppendRequest = pb.AppendRequest(journal=journal)
        """The request without preconditions."""
        self.deadline: Deadline | None = None
        """Bound of each wait for an append, or None."""
        if settings.timeout is not None:
            doubt = "it's still pending, and may be appended"
            self.deadline = settings.client.context.deadline(
                "append", settings.timeout, journal=journal, doubt=doubt
            )
        self.batches: deque[Batch] = deque()
        """Pending batches, oldest first."""
        self.open: Batch | None = None
        """The open batch, which is the newest, or None."""
        self.lock: FIFOBudget = FIFOBudget(1)
        """Held to write to the open batch, and to seal it."""
        self.worker: asyncio.Task[None] | None = None
        settings.journals[journal] = self

    @property
    def is_full(self) -> bool:
        """Whether the open batch is too long for a further holder."""
        return self.open is not None and self.open.buffer.length > self._settings.cutoff_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of content of all batches."""
        return sum(batch.buffer.length for batch in self.batches)

    def forget_if_idle(self) -> None:
        """Drop this state if nothing is pending, and the journal isn't locked."""
        is_idle = not self.batches and not self.lock.held and self.worker is None
        if is_idle and self._settings.journals.get(self.journal) is self:
            del self._settings.journals[self.journal]

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
        batch = self.open
        if batch is None or doom or self.is_full or not batch.suits(request, dependencies):
            batch = self._begin(request, dependencies, is_plain=is_plain)
            batch.doom = doom
            self.open = None if doom else batch
        if self.worker is None:
            # An empty context: claims that the first holder has set aren't those of the others.
            self.worker = start_task(
                self._work(), f"gazette append {self.journal}", context=contextvars.Context()
            )
            self.worker.add_done_callback(self._worker_ended)
        return batch

    def _begin(
        self, request: pb.AppendRequest, dependencies: Dependencies, *, is_plain: bool
    ) -> Batch:
        settings = self._settings
        memory = settings.client.context.append_memory
        content = ContentBuffer(settings.cutoff_bytes, memory, settings.spool_directory)
        batch = Batch(request, dependencies, content, is_plain=is_plain, deadline=self.deadline)
        if self._tracing is not None:
            batch.span = self._tracing.start("append", self.journal)
        self.batches.append(batch)
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
            self.keep(batch)
        else:
            buffer.truncate(begin)
        end = buffer.length
        self.unlock()
        return end

    def keep(self, batch: Batch) -> None:
        """Keep the content of a holder of `batch`."""
        batch.kept += 1
        buffer = batch.buffer
        if buffer.length > buffer.quick_length:
            buffer.retain()
            asyncio.get_running_loop().call_soon(buffer.note_turn)

    def unlock(self) -> None:
        """Release the lock to the next in line."""
        self.lock.release()
        if not self.batches:
            self.forget_if_idle()

    async def give_turn(self) -> None:
        """Give the event loop a turn if much was added to the open batch without one.

        Cancellation: safe.
        """
        batch = self.open
        if batch is not None and batch.buffer.needs_turn:
            # One task waits for it. Others that append before it do so without waiting.
            batch.buffer.note_turn()
            await asyncio.sleep(0)

    async def settle(self, batch: Batch) -> bool:
        """Have `batch` keep little in memory, and return whether that succeeds.

        The caller holds the lock.

        Cancellation: safe.
        """
        if batch.operation.done():
            batch.buffer = ContentBuffer()  # It failed while it was held: nobody reads its content.
            return True
        try:
            await batch.buffer.settle()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started.
            _logger.warning("spooling an append failed and will be retried: %s", error)
            return False
        return True

    async def drain(self, batch: Batch) -> None:
        """Have `batch` keep little in memory; wait while the disk is full.

        Cancellation: safe.
        """
        await self.give_turn()
        attempt = 0
        while not await self.settle(batch):
            await asyncio.sleep(self._settings.policy.backoff(attempt))
            attempt += 1

    async def _work(self) -> None:
        while self.batches:
            batch = self.batches[0]
            response: pb.AppendResponse | None = None
            error: Exception | None = batch.doom or self._errors.against(batch.request)
            if error is None:
                error = await failed_dependency(batch.dependencies)
            if batch is self.open:
                # Invariant: nobody writes to a batch that is being sent.
                await self.lock.acquire()
                if batch is self.open:
                    self.open = None
                self.lock.release()
            if error is None and batch.kept:
                try:
                    response = await self._append(batch)
                    self._errors.pass_over(self.journal, batch.request)
                except pb.GazetteError as failure:
                    error = failure
            if error is not None and batch.kept and batch.doom is None:
                self._errors.note(self.journal, error)
                # Invariant: nothing is appended after a missing append, even if a caller clears
                # the error at once.
                for later in self.batches:
                    later.doom = error
                self.open = None
            self._complete(response, error)
        # Race: a batch that is admitted from here on needs another task.
        self.worker = None
        self.forget_if_idle()

    async def _append(self, batch: Batch) -> pb.AppendResponse:
        request, settings = batch.request, self._settings
        if not batch.buffer.length and (
            request.HasField("union_registers") or request.HasField("subtract_registers")
        ):
            # Wire: brokers refuse it by a code that also stands for transient failures.
            raise pb.ValidationError("register modification requires non-empty Append")

        async def append_once() -> pb.AppendResponse:
            appender = Appender(settings.client, request, claims=settings.claims)
            async with appender, contextlib.aclosing(batch.buffer.pieces()) as lists:
                # Without a connection, chunks would only be copies of the content.
                await appender.open()
                try:
                    async for pieces in lists:
                        await appender.write_pieces(pieces)
                except pb.GazetteError:
                    raise
                except OSError as error:
                    raise pb.StoreError(f"reading a spooled append: {error}") from error
                return await appender.close()

        return await until_success(
            append_once,
            Operation.APPEND_SERVICE,
            settings.policy,
            request,
            endpoint=settings.client.context.dispatcher.endpoint,
            deadline=self.deadline,
        )

    def _complete(self, response: pb.AppendResponse | None, error: BaseException | None) -> None:
        """Resolve the oldest batch, and drop it."""
        batch = self.batches.popleft()
        if self.deadline is not None:
            self.deadline.note(None)
        if batch is self.open:
            self.open = None
        if (closing := batch.complete(response, error)) is not None:
            self._settings.closing.add(closing)
            closing.add_done_callback(self._settings.closing.discard)

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
        for _ in range(len(self.batches)):
            self._complete(None, error)
        self.forget_if_idle()
