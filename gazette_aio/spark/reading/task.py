"""Tasks, as planning hands them to executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gazette_aio.message.ranges.committed import SplitPlan
    from gazette_aio.spark.types import Labels

OPEN_BYTES = 1 << 20
"""Bytes which are read in about the time of opening a range."""


@dataclass(frozen=True, slots=True)
class All:
    """Delivers every message of the range."""


@dataclass(frozen=True, slots=True)
class CommittedFrom:
    """Delivers the messages which messages of the range commit.

    Args:
        state: JSON of the `RangeState` at the range's begin. Its offset may be earlier, with no
            messages in between.
        entering: Whether committed messages before the range are delivered too.
    """

    state: str
    entering: bool = True


@dataclass(frozen=True, slots=True)
class CommittedSplitOf:
    """Delivers the messages of the range which are committed, in the range or after it.

    Args:
        plan: Plan of the split, for `CommittedSplit`.
    """

    plan: SplitPlan


Kind: TypeAlias = All | CommittedFrom | CommittedSplitOf


@dataclass(frozen=True, slots=True)
class Task:
    """A range to read. Pickles, and is small.

    Args:
        journal: Name of the journal.
        begin: Begin of the range.
        end: End of the range. The last record may extend beyond it.
        content_type: Content type of the journal.
        labels: Labels of the journal which the rows need.
        head: Write head of the journal at planning. No record extends beyond it.
        kind: Selection of the delivered messages.
        size: Number of bytes to read, without holes.
        is_aligned: Whether a record is known to begin at `begin`. Otherwise the first line of
            newline delimited JSON is found from the byte before.
        acks_end: Offset before which messages of the range may commit, if that's after `end`.
            Content is read up to there while committed messages of the range are pending.
    """

    journal: str
    begin: int
    end: int
    content_type: str
    labels: Labels
    head: int
    kind: Kind
    size: int
    is_aligned: bool
    acks_end: int = 0

    @property
    def weight(self) -> int:
        """Cost of reading, in bytes."""
        return self.size + OPEN_BYTES


Partition: TypeAlias = tuple[Task, ...]
"""Ranges which one task of Spark reads, one after the other."""
