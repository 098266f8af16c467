"""Messages that a transaction holds in memory until it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.message.publishing.blocks import Block, block_of
from gazette_aio.message.publishing.gate import Inside
from gazette_aio.message.publishing.routes import count_of
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from gazette_aio.client import AsyncAppend
    from gazette_aio.message.publishing.gate import Gate
    from gazette_aio.message.publishing.held_append import HeldAppend
    from gazette_aio.message.publishing.intent_record import State
    from gazette_aio.message.publishing.routes import Queued
    from gazette_aio.message.publishing.transaction import TransactionLog

HELD_BYTES: Final = 1 << 16
"""Bytes that a transaction holds, before it takes its turn and publishes them."""

_MESSAGE_BYTES: Final = 300
"""Memory of a message besides its bytes."""

MOST_HELD: Final = HELD_BYTES // _MESSAGE_BYTES
"""Messages beyond which a transaction surely doesn't hold them."""


class Held(Block, Inside):
    """A transaction that holds messages, or has its turn and publishes them.

    Inside of it are calls that have begun.

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
        Block.__init__(self, gate, "the transaction")
        Inside.__init__(self)
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
        self._size_bytes = 0

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
        size = sum(item.length + _MESSAGE_BYTES * count_of(item.message) for item in items)
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
            # It imports the client, whose transport takes long to import.
            from gazette_aio.message.publishing.held_append import HeldAppend  # noqa: PLC0415

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

    def release(self) -> None:
        """Forget the messages and the log, as the transaction has ended. Idempotent."""
        self.forget()
        self.fail(TransactionError("the transaction was abandoned"))
        self.appends = {}  # They refer to it, and would be freed by the garbage collector only.
        # A log that only this transaction refers to is unlocked, for the next one of its path.
        self.log = None

    def fail(self, error: BaseException) -> None:
        """Fail the appends of messages that aren't published."""
        for append in self.appends.values():
            append.fail(error)


def owner_of(gate: Gate) -> Held | None:
    """Return the transaction that the current task's messages belong to, unless a shard's."""
    block = block_of(gate)
    return block if isinstance(block, Held) else None


def is_held(gate: Gate, owner: Held | None) -> bool:
    """Whether the owner of uncommitted messages holds them, or else publishes them.

    Raises:
        TransactionError: Its block has ended, or there's none.
    """
    if owner is not None and not owner.is_open:
        raise TransactionError(
            "the transaction() in whose block this task was started has ended: await the task "
            "within the block, or publish in a transaction() of its own"
        )
    if owner is None and gate.owner is not None:
        raise TransactionError(
            "uncommitted messages belong to the block of a transaction(): publish this one there, "
            "or by publish_committed()"
        )
    return owner is not gate.owner


def holding(gate: Gate) -> Held | None:
    """Return the transaction of the current task, if it's open and holds its messages."""
    owner = owner_of(gate)
    has_turn = owner is gate.owner
    return owner if owner is not None and owner.is_open and not has_turn else None
