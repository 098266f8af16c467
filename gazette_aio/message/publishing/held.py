"""Messages that a transaction holds in memory until it commits."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.task import start_task
from gazette_aio.client import AsyncAppend
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.message.publishing.calls import Calls
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping

    import gazette_aio.protocol as pb
    from gazette_aio.message.publishing.backlog import Queued
    from gazette_aio.message.publishing.gate import Gate
    from gazette_aio.message.publishing.intent_record import State
    from gazette_aio.message.publishing.transaction import TransactionLog

HELD_BYTES: Final = 1 << 16
"""Bytes that a transaction holds, before it takes its turn and publishes them."""

_MESSAGE_BYTES: Final = 300
"""Memory of a message besides its bytes."""

MOST_HELD: Final = HELD_BYTES // _MESSAGE_BYTES
"""Messages beyond which a transaction surely doesn't hold them."""


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
        self.batch = append.batch
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


class Held(Calls):
    """A transaction that holds messages, or has its turn and publishes them.

    As a context manager it counts calls that have begun.

    Args:
        gate: Gate of the Publisher.
        log: Log of the transaction.
        publish: Takes the turn of the transaction, and publishes what it holds.
    """

    def __init__(
        self,
        gate: Gate,
        log: TransactionLog | None,
        publish: Callable[[Held], Awaitable[None]],
    ) -> None:
        super().__init__(gate, "the transaction")
        self.log = log
        """Log of the transaction."""
        self.uses_state: bool = False
        """Whether the transaction has a state of its own, or else leaves the log's as it is."""
        self.state: State = None
        """State of the transaction."""
        self.base: State = None
        """State of the log from which the transaction began."""
        self.items: list[Queued] = []
        """Messages, in the order of calls."""
        self.appends: dict[str, HeldAppend] = {}
        """By journal: their appends."""
        self.turn: asyncio.Task[None] | None = None
        """Takes the turn of the transaction, and publishes what it holds."""
        self.granted: asyncio.Future[None] | None = None
        """Whether it's the transaction's turn."""
        self.outcome: asyncio.Future[int] | None = None
        """End of the commit, with the number of journals."""
        self._publish = publish
        self._size_bytes = self._inside = 0
        self._idle = asyncio.Event()

    @property
    def owner(self) -> Held:
        """The transaction itself."""
        return self

    @property
    def has_turn(self) -> bool:
        """Whether it's the transaction's turn, until it ends."""
        return self.granted is not None and self.granted.done() and not self.granted.cancelled()

    @property
    def is_full(self) -> bool:
        """Whether the transaction holds what it should publish, or already waits for its turn."""
        return self.turn is not None or self._size_bytes > HELD_BYTES

    def hold(self, items: list[Queued], most_bytes: int = HELD_BYTES) -> bool:
        """Hold messages, or return False if the transaction has to take its turn."""
        size = sum(item.length + _MESSAGE_BYTES * item.rows for item in items)
        if self.turn is not None or self._size_bytes + size > most_bytes:
            return False
        self._size_bytes += size
        self.items += items
        for item in items:
            self.append_to(item.target[0])
        return True

    def append_to(self, journal: str) -> HeldAppend:
        """Return the append of messages of a journal."""
        if (append := self.appends.get(journal)) is None:
            append = self.appends[journal] = HeldAppend(journal, lambda: self._publish(self))
        return append

    def published(self, appends: Mapping[str, AsyncAppend]) -> None:
        """Note the appends of the messages, and forget these."""
        for journal, held in self.appends.items():
            if journal in appends:
                held.published(appends[journal])
        self.forget()

    def forget(self) -> None:
        """Forget the messages, as they were published or abandoned."""
        self.items = []
        self._size_bytes = 0

    def abandon(self) -> None:
        """Abandon the messages, and hold later ones."""
        self.forget()
        self.fail(TransactionError("the messages were abandoned"))
        self.appends = {}

    def fail(self, error: BaseException) -> None:
        """Fail the appends of messages that aren't published."""
        for append in self.appends.values():
            append.fail(error)

    async def idle(self) -> None:
        """Wait for the end of calls that have begun.

        Cancellation: safe.
        """
        while self._inside:
            self._idle.clear()
            await self._idle.wait()

    def __enter__(self) -> None:
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            self._idle.set()


def runs_by_journal(items: list[Queued], most: int) -> dict[str, list[list[Queued]]]:
    """Return runs of at most so many messages, each of one target and view, by journal."""
    by_journal: dict[str, list[Queued]] = {}
    for item in items:
        by_journal.setdefault(item.target[0], []).append(item)
    return {journal: list(_runs(some, most)) for journal, some in by_journal.items()}


def _runs(items: list[Queued], most: int) -> Iterator[list[Queued]]:
    for _, group in groupby(items, lambda item: (item.routes, item.target)):
        run = list(group)
        yield from (run[begin : begin + most] for begin in range(0, len(run), most))
