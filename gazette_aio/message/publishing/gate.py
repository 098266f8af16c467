"""The gate of a Publisher: closed while a transaction is acknowledged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Gate:
    """Lets publishing through, or has it wait.

    As a context manager it counts who is inside: who has passed, and suspends before it's done.
    """

    __slots__ = ("_closed", "_idle", "_inside")

    def __init__(self) -> None:
        self._closed: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._inside = 0

    @property
    def is_closed(self) -> bool:
        """Whether publishing has to wait."""
        return self._closed is not None

    async def passed(self) -> None:
        """Wait until the gate is open.

        Cancellation: safe.
        """
        while self._closed is not None:
            await asyncio.shield(self._closed)

    async def close(self) -> None:
        """Have publishing wait from now on, and wait until nobody is inside.

        Cancellation: aborts — the gate stays closed.
        """
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        if self._inside:
            self._idle = loop.create_future()
            try:
                await self._idle
            finally:
                self._idle = None

    def open(self) -> None:
        """Let publishing through. Idempotent."""
        closed, self._closed = self._closed, None
        if closed is not None and not closed.done():
            closed.set_result(None)

    def __enter__(self) -> None:
        self._inside += 1

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside -= 1
        if self._inside == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
