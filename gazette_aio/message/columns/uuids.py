"""UUIDs of messages as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelopes.envelope import Envelope

Indices = NDArray[np.int64]


class UuidColumns(NamedTuple):
    """UUIDs and offsets of messages of one journal, in the order they were read."""

    producer: NDArray[np.uint64]
    """Producer IDs: 48 bits, as big-endian numbers."""
    clock: NDArray[np.uint64]
    """Clocks."""
    flags: NDArray[np.uint16]
    """Flags."""
    begin: NDArray[np.int64]
    """Offset of the first byte of each frame."""
    end: NDArray[np.int64]
    """Offset after the last byte of each frame, framing included."""

    @property
    def rows(self) -> int:
        """Number of messages."""
        return len(self.clock)

    def take(self, indices: Indices) -> UuidColumns:
        """Return the messages at `indices`."""
        return UuidColumns._make([column[indices] for column in self])

    def slice(self, start: int, stop: int | None = None) -> UuidColumns:
        """Return the messages from `start` up to `stop`, as views."""
        producer, clock, flags, begin, end = self
        at = slice(start, stop)
        return UuidColumns(producer[at], clock[at], flags[at], begin[at], end[at])

    def concat(self, *others: UuidColumns) -> UuidColumns:
        """Return these messages, followed by those of `others`."""
        return UuidColumns._make(map(np.concatenate, zip(self, *others, strict=True)))

    @classmethod
    def of(cls, envelopes: Sequence[Envelope[object]]) -> UuidColumns:
        """Return the columns of envelopes."""
        return cls(
            np.array([int.from_bytes(e.producer) for e in envelopes], np.uint64),
            np.array([e.clock for e in envelopes], np.uint64),
            np.array([e.flags for e in envelopes], np.uint16),
            np.array([e.begin for e in envelopes], np.int64),
            np.array([e.end for e in envelopes], np.int64),
        )
