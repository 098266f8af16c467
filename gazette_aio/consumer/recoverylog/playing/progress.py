"""Progress of a playback, and the rate of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_RATE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybackProgress:
    """Progress of a playback."""

    log: str = ""
    """Log being played, or empty before the beginning."""
    offset: int = 0
    """Offset of the log up to which it was played."""
    read_through: int = 0
    """Known end of the log."""
    bytes_played: int = 0
    """Bytes of logs that were played. Bytes that hints let it skip don't count."""
    bytes_total: int = 0
    """Bytes of logs to play, up to their known ends."""
    content_bytes: int = 0
    """Bytes of content that were written to files."""
    bytes_per_second: float = 0.0
    """Rate of the last few seconds."""
    is_tailing: bool = False
    """Whether the end of the log was reached once."""

    @property
    def lag_bytes(self) -> int:
        """Bytes that are still to be played, up to the known ends of logs."""
        return self.bytes_total - self.bytes_played


class RateMeter:
    """Rate of what was counted in the last few seconds.

    Args:
        now: The time, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._then = now
        self._rate = 0.0

    def count(self, amount: int, now: float) -> float:
        """Return the rate per second, after another `amount`."""
        elapsed = now - self._then
        if elapsed <= 0:
            return self._rate
        self._then = now
        weight = -math.expm1(-elapsed / _RATE_SECONDS)
        self._rate += weight * (amount / elapsed - self._rate)
        return self._rate
