"""What a Sequencer tracks of one producer of one journal."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gazette_aio.protocol.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.uuid import ProducerID


_logger = logging.getLogger(__name__)


class Producer:
    """Bounds, and the retained messages of the open span, of one producer."""

    __slots__ = ("begin", "journal", "max", "min", "producer", "span")

    def __init__(self, journal: str, producer: ProducerID, clock: int, begin: int = -1) -> None:
        self.journal = journal
        self.producer = producer
        self.min = clock
        """Messages with clocks up to this are done."""
        self.max = clock
        """Largest clock of the open span, or `min`."""
        self.begin = begin
        """Offset of the first message of the open span, or -1."""
        self.span: list[Envelope[Any]] = []
        """Messages of the open span, without those which were evicted first."""

    def copy(self) -> Producer:
        """Return one of the same state, whose span may be changed apart from this one's."""
        copy = Producer(self.journal, self.producer, self.min, self.begin)
        copy.max = self.max
        copy.span = self.span.copy()
        return copy

    def trim(self, low: int) -> None:
        """Rid the span of messages which left the ring: those numbered up to `low`."""
        evicted = 0
        for envelope in self.span:
            if envelope.slot > low:
                break
            evicted += 1
        if evicted:
            del self.span[:evicted]

    def close(self) -> None:
        """End the open span."""
        self.max = self.min
        self.begin = -1
        self.span.clear()


def stale_producers(producers: Iterable[Producer], horizon_ns: int) -> list[Producer]:
    """Return producers whose largest clock is older than the newest `min`, by more than a horizon.

    Args:
        producers: Producers of one journal.
        horizon_ns: The horizon in nanoseconds.
    """
    tracked = list(producers)
    newest = max((state.min for state in tracked), default=0)
    # Invariant: saturates, so that small clocks don't make a bound which prunes everything.
    bound = max(newest - ((horizon_ns // 100) << 4), 0)
    stale = [state for state in tracked if state.max < bound]
    for state in stale:
        if state.begin != -1:
            extra = {
                "journal": state.journal,
                "producer": state.producer.hex(),
                "begin": state.begin,
            }
            _logger.warning("producer with pending messages is stale", extra=extra)
    return stale


def check_replayed(envelope: Envelope[Any], journal: str, begin: int, end: int) -> None:
    """Raise ReplayError if a message isn't of the range `[begin, end)` of `journal`."""
    if envelope.journal != journal:
        raise ReplayError(f"replay of wrong journal ({envelope.journal}; expected {journal})")
    if envelope.begin < begin:
        raise ReplayError(f"replay has wrong Begin ({envelope.begin}; expected >= {begin})")
    if envelope.end > end:
        raise ReplayError(f"replay has wrong End ({envelope.end}; expected <= {end})")


def as_nanoseconds(duration: timedelta | int) -> int:
    """Return a duration, which may be given as nanoseconds already."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    return duration
