"""Least size of a batch: whether to begin a batch now, or to wait for more content.

Theory of operation. A batch waits until enough bytes or rows are available, but at most for a delay
after the last batch, as in Spark's Kafka source. The time of the last batch is part of the
positions which Spark keeps, so a restarted query neither begins a small batch at once, nor waits
for the whole delay anew. Without a known time, for example because the option is new, the batch
begins at once. It also begins at once if the machine's clock was set back to a time before the last
batch.

A query that must not wait, such as an AvailableNow run, doesn't use this class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from gazette_aio.spark.streaming.offsets import is_recreated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.streaming.offsets import Offsets


@dataclass(frozen=True, slots=True)
class BatchMinimum:
    """Least size of a batch.

    Args:
        least: Bytes or rows from which a batch begins at once.
        unit: What `least` counts.
        delay_ms: Milliseconds after the last batch from which a batch begins with any content.
    """

    least: int
    unit: Literal["bytes", "rows"]
    delay_ms: int

    @classmethod
    def of(cls, options: SourceOptions) -> Self | None:
        """Return the least size in the options; or None if batches don't wait."""
        delay_ms = int(options.max_trigger_delay * 1000)
        if options.min_bytes_per_trigger is not None:
            return cls(options.min_bytes_per_trigger, "bytes", delay_ms)
        if options.min_rows_per_trigger is not None:
            return cls(options.min_rows_per_trigger, "rows", delay_ms)
        return None

    def is_overdue(self, now_ms: int, last_ms: int | None) -> bool:
        """Return whether a batch begins with any content.

        Args:
            now_ms: The time, in milliseconds since 1970.
            last_ms: Time of the last batch; or None if it's unknown.
        """
        return last_ms is None or not 0 <= now_ms - last_ms < self.delay_ms

    def must_wait(self, available: int) -> bool:
        """Return whether a batch which isn't overdue waits for more than `available`."""
        return available < self.least


def unread(start: Offsets, journal: JournalInfo) -> tuple[int, int]:
    """Return the range of a journal's content which isn't read yet; empty if there is none.

    Args:
        start: Positions of the query.
        journal: The journal. Without fragments, expired content counts.
    """
    name, head = journal.name, journal.head
    begin = start.journals.get(name, 0)
    if name in start.journals and is_recreated(start, name, journal.create_revision, head):
        begin = 0
    return min(max(begin, journal.earliest), head), head


def unread_bytes(start: Offsets, journals: Iterable[JournalInfo]) -> int:
    """Return the number of bytes which aren't read yet."""
    return sum(end - begin for begin, end in (unread(start, journal) for journal in journals))
