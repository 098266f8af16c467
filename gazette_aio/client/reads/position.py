"""Position of a read within its journal."""

from __future__ import annotations


class ReadPosition:
    """Offset of the next byte to be returned, and the offset at which the read ends.

    Args:
        offset: Offset of the next byte; -1 for the write head, until it's known.
        end: Offset to end at, or 0 for none.
    """

    def __init__(self, offset: int, end: int = 0) -> None:
        self.offset = offset
        self.end = end

    @property
    def is_at_end(self) -> bool:
        """Whether the end was reached, or lies in a hole that was skipped."""
        return 0 < self.end <= self.offset

    def bounded(self, limit: int) -> int:
        """Return how many bytes may be taken up to the end, or -1 for any number.

        Args:
            limit: Most bytes wanted, or -1.
        """
        if not self.end:
            return limit
        remaining = max(self.end - self.offset, 0)
        return min(limit, remaining) if limit >= 0 else remaining
