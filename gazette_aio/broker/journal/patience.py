"""Time for which a client keeps a broker waiting: only what the broker was there to see counts.

A broker on a starved machine neither reads nor runs its timers. So a wait is looked at again and
again, and an interval counts for less, down to nothing, by as much as the look at its end is late:
a client isn't charged for time within which the broker couldn't have read what it sent. Times are
arguments, in seconds of any monotonic clock.
"""

from __future__ import annotations

import math

LOOK_SECONDS = 0.1
"""Interval of looks."""


class Patience:
    """One wait after the other."""

    __slots__ = ("_allowance", "_since", "waited")

    def __init__(self) -> None:
        self.waited: float = 0.0
        """Time of the present or last wait which counts."""
        self._allowance = math.inf
        self._since = 0.0

    def begin(self, now: float, allowance: float) -> None:
        """Begin a wait of `allowance` seconds at most, which may be infinite."""
        self.waited = 0.0
        self._allowance = allowance
        self._since = now

    def next_look(self, now: float) -> float:
        """Return when to look again, or infinity if there's no need to."""
        return math.inf if self._allowance == math.inf else now + LOOK_SECONDS

    def look(self, due: float, now: float) -> bool:
        """Account for the time since the last look; return whether the wait has lasted too long.

        Args:
            due: When the look was to be. Later than `now` if the wait ends before.
            now: The present time.
        """
        late = max(0.0, now - due)
        self.waited += max(0.0, min(now, due) - self._since - late)
        self._since = now
        return self.waited >= self._allowance
