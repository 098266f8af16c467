"""Sequencing of a split: which of its messages commit, in the split or after it.

Pending messages are retained. If they need too much memory, their bytes are dropped, and the rest
of the split is read again after all messages are decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.ranges.committed import CommittedSplit
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.message.sequencing.plan import NO_ROWS, CommitPlan
from gazette_aio.protocol.errors import SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gazette_aio.message.ranges.committed import SplitPlan


class SplitSequencer:
    """Sequences the messages of a split, for an engine which retains them.

    Args:
        plan: Plan of the split.
        max_pending_bytes: Limit of the bytes of pending messages.
        on_excess: Called once when the limit is exceeded.
    """

    def __init__(
        self, plan: SplitPlan, *, max_pending_bytes: int, on_excess: Callable[[], None]
    ) -> None:
        self._split = CommittedSplit(plan)
        self._max_pending_bytes = max_pending_bytes
        self._on_excess = on_excess
        self._waiting = UuidColumns.empty()
        self._counts: list[int] = []  # Rows of each pending chunk.
        self._masks: list[NDArray[np.bool_]] = []
        self.pending_bytes: int = 0
        """Number of bytes of pending messages."""
        self.resume: int = -1
        """Offset of the first message to read again, or -1."""

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the next rows.

        Raises:
            SequencerStateError: The messages differ from those of the plan.
        """
        masks = self._split.decide(batch)
        if self.resume != -1:
            self._masks += masks
            return CommitPlan(batch, NO_ROWS, NO_ROWS, NO_ROWS, batch.rows, None)
        table = self._waiting.concat(batch) if self._waiting.rows else batch
        self._counts.append(batch.rows)
        done = sum(self._counts[: len(masks)])
        del self._counts[: len(masks)]
        rows = np.flatnonzero(np.concatenate(masks)) if masks else NO_ROWS
        self._waiting = table.slice(done)
        self.pending_bytes = int((self._waiting.end - self._waiting.begin).sum())
        carry = np.arange(done, table.rows)
        if self.pending_bytes > self._max_pending_bytes:
            self.resume = int(self._waiting.begin[0])
            self._waiting, self.pending_bytes, carry = UuidColumns.empty(), 0, NO_ROWS
            self._on_excess()
        return CommitPlan(table, rows, rows, carry, batch.rows, None)

    def finish(self) -> MaskSequencer | None:
        """Declare the end of the split, and return the sequencer of the content from `resume` on.

        Raises:
            SequencerStateError: The messages differ from those of the plan.
        """
        self._split.finish()
        if self.resume == -1:
            return None
        return MaskSequencer(np.concatenate(self._masks))


class MaskSequencer:
    """Sequences messages by a mask.

    Args:
        mask: Whether to deliver each message.
    """

    pending_bytes = 0
    """Number of bytes of pending messages: always zero."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self._bits = np.packbits(mask)
        self._rows = len(mask)
        self._at = 0

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the next rows.

        Raises:
            SequencerStateError: There are more messages than in the mask.
        """
        begin, self._at = self._at, self._at + batch.rows
        if self._at > self._rows:
            raise _changed(self._at, self._rows)
        first = begin // 8
        bits = np.unpackbits(self._bits[first : -(-self._at // 8)])
        rows = np.flatnonzero(bits[begin - 8 * first : self._at - 8 * first])
        return CommitPlan(batch, rows, rows, NO_ROWS, batch.rows, None)

    def finish(self) -> None:
        """Declare the end of content.

        Raises:
            SequencerStateError: There were fewer messages than in the mask.
        """
        if self._at != self._rows:
            raise _changed(self._at, self._rows)


def _changed(found: int, expected: int) -> SequencerStateError:
    return SequencerStateError(f"content has {found} messages, but had {expected} before")
