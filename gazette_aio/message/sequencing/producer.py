"""Producer of a journal, as a Sequencer tracks it, and rules of replays and of pruning."""

from __future__ import annotations

import logging
from bisect import bisect_right
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.rules import EVICTED, NONE, RETAINED, LiveBounds
from gazette_aio.protocol.errors import ReplayError

if TYPE_CHECKING:
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.rules import Bounds, PendingAre
    from gazette_aio.message.uuid import ProducerID


_logger = logging.getLogger(__name__)

_slot_of = attrgetter("slot")


class Producer(LiveBounds):
    """Bounds of one producer, and its retained pending messages."""

    __slots__ = ("journal", "producer", "span")

    def __init__(self, journal: str, producer: ProducerID, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.journal: str = journal
        self.producer: ProducerID = producer
        self.span: list[Envelope[Any]] = []
        """The pending messages. The first ones may have been evicted."""

    def take(self, last: Envelope[Any]) -> list[Envelope[Any]]:
        """Remove the pending messages, and return them, followed by `last`."""
        span, self.span = self.span, []
        span.append(last)
        return span

    def trim(self, low: int) -> None:
        """Remove messages numbered up to `low`, which left the ring."""
        if self.span and self.span[0].slot <= low:
            del self.span[: bisect_right(self.span, low, key=_slot_of)]

    def pending(self, low: int) -> PendingAre:
        """Return whether the pending messages are retained, if those up to `low` aren't."""
        if self.begin == -1:
            return NONE
        self.trim(low)
        return RETAINED if self.span and self.span[0].begin == self.begin else EVICTED

    def close(self, clock: int) -> None:
        """Mark messages up to `clock` done, and none pending."""
        super().close(clock)
        self.span = []


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
