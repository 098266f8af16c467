"""Base class of streams that one task reads ahead and another one receives."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from gazette_aio.aio.task import call_from_anywhere
from gazette_aio.protocol.errors import UsageError

T = TypeVar("T")


class ReadAhead(ABC, Generic[T]):
    """A queue of what was read ahead within a bound, with its waits: for more, and for room.

    One task at a time may receive.
    """

    def __init__(self) -> None:
        self.waiting_bytes: int = 0
        """Bytes that wait to be received."""
        self._waiting: deque[tuple[int, T]] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._closing = False
        self._receiver: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def has_ended(self) -> bool:
        """Whether reading has ended."""
        return self._ended

    @property
    def has_ended_well(self) -> bool:
        """Whether reading has ended without an error."""
        return self._ended and self._error is None

    def receive_nowait(self) -> T | None:
        """Return the next item, or None if none waits."""
        if not self._waiting:
            return None
        size, item = self._waiting.popleft()
        self._made_room(size)
        return item

    async def receive(self) -> T | None:
        """Return the next item, or None at the end of the stream.

        Raises:
            UsageError: Another task waits already.
            GazetteError: Reading failed.

        Cancellation: safe.
        """
        while (item := self.receive_nowait()) is None:
            if not await self.more():
                return None
        return item

    @abstractmethod
    def abandon(self) -> None:
        """End the stream, without waiting for its end. Idempotent."""

    def abandon_from_anywhere(self) -> None:
        """End the stream; called from any thread and at any time."""
        call_from_anywhere(self._loop, self.abandon)

    @abstractmethod
    def _is_full(self) -> bool:
        """Return whether reading has to pause."""

    def _put(self, item: T, size: int) -> None:
        self._waiting.append((size, item))
        self.waiting_bytes += size
        self._wake(self._receiver)

    def _made_room(self, size: int) -> None:
        self.waiting_bytes -= size
        if self._room is not None and not self._is_full():
            self._wake(self._room)

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self.waiting_bytes = 0

    async def more(self) -> bool:
        """Wait until there may be more to receive; return False at the end.

        Raises:
            UsageError: Another task waits already.
            Exception: The error of reading.

        Cancellation: safe.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._ended:
            return False
        if self._receiver is not None:
            raise UsageError("two tasks use one reader: its content has one order")
        self._receiver = asyncio.get_running_loop().create_future()
        try:
            await self._receiver
        finally:
            self._receiver = None
        return True

    async def _until_room(self) -> None:
        while self._is_full():
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    def _wake(self, waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
