"""Broadcast to all tasks that wait for the next change of something."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all tasks that wait now, each time it's set. It never stays set."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    def next(self) -> asyncio.Event:
        """Return the event of the next change.

        Race: call this before checking what may change, or a change in between is missed.
        """
        if self._next is None:
            self._next = asyncio.Event()
        return self._next

    def set(self) -> None:
        """Wake all tasks that wait for the next change."""
        event, self._next = self._next, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait for the next change.

        Cancellation: safe.
        """
        await self.next().wait()
