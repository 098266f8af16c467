"""Time for which a client keeps a broker waiting: only time in which the broker could read counts.

A broker on a starved machine neither reads nor runs its timers. So a wait is checked at intervals,
and the delay of each check is subtracted from its interval: a client isn't charged for time in
which the broker couldn't read. Times are arguments, in seconds of any monotonic clock.
"""

from __future__ import annotations

import math

LOOK_SECONDS = 0.1
"""Interval of checks, in seconds."""


class Patience:
    """Sequence of waits for one client."""

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

    def look(self, due: float, now: float) -> bool:
        """Account for the time since the last check; return whether the wait has lasted too long.

        Args:
            due: Planned time of the check; after `now` if the wait ends before.
            now: The present time.
        """
        late = max(0.0, now - due)
        self.waited += max(0.0, min(now, due) - self._since - late)
        self._since = now
        return self.waited >= self._allowance
