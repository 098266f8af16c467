"""A limited amount of something, which tasks get in the order they ask for it."""

from __future__ import annotations

import asyncio
from collections import deque


class FIFOBudget:
    """An amount which is held by those who asked first.

    Args:
        limit: The amount which may be held together. Whoever is alone may hold more.
    """

    __slots__ = ("_limit", "_waiting", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.held = 0
        """The amount which is held at present."""

    @property
    def is_contended(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    async def acquire(self, amount: int) -> None:
        """Wait for one's turn, and hold `amount` from then on.

        Cancellation: safe — nothing is held.
        """
        if not self._waiting and self._fits(amount):
            self.held += amount
            return
        turn = asyncio.get_running_loop().create_future()
        entry = turn, amount
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            # Race: it may have become one's turn just before, or have been passed over.
            if not turn.cancelled():
                self.release(amount)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()  # What the next one asks for may fit.
            raise

    def hold(self, amount: int) -> None:
        """Hold `amount` without asking, and so perhaps beyond the limit."""
        self.held += amount

    def release(self, amount: int) -> None:
        """Hold `amount` no longer."""
        self.held -= amount
        self._grant()

    def _fits(self, amount: int) -> bool:
        return self.held == 0 or self.held + amount <= self._limit

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, amount = self._waiting.popleft()
            # Race: one which is being cancelled holds nothing.
            if not turn.done():
                self.held += amount
                turn.set_result(None)
