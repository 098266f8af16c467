"""Outcomes of queueing messages, and ranges to replay."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class QueueOutcome(IntEnum):
    """Outcome of queueing a message."""

    OUTSIDE_ALREADY_ACKED = 0
    OUTSIDE_COMMIT = 1
    CONTINUE_ALREADY_ACKED = 2
    CONTINUE_TXN_CLOCK_LARGER = 3
    CONTINUE_BEGIN_SPAN = 4
    CONTINUE_EXTEND_SPAN = 5
    ACK_ROLLBACK = 6
    ACK_EMPTY = 7
    ACK_COMMIT_RING = 8
    ACK_COMMIT_REPLAY = 9

    @property
    def label(self) -> str:
        """Name of the outcome in Gazette's metrics."""
        first, *others = self.name.replace("TXN_CLOCK", "RING_CLOCK").lower().split("_")
        return first + "".join(map(str.capitalize, others))


class ReplayRange(NamedTuple):
    """Content that must be read again to dequeue a commit."""

    journal: str
    begin: int
    end: int
