"""A fair lock that can be taken without suspension, and is handed over directly."""

from __future__ import annotations

import asyncio
from collections import deque


class FifoLock:
    """A mutual exclusion of tasks, granted in the order in which they asked.

    Unlike with `asyncio.Lock`, nobody can take it between its release and the next one in line.
    """

    __slots__ = ("_waiters", "locked")

    def __init__(self) -> None:
        self.locked = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Number of tasks in line."""
        return len(self._waiters)

    def try_acquire(self) -> bool:
        """Take the lock if it's free, and return whether it was."""
        if self.locked:
            return False
        self.locked = True
        return True

    async def acquire(self) -> None:
        """Take the lock once it's free.

        Cancellation: safe — the lock isn't taken, and the place in line is given up.
        """
        if self.try_acquire():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Race: the lock was handed to us right before we were cancelled.
                self.release()
            elif turn in self._waiters:
                self._waiters.remove(turn)
            raise

    def release(self) -> None:
        """Hand the lock to the next in line, or set it free."""
        assert self.locked, "released a lock which isn't held"
        # Invariant: `locked` stays true while anyone is in line.
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.locked = False
