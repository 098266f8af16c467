"""Fair lock and budget: tasks acquire a limited amount in the order of their requests."""

from __future__ import annotations

import asyncio
from collections import deque


class FIFOBudget:
    """Limited amount that tasks acquire in the order of their requests.

    With a limit of one, the budget is a lock. Unlike with `asyncio.Lock`, no other task can acquire
    it between a release and the next task in line.

    Args:
        limit: Largest amount held in total. A sole holder may exceed it.
    """

    __slots__ = ("_limit", "held", "waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """Tasks in line, by their futures, and the amount that each asks for."""
        self.held: int = 0
        """Amount held at present."""

    @property
    def is_contended(self) -> bool:
        """Whether any task waits."""
        return bool(self.waiting)

    def try_acquire(self, amount: int = 1) -> bool:
        """Hold `amount` unless that needs a wait, and return whether it's held."""
        if not self.held:  # Hot: nobody waits then.
            self.held = amount
            return True
        if self.waiting or not self._fits(amount):
            return False
        self.held += amount
        return True

    async def acquire(self, amount: int = 1) -> None:
        """Wait in line, then hold `amount`.

        Cancellation: safe — nothing is held, and the place in line is given up.
        """
        if self.try_acquire(amount):
            return
        turn = asyncio.get_running_loop().create_future()
        entry = turn, amount
        self.waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            # Race: the turn may have been granted just before, or passed over by `_grant()`.
            if not turn.cancelled():
                self.release(amount)
            elif entry in self.waiting:
                self.waiting.remove(entry)
                self._grant()  # The next waiter's amount may fit.
            raise

    def hold(self, amount: int) -> None:
        """Hold `amount` without waiting, perhaps beyond the limit."""
        self.held += amount

    def release(self, amount: int = 1) -> None:
        """Release `amount`, to the next in line if there are any."""
        assert self.held >= amount, "released more than is held"
        self.held -= amount
        if self.waiting:
            self._grant()

    def _fits(self, amount: int) -> bool:
        return self.held == 0 or self.held + amount <= self._limit

    def _grant(self) -> None:
        while self.waiting and self._fits(self.waiting[0][1]):
            turn, amount = self.waiting.popleft()
            # Race: a cancelled waiter holds nothing.
            if not turn.done():
                self.held += amount
                turn.set_result(None)
