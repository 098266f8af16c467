"""Delays between attempts to write to the store of a group."""

from __future__ import annotations

from typing import Final

_DELAYS: Final = (0.0, 0.05, 0.1, 0.1, 1.0, 1.0)
_LAST_DELAY: Final = 5.0


def retry_seconds(attempt: int) -> float:
    """Return the seconds to wait before an attempt, the first of which is 0."""
    return _DELAYS[attempt] if attempt < len(_DELAYS) else _LAST_DELAY
