"""Planned stop of a server, which holds new calls until clients know of the stop.

The gRPC library cancels requests that arrive between the beginning of the stop and the moment when
clients know of it. To clients that's a failure of unknown outcome, which they don't retry. So the
library's stop begins while clients wait for responses, of requests in progress or held ones. Held
requests are served after that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_SECONDS = 0.01
"""Time without a request coming or going from which clients count as waiting."""

_LATE_SECONDS = 2 * QUIET_SECONDS

LONGEST_SECONDS = 0.25
"""Longest wait for that. Some clients never wait for an answer."""

LONGEST_BUSY_SECONDS = 5.0
"""Longest wait on a machine which is too busy to tell."""


class Drain:
    """Holds the requests of a server during its planned stop.

    Args:
        activity: Returns the number of requests begun and ended so far.
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
            longest: Most seconds to wait.

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
        """Release held requests, and stop holding later ones."""
        self._over.set()

    async def hold(self) -> None:
        """Wait until clients know of the end.

        Cancellation: safe.
        """
        await self._over.wait()
