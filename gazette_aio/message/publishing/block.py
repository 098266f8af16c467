"""Block of a transaction that the caller commits: the calls to publish that belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.publishing.calls import Calls

if TYPE_CHECKING:
    from gazette_aio.message.publishing.backlog import Backlog
    from gazette_aio.message.publishing.gate import Gate


class Block:
    """Makes sure that a transaction has all messages that were published within its block.

    Args:
        gate: Gate of the Publisher.
        backlog: Messages that are queued.
        transaction: What errors call the transaction.
    """

    def __init__(self, gate: Gate, backlog: Backlog, transaction: str) -> None:
        self._gate = gate
        self._backlog = backlog
        self._transaction = transaction
        self._calls = Calls(gate, transaction)

    def begin(self) -> None:
        """Begin the block, to which calls by the current task and those it starts belong."""
        self._gate.reserved_by = self._transaction
        self._calls.enter()

    async def require_awaited(self) -> None:
        """Raise unless each call was awaited.

        Raises:
            NotAwaitedError: At least one call wasn't awaited.

        Cancellation: safe.
        """
        await self._calls.require_awaited()

    async def seal(self) -> None:
        """Wait until all messages are with the service, and make other publishing wait.

        Raises:
            NotAwaitedError: At least one call wasn't awaited.
            DependencyError: Queued messages could not be published.

        Cancellation: aborts — other publishing waits until the block is reopened or ends.
        """
        await self._calls.require_awaited()
        await self._backlog.drained()
        await self._gate.close()

    def reopen(self) -> None:
        """Begin the block of the next transaction, within the same task."""
        self._gate.open()

    def fail(self, error: BaseException) -> None:
        """Have all publishing raise TransactionError from now on, also after the block's end.

        Invariant: the producer of messages in doubt publishes nothing more, which readers could
        take for the end of these.

        Args:
            error: Why the transaction failed.
        """
        self._gate.fail(f"{self._transaction} has failed: nothing more is published", error)

    def end(self) -> None:
        """End the block. It's called within the task that began it."""
        self._gate.reserved_by = ""
        self._gate.open()
        self._calls.leave()
