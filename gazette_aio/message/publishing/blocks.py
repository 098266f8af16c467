"""Blocks of transactions: which calls to publish belong to one, and whether each was awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gazette_aio.protocol.errors import NotAwaitedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gazette_aio.message.publishing.backlog import Backlog
    from gazette_aio.message.publishing.gate import Gate

    Call: TypeAlias = Coroutine[Any, Any, Any]

_FEW: Final = 64


class Block:
    """Block of a transaction, to which calls belong by its task, and by tasks started there.

    Args:
        gate: Gate of the Publisher whose transaction it is.
        transaction: What errors call the transaction.
    """

    def __init__(self, gate: Gate, transaction: str) -> None:
        self.gate: Gate = gate
        """Gate of the Publisher whose transaction it is."""
        self.is_open: bool = False
        """Whether calls still belong to the transaction."""
        self._last: Any = None  # A coroutine, or None.
        self._kept: list[Call] = []
        """Earlier calls that hadn't begun when the next one was made."""
        self._enough = _FEW
        self._transaction = transaction

    def note(self, call: Any, name: str) -> None:
        """Note the latest call, and what errors call it."""
        call.__name__ = name
        last = self._last
        if last is not None and last.cr_frame is not None and not _has_begun(last):
            if len(self._kept) >= self._enough:
                self._kept = [kept for kept in self._kept if not _has_begun(kept)]
                self._enough = max(_FEW, 2 * len(self._kept))
            self._kept.append(last)
        self._last = call

    def _not_begun(self) -> list[Any]:
        # Calls never begin whose task was cancelled before.
        made = self._kept if self._last is None else [*self._kept, self._last]
        return [call for call in made if not _has_begun(call)]

    async def require_awaited(self) -> None:
        """Raise unless all calls have begun.

        Raises:
            NotAwaitedError: At least one call wasn't awaited.

        Cancellation: safe.
        """
        if self._not_begun():
            await asyncio.sleep(0)  # Tasks that were just created begin now.
        if calls := self._not_begun():
            names = sorted(Counter(call.__name__ for call in calls).items())
            counted = ", ".join(
                f"{name}()" if count == 1 else f"{name}() {count} times" for name, count in names
            )
            raise NotAwaitedError(
                f"calls to publish were not awaited: {counted}; {self._transaction} is abandoned"
            )

    def enter(self) -> None:
        """Begin to belong to the current task, and the tasks that it starts."""
        self.is_open = self.gate.has_blocks = True
        _current.set((*(block for block in _current.get() if block.is_open), self))

    def leave(self) -> None:
        """Forget all calls, and no longer belong to the current task."""
        self.is_open = False
        self._last = None
        self._kept.clear()
        _current.set(tuple(block for block in _current.get() if block is not self))


class ReservedBlock(Block):
    """Block of a transaction that the caller commits: it has all messages published within it.

    Args:
        gate: Gate of the Publisher.
        backlog: Messages that are queued.
        transaction: What errors call the transaction.
    """

    def __init__(self, gate: Gate, backlog: Backlog, transaction: str) -> None:
        super().__init__(gate, transaction)
        self._backlog = backlog

    def begin(self) -> None:
        """Begin the block, to which calls by the current task and those it starts belong."""
        self.gate.reserved_by = self._transaction
        self.enter()

    async def seal(self) -> None:
        """Wait until all messages are with the service, and make other publishing wait.

        Raises:
            NotAwaitedError: At least one call wasn't awaited.
            DependencyError: Queued messages could not be published.

        Cancellation: aborts — other publishing waits until the block is reopened or ends.
        """
        await self.require_awaited()
        await self._backlog.drained()
        await self.gate.close()

    def reopen(self) -> None:
        """Begin the block of the next transaction, within the same task."""
        self.gate.open()

    def fail(self, error: BaseException) -> None:
        """Have all publishing raise TransactionError from now on, also after the block's end.

        Invariant: the producer of messages in doubt publishes nothing more, which readers could
        take for the end of these.

        Args:
            error: Why the transaction failed.
        """
        self.gate.fail(f"{self._transaction} has failed: nothing more is published", error)

    def end(self) -> None:
        """End the block. It's called within the task that began it."""
        self.gate.reserved_by = ""
        self.gate.open()
        self.leave()


_current: Final[ContextVar[tuple[Block, ...]]] = ContextVar("gazette transactions", default=())
"""Transactions within whose blocks the current task is, or was started."""


def block_of(gate: Gate) -> Block | None:
    """Return the block of a Publisher's transaction in which the current task is, or was started.

    It may have ended, while the task outlives it.
    """
    if not gate.has_blocks:
        return None
    for block in reversed(_current.get()):
        if block.gate is gate:
            return block
    return None


def _has_begun(call: Call) -> bool:
    return inspect.getcoroutinestate(call) != inspect.CORO_CREATED
