"""Handle of one append of an AppendService."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gazette_aio.client.appends.content_buffer import checked_bytes
from gazette_aio.client.appends.futures import OpFuture
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator

    import gazette_aio.protocol as pb
    from gazette_aio.client.appends.batch import Batch
    from gazette_aio.client.appends.futures import AsyncOperation
    from gazette_aio.client.appends.journal_appends import JournalAppends


class AsyncAppend(OpFuture["pb.AppendResponse"]):
    """An append that is held or pending.

    While it's held, its journal is locked: write, then `release()` it. A released append may be
    awaited for the response of the broker. If the service has a `timeout`, an `await` that lasts
    longer raises OperationTimeoutError. The append stays pending, and may be awaited again.

    Cancellation: safe — cancelling a task that awaits it doesn't affect the append.
    """

    __slots__ = ("_begin", "_end", "_error", "_holding", "batch")

    def __init__(
        self, batch: Batch, begin: int, end: int, holding: JournalAppends | None = None
    ) -> None:
        self.batch: Batch = batch
        """The batch, which one RPC appends. Several appends may share it."""
        self._begin = begin
        self._end = end
        self._holding = holding
        self._error: BaseException | None = None

    @property
    def operation(self) -> AsyncOperation:
        """The operation of the batch. It may complete while this append is still held."""
        return self.batch.operation

    @property
    def request(self) -> pb.AppendRequest:
        """The request of the batch."""
        return self.batch.request

    @property
    def response(self) -> pb.AppendResponse:
        """The response to the batch. Its `commit` spans the whole batch.

        Raises:
            asyncio.InvalidStateError: The append is pending, or has no response.
        """
        if self._error is not None or self.batch.response is None:
            reason = "await it first" if self._error is None else "it failed"
            raise asyncio.InvalidStateError(f"the append has no response: {reason}")
        return self.batch.response

    @property
    def commit_range(self) -> tuple[int, int]:
        """Offsets of the journal at which this append's own content begins and ends.

        Raises:
            asyncio.InvalidStateError: The append is pending, or has no response.
        """
        begin = self.response.commit.begin
        return begin + self._begin, begin + self._end

    @property
    def writer(self) -> AsyncAppend:
        """The append itself, while it may be written to.

        Raises:
            UsageError: The append was released.
        """
        self._held("writer")
        return self

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Add content, without waiting, and return its length in bytes.

        Content is kept in memory until the append is released, or `drain()` is awaited.

        Raises:
            TypeError: It's something else than bytes.
            UsageError: The append was released.
        """
        if self._holding is None:
            self._held("write()")  # Hot: called only to raise.
        content = data if type(data) is bytes else checked_bytes(data)
        # Hot: this is `buffer.append()`.
        buffer, size = self.batch.buffer, len(content)
        buffer.tail.append(content)
        buffer.length += size
        return size

    async def drain(self) -> None:
        """Write content to a temporary file, if memory is used up, before adding more.

        Raises:
            UsageError: The append was released.

        Cancellation: safe — the append is still held.
        """
        await self._held("drain()").drain(self.batch)

    def require(self, error: BaseException | None) -> AsyncAppend:
        """Have `release()` roll back and raise `error`, if it isn't None. The first error counts.

        Raises:
            UsageError: The append was released.
        """
        self._held("require()")
        if self._error is None:
            self._error = error
        return self

    def release(self) -> None:
        """Queue the content, and let the next in line write to the journal.

        Raises:
            UsageError: The append was released before.
            BaseException: The error given to `require()`; the content isn't appended.
        """
        appends = self._holding or self._held("release()")
        self._holding = None
        error = self._error
        batch, lock = self.batch, appends.lock
        buffer = batch.buffer
        if (
            error is None
            and batch is appends.open
            and buffer.length <= buffer.quick_length
            and not lock.waiting
        ):
            # Hot: this is `leave()`, where nothing has failed, nothing spills, and nobody waits.
            # Invariant: an open batch is pending, so that its journal isn't idle.
            batch.kept += 1
            lock.held = 0
            self._end = buffer.length
            return
        self._end = appends.leave(batch, self._begin, keep=error is None)
        if error is not None:
            raise error

    def roll_back(self, error: BaseException) -> None:
        """Release the append, if it's still held, without its content.

        Args:
            error: Error of the append, unless `require()` was given one before.
        """
        if self._holding is not None:
            appends, self._holding = self._holding, None
            self._error = self._error or error
            self._end = appends.leave(self.batch, self._begin, keep=False)

    def done(self) -> bool:
        """Whether the append was committed, failed, or was rolled back."""
        return self._holding is None and (self._error is not None or self.batch.operation.done())

    def exception(self) -> BaseException | None:
        """Return the error of the append, or None if it was committed.

        Raises:
            asyncio.InvalidStateError: The append is pending.
        """
        if not self.done():
            raise asyncio.InvalidStateError("the append is still pending")
        return self._error or self.batch.operation.exception()

    def _check_awaitable(self) -> None:
        if self._holding is not None:
            raise UsageError("an append must be released before it's awaited")

    def _value(self) -> pb.AppendResponse:
        return self.response

    def __await__(self) -> Generator[Any, None, pb.AppendResponse]:
        if self._holding is not None:
            self._check_awaitable()  # Hot: called only to raise.
        batch, error = self.batch, self._error
        if error is None:
            operation = batch.operation
            if not operation.done():
                # Hot: this is what `parked()` does.
                waiter = operation.waiter()
                timer = None if batch.deadline is None else batch.deadline.limit(waiter)
                try:
                    yield from waiter
                except BaseException:
                    operation.leave(waiter)
                    raise
                finally:
                    if timer is not None:
                        timer.cancel()
            error = operation.exception()
        if error is not None:
            raise error.with_traceback(None)
        return self.response if batch.response is None else batch.response

    def _held(self, what: str) -> JournalAppends:
        if self._holding is None:
            raise UsageError(f"{what} of an append that was released: call it within the block")
        return self._holding

    def __repr__(self) -> str:
        if self._holding is not None:
            state = "held"
        elif not self.done():
            state = "pending"
        elif (error := self.exception()) is not None:
            state = f"failed: {error}"
        else:
            state = "committed"
        return f"<AsyncAppend to {self.request.journal!r}, {state}>"
