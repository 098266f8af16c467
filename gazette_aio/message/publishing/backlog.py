"""Messages that were published without waiting, while their journals were busy."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.task import start_task
from gazette_aio.aio.turns import Turns
from gazette_aio.message.publishing.routes import merged
from gazette_aio.message.uuid import CONTINUE_TXN
from gazette_aio.protocol.errors import DependencyError, QueueFullError, TransactionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_aio.client import AsyncAppend
    from gazette_aio.message.publishing.journals import Journals
    from gazette_aio.message.publishing.routes import Queued
    from gazette_aio.message.uuid import ProducerID

MAX_BYTES: Final = 16 << 20
"""Bytes that may be queued."""

# Of messages that are stamped at once.
_RUN_BYTES: Final = 1 << 18
_RUN_MESSAGES: Final = 512


def runs(items: Iterable[Queued]) -> Iterator[list[Queued]]:
    """Yield runs of messages of one journal and view, which are appended at once."""
    run: list[Queued] = []
    length = 0
    for item in items:
        is_full = len(run) == _RUN_MESSAGES or length >= _RUN_BYTES
        if run and (is_full or item[:2] != run[0][:2]):
            yield run
            run, length = [], 0
        run.append(item)
        length += item.length
    if run:
        yield run


async def append_run(
    run: Sequence[Queued], pace: Turns, producer: ProducerID | None = None
) -> dict[str, AsyncAppend]:
    """Append a run of messages, and return the append by journal.

    Raises:
        GazetteError: As of `Routes.append()`, or the journal has another content type.

    Cancellation: aborts — the messages of one append are kept or dropped as a whole.
    """
    routes, target = run[0][:2]
    await routes.journals.check_content_type(target)
    parts = list(merged(item.message for item in run))
    return await routes.append([(target, parts)], CONTINUE_TXN, pace, producer)


class Backlog:
    """Queue of uncommitted messages of a Publisher and its views, in the order of calls.

    A task appends them, one journal after the other. While there are any, the gate makes other
    publishing wait. While a transaction has closed the gate, the backlog waits as well, and belongs
    to the next transaction.

    Args:
        journals: Journals of the Publisher.
    """

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._gate = journals.gate
        self._items: deque[Queued] = deque()
        self.size_bytes: int = 0
        """Bytes of the messages that are queued."""
        self._put = self._done = 0
        self._moved = asyncio.Event()
        self._dropped = 0
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._put - self._done

    def check(self) -> None:
        """Raise if messages couldn't be appended, and weren't abandoned since.

        Raises:
            DependencyError: Messages are missing.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)

    def put(self, item: Queued) -> None:
        """Queue an encoded message.

        Raises:
            QueueFullError: Too many bytes are queued.
        """
        if self._items and self.size_bytes + item.length > MAX_BYTES:
            text = f"{self.size_bytes} bytes of messages are queued: await drain()"
            raise QueueFullError(text)
        if self._task is None:
            self._task = start_task(self._append_all(), "gazette publisher")
        self._items.append(item)
        self.size_bytes += item.length
        self._put += 1
        self._gate.delay()

    async def drained(self) -> None:
        """Wait until the messages that are queued now were handed to the service.

        Raises:
            DependencyError: Messages are missing.

        Cancellation: safe.
        """
        last = self._put
        while self._done < last:
            await self._moved.wait()
        self.check()

    def abandon(self) -> None:
        """Drop all messages and the error, but for those of the next transaction."""
        if self._gate.is_open:
            self._error = None
            self._dropped += 1
            self._drop()

    def _drop(self) -> None:
        self._items.clear()
        self.size_bytes = 0
        self._note_done(len(self))

    def _note_done(self, count: int) -> None:
        self._done += count
        self._moved.set()
        self._moved = asyncio.Event()
        if not self:
            self._gate.resume()

    async def _append_all(self) -> None:
        pace = Turns()
        try:
            while self._items:
                await self._gate.opened()
                with self._gate:
                    await self._append_some()
                if self._items:
                    await pace.rest()
        except BaseException as error:
            self._error = DependencyError(f"queued messages could not be published: {error!r}")
            self._error.__cause__ = error
            self._drop()
            if not isinstance(error, Exception):
                raise
        finally:
            self._task = None

    async def _append_some(self) -> None:
        """Append the first messages of one journal and view."""
        run = next(runs(self._items), None)
        if run is None:
            return  # Race: the messages were abandoned while this waited for the gate.
        dropped = self._dropped
        try:
            await append_run(run, Turns(), self._journals.producer)
        except (DependencyError, TransactionError):
            # Race: what's queued by now belongs to another producer.
            if dropped == self._dropped:
                raise
        if dropped == self._dropped:
            for _ in run:
                self.size_bytes -= self._items.popleft().length
            self._note_done(len(run))
