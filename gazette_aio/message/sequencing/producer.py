"""Producer of a journal, as a Sequencer tracks it, and rules of replays and of pruning."""

from __future__ import annotations

import logging
from bisect import bisect_right
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gazette_aio.message.envelopes.uniform_run import JoinedRuns
from gazette_aio.message.sequencing.rules import EVICTED, NONE, RETAINED, LiveBounds
from gazette_aio.protocol.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.uniform_run import UniformRun
    from gazette_aio.message.sequencing.rules import Bounds, PendingAre
    from gazette_aio.message.uuid import ProducerID


_logger = logging.getLogger(__name__)

_slot_of = attrgetter("slot")


class PendingRun(NamedTuple):
    """Pending messages that were queued together."""

    slot: int
    """Slot of the first message. The others have the following slots."""
    run: UniformRun

    def build(self) -> list[Envelope[Any]]:
        """Build the envelopes of the messages, with their slots."""
        rows = list(self.run)
        for slot, row in enumerate(rows, self.slot):
            row.slot = slot
        return rows


class Producer(LiveBounds):
    """Bounds of one producer, and its retained pending messages."""

    __slots__ = ("journal", "parts", "producer", "span")

    def __init__(self, journal: str, producer: ProducerID, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.journal: str = journal
        self.producer: ProducerID = producer
        self.parts: list[PendingRun | list[Envelope[Any]]] = []
        """Pending messages before those of the span. No list is empty."""
        self.span: list[Envelope[Any]] = []
        """The pending messages after the parts; all of them if there are no parts.

        The first pending messages may have been evicted.
        """

    def copy(self) -> Producer:
        """Return a copy with a span of its own."""
        copy = Producer(self.journal, self.producer, (self.min, self.max, self.begin))
        copy.parts = self.parts.copy()
        copy.span = self.span.copy()
        return copy

    def add_run(self, pending: PendingRun) -> None:
        """Add pending messages."""
        if self.span:
            self.parts.append(self.span)
            self.span = []
        self.parts.append(pending)

    def retained(self) -> list[Envelope[Any]]:
        """Return the pending messages."""
        rows: list[Envelope[Any]] = []
        for part in (*self.parts, self.span):
            rows += part.build() if isinstance(part, PendingRun) else part
        return rows

    def take(self, last: Envelope[Any]) -> Sequence[Envelope[Any]]:
        """Remove the pending messages, and return them, followed by `last`."""
        if self.parts:
            return self.take_before([last])
        span = self.span
        self.drop()
        span.append(last)
        return span

    def take_before(self, last: Sequence[Envelope[Any]]) -> Sequence[Envelope[Any]]:
        """Remove the pending messages, and return them, followed by those of `last`."""
        runs = [part.run if isinstance(part, PendingRun) else part for part in self.parts]
        joined = [*runs, self.span, last] if self.span else [*runs, last]
        self.drop()
        return JoinedRuns(joined) if len(joined) > 1 else last

    def drop(self) -> None:
        """Remove the pending messages."""
        self.parts, self.span = [], []

    def trim(self, low: int) -> None:
        """Remove messages numbered up to `low`, which left the ring."""
        if self._first()[0] > low:
            return
        # Hot: the messages of most runs are removed without building them.
        parts = self.parts
        del parts[: bisect_right(parts, low, key=_last_slot)]
        if not parts:
            del self.span[: bisect_right(self.span, low, key=_slot_of)]
            return
        first = parts[0]
        rows = first.build() if isinstance(first, PendingRun) else first
        parts[0] = rows[bisect_right(rows, low, key=_slot_of) :]

    def _first(self) -> tuple[int, int]:
        """Return slot and offset of the first retained message; slot 0 if there is none."""
        if self.parts:
            part = self.parts[0]
            if isinstance(part, PendingRun):
                return part.slot, part.run.begin
            return part[0].slot, part[0].begin
        return (self.span[0].slot, self.span[0].begin) if self.span else (0, -1)

    def pending(self, low: int) -> PendingAre:
        """Return whether the pending messages are retained, if those up to `low` aren't."""
        if self.begin == -1:
            return NONE
        self.trim(low)
        slot, begin = self._first()
        return RETAINED if slot and begin == self.begin else EVICTED

    def close(self, clock: int) -> None:
        """Mark messages up to `clock` done, and none pending."""
        super().close(clock)
        self.drop()


def _last_slot(part: PendingRun | list[Envelope[Any]]) -> int:
    return part.slot + len(part.run) - 1 if isinstance(part, PendingRun) else part[-1].slot


def stale_below(newest: int, horizon_ns: int) -> int:
    """Return the clock below which producers are stale.

    Args:
        newest: Newest `min` of the producers of a journal.
        horizon_ns: Age of stale producers relative to `newest`, in nanoseconds.
    """
    # Invariant: saturates, so that small clocks don't yield a bound that prunes all producers.
    return max(newest - ((horizon_ns // 100) << 4), 0)


def warn_of_stale(journal: str, producer: bytes, begin: int) -> None:
    """Log that a stale producer with pending messages, if any, is forgotten."""
    if begin != -1:
        extra = {"journal": journal, "producer": producer.hex(), "begin": begin}
        _logger.warning("producer with pending messages is stale", extra=extra)


def check_replayed(envelope: Envelope[Any], journal: str, begin: int, end: int) -> None:
    """Raise ReplayError if a message isn't in the range `[begin, end)` of `journal`."""
    if envelope.journal != journal:
        raise ReplayError(f"replay of wrong journal ({envelope.journal}; expected {journal})")
    if envelope.begin < begin:
        raise ReplayError(f"replay has wrong Begin ({envelope.begin}; expected >= {begin})")
    if envelope.end > end:
        raise ReplayError(f"replay has wrong End ({envelope.end}; expected <= {end})")


def as_nanoseconds(duration: timedelta | int) -> int:
    """Return a duration, which may be an int of nanoseconds already, as nanoseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    return duration
