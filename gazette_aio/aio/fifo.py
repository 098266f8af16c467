"""Fair lock that can be taken without suspension, and is passed on directly."""

from __future__ import annotations

import asyncio
from collections import deque


class FifoLock:
    """Mutual exclusion of tasks, granted in the order in which they ask.

    Unlike with `asyncio.Lock`, no task can take it between its release and the next task in line.
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
                # Race: the lock was passed to this task right before its cancellation.
                self.release()
            elif turn in self._waiters:
                self._waiters.remove(turn)
            raise

    def release(self) -> None:
        """Pass the lock to the next task in line, or set it free."""
        assert self.locked, "released a lock which isn't held"
        # Invariant: `locked` stays true while any task is in line.
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.locked = False
