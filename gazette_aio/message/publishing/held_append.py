"""Append of messages that a transaction holds in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.task import start_task
from gazette_aio.client import AsyncAppend
from gazette_aio.client.appends.futures import AsyncOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    import gazette_aio.protocol as pb
    from gazette_aio.client.appends.batch import Batch


class HeldAppend(AsyncAppend):
    """Append of the messages of one journal that a transaction holds.

    Whoever awaits it within the block makes the transaction take its turn, and publish them.
    """

    __slots__ = ("_append", "_journal", "_observed", "_publish", "_task")

    def __init__(self, journal: str, publish: Callable[[], Awaitable[None]]) -> None:
        self._holding = self._error = None
        self._journal = journal
        self._publish = publish
        self._append: AsyncAppend | None = None
        self._observed: AsyncOperation | None = None
        self._task: asyncio.Task[None] | None = None

    def published(self, append: AsyncAppend) -> None:
        """Note the append of the messages, the last one of several."""
        self._append = append
        self.batch: Batch = append.batch
        if (observed := self._observed) is not None:
            append.operation.when_done(lambda: observed.resolve(append.exception()))

    def fail(self, error: BaseException) -> None:
        """Note that the messages aren't published, unless they are."""
        if self._append is None and self._error is None:
            self._error = error
            if self._observed is not None:
                self._observed.resolve(error)

    @property
    def operation(self) -> AsyncOperation:
        """The operation of the batch, or before that one which completes with it."""
        if self._append is not None:
            return self._append.operation
        if self._observed is None:
            self._observed = AsyncOperation()
            if self._error is not None:
                self._observed.resolve(self._error)
            else:
                # Race: whoever observes it may wait, within the block, for its completion.
                self._task = start_task(self._published(), "gazette transaction")
        return self._observed

    async def _published(self) -> None:
        try:
            if self._append is None and self._error is None:  # The block may have ended meanwhile.
                await self._publish()
        except Exception as error:  # noqa: BLE001 - whoever observes it gets the error.
            self.fail(error)

    @property
    def response(self) -> pb.AppendResponse:
        """The response to the batch. Its `commit` spans the whole batch.

        Raises:
            asyncio.InvalidStateError: The append is pending, or has no response.
        """
        return self._appended().response

    @property
    def commit_range(self) -> tuple[int, int]:
        """Offsets at which the messages of the transaction, and of others with it, begin and end.

        Raises:
            asyncio.InvalidStateError: The append is pending, or has no response.
        """
        return self._appended().commit_range

    def _appended(self) -> AsyncAppend:
        if self._append is None:
            raise asyncio.InvalidStateError("the append has no response")
        return self._append

    def done(self) -> bool:
        """Whether the append was committed or failed, or its messages were abandoned."""
        return self._error is not None or (self._append is not None and self._append.done())

    def exception(self) -> BaseException | None:
        """Return the error of the append, or None if it was committed.

        Raises:
            asyncio.InvalidStateError: The append is pending.
        """
        if not self.done():
            raise asyncio.InvalidStateError("the append is still pending")
        return self._error if self._append is None else self._append.exception()

    def __await__(self) -> Generator[Any, None, pb.AppendResponse]:
        if self._append is None and self._error is None:
            yield from self._publish().__await__()
        if self._append is None:
            assert self._error is not None, "messages are published, or failed"
            raise self._error.with_traceback(None)
        return (yield from self._append.__await__())

    def __repr__(self) -> str:
        if self._append is not None:
            return repr(self._append)
        state = "held in memory" if self._error is None else f"failed: {self._error}"
        return f"<AsyncAppend to {self._journal!r}, {state}>"
