"""Planned stop of a server: calls which arrive then are held until clients know of the end.

The gRPC library cancels requests which arrive between the moment a server begins to end and the
one in which its clients know. To them that's a failure of unknown outcome, which they don't repeat.
So the end is begun while clients wait: for answers which are under way, or on hold. What was held
is served as anything else then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_SECONDS = 0.01
"""For how long no request may come or go for clients to count as waiting."""

_LATE_SECONDS = 2 * QUIET_SECONDS

LONGEST_SECONDS = 0.25
"""How long that's waited for. Clients which never wait for an answer can't be waited for."""

LONGEST_BUSY_SECONDS = 5.0
"""How long on a machine which is too busy to tell."""


class Drain:
    """Holds the requests of a server which ends.

    Args:
        activity: Returns how many requests have come and gone so far.
    """

    def __init__(self, activity: Callable[[], int]) -> None:
        self.begun = False
        """Whether requests are to be held."""
        self._activity = activity
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Drain {'over' if self._over.is_set() else 'begun' if self.begun else 'idle'}>"

    async def quiet(self, longest: float) -> None:
        """Hold requests from now on, and wait until no more arrive.

        Args:
            longest: Seconds after which it isn't waited any more.

        Cancellation: safe.
        """
        self.begun = True
        loop = asyncio.get_running_loop()
        end = loop.time() + min(longest, LONGEST_SECONDS)
        busy_end = loop.time() + min(longest, LONGEST_BUSY_SECONDS)
        before, woken = -1, loop.time()
        while woken < end and before != self._activity():
            before, asleep = self._activity(), woken
            await asyncio.sleep(QUIET_SECONDS)
            woken = loop.time()
            if woken > asleep + _LATE_SECONDS:
                before = -1  # The machine is too busy to tell: it was no time to look.
                end = min(end + (woken - asleep), busy_end)

    def release(self) -> None:
        """Let all requests go on which are held, or still come."""
        self._over.set()

    async def hold(self) -> None:
        """Wait until clients know of the end.

        Cancellation: safe.
        """
        await self._over.wait()
