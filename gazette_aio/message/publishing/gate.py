"""Gate of a Publisher, which holds publishing back while a transaction commits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from gazette_aio.message.uuid import Flags

_TURN_BYTES: Final = 1 << 19
"""Bytes that are published without suspension: it takes some two milliseconds."""

MESSAGE_BYTES: Final = 300
"""Cost of a message besides its length, as the number of bytes that take as long."""


class Inside:
    """Counts tasks inside of it, as a context manager."""

    def __init__(self) -> None:
        self._inside = 0
        self._idle = asyncio.Event()

    async def idle(self) -> None:
        """Wait until no task is inside.

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


class Gate(Inside):
    """Lets publishing through, or makes it wait.

    Inside of it are the tasks that passed, and suspend while they publish.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn_bytes: int = _TURN_BYTES
        """Bytes to publish before the event loop has a turn; none unless the gate is open."""
        self.has_blocks: bool = False
        """Whether any transaction has begun, whose calls are noted."""
        self.owner: object = None
        """Who may publish uncommitted messages: anyone if None, or else this transaction."""
        self.reserved_by: str = ""
        """Name of the shard's transaction that has reserved the gate."""
        self._opened = asyncio.Event()
        self._opened.set()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._failure: tuple[str, BaseException] | None = None

    async def give_turn(self) -> None:
        """Let other tasks have a turn, such as those that send appends.

        Raises:
            TransactionError: A transaction has failed.

        Cancellation: safe.
        """
        self.check()
        if self._opened.is_set() and self._resumed.is_set():
            self.turn_bytes = _TURN_BYTES
            await asyncio.sleep(0)

    @property
    def is_open(self) -> bool:
        """Whether no transaction has closed the gate, or failed."""
        return self._opened.is_set() and self._failure is None

    def check(self) -> None:
        """Raise if a transaction has failed.

        Raises:
            TransactionError: It has.
        """
        if self._failure is not None:
            text, cause = self._failure
            raise TransactionError(text) from cause

    def check_owner(self, owner: object, flags: Flags) -> None:
        """Raise unless messages with `flags` may be published by `owner`.

        Raises:
            TransactionError: They are uncommitted, and it has ended meanwhile.
        """
        if flags and owner is not self.owner:
            raise TransactionError(
                "the transaction() was abandoned before the message was published"
            )

    async def opened(self) -> None:
        """Wait until no transaction has closed the gate.

        Raises:
            TransactionError: A transaction has failed.

        Cancellation: safe.
        """
        while not self._opened.is_set():
            await self._opened.wait()
        self.check()

    def delay(self) -> None:
        """Make publishing wait for messages that were queued before. Idempotent."""
        self.turn_bytes = 0
        self._resumed.clear()

    def resume(self) -> None:
        """No longer make publishing wait for queued messages. Idempotent."""
        self._resumed.set()

    async def passed(self) -> None:
        """Wait until the gate is open, and no earlier messages are queued.

        Raises:
            TransactionError: A transaction has failed.

        Cancellation: safe.
        """
        while not (self._opened.is_set() and self._resumed.is_set()):
            await self._opened.wait()
            self.check()
            await self._resumed.wait()
        self.check()

    async def close(self) -> None:
        """Make publishing wait from now on, and wait until no task is inside.

        Cancellation: aborts — the gate stays closed.
        """
        self.turn_bytes = 0
        self._opened.clear()
        await self.idle()

    def open(self) -> None:
        """Let publishing through again, unless a transaction has failed. Idempotent."""
        may_pass = self._resumed.is_set() and self._failure is None
        self.turn_bytes = _TURN_BYTES if may_pass else 0
        self._opened.set()

    def fail(self, text: str, cause: BaseException) -> None:
        """Have publishing raise TransactionError, also what waits, and after `release()`.

        Args:
            text: Text of the errors.
            cause: Cause of the errors.
        """
        self._failure = text, cause
        self.turn_bytes = 0
        self._opened.set()
        self._resumed.set()
